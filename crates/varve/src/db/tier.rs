//! The tier in the life of a database: whether there is one, what its loss would mean, and how it comes up and goes down.
//!
//! The superblock's options say whether the database has a tier, and whether pages there may be newer than home. Invariant:
//! that mark is durable before the first page is written to the fast device alone, and goes only after all pages are home. A fast device
//! that failed and held copies only is marked as forsaken before anything is promised without it: the next opening makes a new tier on it.
//!
//! The fast device bears the generation of the database as its stamp: after the data device has said that a new one is intended, before the
//! log's superblock says it. One of another generation is refused, or emptied where it held copies only.

use super::devices::Devices;
use super::options::{Layout, Options};
use crate::error::{Error, Result};
use crate::space::{Core, PoolPages, Space};
use crate::wal::recovery::ReplayPages;
use crate::wal::{Companion, Generation, Log, LogState};
use std::cmp::Ordering;
use std::sync::{Arc, Weak};
use varve_device::{AlignedBuf, Device};
use varve_volume::tier::manager::DirtyWrites;
use varve_volume::tier::{Keeper, Stamp, Tier, TierOptions};
use varve_volume::{Lsn, PageStore, ReadWhy, Single, VolumeError, read_pages};

/// First byte of a mark.
const TIER: u8 = 1;
/// First byte of the mark of a tier that is to be made anew. (To earlier releases there is no tier then, which is safe.)
const FORSAKEN: u8 = 2;
/// Flags of a mark.
const BACK: u8 = 1;
const STAMPED: u8 = 2;
/// Length of a mark: kind, flags, slots, newer pages.
const LENGTH: usize = 18;
/// Number of newer pages when nobody knows it: after a crash.
const UNKNOWN: u64 = u64::MAX;

/// What the superblock says of the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Pages on the fast device may be newer than home.
    back: bool,
    /// The fast device bears a generation; not yet in databases of older releases.
    stamped: bool,
    /// What the fast device holds is not to be used again.
    forsaken: bool,
    slots: u64,
    /// Pages newer than home at the last clean close.
    newer: u64,
}

impl Mark {
    /// The mark in the superblock's options; none: there is no tier.
    pub fn decode(options: &[u8]) -> Option<Mark> {
        let number = |at: usize| u64::from_le_bytes(options[at..at + 8].try_into().expect("8 bytes"));
        (options.len() >= LENGTH && matches!(options[0], TIER | FORSAKEN)).then(|| Mark {
            back: options[1] & BACK != 0,
            stamped: options[1] & STAMPED != 0,
            forsaken: options[0] == FORSAKEN,
            slots: number(2),
            newer: number(10),
        })
    }

    fn encode(self) -> Vec<u8> {
        let flags = if self.back { BACK } else { 0 } | if self.stamped { STAMPED } else { 0 };
        let mut bytes = vec![if self.forsaken { FORSAKEN } else { TIER }, flags];
        bytes.extend_from_slice(&self.slots.to_le_bytes());
        bytes.extend_from_slice(&self.newer.to_le_bytes());
        bytes
    }

    fn of(tier: &Tier, back: bool, stamped: bool) -> Mark {
        let newer = if back { UNKNOWN } else { 0 };
        Mark { back, stamped, forsaken: tier.forsaken(), slots: tier.tier_stats().slots, newer }
    }

    /// The mark in the superblock.
    fn now(log: &Log) -> Option<Mark> {
        Mark::decode(&log.header().options)
    }

    /// Pages may be newer on the fast device than anywhere else: not if there were none at the last clean close, or never.
    fn only_there(&self) -> bool {
        self.back && self.newer != 0
    }
}

/// Whether the manager leaves the newest version of pages on the fast device alone.
fn writes_back(options: &TierOptions) -> bool {
    let entry = varve_volume::tier::manager::find(&options.manager).expect("validated before");
    (entry.make)(&options.options).style().dirty == DirtyWrites::Back
}

/// The tier's options, with the mistake that is asked for.
fn of_options(options: &Options) -> TierOptions {
    TierOptions { broken: options.broken, ..options.tier.clone() }
}

/// Names of the tier managers there are.
pub fn tier_managers() -> Vec<&'static str> {
    varve_volume::tier::manager::REGISTRY.iter().map(|e| e.name).collect()
}

/// The page store of a database, and the tier in it.
pub(super) struct Stack {
    pub store: Arc<dyn PageStore>,
    pub tier: Option<Arc<Tier>>,
    /// Pages are to be copied home, and the mark put right, when the database has recovered.
    pub settle: bool,
    /// The tier began empty, because the fast device was of another time: which.
    pub emptied: Option<String>,
}

impl Stack {
    fn single(store: Arc<Single>) -> Stack {
        Stack { store, tier: None, settle: false, emptied: None }
    }

