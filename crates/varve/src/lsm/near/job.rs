//! What host and worker tell each other about a sub-task: the job, and the answer to it, as bytes.
//!
//! A job says all that a worker must know to merge a range of keys: which segments go in and where their pages lie,
//! what moments are open, what is below, where outputs end, how they are written, on which pages (that the host set
//! aside) and under which numbers. So a worker keeps nothing from one job to the next, and a worker that is restarted
//! has lost nothing but time. The answer has the new segments with their pages, and what the work was.
//!
//! Invariant: whatever bytes come in, reading them does not panic, and what is read can be worked with: numbers are
//! within their ranges, moments ascend, pages are where pages can be.

use super::bytes::{self, Kind, Reader, Writer};
use super::decision::{DecisionOptions, Mode};
use crate::lsm::executor::{Span, Tally};
use crate::lsm::part::Codec;
use crate::lsm::segment::SegmentOptions;
use crate::lsm::{Segment, SegmentMeta, list};
use std::sync::Arc;
use std::time::Duration;
use varve_volume::page::HEADER;
use varve_volume::{KeyspaceId, Lsn, PageId};

/// Runs of pages: the first of each, and how many.
pub(crate) type Runs = Vec<(PageId, u64)>;
const _: () =
    assert!((Mode::Linear as u64) < 2 && (Mode::Pipeline as u64) < 2, "options come under a code of their own");

/// What is to be known of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Bytes of a page; page `p` lies at byte `p` times that of the device.
    pub size: usize,
    /// Bytes of it, after the header, that may be used.
    pub usable: usize,
    pub keyspace: KeyspaceId,
    /// The LSN that new pages bear.
    pub floor: Lsn,
}

/// How a worker is to merge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    As(Mode),
    /// As its decision component says.
    Decides(DecisionOptions),
}

/// A sub-task.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Job {
    /// The attachment to the worker that it belongs to.
    pub generation: u64,
    /// Its number in that attachment.
    pub id: u64,
    pub pages: Pages,
    /// Sorted runs of segments.
    pub runs: Vec<Vec<Arc<Segment>>>,
    pub range: Span,
    pub moments: Vec<Lsn>,
    /// Of the levels below, the segments that have keys of the range: their bounds.
    pub below: Vec<Vec<Arc<Segment>>>,
    /// Their bounds and numbers of pages.
    pub grandparents: Vec<Arc<Segment>>,
    pub most_overlap: u64,
    /// How segments are written; the number is that of the first.
    pub options: SegmentOptions,
    /// Numbers for segments.
    pub ids: u64,
    pub segment_bytes: u64,
    /// Pages for the outputs, to be used in this order.
    pub room: Runs,
    /// Bytes of a request to the device, about.
    pub request: usize,
    pub how: How,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub generation: u64,
    pub id: u64,
    pub done: Result<Done, String>,
}

/// A job that was done: its outputs are durable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Done {
    pub segments: Vec<Arc<Segment>>,
    pub tally: Tally,
    pub mode: Mode,
    /// The share of large pairs that it was decided by.
    pub share: f64,
    /// From its begin to its end.
    pub time: Duration,
}

/// What is finished of a job that is under way. It need not be durable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Part {
    pub generation: u64,
    pub id: u64,
    /// The outputs so far have all keys of the job's range before this one, and none from there on.
    pub next: Vec<u8>,
    /// The outputs so far, each with the checksum of its last page, which those of all that is in it lead to: what was
    /// on the pages before is another one, even if it has the same number.
    pub segments: Vec<(Arc<Segment>, u32)>,
}

impl Pages {
    /// Sizes that devices and segments can have.
    fn plausible(self) -> Option<Pages> {
        let sizes = matches!(self.size, 4096 | 8192 | 16384 | 32768);
        (sizes && (512..=self.size.checked_sub(HEADER)?).contains(&self.usable)).then_some(self)
    }
}

fn write_segment(to: &mut Writer, segment: &Segment) {
    to.n(segment.id).bytes(&list::encode(segment, 0));
}

fn read_segment(from: &mut Reader<'_>) -> Option<Arc<Segment>> {
    let id = from.n()?;
    let (_, segment) = list::decode(id, from.bytes()?)?;
    plausible_runs(&segment.runs)?;
    Some(Arc::new(segment))
}

fn write_bounds(to: &mut Writer, segment: &Segment) {
    let meta = &segment.meta;
    to.n(meta.pages).n(meta.open_end.into()).bytes(&meta.smallest).bytes(&meta.largest);
}

