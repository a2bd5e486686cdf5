//! The bytes of a memory device, durable and volatile, and what a power cut leaves of them.
//!
//! Pure: no locks, no clock. `bytes` is sparse and shared copy-on-write between snapshots; it holds the *volatile*
//! bytes. For every atomic unit written since it was last made durable, `dirty` holds the durable bytes and each
//! version since, oldest first.
//!
//! Invariants: the last version of a dirty unit equals the unit's bytes in `bytes`; a dirty unit has a version, and no
//! more than so many; versions are in the order of their writes. [`Image::verify`] looks at them all.

use crate::power::CutReport;
use crate::sparse::Sparse;
use std::collections::BTreeMap;
use std::sync::Arc;
use varve_rt::Rng;

/// Largest atomic unit, bytes.
const MAX_UNIT: usize = 64 << 10;
/// Versions kept per unit between flushes; older ones are dropped (a unit rewritten so often keeps the newest of them).
const MAX_VERSIONS: usize = 16;

/// The bytes of one write, shared by the units it covers. `None` stands for zeros.
#[derive(Clone, Debug)]
pub(crate) struct Payload(Option<Arc<[u8]>>);

impl Payload {
    pub(crate) fn bytes(data: &[u8]) -> Payload {
        Payload(Some(data.into()))
    }

    pub(crate) fn zeros() -> Payload {
        Payload(None)
    }

    pub(crate) fn as_deref(&self) -> Option<&[u8]> {
        self.0.as_deref()
    }
}

/// One unit's bytes within a payload.
#[derive(Clone, Debug)]
struct Piece {
    payload: Payload,
    at: usize,
}

#[derive(Clone, Debug)]
struct Unit {
    durable: Piece,
    versions: Vec<(u64, Piece)>,
    /// Versions up to this mark are taken for clean: a flush that failed has forgotten them.
    forgotten: u64,
}

impl Unit {
    /// Makes the newest version no younger than `mark` the durable one, unless a failed flush has forgotten it.
    fn settle(&mut self, mark: u64) {
        if let Some(newest) = self.versions.iter().rposition(|(seq, _)| *seq <= mark)
            && self.versions[newest].0 > self.forgotten
        {
            self.durable = self.versions[newest].1.clone();
            self.versions.drain(..=newest);
        }
    }
}

/// A write that had not completed when the power was cut.
pub(crate) struct Unfinished {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) payload: Payload,
}

#[derive(Clone)]
pub(crate) struct Image {
    len: u64,
    unit: usize,
    bytes: Sparse,
    dirty: BTreeMap<u64, Unit>,
    seq: u64,
}

impl Image {
    pub(crate) fn new(len: u64, unit: usize) -> Image {
        Image::of(Sparse::new(), len, unit)
    }

    /// An image of `len` durable bytes, those of `bytes` among them.
    pub(crate) fn of(bytes: Sparse, len: u64, unit: usize) -> Image {
        assert!(unit.is_power_of_two() && unit <= MAX_UNIT, "atomic unit of {unit} bytes");
        Image { len, unit, bytes, dirty: BTreeMap::new(), seq: 0 }
    }

    /// The volatile bytes.
    pub(crate) fn contents(&self) -> &Sparse {
        &self.bytes
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of memory that the chunks occupy.
    pub(crate) fn resident(&self) -> u64 {
        self.bytes.resident()
    }

    /// Units that a power cut could still change.
    pub(crate) fn unflushed_units(&self) -> usize {
        self.dirty.len()
    }

    /// A mark that covers every write so far, for `flush`.
    pub(crate) fn mark(&self) -> u64 {
        self.seq
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.bytes.truncate(len);
            self.dirty.split_off(&len.div_ceil(self.unit as u64));
        }
        self.len = len;
        debug_assert!(self.dirty.last_key_value().is_none_or(|(i, _)| i * (self.unit as u64) < len));
    }

    /// Looks at every dirty unit; panics where an invariant does not hold.
    pub(crate) fn verify(&self) {
        let mut now = vec![0; self.unit];
        for (index, unit) in &self.dirty {
            assert!(!unit.versions.is_empty() && unit.versions.len() <= MAX_VERSIONS, "versions of unit {index}");
            assert!(unit.versions.windows(2).all(|v| v[0].0 < v[1].0), "versions of unit {index} are in order");
            let (seq, newest) = unit.versions.last().expect("looked at above");
            assert!(*seq <= self.seq && unit.forgotten <= self.seq, "unit {index} was written in the past");
            self.read(index * self.unit as u64, &mut now);
            let same = match newest.payload.as_deref() {
                Some(data) => data[newest.at..newest.at + self.unit] == now[..],
                None => now.iter().all(|byte| *byte == 0),
            };
            assert!(same, "the newest version of unit {index} is what is read");
        }
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        self.bytes.read(offset, buf);
    }

