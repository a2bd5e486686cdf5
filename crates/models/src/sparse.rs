//! Bytes by offset, sparse and cheap to clone: what a modelled device stores.
//!
//! Pure but for the optional backing file: no locks, no clock. Bytes never written read as zeros and take no memory.
//! Storage is a tree of two levels: groups of 512 chunks of 16 KiB, all shared by `Arc` between clones and copied when
//! one of them writes. So a loaded layout of tens of gigabytes is cloned in microseconds, once per experiment point.
//!
//! With a backing file at most `limit` chunks are held in memory; the oldest beyond that go to the file, which has no
//! name and vanishes with the last store that uses it. A place in the file is written once while anybody refers to it;
//! only the store that made the file writes to it, so clones need no lock. The file is memory of another kind: the time
//! it takes is real, never virtual.
//!
//! Invariants: `young` holds each chunk in memory at least once, oldest first; it may hold more. A place of the file is
//! free or one chunk's (and its clones'), and ends at or before `end`.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a chunk, the unit of copying.
pub const CHUNK: usize = 16 << 10;
const GROUP: usize = 512;

/// A place in a backing file. Nobody writes it while two refer to it.
#[derive(Debug)]
struct Slot {
    file: Arc<File>,
    at: u64,
}

#[derive(Clone, Debug, Default)]
enum Chunk {
    /// Zeros.
    #[default]
    Hole,
    Memory(Arc<[u8]>),
    Spilled(Arc<Slot>),
}

#[derive(Clone, Debug)]
struct Group(Box<[Chunk]>);

impl Default for Group {
    fn default() -> Group {
        Group(vec![Chunk::Hole; GROUP].into())
    }
}

/// Where chunks go that do not fit in memory.
#[derive(Debug)]
struct Spill {
    file: Arc<File>,
    /// Places that nobody refers to any more.
    free: Vec<u64>,
    /// End of the places given out.
    end: u64,
    /// Chunks that may stay in memory.
    limit: usize,
    young: VecDeque<u64>,
}

/// A sparse store of bytes. Cloning it copies no data.
#[derive(Debug, Default)]
pub struct Sparse {
    groups: Vec<Option<Arc<Group>>>,
    spill: Option<Spill>,
}

impl Clone for Sparse {
    /// A second store with the same bytes, in memory: it reads what the first one spilled, and spills nothing itself.
    fn clone(&self) -> Sparse {
        Sparse { groups: self.groups.clone(), spill: None }
    }
}

impl Sparse {
    /// A store of zeros, in memory.
    pub fn new() -> Sparse {
        Sparse::default()
    }

    /// A store of zeros that keeps about `memory` bytes in memory and the rest in a nameless file in `dir`. Errors of
    /// the file later on are panics: they are the loss of what stands for memory.
    pub fn backed(dir: &Path, memory: u64) -> std::io::Result<Sparse> {
        let mut store = Sparse::new();
        store.back(dir, memory)?;
        Ok(store)
    }