fn read_bounds(from: &mut Reader<'_>) -> Option<Arc<Segment>> {
    let (pages, open_end) = (u64::from(from.u32()?), from.is()?);
    let (smallest, largest): (Box<[u8]>, Box<[u8]>) = (from.bytes()?.into(), from.bytes()?.into());
    if smallest > largest {
        return None;
    }
    let meta = SegmentMeta { pages, smallest, largest, open_end, ..SegmentMeta::default() };
    Some(Arc::new(Segment { id: 0, meta, runs: Vec::new() }))
}

/// Pages that could lie on a device, each named once.
fn plausible_runs(runs: &[(PageId, u64)]) -> Option<()> {
    list::are_disjoint(runs).then_some(())
}

fn write_options(to: &mut Writer, options: &SegmentOptions) {
    to.n(options.id).n(options.block_bytes as u64).n(options.codec as u64);
    to.n(options.bits_per_key.into()).n(options.prefix as u64);
}

fn read_options(from: &mut Reader<'_>) -> Option<SegmentOptions> {
    let (id, block_bytes) = (from.n()?, from.size()?);
    let code = from.n()?;
    let codec = Codec::ALL.iter().find(|(_, codec)| *codec as u64 == code)?.1;
    let (bits_per_key, prefix) = (from.u32()?, from.size()?);
    let fits = (512..=1 << 20).contains(&block_bytes) && bits_per_key <= 30 && prefix <= 1 << 16;
    fits.then_some(SegmentOptions { id, block_bytes, codec, bits_per_key, prefix })
}

fn write_how(to: &mut Writer, how: &How) {
    match how {
        How::As(mode) => to.n(*mode as u64),
        How::Decides(options) => {
            let DecisionOptions { cpu, memory, pairs, threshold, large_bytes, hysteresis, window, first } = *options;
            // Workers of before know 2, and refuse the other.
            to.n(if first == Mode::Pipeline { 2 } else { 3 }).float(cpu).float(memory).float(pairs).float(threshold);
            to.n(large_bytes.into()).float(hysteresis).n(window)
        }
    };
}

fn read_mode(code: u64) -> Option<Mode> {
    [Mode::Linear, Mode::Pipeline].into_iter().find(|mode| *mode as u64 == code)
}

fn read_how(from: &mut Reader<'_>) -> Option<How> {
    let first = match from.n()? {
        2 => Mode::Pipeline,
        3 => Mode::Linear,
        code => return read_mode(code).map(How::As),
    };
    let [cpu, memory, pairs, threshold] = [from.float()?, from.float()?, from.float()?, from.float()?];
    let (large_bytes, hysteresis, window) = (from.u32()?, from.float()?, from.n()?);
    let options = DecisionOptions { cpu, memory, pairs, threshold, large_bytes, hysteresis, window, first };
    options.check().is_ok().then_some(How::Decides(options))
}

fn write_runs(to: &mut Writer, runs: &Runs) {
    to.list(runs, |to, (first, pages)| {
        to.n(first.0).n(*pages);
    });
}

fn read_runs(from: &mut Reader<'_>) -> Option<Runs> {
    let runs = from.list(|from| Some((PageId(from.n()?), from.n()?)))?;
    plausible_runs(&runs).map(|()| runs)
}

