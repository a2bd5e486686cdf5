//! Damages: what is done to which file, drawn from a number, and how it is done.

use super::build::Database;
use super::files::{File, Files};
use varve_device::{Device, write_at};
use varve_rt::Rng;

/// The unit of damage in `log` and `fast`; in `data` it is a page.
const BLOCK: u64 = 4096;

/// Of the blank blocks one in so many is damaged.
const BLANK_ONE_IN: u64 = 16;
/// Blows to each file as a whole.
const WHOLE_FILE: u32 = 16;
/// Blows to the block of the log's last group and the two before it.
const LAST_GROUP: usize = 30;

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    /// A bit of the byte at this offset flips.
    Flip { at: u64, bit: u8 },
    /// The block at this offset becomes zeros.
    Zero { at: u64 },
    /// It becomes noise.
    Noise { at: u64 },
    /// It becomes what it was at an earlier moment.
    Older { at: u64, moment: usize },
    /// It becomes what another block is.
    Other { at: u64, from: u64 },
    /// The file is cut.
    Cut { len: u64 },
    /// The file becomes what it was at an earlier moment.
    OldFile { moment: usize },
    /// The file becomes another database's.
    Foreign,
}

/// Names of the kinds, in the order of the histogram.
pub(super) const KINDS: [&str; 8] =
    ["bit flip", "zeros", "noise", "older copy", "other block", "cut", "older file", "foreign file"];

impl Blow {
    /// Index in [`KINDS`].
    pub(super) fn kind(self) -> usize {
        match self {
            Blow::Flip { .. } => 0,
            Blow::Zero { .. } => 1,
            Blow::Noise { .. } => 2,
            Blow::Older { .. } => 3,
            Blow::Other { .. } => 4,
            Blow::Cut { .. } => 5,
            Blow::OldFile { .. } => 6,
            Blow::Foreign => 7,
        }
    }
}

/// A damage: a file and what is done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) file: File,
    pub(super) blow: Blow,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.file.name();
        match self.blow {
            Blow::Flip { at, bit } => write!(f, "{file}: bit {bit} of byte {at} flipped"),
            Blow::Zero { at } => write!(f, "{file}: block at {at} zeroed"),
            Blow::Noise { at } => write!(f, "{file}: block at {at} overwritten by noise"),
            Blow::Older { at, moment } => write!(f, "{file}: block at {at} as it was at moment {moment}"),
            Blow::Other { at, from } => write!(f, "{file}: block at {at} overwritten by that at {from}"),
            Blow::Cut { len } => write!(f, "{file}: cut to {len} bytes"),
            Blow::OldFile { moment } => write!(f, "{file}: replaced by that of moment {moment}"),
            Blow::Foreign => write!(f, "{file}: replaced by another database's"),
        }
    }
}

/// The bytes of a block of `file`.
fn block(database: &Database, file: File) -> u64 {
    if file == File::Data { database.shape.page_size as u64 } else { BLOCK }
}

impl Damage {
    /// Every block with every kind of blow, and every blow to a whole file several times, in an order drawn from the
    /// seed.
    pub(super) fn all(database: &Database) -> Vec<Damage> {
        let mut rng = Rng::from_seed(database.shape.seed ^ 0xa11);
        let mut all = Vec::new();
        for file in File::ALL.into_iter().filter(|file| database.files.get(*file).is_some()) {
            let step = block(database, file);
            for at in (0..database.files.len(file)).step_by(step as usize) {
                let used = database.files.bytes(file, at, step as usize).iter().any(|b| *b != 0);
                // What is blank has few ways to be damaged, and is not read.
                let kinds = if used { 0..5 } else { 2..2 + usize::from(rng.one_in(BLANK_ONE_IN)) };
                all.extend(kinds.filter_map(|kind| draw_block(database, file, at, kind, &mut rng)));
            }
            for _ in 0..WHOLE_FILE {
                all.extend(whole_file(database, file, &mut rng).map(|blow| Damage { file, blow }));
            }
        }
        all.extend((0..LAST_GROUP).filter_map(|n| last_group(database, n % 5, &mut rng)));
        rng.shuffle(&mut all);
        all
    }

    /// A damage anywhere.
    pub(super) fn draw(database: &Database, rng: &mut Rng) -> Damage {
        let files: Vec<File> = File::ALL.into_iter().filter(|file| database.files.get(*file).is_some()).collect();
        loop {
            let file = files[rng.below(files.len() as u64) as usize];
            let drawn = if rng.one_in(12) {
                whole_file(database, file, rng).map(|blow| Damage { file, blow })
            } else {
                let step = block(database, file);
                let at = rng.below((database.files.len(file) / step).max(1)) * step;
                let kind = rng.below(5) as usize;
                draw_block(database, file, at, kind, rng)
            };
            if let Some(damage) = drawn {
                return damage;
            }
        }
    }

