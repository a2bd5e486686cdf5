//! A trace as page references: requests cut into pages, pages numbered densely in order of appearance.

use crate::trace::compact::About;
use crate::trace::{Reader, Record, TraceError};
use std::collections::BTreeMap;
use varve::buffer::{TraceEvent, UpdateSizes};
use varve_rt::HashMap;
use varve_volume::KeyspaceId;

/// What of a block trace counts as an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objects {
    /// The start of each request, as it is stored: one reference per request.
    Starts,
    /// Each page that a request covers, ascending.
    #[default]
    Pages,
}

impl std::str::FromStr for Objects {
    type Err = String;

    fn from_str(s: &str) -> Result<Objects, String> {
        match s {
            "starts" => Ok(Objects::Starts),
            "pages" => Ok(Objects::Pages),
            _ => Err("choose starts or pages".into()),
        }
    }
}

/// How requests become references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Requests or pages.
    pub objects: Objects,
    /// Bytes of a page, for block traces; a multiple of 512.
    pub page_size: u32,
    /// Sector at which page 0 begins; none: 63 for vscsi (where the guests' partitions began in those days), else 0.
    pub start_sector: Option<u64>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { objects: Objects::Pages, page_size: 4096, start_sector: None }
    }
}

impl Shape {
    /// Page numbers (of their device) that a request covers, first and last; none if it is empty.
    pub fn pages(&self, sector: u64, bytes: u64, start_sector: u64) -> Option<(i64, i64)> {
        let per_page = i64::from(self.page_size / 512);
        let first = sector as i64 - start_sector as i64;
        let last = first + (bytes / 512) as i64 - 1;
        (last >= first).then(|| (first.div_euclid(per_page), last.div_euclid(per_page)))
    }
}

/// One step of a replay: a reference to a page, or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step(u32);

const DISCARD: u32 = 1 << 31;

impl Step {
    /// The page's dense number.
    pub fn page(self) -> u32 {
        self.0 & !DISCARD
    }

    /// The page is freed, not referenced.
    pub fn is_discard(self) -> bool {
        self.0 & DISCARD != 0
    }
}

/// Nanoseconds between references of a trace that has no times.
const PACE: u64 = 100_000;

/// References ready for replay, and what was seen on the way.
#[derive(Debug, Default)]
pub struct References {
    steps: Vec<Step>,
    /// Nanoseconds by step; empty if the trace has none.
    times: Vec<u64>,
    numbers: HashMap<(u32, u64), u32>,
    references: u64,
    /// Records of the trace.
    pub records: u64,
    /// Of these, writes (as far as the trace tells).
    pub writes: u64,
    /// Flushes of a pool's trace, and of these the ones whose changed bytes are known, and their sum.
    pub flushes: (u64, u64, u64),
    /// Sizes of updates by keyspace, where the trace tells.
    pub updates: BTreeMap<KeyspaceId, UpdateSizes>,
    /// What the trace says of its database.
    pub about: About,
    /// First and last time, nanoseconds.
    pub span: Option<(u64, u64)>,
}

impl References {
    /// Reads a whole trace. Errors: those of the trace; more than 2^31 pages, or steps.
    pub fn read(reader: &mut Reader, shape: &Shape) -> Result<References, TraceError> {
        if shape.page_size == 0 || !shape.page_size.is_multiple_of(512) {
            return Err(TraceError::Option(format!("page size {}: give a multiple of 512", shape.page_size)));
        }
        let vscsi = matches!(reader.format(), crate::trace::Format::Vscsi1 | crate::trace::Format::Vscsi2);
        let start = shape.start_sector.unwrap_or(if vscsi { 63 } else { 0 });
        let mut refs = References::default();
        while let Some(record) = reader.next_record()? {
            refs.records += 1;
            refs.add(&record, shape, start)?;
        }
        refs.about = reader.about();
        Ok(refs)
    }

    /// References to pages given by number, for tests and synthetic traces.
    pub fn of(pages: impl IntoIterator<Item = u64>) -> References {
        let mut refs = References::default();
        for page in pages {
            refs.reference(0, page, None).expect("few enough pages");
        }
        refs
    }

    fn add(&mut self, record: &Record, shape: &Shape, start: u64) -> Result<(), TraceError> {
        match *record {
            Record::Block { time, write, device, sector, bytes } => {
                self.writes += u64::from(write);
                match shape.objects {
                    Objects::Starts => self.reference(device, sector, Some(time))?,
                    Objects::Pages => {
                        let (first, last) = shape.pages(sector, bytes, start).unwrap_or((0, -1));
                        for page in first..=last {
                            self.reference(device, page as u64, Some(time))?;
                        }
                    }
                }
            }
            Record::Run { first, count } => {
                let count = if shape.objects == Objects::Starts { 1 } else { count };
                for page in first..first + count {
                    self.reference(0, page, None)?;
                }
            }
            Record::Object { time, write, id } => {
                self.writes += u64::from(write);
                self.reference(0, id, time)?;
            }
            Record::Pool { time, event } => self.pool(time, event)?,
        }
        Ok(())
    }

    fn pool(&mut self, time: u64, event: TraceEvent) -> Result<(), TraceError> {
        match event {
            TraceEvent::Read(page) => self.reference(0, page.0, Some(time))?,
            TraceEvent::Write(page) | TraceEvent::Create(page) => {
                self.writes += 1;
                self.reference(0, page.0, Some(time))?;
            }
            TraceEvent::Discard(page) => {
                if let Some(&number) = self.numbers.get(&(0, page.0)) {
                    self.step(number | DISCARD, Some(time))?;
                }
            }
            TraceEvent::Flush(flush) => {
                self.flushes.0 += 1;
                self.flushes.1 += u64::from(flush.changed.is_some());
                self.flushes.2 += u64::from(flush.changed.map_or(0, |changed| changed.net));
                if let Some(keyspace) = flush.keyspace {
                    self.updates.entry(keyspace).or_default().add(&flush);
                }
            }
            // Nobody asked for the page yet.
            TraceEvent::Prefetch(_) => {}
        }
        Ok(())
    }

    fn reference(&mut self, device: u32, page: u64, time: Option<u64>) -> Result<(), TraceError> {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry((device, page)).or_insert(next);
        self.references += 1;
        self.step(number, time)
    }

    fn step(&mut self, step: u32, time: Option<u64>) -> Result<(), TraceError> {
        if self.steps.len() >= 1 << 31 {
            let why = "a trace of more than 2^31 references: cut it into parts";
            return Err(TraceError::Option(why.into()));
        }
        if let Some(time) = time {
            // Policies want times that never go back.
            let time = self.times.last().map_or(time, |last| time.max(*last));
            self.times.push(time);
            self.span = Some((self.span.map_or(time, |s| s.0), time));
        }
        self.steps.push(Step(step));
        Ok(())
    }

    /// Number of references.
    pub fn len(&self) -> u64 {
        self.references
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.references == 0
    }

    /// Number of distinct pages.
    pub fn pages(&self) -> usize {
        self.numbers.len()
    }

    /// All steps in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Time of step `i`, nanoseconds; without times in the trace, 10,000 steps a second.
    #[inline]
    pub fn time(&self, i: usize) -> u64 {
        self.times.get(i).copied().unwrap_or(i as u64 * PACE)
    }
}
