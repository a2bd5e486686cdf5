//! Reading the log back: group after group from a redo point, and the decision where and how it ends.
//!
//! The rule for the end (rows `L1`..`L10` of the table in `docs/wal.md`): an invalid group wholly below an LSN known to
//! have been durable is corruption; otherwise it is a torn tail. Known are: the superblock's `end`, the durable LSN in
//! the header of each valid group, before the invalid one or anywhere after it in the ring, and the end of each run
//! that a later run recorded.
//!
//! Memory: one window of [`WINDOW`] bytes and one group.
//!
//! Invariants: groups are given in the order of their LSNs, and none twice; only blocks that the ring can hold are
//! read.

use super::format::{
    ALIGN, BLOCK, GROUP_HEADER, GroupHeader, GroupKind, PAD_MARK, block_ceil, block_floor, is_group, is_pad,
};
use super::superblock::Superblock;
use crate::error::{Error, Result};
use std::sync::Arc;
use varve_device::{AlignedBuf, Device, DeviceError, Faults, Io, Mistake};
use varve_volume::Lsn;

/// Most bytes read at a time.
const WINDOW: u64 = 4 << 20;
/// Requests that a window is read with.
const PARTS: u64 = 8;

/// How the log ends: the row of the decision table that said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndRow {
    /// `L7`: an invalid group that nothing proves to have been durable: a torn tail.
    TornTail,
    /// `L8`: the end that a clean close recorded.
    CleanEnd,
}

impl EndRow {
    /// The row's id in the table.
    pub fn id(self) -> &'static str {
        match self {
            EndRow::TornTail => "L7",
            EndRow::CleanEnd => "L8",
        }
    }
}

/// The end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// End of the last valid group.
    pub at: Lsn,
    /// Why it is the end.
    pub row: EndRow,
    /// What is valid reaches to here: padding may follow the last group.
    pub valid: Lsn,
    /// Valid groups past it that were in flight when the power went, at least.
    pub orphans: u64,
}

/// A group as read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupView<'a> {
    /// Where it begins.
    pub start: Lsn,
    /// Where it ends: the LSN of the pages it changed.
    pub end: Lsn,
    /// What it is.
    pub kind: GroupKind,
    /// The durable LSN when it was appended.
    pub durable: Lsn,
    /// Its records.
    pub body: &'a [u8],
}

/// One step of reading.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The next group.
    Group(GroupView<'a>),
    /// The log ends here.
    End(LogEnd),
}

/// See the module. Made by [`super::Log::scan`].
pub struct LogReader {
    dev: Arc<dyn Device>,
    sb: Superblock,
    salt: u32,
    at: Lsn,
    /// End of the last valid group.
    last_end: Lsn,
    /// Greatest LSN known to have been durable.
    known: Lsn,
    window: AlignedBuf,
    window_at: Lsn,
    window_len: u64,
    body: Vec<u8>,
    /// The log is being written to: groups that end past this are not looked at. [`Lsn::MAX`]: it is not.
    until: Lsn,
    faults: Faults,
}

impl LogReader {
    pub(super) fn new(dev: Arc<dyn Device>, sb: Superblock, salt: u32, from: Lsn) -> LogReader {
        LogReader {
            known: sb.end,
            dev,
            salt,
            at: from,
            last_end: from,
            window: AlignedBuf::new(WINDOW.min(sb.ring.capacity()) as usize),
            window_at: 0,
            window_len: 0,
            body: Vec::new(),
            until: Lsn::MAX,
            faults: Faults::default(),
            sb,
        }
    }

    /// The same, of a log in which something is to go wrong.
    pub(super) fn with_faults(self, faults: &Faults) -> LogReader {
        LogReader { faults: faults.clone(), ..self }
    }

    /// The log is being written to, and durable up to `durable` at least. What lies past that is not looked at: it may
    /// be half written, beside groups that became durable after it was read.
    pub(super) fn in_use(mut self, durable: Lsn) -> LogReader {
        (self.known, self.until) = (durable, durable);
        self
    }

    /// Where reading stands.
    pub fn position(&self) -> Lsn {
        self.at
    }

    /// First place past what the ring can hold.
    fn limit(&self) -> u64 {
        self.sb.ring.limit(self.sb.place(self.sb.redo))
    }

    /// Bytes of the stream from `lsn` on that the ring can hold.
    fn rest(&self, lsn: Lsn) -> u64 {
        self.limit().saturating_sub(self.sb.place(lsn))
    }