impl Job {
    /// As it is sent. None: it is longer than a message may be.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let to = &mut Writer::default();
        let Pages { size, usable, keyspace, floor } = self.pages;
        to.n(self.generation).n(self.id).n(size as u64).n(usable as u64).n(keyspace.0.into()).n(floor);
        to.list(&self.runs, |to, run| {
            to.list(run, |to, segment| write_segment(to, segment));
        });
        to.option(self.range.from.as_deref()).option(self.range.to.as_deref());
        to.list(&self.moments, |to, moment| {
            to.n(*moment);
        });
        to.list(&self.below, |to, level| {
            to.list(level, |to, segment| write_bounds(to, segment));
        });
        to.list(&self.grandparents, |to, segment| write_bounds(to, segment));
        to.n(self.most_overlap);
        write_options(to, &self.options);
        to.n(self.ids).n(self.segment_bytes);
        write_runs(to, &self.room);
        to.n(self.request as u64);
        write_how(to, &self.how);
        (to.0.len() <= bytes::MOST).then(|| bytes::seal(Kind::Job, &to.0))
    }

    /// What [`Job::encode`] wrote, or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Job, &'static str> {
        let mut from = Reader::new(bytes::open(Kind::Job, bytes)?);
        Job::read(&mut from).filter(|_| from.is_at_end()).ok_or("what it says cannot be")
    }

    fn read(from: &mut Reader<'_>) -> Option<Job> {
        let (generation, id) = (from.n()?, from.n()?);
        let (size, usable, keyspace, floor) = (from.size()?, from.size()?, KeyspaceId(from.u32()?), from.n()?);
        let job = Job {
            generation,
            id,
            pages: Pages { size, usable, keyspace, floor }.plausible()?,
            runs: from.list(|from| from.list(read_segment))?,
            range: Span { from: from.option()?, to: from.option()? },
            moments: from.list(Reader::n)?,
            below: from.list(|from| from.list(read_bounds))?,
            grandparents: from.list(read_bounds)?,
            most_overlap: from.n()?,
            options: read_options(from)?,
            ids: from.n()?,
            segment_bytes: from.n()?,
            room: read_runs(from)?,
            request: from.size()?,
            how: read_how(from)?,
        };
        let fits = job.moments.is_sorted()
            && job.options.id.checked_add(job.ids).is_some()
            && (1..=1 << 30).contains(&job.segment_bytes)
            && (1..=1 << 20).contains(&job.request);
        fits.then_some(job)
    }
}

impl Answer {
    /// As it is sent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let to = &mut Writer::default();
        to.n(self.generation).n(self.id).n(self.done.is_ok().into());
        match &self.done {
            Err(why) => {
                to.bytes(why.as_bytes());
            }
            Ok(done) => {
                let Tally { pairs, large, read, written } = done.tally;
                to.list(&done.segments, |to, segment| write_segment(to, segment));
                to.n(pairs).n(large).n(read).n(written).n(done.mode as u64).float(done.share);
                to.n(u64::try_from(done.time.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        bytes::seal(Kind::Answer, &to.0)
    }

    /// What [`Answer::encode`] wrote, or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Answer, &'static str> {
        let mut from = Reader::new(bytes::open(Kind::Answer, bytes)?);
        Answer::read(&mut from).filter(|_| from.is_at_end()).ok_or("what it says cannot be")
    }

    fn read(from: &mut Reader<'_>) -> Option<Answer> {
        let (generation, id) = (from.n()?, from.n()?);
        let done = if from.is()? {
            let segments = from.list(read_segment)?;
            let (pairs, large) = (from.n()?, from.n()?);
            let tally = Tally { pairs, large, read: from.n()?, written: from.n()? };
            if large > pairs {
                return None;
            }
            let mode = from.n().and_then(read_mode)?;
            let share = from.float()?;
            Ok(Done { segments, tally, mode, share, time: Duration::from_nanos(from.n()?) })
        } else {
            Err(String::from_utf8_lossy(from.bytes()?).into_owned())
        };
        Some(Answer { generation, id, done })
    }
}

impl Part {
    /// As it is sent.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let to = &mut Writer::default();
        to.n(self.generation).n(self.id).bytes(&self.next);
        to.list(&self.segments, |to, (segment, seal)| {
            write_segment(to, segment);
            to.n((*seal).into());
        });
        bytes::seal(Kind::Part, &to.0)
    }

    /// What [`Part::encode`] wrote, or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Part, &'static str> {
        let mut from = Reader::new(bytes::open(Kind::Part, bytes)?);
        Part::read(&mut from).filter(|_| from.is_at_end()).ok_or("what it says cannot be")
    }

    fn read(from: &mut Reader<'_>) -> Option<Part> {
        let (generation, id, next) = (from.n()?, from.n()?, from.bytes()?.to_vec());
        let segments = from.list(|from| Some((read_segment(from)?, from.u32()?)))?;
        (!segments.is_empty()).then_some(Part { generation, id, segments, next })
    }
}