    /// Applies a completed write (or, with zeros, a trim).
    pub(crate) fn write(&mut self, offset: u64, len: usize, payload: Payload, durable: bool) {
        self.seq += 1;
        let (first, count) = self.units(offset, len);
        if durable {
            let mut rest = self.dirty.split_off(&first);
            self.dirty.append(&mut rest.split_off(&(first + count)));
        } else {
            self.add_versions(offset, len, &payload);
        }
        self.put_bytes(offset, payload.0.as_deref(), len);
    }

    /// Makes the newest version no younger than `mark` of each unit the durable one.
    pub(crate) fn flush(&mut self, mark: u64) {
        assert!(mark <= self.seq, "a flush covers writes that were made");
        self.dirty.retain(|_, unit| {
            unit.settle(mark);
            !unit.versions.is_empty()
        });
    }

    /// A flush fails, and about every second unit that it should have made durable counts as clean from here on: it is
    /// read until the power goes, but no flush makes it durable.
    pub(crate) fn fail_flush(&mut self, rng: &mut Rng) {
        let mark = self.seq;
        for unit in self.dirty.values_mut().filter(|_| rng.one_in(2)) {
            unit.forgotten = mark;
        }
    }

    /// As [`Image::flush`], for the units of a range.
    pub(crate) fn store(&mut self, offset: u64, len: usize, mark: u64) {
        assert!(mark <= self.seq, "what is stored was written");
        let (first, count) = self.units(offset, len);
        for index in first..first + count {
            let Some(unit) = self.dirty.get_mut(&index) else { continue };
            unit.settle(mark);
            if unit.versions.is_empty() {
                self.dirty.remove(&index);
            }
        }
    }

    /// Cuts the power: every unit with un-flushed bytes keeps its durable bytes or one of its versions, chosen
    /// independently by `rng` (one cut in eight keeps all the newest, one in eight nothing, since those are the cuts
    /// that uniform choice hardly ever makes). `unfinished` writes take part as if they had just been written.
    pub(crate) fn cut(&mut self, rng: &mut Rng, unfinished: &[Unfinished]) -> CutReport {
        for w in unfinished {
            self.seq += 1;
            self.add_versions(w.offset, w.len, &w.payload);
        }
        let mode = rng.below(8);
        let mut report = CutReport::default();
        let mut by_write: BTreeMap<u64, (bool, bool)> = BTreeMap::new();
        for (index, unit) in std::mem::take(&mut self.dirty) {
            let versions = unit.versions.len();
            let keep = match mode {
                0 => versions,
                1 => 0,
                _ => rng.below(versions as u64 + 1) as usize,
            };
            report.units += 1;
            report.lost += u64::from(keep == 0);
            report.reordered += u64::from(keep != 0 && keep != versions);
            let torn = by_write.entry(unit.versions[versions - 1].0).or_default();
            *if keep == versions { &mut torn.0 } else { &mut torn.1 } = true;
            let piece = if keep == 0 { unit.durable } else { unit.versions[keep - 1].1.clone() };
            let bytes = piece.payload.0.as_deref().map(|data| &data[piece.at..piece.at + self.unit]);
            self.put_bytes(index * self.unit as u64, bytes, self.unit);
        }
        assert!(report.lost + report.reordered <= report.units, "a unit has one fate");
        report.torn_writes = by_write.values().filter(|(kept, lost)| *kept && *lost).count() as u64;
        report
    }

    /// Flips bit `bit` of the byte at `offset`, durably: damage at rest.
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0] ^= 1 << bit;
        self.put_bytes(offset, Some(&byte), 1);
        self.dirty.remove(&(offset / self.unit as u64));
    }

    fn units(&self, offset: u64, len: usize) -> (u64, u64) {
        let unit = self.unit as u64;
        assert!(offset.is_multiple_of(unit) && len.is_multiple_of(self.unit), "whole atomic units are written");
        (offset / unit, len as u64 / unit)
    }

    fn add_versions(&mut self, offset: u64, len: usize, payload: &Payload) {
        let (first, count) = self.units(offset, len);
        let clean = (first..first + count).any(|i| !self.dirty.contains_key(&i));
        let before = if clean { self.payload_of(offset, len) } else { Payload::zeros() };
        for i in 0..count {
            let at = i as usize * self.unit;
            let unit = self.dirty.entry(first + i).or_insert_with(|| Unit {
                durable: Piece { payload: before.clone(), at },
                versions: Vec::with_capacity(1),
                forgotten: 0,
            });
            if unit.versions.len() == MAX_VERSIONS {
                unit.versions.remove(0);
            }
            assert!(unit.versions.last().is_none_or(|(seq, _)| *seq < self.seq), "a write covers a unit once");
            unit.versions.push((self.seq, Piece { payload: payload.clone(), at }));
        }
    }

    /// The bytes of a range as they are now.
    fn payload_of(&self, offset: u64, len: usize) -> Payload {
        if self.bytes.is_hole(offset, len) {
            return Payload::zeros();
        }
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        Payload(Some(bytes.into()))
    }

    fn put_bytes(&mut self, offset: u64, data: Option<&[u8]>, len: usize) {
        match data {
            Some(data) => self.bytes.write(offset, &data[..len]),
            None => self.bytes.zero(offset, len as u64),
        }
    }
}