    fn over(tier: Arc<Tier>, settle: bool) -> Stack {
        Stack { store: Arc::new(tier.clone()), tier: Some(tier), settle, emptied: None }
    }
}

/// Makes the store of a new database; returns the superblock's options too.
pub(super) fn create(
    devices: &Devices,
    layout: &Layout,
    options: &Options,
    (owner, generation): ([u8; 16], Generation),
) -> Result<(Stack, Vec<u8>)> {
    let single = Single::new(devices.data.clone(), layout.page_size)?;
    let Some(fast) = &devices.fast else { return Ok((Stack::single(single), Vec::new())) };
    if fast.len() < layout.fast_bytes {
        fast.set_len(layout.fast_bytes)?;
    }
    let tier = Tier::create(single, fast.clone(), owner, of_options(options))?;
    tier.stamp(stamp(generation))?;
    let mark = Mark::of(&tier, writes_back(&options.tier), true);
    Ok((Stack::over(tier, false), mark.encode()))
}

/// Opens the store of a database whose superblock was read. `admits` says of which generations its fast device may be.
pub(super) fn open(
    devices: &Devices,
    (log, state): (&Log, &LogState),
    admits: &dyn Fn(Generation) -> bool,
    options: &Options,
) -> Result<Stack> {
    let single = Single::new(devices.data.clone(), state.header.page_size as usize)?;
    let fast = devices.fast.as_ref().filter(|_| !options.without_tier);
    match (Mark::decode(&state.header.options), fast) {
        (None, None) => Ok(Stack::single(single)),
        (None, Some(fast)) if options.attach_tier && !options.read_only => anew(single, fast, (log, state), options),
        (None, Some(fast)) => Err(Error::Invalid(format!(
            "the database has no tier, but there is a fast device for one ({}): attach it with `varve tier attach`, or open once with `--without-tier` to forget it",
            fast.info().name
        ))),
        (Some(mark), None) => {
            without(mark, options)?;
            if !options.read_only {
                log.set_options(Vec::new())?;
            }
            Ok(Stack::single(single))
        }
        (Some(mark), Some(fast)) if mark.forsaken => anew(single, fast, (log, state), options),
        (Some(mark), Some(fast)) => {
            let back = writes_back(&options.tier);
            let tier = Tier::open(single.clone(), fast.clone(), state.header.uuid, of_options(options))?;
            if let Some(why) = of_another_time(&tier, mark, state.generation, admits) {
                if mark.only_there() {
                    return Err(Error::Mismatch(why));
                }
                if !options.read_only {
                    log.set_options(Mark { forsaken: true, ..mark }.encode())?;
                }
                return Ok(Stack { emptied: Some(why), ..anew(single, fast, (log, state), options)? });
            }
            if !options.read_only && mark.stamped {
                // A crash may have left it one ahead: the next crash must find it where the log is, or where `data` will be.
                tier.stamp(stamp(state.generation))?;
            }
            if !options.read_only && (back || mark.back) {
                log.set_options(Mark::of(&tier, true, mark.stamped).encode())?;
            }
            Ok(Stack::over(tier, mark.back && !back && !options.read_only))
        }
    }
}

/// An empty tier on a fast device, whatever it holds; for reading, the database does without.
fn anew(
    single: Arc<Single>,
    fast: &Arc<dyn Device>,
    (log, state): (&Log, &LogState),
    options: &Options,
) -> Result<Stack> {
    if options.read_only {
        return Ok(Stack::over(Tier::without(single, of_options(options))?, false));
    }
    let tier = Tier::create(single, fast.clone(), state.header.uuid, of_options(options))?;
    tier.stamp(stamp(state.generation))?;
    log.set_options(Mark::of(&tier, writes_back(&options.tier), state.identity.is_some()).encode())?;
    Ok(Stack::over(tier, false))
}

fn stamp(Generation { number, tie }: Generation) -> Stamp {
    Stamp { number, tie }
}

/// Why a fast device does not belong to a log of that generation, if it does not.
fn of_another_time(tier: &Tier, mark: Mark, log: Generation, admits: &dyn Fn(Generation) -> bool) -> Option<String> {
    tier.fast().filter(|_| mark.stamped)?;
    let Stamp { number, tie } = tier.stamped().unwrap_or_default();
    if admits(Generation { number, tie }) {
        return None;
    }
    let of = log.number;
    Some(match number.cmp(&of) {
        Ordering::Less => format!("the fast device is older (generation {number}) than the log ({of})"),
        Ordering::Greater => format!("`data` and log are older (generation {of}) than the fast device ({number})"),
        Ordering::Equal => {
            format!(
                "the fast device and the log are of copies of the database that went different ways (generation {of})"
            )
        }
    })
}