    /// Whether it puts an older page in the place of a newer one that covers the same keys: nothing but a memory of
    /// versions could tell.
    pub(super) fn is_plausible(&self, database: &Database) -> bool {
        let Blow::Older { at, moment } = self.blow else { return false };
        let step = block(database, self.file) as usize;
        let bytes = |files: &Files| files.bytes(self.file, at, step);
        let (old, new) = (what_covers(&bytes(&database.moments[moment].files)), what_covers(&bytes(&database.files)));
        self.file != File::Log && old.is_some() && old == new
    }

    /// Does it to `files`, a copy of the database's. `seed` is for noise.
    pub(super) fn strike(&self, database: &Database, foreign: &Files, files: &mut Files, seed: u64) {
        let file = self.file;
        let step = block(database, file) as usize;
        let device = files.get(file).expect("drawn from the files that there are").clone();
        let write = |at: u64, bytes: &[u8]| write_at(&*device, at, bytes, true).expect("memory takes every write");
        match self.blow {
            Blow::Flip { at, bit } => device.flip_bit(at, bit),
            Blow::Zero { at } => write(at, &vec![0; step]),
            Blow::Noise { at } => {
                let mut noise = vec![0; step];
                Rng::from_seed(seed).fill_bytes(&mut noise);
                write(at, &noise);
            }
            Blow::Older { at, moment } => write(at, &database.moments[moment].files.bytes(file, at, step)),
            Blow::Other { at, from } => write(at, &database.files.bytes(file, from, step)),
            Blow::Cut { len } => device.set_len(len).expect("memory takes every length"),
            Blow::OldFile { moment } => files.swap(file, &database.moments[moment].files),
            Blow::Foreign => files.swap(file, foreign),
        }
    }
}

/// Type, page, keyspace, level and fences of a page, as `docs/format.md` has them; none where there is no page.
fn what_covers(page: &[u8]) -> Option<(u8, u64, u32, Vec<u8>)> {
    let short = |at: usize| usize::from(u16::from_le_bytes([page[at], page[at + 1]]));
    let magic = u16::from_le_bytes([page[4], page[5]]);
    let id = u64::from_le_bytes(page[8..16].try_into().expect("8 bytes"));
    let keyspace = u32::from_le_bytes(page[24..28].try_into().expect("4 bytes"));
    let mut range = Vec::new();
    if matches!(page[7], 2 | 3) {
        range.push(page[56]);
        for at in [46, 50] {
            let (from, len) = (short(at), short(at + 2));
            range.extend_from_slice(&page[at + 2..at + 4]);
            range.extend_from_slice(page.get(from..from + len).unwrap_or_default());
        }
    }
    (magic == 0x5641).then_some((page[7], id, keyspace, range))
}

/// A blow of a kind to the block at `at`; nothing where it would change nothing.
fn draw_block(database: &Database, file: File, at: u64, kind: usize, rng: &mut Rng) -> Option<Damage> {
    let step = block(database, file);
    let now = database.files.bytes(file, at, step as usize);
    let blow = match kind {
        0 => {
            // Headers are short and matter most.
            let byte = if rng.one_in(3) { rng.below(64) } else { rng.below(step) };
            Blow::Flip { at: at + byte, bit: rng.below(8) as u8 }
        }
        1 => Blow::Zero { at },
        2 => Blow::Noise { at },
        3 => {
            let differs = |moment: &usize| {
                let files = &database.moments[*moment].files;
                at + step <= files.len(file) && files.bytes(file, at, step as usize) != now
            };
            let moments: Vec<usize> = (0..database.moments.len()).filter(differs).collect();
            let moment = *moments.get(rng.below(moments.len().max(1) as u64) as usize)?;
            Blow::Older { at, moment }
        }
        _ => {
            let from = rng.below(database.files.len(file) / step) * step;
            (database.files.bytes(file, from, step as usize) != now).then_some(Blow::Other { at, from })?
        }
    };
    let blank = now.iter().all(|b| *b == 0);
    (!(blank && kind == 1)).then_some(Damage { file, blow })
}

/// A blow to one of the log's last blocks.
fn last_group(database: &Database, kind: usize, rng: &mut Rng) -> Option<Damage> {
    let at = (database.last_group / BLOCK).saturating_sub(rng.below(3)).max(2) * BLOCK;
    draw_block(database, File::Log, at, kind, rng)
}

/// A blow to a file as a whole.
fn whole_file(database: &Database, file: File, rng: &mut Rng) -> Option<Blow> {
    let (len, step) = (database.files.len(file), block(database, file));
    match rng.below(10) {
        0 => Some(Blow::Foreign),
        1..=4 => {
            let half = (len / 2).next_multiple_of(step);
            Some(Blow::Cut { len: [0, step, half, len - step][rng.below(4) as usize] })
        }
        _ => {
            let moment = rng.below(database.moments.len() as u64) as usize;
            let old = &database.moments[moment].files;
            let others = File::ALL.into_iter().filter(|other| *other != file);
            // A whole older set of files is a valid database, and nothing can tell.
            let a_valid_set = others.clone().all(|other| database.files.same(other, old));
            (!a_valid_set && !database.files.same(file, old)).then_some(Blow::OldFile { moment })
        }
    }
}