    /// The next group, or the end. Damage below what is known to have been durable is an error.
    pub fn next_group(&mut self) -> Result<Step<'_>> {
        match self.find()? {
            Ok(header) => {
                // L1.
                let (start, end) = (header.lsn, header.end());
                assert!(start == self.at && start >= self.last_end, "groups are read in order, and none twice");
                self.at = end;
                self.last_end = end;
                self.known = self.known.max(header.durable);
                let body = &self.body;
                Ok(Step::Group(GroupView { start, end, kind: header.kind, durable: header.durable, body }))
            }
            Err(end) => Ok(Step::End(end)),
        }
    }

    /// Goes to the next valid group, reading its body.
    fn find(&mut self) -> Result<Result<GroupHeader, LogEnd>> {
        loop {
            if self.sb.clean && self.at >= self.sb.end {
                // L8.
                return Ok(Err(self.ends(EndRow::CleanEnd, 0)));
            }
            // L3: where a run ended, the next one's groups begin at a known place.
            if let Some(run) = self.sb.runs.iter().rev().find(|r| r.prev_end <= self.at && self.at < r.start) {
                self.at = run.start;
            }
            if self.at >= self.until {
                return Ok(Err(self.torn_tail(0)));
            }
            if let Some(header) = self.group_at(self.at)? {
                return Ok(Ok(header));
            }
            if self.padding_at(self.at)? {
                // L2.
                self.at = block_ceil(self.at + 1);
                continue;
            }
            return self.judge(self.at).map(Err);
        }
    }

    fn run_at(&self, lsn: Lsn) -> (u32, Lsn) {
        let runs = &self.sb.runs;
        let i = runs.iter().rposition(|r| r.start <= lsn).unwrap_or(0);
        (runs[i].number, runs.get(i + 1).map_or(Lsn::MAX, |next| next.prev_end))
    }

    /// The header of a group that begins at `lsn`, if a valid one does.
    fn header_at(&mut self, lsn: Lsn) -> Result<Option<GroupHeader>> {
        let mut bytes = [0u8; GROUP_HEADER];
        if !self.read(lsn, &mut bytes)? {
            return Ok(None);
        }
        let (run, end) = self.run_at(lsn);
        let header = GroupHeader::decode(&bytes, self.salt, lsn);
        Ok(header.filter(|h| h.run == run && h.end() <= end && h.end() - lsn <= self.rest(lsn)))
    }

    /// The group that begins at `lsn`, if a valid one does. Its body is left in `self.body`.
    fn group_at(&mut self, lsn: Lsn) -> Result<Option<GroupHeader>> {
        let Some(header) = self.header_at(lsn)?.filter(|h| h.end() <= self.until) else { return Ok(None) };
        // The zeros that align the next group are the group's too.
        let mut body = std::mem::take(&mut self.body);
        body.resize((header.end() - lsn) as usize - GROUP_HEADER, 0);
        let there = self.read(lsn + GROUP_HEADER as u64, &mut body);
        let zeros = body.split_off(header.body_len as usize);
        let whole = crc32c::crc32c(&body) == header.body_crc && zeros.iter().all(|&b| b == 0);
        self.body = body;
        Ok((there? && (whole || self.faults.has(Mistake::PartialGroup))).then_some(header))
    }

    fn padding_at(&mut self, lsn: Lsn) -> Result<bool> {
        let mut mark = [0u8; PAD_MARK];
        let (run, _) = self.run_at(lsn);
        Ok(!lsn.is_multiple_of(BLOCK) && self.read(lsn, &mut mark)? && is_pad(&mark, self.salt, run, lsn))
    }

    /// Decides about an invalid group at `at`.
    fn judge(&mut self, at: Lsn) -> Result<LogEnd> {
        let bad = |row: &str, what: String| {
            Err(Error::corrupt_log(
                at,
                format!("[{row}] no valid group, though {what}; the log from there on can only be salvaged"),
            ))
        };
        if self.sb.clean {
            return bad("L9", format!("the log was closed cleanly at LSN {}", self.sb.end));
        }
        let (_, run_end) = self.run_at(at);
        if run_end != Lsn::MAX {
            return bad("L4", format!("a later opening found the log valid to LSN {run_end}"));
        }
        // What durability would have to reach to prove damage: a group that is longer than the log buffer is written in
        // parts, so its header and much of its body may have been durable though the whole never was.
        let whole = match self.header_at(at)? {
            Some(header) => header.end(),
            None => at + GROUP_HEADER as u64,
        };
        if self.known >= whole {
            return bad("L5", format!("it was known to be durable to LSN {}", self.known));
        }
        if self.until < Lsn::MAX {
            return Ok(self.torn_tail(0));
        }
        // Groups after it, wherever they begin: a write may begin within a group, and carry what was appended while
        // an earlier one was under way.
        let (mut from, mut orphans) = (block_ceil(at), 0);
        let newest = self.sb.runs.last().expect("never empty").number;
        while let Some((lsn, header)) = self.header_from(from)? {
            assert!(lsn >= from, "the search for groups goes onwards");
            from = lsn + ALIGN;
            if header.run > newest {
                return bad("L10", format!("run {} wrote at LSN {lsn}: its superblock is lost", header.run));
            }
            if header.run == newest && header.durable >= whole {
                return bad(
                    "L6",
                    format!("the group at LSN {lsn} was written when the log was durable to {}", header.durable),
                );
            }
            orphans += u64::from(header.run == newest);
        }
        Ok(self.torn_tail(orphans))
    }

    /// The first header of a group, of whatever run, that lies at its own place at or after `from`.
    fn header_from(&mut self, from: Lsn) -> Result<Option<(Lsn, GroupHeader)>> {
        let newest = self.sb.runs.last().expect("never empty").number;
        let (mut lsn, mut bytes) = (from, [0; GROUP_HEADER]);
        while self.rest(lsn) > 0 {
            self.have(lsn)?;
            let there = &self.window[(lsn - self.window_at) as usize..self.window_len as usize];
            let Some(n) = there.chunks(ALIGN as usize).position(is_group) else {
                lsn = self.window_at + self.window_len;
                continue;
            };
            lsn += n as u64 * ALIGN;
            if !self.read(lsn, &mut bytes)? {
                break;
            }
            // A run that the superblock does not know may have begun behind a gap: its groups bear other positions.
            let counts = |h: &GroupHeader| h.lsn == lsn || h.run > newest;
            if let Some(header) = GroupHeader::decode_any(&bytes, self.salt).filter(counts) {
                return Ok(Some((lsn, header)));
            }
            lsn += ALIGN;
        }
        Ok(None)
    }

    fn torn_tail(&self, orphans: u64) -> LogEnd {
        self.ends(EndRow::TornTail, orphans)
    }

    fn ends(&self, row: EndRow, orphans: u64) -> LogEnd {
        assert!(self.last_end <= self.at, "what is valid reaches to the last group's end at least");
        LogEnd { at: self.last_end, row, valid: self.at, orphans }
    }

    /// Copies bytes of the stream; false when they lie past what the ring can hold.
    fn read(&mut self, at: Lsn, out: &mut [u8]) -> Result<bool> {
        if out.len() as u64 > self.rest(at) {
            return Ok(false);
        }
        let mut done = 0;
        while done < out.len() {
            let lsn = at + done as u64;
            self.have(lsn)?;
            let from = (lsn - self.window_at) as usize;
            let n = (out.len() - done).min(self.window_len as usize - from);
            out[done..done + n].copy_from_slice(&self.window[from..from + n]);
            done += n;
        }
        Ok(true)
    }

    /// Has the window hold the byte at `lsn`.
    fn have(&mut self, lsn: Lsn) -> Result<(), DeviceError> {
        match lsn < self.window_at || lsn >= self.window_at + self.window_len {
            true => self.load(block_floor(lsn)),
            false => Ok(()),
        }
    }

    fn load(&mut self, at: Lsn) -> Result<(), DeviceError> {
        let (place, rest) = (self.sb.place(at), self.rest(at));
        assert!(at.is_multiple_of(BLOCK) && rest > 0, "blocks are read, of what the ring can hold");
        let len = (self.window.len() as u64).min(rest);
        self.window_len = 0;
        let part = (len / PARTS).next_multiple_of(BLOCK);
        let mut batch = Vec::new();
        for (begin, offset, len) in self.sb.ring.pieces(place, place + len) {
            let mut done = 0;
            while done < len {
                let n = part.min(len - done);
                let begin = (begin + done - place) as usize;
                assert!(begin + n as usize <= self.window.len(), "what is read fits the window");
                // From the buffer's own pointer: a reference to its bytes would end what was requested before.
                let to = self.window.as_mut_ptr().wrapping_add(begin);
                // SAFETY: `n` bytes of the window from there on (asserted), used by nobody else until `wait_all` below
                // has returned.
                batch.push(unsafe { Io::read(offset + done, to, n as usize) });
                done += n;
            }
        }
        self.dev.submit(batch).wait_all()?;
        (self.window_at, self.window_len) = (at, len);
        Ok(())
    }
}