/// The fast device bears the generation from here on: an opening may rely on it.
pub(super) fn note_stamped(log: &Log) -> Result<()> {
    match Mark::now(log) {
        Some(mark) if !mark.stamped => log.set_options(Mark { stamped: true, ..mark }.encode()),
        _ => Ok(()),
    }
}

/// What stamps the fast device with each generation. (The tier knows the log already.)
struct Bearer(Weak<Tier>);

impl Companion for Bearer {
    fn intend(&self, next: Generation, _: Generation, _: Lsn) -> Result<()> {
        let tier = self.0.upgrade().ok_or(Error::Closed)?;
        Ok(tier.stamp(stamp(next))?)
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }
}

/// Whether the database may be opened without its fast device; the error names what would be lost.
fn without(mark: Mark, options: &Options) -> Result<()> {
    if mark.only_there() {
        let count = match mark.newer {
            UNKNOWN => format!("up to {} pages", mark.slots),
            n => format!("{n} pages (of {} slots, at the last clean close)", mark.slots),
        };
        return Err(Error::TierMissing(format!(
            "it holds the newest version of {count}, which are older or nowhere in the slow device: bring it back, or restore a backup"
        )));
    }
    match options.without_tier {
        true => Ok(()),
        false => Err(Error::TierMissing(
            "nothing is lost with it, every page has its newest version at home: open with `--without-tier` to go on without it"
                .into(),
        )),
    }
}

/// Has the database answer for what the tier cannot promise any more, and the fast device bear its generations.
pub(super) fn answer_for(tier: &Arc<Tier>, log: &Arc<Log>) {
    tier.answer_to(Arc::new(Answer { log: log.clone() }));
    log.accompany(Arc::new(Bearer(Arc::downgrade(tier))));
}

struct Answer {
    log: Arc<Log>,
}

impl Keeper for Answer {
    fn broken(&self, cause: &VolumeError) {
        self.log.poison(&format!("write or flush of the tier: {cause}"));
    }

    fn forsake(&self) -> std::result::Result<(), VolumeError> {
        let Some(mark) = Mark::now(&self.log) else { return Ok(()) };
        self.log.set_options(Mark { forsaken: true, ..mark }.encode()).map_err(|e| {
            self.log.poison(&format!("the fast device failed, and that could not be noted: {e}"));
            VolumeError::Options(format!("the fast device failed, and that could not be noted: {e}"))
        })
    }
}

/// After recovery: pages that are free by the log need no slot. Torn ones would never be written again, nor could they go home.
pub(super) fn forget_free(tier: &Arc<Tier>, space: &Space) -> Result<()> {
    let free: Vec<_> = tier.doubtful().into_iter().filter(|page| space.is_free(*page)).collect();
    if !free.is_empty() {
        tier.discard(&free)?;
    }
    Ok(())
}

/// Once it is known which pages hold marks (`space::lost_writes`): of those that only the fast device has, torn ones are
/// given up. They are written without the log, which cannot mend them, and their twins are whole. The same for pages that
/// became free while the database was opened.
pub(super) fn forget_torn(tier: &Arc<Tier>, core: &Core) -> Result<()> {
    let is_marks = |page| core.lost_writes.as_ref().is_some_and(|marks| marks.is_ours(page));
    let mut buf = AlignedBuf::new(core.page_size());
    let mut torn = Vec::new();
    for page in tier.doubtful() {
        if core.space.is_free(page) || is_marks(page) {
            let read = read_pages(tier, page, ReadWhy::Demand, &mut buf).swap_remove(0);
            torn.extend(matches!(read, Err(VolumeError::Damaged { .. })).then_some(page));
        }
    }
    if torn.is_empty() { Ok(()) } else { Ok(tier.discard(&torn)?) }
}

/// Copies home what only the fast device has.
pub(super) fn flush(tier: &Tier) -> Result<()> {
    Ok(tier.all_home()?)
}

/// After recovery: everything goes home, as the manager of now never leaves anything newer on the fast device.
pub(super) fn settle(tier: &Tier, log: &Log, pages: &PoolPages) -> Result<()> {
    // Torn versions are written again by the pool, from the log: those first.
    pages.write_back()?;
    flush(tier)?;
    let stamped = Mark::now(log).is_some_and(|mark| mark.stamped);
    log.set_options(Mark::of(tier, false, stamped).encode())
}

/// After the clean close: how much only the fast device has.
pub(super) fn closed(tier: &Tier, log: &Log, options: &Options) -> Result<()> {
    // Without this map the next opening takes more pages for newer than there are, which is safe.
    let _ = tier.save_map();
    let newer = tier.tier_stats().newer;
    log.set_options(Mark { newer, ..Mark::of(tier, writes_back(&options.tier), true) }.encode())
}