    /// Gives a store (a clone, say) a backing file of its own; see [`Sparse::backed`].
    pub fn back(&mut self, dir: &Path, memory: u64) -> std::io::Result<()> {
        let path = dir.join(format!("varve-model-{}-{:x}", std::process::id(), varve_rt::rng().next_u64()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        let limit = (memory / CHUNK as u64).max(1) as usize;
        let young = self.chunks().filter(|(_, c)| matches!(c, Chunk::Memory(_))).map(|(i, _)| i).collect();
        self.spill = Some(Spill { file: Arc::new(file), free: Vec::new(), end: 0, limit, young });
        self.shrink();
        Ok(())
    }

    /// Bytes of the chunks that hold something, in memory or in the file, shared ones included.
    pub fn resident(&self) -> u64 {
        self.chunks().filter(|(_, c)| !matches!(c, Chunk::Hole)).count() as u64 * CHUNK as u64
    }

    /// Of these, bytes in memory.
    pub fn in_memory(&self) -> u64 {
        self.chunks().filter(|(_, c)| matches!(c, Chunk::Memory(_))).count() as u64 * CHUNK as u64
    }

    /// Fills `buf` with the bytes at `offset`.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        for_chunks(offset, buf.len(), |index, at, range| {
            let part = &mut buf[range];
            match self.chunk(index) {
                Chunk::Hole => part.fill(0),
                Chunk::Memory(bytes) => part.copy_from_slice(&bytes[at..at + part.len()]),
                Chunk::Spilled(slot) => read_slot(slot, at, part),
            }
        });
    }

    /// Whether the range takes no memory; its bytes are zeros then.
    pub fn is_hole(&self, offset: u64, len: usize) -> bool {
        let mut hole = true;
        for_chunks(offset, len, |index, _, _| hole &= matches!(self.chunk(index), Chunk::Hole));
        hole
    }

    /// Stores `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for_chunks(offset, data.len(), |index, at, range| {
            let part = &data[range];
            if matches!(self.chunk(index), Chunk::Hole) && part.iter().all(|b| *b == 0) {
                return;
            }
            self.writable(index)[at..at + part.len()].copy_from_slice(part);
        });
        self.shrink();
    }

    /// Sets `len` bytes at `offset` to zero; whole chunks are given back.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min((self.groups.len() * GROUP * CHUNK) as u64);
        let mut at = offset;
        while at < end {
            let index = at / CHUNK as u64;
            let next = ((index + 1) * CHUNK as u64).min(end);
            if !matches!(self.chunk(index), Chunk::Hole) {
                let start = (at % CHUNK as u64) as usize;
                if next - at == CHUNK as u64 {
                    let old = std::mem::take(self.chunk_mut(index));
                    self.reuse(old);
                } else {
                    self.writable(index)[start..start + (next - at) as usize].fill(0);
                }
            } else if at.is_multiple_of((GROUP * CHUNK) as u64) && self.groups[index as usize / GROUP].is_none() {
                at += (GROUP * CHUNK) as u64;
                continue;
            }
            at = next;
        }
        self.shrink();
    }

    /// Forgets everything from `offset` on.
    pub fn truncate(&mut self, offset: u64) {
        self.zero(offset, u64::MAX - offset);
        self.groups.truncate(offset.div_ceil((GROUP * CHUNK) as u64) as usize);
    }

    fn chunks(&self) -> impl Iterator<Item = (u64, &Chunk)> {
        let groups = self.groups.iter().enumerate().filter_map(|(g, group)| Some((g, group.as_ref()?)));
        groups.flat_map(|(g, group)| group.0.iter().enumerate().map(move |(i, c)| ((g * GROUP + i) as u64, c)))
    }

    fn chunk(&self, index: u64) -> &Chunk {
        match self.groups.get(index as usize / GROUP) {
            Some(Some(group)) => &group.0[index as usize % GROUP],
            _ => &Chunk::Hole,
        }
    }

    fn chunk_mut(&mut self, index: u64) -> &mut Chunk {
        let group = index as usize / GROUP;
        if self.groups.len() <= group {
            self.groups.resize(group + 1, None);
        }
        let group = self.groups[group].get_or_insert_default();
        &mut Arc::make_mut(group).0[index as usize % GROUP]
    }

    /// The chunk in memory, for writing to.
    fn writable(&mut self, index: u64) -> &mut [u8] {
        let chunk = self.chunk_mut(index);
        if !matches!(chunk, Chunk::Memory(_)) {
            let old = std::mem::take(chunk);
            let mut bytes = vec![0; CHUNK];
            if let Chunk::Spilled(slot) = &old {
                read_slot(slot, 0, &mut bytes);
            }
            self.reuse(old);
            *self.chunk_mut(index) = Chunk::Memory(bytes.into());
            if let Some(spill) = &mut self.spill {
                spill.young.push_back(index);
            }
        }
        match self.chunk_mut(index) {
            Chunk::Memory(bytes) => Arc::make_mut(bytes),
            _ => unreachable!("made above"),
        }
    }

    /// Takes note of a place in our file that a chunk has left and no clone refers to.
    fn reuse(&mut self, chunk: Chunk) {
        if let (Chunk::Spilled(slot), Some(spill)) = (chunk, &mut self.spill)
            && Arc::ptr_eq(&slot.file, &spill.file)
            && let Ok(slot) = Arc::try_unwrap(slot)
        {
            assert!(slot.at.is_multiple_of(CHUNK as u64) && slot.at < spill.end, "a place that was given out");
            debug_assert!(!spill.free.contains(&slot.at), "a place is freed once");
            spill.free.push(slot.at);
        }
    }

    /// Moves the oldest chunks to the file until the rest fits in memory.
    fn shrink(&mut self) {
        while let Some(spill) = &mut self.spill {
            if spill.young.len() <= spill.limit {
                return;
            }
            let index = spill.young.pop_front().expect("longer than the limit");
            let Chunk::Memory(bytes) = self.chunk(index).clone() else { continue };
            let spill = self.spill.as_mut().expect("in the loop's condition");
            let at = spill.free.pop().unwrap_or_else(|| {
                spill.end += CHUNK as u64;
                spill.end - CHUNK as u64
            });
            assert_eq!(bytes.len(), CHUNK);
            spill.file.write_all_at(&bytes, at).expect("the file behind a modelled device can be written");
            let slot = Slot { file: spill.file.clone(), at };
            *self.chunk_mut(index) = Chunk::Spilled(Arc::new(slot));
        }
    }
}

fn read_slot(slot: &Slot, at: usize, buf: &mut [u8]) {
    slot.file.read_exact_at(buf, slot.at + at as u64).expect("the file behind a modelled device can be read");
}

/// Calls `f(chunk index, offset in chunk, range of the buffer)` for each chunk that a range touches.
fn for_chunks(offset: u64, len: usize, mut f: impl FnMut(u64, usize, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let position = offset + done as u64;
        let at = (position % CHUNK as u64) as usize;
        let part = (CHUNK - at).min(len - done);
        debug_assert!(part > 0 && at + part <= CHUNK);
        f(position / CHUNK as u64, at, done..done + part);
        done += part;
    }
}