/// Messages to begin with, for tests and fuzzing.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn examples() -> (Job, Vec<Answer>, Part) {
    let key = |n: u64| format!("key {n:03}").into_bytes().into_boxed_slice();
    let segment = |id: u64, runs: Runs| {
        let pages = runs.iter().map(|(_, pages)| pages).sum();
        let meta = SegmentMeta {
            pages,
            smallest: key(10 * id),
            largest: key(10 * id + 9),
            entries: 300,
            deletions: 3,
            bytes: 30_000,
            commits: (7, 70_000),
            ..SegmentMeta::default()
        };
        Arc::new(Segment { id, meta, runs })
    };
    let one = segment(1, vec![(PageId(100), 3), (PageId(1000), 4)]);
    let bounds = |segment: &Segment| {
        let SegmentMeta { pages, smallest, largest, open_end, .. } = segment.meta.clone();
        let meta = SegmentMeta { pages, smallest, largest, open_end, ..SegmentMeta::default() };
        Arc::new(Segment { id: 0, meta, runs: Vec::new() })
    };
    let job = Job {
        generation: 3,
        id: 9,
        pages: Pages { size: 4096, usable: 4064, keyspace: KeyspaceId(7), floor: 12_345 },
        runs: vec![vec![one.clone()], vec![segment(2, vec![(PageId(5), 9)]), segment(3, vec![(PageId(50), 1)])]],
        range: Span { from: Some(b"key 015".to_vec()), to: None },
        moments: vec![5, 500],
        below: vec![vec![bounds(&one)], Vec::new()],
        grandparents: vec![bounds(&one)],
        most_overlap: 5000,
        options: SegmentOptions { id: 77, block_bytes: 4096, codec: Codec::Lz4, bits_per_key: 10, prefix: 0 },
        ids: 12,
        segment_bytes: 2 << 20,
        room: vec![(PageId(7000), 900), (PageId(9000), 30)],
        request: 256 << 10,
        how: How::Decides(DecisionOptions::device()),
    };
    let tally = Tally { pairs: 900, large: 30, read: 90_000, written: 80_000 };
    let time = Duration::from_millis(12);
    let part = Part { generation: 3, id: 9, segments: vec![(one.clone(), 0xfeed_beef)], next: b"key 020".to_vec() };
    let done = Done { segments: vec![one], tally, mode: Mode::Linear, share: 0.75, time };
    let answer = |done| Answer { generation: 3, id: 9, done };
    (job, vec![answer(Ok(done)), answer(Err("no space left".into()))], part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    #[test]
    fn messages_come_back() {
        let (job, answers, part) = examples();
        assert_eq!(Part::decode(&part.encode()), Ok(part.clone()));
        assert!(Answer::decode(&part.encode()).is_err(), "a part is no answer");
        let linear = How::Decides(DecisionOptions { first: Mode::Linear, ..DecisionOptions::device() });
        for how in [job.how, linear, How::As(Mode::Linear), How::As(Mode::Pipeline)] {
            let job = Job { how, ..job.clone() };
            assert_eq!(Job::decode(&job.encode().expect("short")), Ok(job));
        }
        for answer in answers {
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer.clone()));
            assert!(Job::decode(&answer.encode()).is_err(), "an answer is no job");
        }
        let long = Job { moments: (0..9_000_000).collect(), ..job };
        assert!(long.encode().is_none(), "it does not fit a message");
    }

    /// The checksum put right again.
    fn sealed(kind: Kind, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.drain(..bytes::HEAD.min(bytes.len()));
        bytes::seal(kind, &bytes)
    }

    #[test]
    fn damaged_messages_are_refused_and_never_panic() {
        let (job, answers, part) = examples();
        let job = job.encode().expect("short");
        let answer = answers[0].encode();
        let part = part.encode();
        let refused = |bytes: &[u8]| {
            Job::decode(bytes).is_err() && Answer::decode(bytes).is_err() && Part::decode(bytes).is_err()
        };
        for (bytes, kind) in [(&job, Kind::Job), (&answer, Kind::Answer), (&part, Kind::Part)] {
            for len in 0..bytes.len() {
                assert!(refused(&bytes[..len]) && refused(&sealed(kind, bytes[..len].to_vec())), "cut at {len}");
            }
            let mut rng = Rng::from_seed(4);
            for _ in 0..4000 {
                let mut bytes = bytes.clone();
                for _ in 0..=rng.below(3) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << rng.below(8);
                }
                let unchanged = [&job, &answer, &part].contains(&&bytes);
                assert!(unchanged || refused(&bytes));
                // What gets past the checksum is read or refused.
                let bytes = sealed(kind, bytes);
                let _ = (Job::decode(&bytes), Answer::decode(&bytes), Part::decode(&bytes));
            }
        }
        let mut other = job.clone();
        other[4] = 2;
        assert!(Job::decode(&other).unwrap_err().contains("version"));
    }
}
