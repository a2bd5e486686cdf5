//! A drive: host link, write buffer and translation layer. Bytes by offset, times as nanoseconds.
//!
//! Pure: a request comes with the time at which it was submitted and is given the time at which it completes. It takes
//! effect at once; what a power cut leaves of it is decided by the array's journal.
//!
//! Invariants: the heap of the buffer holds the end of the program of each page that has a place in it, so there are no
//! more of them than places; a request ends after it came; the time never goes back.

use super::config::nanos;
use super::histogram::Histogram;
use super::store::PageContents;
use super::timing::{Bus, Usage};
use super::{BufferKind, Contents, FlashConfig, FlashError, Ftl, FtlStats, NandCounts, NandCut, Recovery};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use varve_device::Stream;
use varve_rt::Rng;

/// Totals of a drive since it was made or they were reset.
#[derive(Clone, Debug, PartialEq)]
pub struct FlashStats {
    /// Of the translation layer.
    pub ftl: FtlStats,
    /// Of the array.
    pub nand: NandCounts,
    /// Of each chip (plane, if planes work independently).
    pub gates: Vec<Usage>,
    /// Of each channel.
    pub channels: Vec<Usage>,
    /// Of each die that senses the pages of several units; else empty.
    pub dies: Vec<Usage>,
    /// Of the host's link.
    pub link: Usage,
    /// Blocks by number of erases: `wear[n]` blocks were erased n times.
    pub wear: Vec<u32>,
    /// Bad blocks.
    pub bad_blocks: u32,
    /// Share of the effective physical pages that hold nothing: what write amplification goes by.
    pub spare_factor: f64,
    /// Page writes that waited for a place in the buffer.
    pub buffer_waits: u64,
    /// Time that they waited, nanoseconds.
    pub buffer_waited: u64,
    /// Response times of reads, of writes, and of flushes.
    pub read_times: Histogram,
    /// See `read_times`.
    pub write_times: Histogram,
    /// See `read_times`.
    pub flush_times: Histogram,
    /// Memory that the contents take, bytes.
    pub resident_bytes: u64,
}

impl FlashStats {
    /// Share of `elapsed` nanoseconds that each gate worked.
    pub fn gate_utilisation(&self, elapsed: u64) -> Vec<f64> {
        self.gates.iter().map(|u| u.busy as f64 / elapsed.max(1) as f64).collect()
    }

    /// Share of `elapsed` nanoseconds that each channel worked.
    pub fn channel_utilisation(&self, elapsed: u64) -> Vec<f64> {
        self.channels.iter().map(|u| u.busy as f64 / elapsed.max(1) as f64).collect()
    }
}

/// A program that the host waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Promise {
    /// When it ends, as it was known last.
    end: u64,
    block: u32,
    /// The end that was told when it was given.
    promised: u64,
}

/// When a request completes: at `at`, or later if a program that it rests on was suspended meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The end as it is known when the request is given.
    pub at: u64,
    rests_on: Vec<Promise>,
}

impl Done {
    /// At a time that nothing puts off.
    pub fn at(at: u64) -> Done {
        Done { at, rests_on: Vec::new() }
    }
}

/// A drive; see the module.
#[derive(Clone)]
pub struct Drive {
    config: FlashConfig,
    ftl: Ftl,
    link: Bus,
    link_byte_ps: u64,
    overhead: u64,
    command: u64,
    page: u64,
    /// The latest time seen.
    now: u64,
    /// Not ready before this: recovering.
    ready_at: u64,
    buffer: BinaryHeap<Reverse<Promise>>,
    /// When the last page of the host is programmed.
    programmed: u64,
    buffer_waits: u64,
    buffer_waited: u64,
    /// The streams that the host's writes were of so far, each kept apart, where the drive does that.
    streams: Vec<Stream>,
    times: [Histogram; 3],
}

impl std::fmt::Debug for Drive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Drive({}, {} bytes)", self.config.name, self.capacity())
    }
}

impl Drive {
    /// An empty drive kept in memory. `contents` must not be [`Contents::Nothing`].
    pub fn new(config: &FlashConfig, contents: Contents) -> Result<Drive, FlashError> {
        Ok(Drive::over(config, Ftl::new(config, contents)?))
    }

    /// An empty drive whose pages are kept in `store`, which must be empty.
    pub fn with_store(
        config: &FlashConfig,
        contents: Contents,
        store: Box<dyn PageContents>,
    ) -> Result<Drive, FlashError> {
        Ok(Drive::over(config, Ftl::with_store(config, contents, store)?))
    }

    fn over(config: &FlashConfig, ftl: Ftl) -> Drive {
        assert_ne!(ftl.nand().contents, Contents::Nothing, "a drive keeps its spare areas at least");
        Drive {
            link: Bus::default(),
            link_byte_ps: (1e6 / config.link.mb_s).round() as u64,
            overhead: nanos(config.link.overhead_us),
            command: nanos(config.link.command_us),
            page: config.geometry.page_bytes.into(),
            now: 0,
            ready_at: 0,
            buffer: BinaryHeap::new(),
            programmed: 0,
            buffer_waits: 0,
            buffer_waited: 0,
            streams: Vec::new(),
            times: Default::default(),
            config: config.clone(),
            ftl,
        }
    }

    /// What the drive is like.
    pub fn config(&self) -> &FlashConfig {
        &self.config
    }

    /// Capacity, bytes.
    pub fn capacity(&self) -> u64 {
        self.ftl.capacity().logical * self.page
    }

    /// The translation layer.
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    /// Tells the drive the time: never earlier than before.
    pub fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.ftl.advance(self.now);
    }

    /// Erases so far as a share of those that the blocks endure; `None`: they endure any number.
    pub fn life_used(&self) -> Option<f64> {
        let endurance = self.config().endurance;
        let wear = self.ftl.wear();
        let erases: u64 = wear.iter().map(|n| u64::from(*n)).sum();
        (endurance < u32::MAX).then(|| erases as f64 / (wear.len().max(1) as f64 * f64::from(endurance)))
    }

    /// Totals.
    pub fn stats(&self) -> FlashStats {
        let nand = self.ftl.nand();
        let mut wear = Vec::new();
        for erases in self.ftl.wear() {
            wear.resize(wear.len().max(erases as usize + 1), 0);
            wear[erases as usize] += 1;
        }
        let [read_times, write_times, flush_times] = self.times.clone();
        FlashStats {
            ftl: self.ftl.stats(),
            nand: nand.counts(),
            gates: nand.gate_usage(),
            channels: nand.bus_usage(),
            dies: nand.die_usage(),
            link: self.link.usage,
            wear,
            bad_blocks: self.ftl.bad_blocks(),
            spare_factor: 1.0 - self.ftl.mapped() as f64 / self.ftl.capacity().effective.max(1.0),
            buffer_waits: self.buffer_waits,
            buffer_waited: self.buffer_waited,
            read_times,
            write_times,
            flush_times,
            resident_bytes: nand.resident_bytes(),
        }
    }

    /// Starts the totals anew.
    pub fn reset_stats(&mut self) {
        self.ftl.reset_stats();
        self.link.usage = Usage::default();
        (self.buffer_waits, self.buffer_waited) = (0, 0);
        self.times = Default::default();
    }

    /// The same drive at the beginning of a new clock: the same bytes, mapping and wear, nothing under way, no totals.
    pub fn fork(&self) -> Drive {
        let mut copy = self.clone();
        (copy.now, copy.ready_at, copy.programmed) = (0, 0, 0);
        copy.reset_stats();
        copy.buffer.clear();
        copy.link = Bus::default();
        copy.ftl.restart_clock();
        copy
    }

    /// What a long rest does: the SLC cache is folded.
    pub fn rest(&mut self) -> Result<(), FlashError> {
        self.ftl.fold_all(self.now)
    }

    /// When a request completes that was given, as it is known now.
    pub fn settles(&self, done: &Done) -> u64 {
        let end = done.rests_on.iter().map(|p| self.ftl.nand().settles(p.block, p.promised)).fold(done.at, u64::max);
        assert!(done.rests_on.is_empty() || self.config.suspend.is_some(), "only what can be suspended is put off");
        end
    }

    /// The programs among `all` that could still end later than promised.
    fn rests_on(&self, all: impl Iterator<Item = Promise>) -> Vec<Promise> {
        if self.config.suspend.is_none() {
            return Vec::new();
        }
        let open = |p: &Promise| {
            assert!(p.end >= p.promised, "an end is put off, never brought forward");
            self.ftl.nand().settles(p.block, p.promised) > self.now
        };
        all.filter(open).collect()
    }

    /// When a request submitted at `at` begins to be worked on.
    fn start(&mut self, at: u64) -> u64 {
        self.advance(at);
        at.max(self.ready_at) + self.overhead
    }

    /// Takes note of the time that a request took.
    fn answered(&mut self, kind: usize, at: u64, end: u64) {
        assert!(end >= at + self.overhead, "a request ends after it came");
        self.times[kind].record(end - at);
    }

    /// The command of a request that moves data crosses the link.
    fn begin(&mut self, at: u64) -> u64 {
        let start = self.start(at);
        let sent = if self.command == 0 { start } else { self.link.reserve(self.now, start, self.command).end };
        assert!(sent >= start + self.command, "a command is sent before the data move");
        sent
    }

    fn send(&mut self, ready: u64, bytes: u64) -> u64 {
        self.link.reserve(self.now, ready, (bytes * self.link_byte_ps).div_ceil(1000)).end
    }

    /// The parts of a range: logical page, first byte in it, number of bytes.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        let (page, end) = (self.page, offset + len);
        let mut at = offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let part = (page - at % page).min(end - at);
                at += part;
                ((at - part) / page, (at - part) % page, part)
            })
        })
    }

    /// Spends the time of a read; [`Drive::peek`] gives the bytes.
    pub fn read(&mut self, at: u64, offset: u64, len: u64) -> Result<u64, FlashError> {
        let start = self.begin(at);
        let mut end = start;
        for (lpn, _, part) in self.parts(offset, len) {
            let buffered = self.config.buffer.kind != BufferKind::None && self.ftl.is_pending(lpn);
            let sensed = if buffered { None } else { self.ftl.read(start, lpn, part as usize)? };
            let sent = self.send(sensed.map_or(start, |s| s.end), part);
            end = end.max(sent);
        }
        self.answered(0, at, end);
        Ok(end)
    }

    /// The newest bytes of a range, without a request.
    pub fn peek(&self, offset: u64, buf: &mut [u8]) -> Result<(), FlashError> {
        let mut done = 0;
        let mut page = Vec::new();
        for (lpn, first, part) in self.parts(offset, buf.len() as u64) {
            let out = &mut buf[done..done + part as usize];
            if first == 0 {
                self.ftl.peek(lpn, out)?;
            } else {
                page.resize((first + part) as usize, 0);
                self.ftl.peek(lpn, &mut page)?;
                out.copy_from_slice(&page[first as usize..]);
            }
            done += part as usize;
        }
        Ok(())
    }

    /// The streams of the host's writes that the drive keeps apart, in the order in which they came; the last of as
    /// many as it can takes later ones too. None if it keeps none apart.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// The number of a stream, for the translation layer.
    fn number(&mut self, stream: Stream) -> u8 {
        if self.config.ftl.streams != varve_ftl::Streams::Hinted {
            return 0;
        }
        let most = usize::from(self.config.ftl.hinted_streams);
        assert!(self.streams.len() <= most, "a drive keeps so many streams apart");
        let found = self.streams.iter().position(|other| *other == stream);
        let number = found.unwrap_or_else(|| {
            if self.streams.len() < most {
                self.streams.push(stream);
            }
            self.streams.len() - 1
        });
        number as u8
    }

    /// Writes what is of no stream, as [`Drive::write_in`] does.
    pub fn write(&mut self, at: u64, offset: u64, data: &[u8], durable: bool) -> Result<Done, FlashError> {
        self.write_in(at, (offset, data), Stream::NONE, durable)
    }

    /// Writes; gives the time of completion. A durable write completes when a power cut cannot take it back any more.
    pub fn write_in(
        &mut self,
        at: u64,
        (offset, data): (u64, &[u8]),
        stream: Stream,
        durable: bool,
    ) -> Result<Done, FlashError> {
        let (start, stream) = (self.begin(at), self.number(stream));
        let (mut end, mut done) = (start, 0);
        let mut promises = Vec::new();
        let mut whole = Vec::new();
        for (lpn, first, part) in self.parts(offset, data.len() as u64) {
            let mut bytes = &data[done..done + part as usize];
            done += part as usize;
            let arrived = self.send(start, part);
            let entered = self.enter_buffer(arrived);
            let mut ready = entered;
            if part < self.page {
                // The rest of the page is read first, unless it is in the buffer still.
                whole.resize(self.page as usize, 0);
                self.ftl.peek(lpn, &mut whole)?;
                whole[first as usize..(first + part) as usize].copy_from_slice(bytes);
                bytes = &whole;
                if !self.ftl.is_pending(lpn)
                    && let Some(read) = self.ftl.read(entered, lpn, self.page as usize)?
                {
                    ready = read.end;
                }
            }
            let span = self.ftl.write_hinted(ready, lpn, Some(bytes), stream)?;
            assert!(span.end >= ready, "a page is programmed when it is there");
            self.programmed = self.programmed.max(span.end);
            let block = self.ftl.locate(lpn).expect("a page that was written has a place").block;
            let promise = Promise { end: span.end, block, promised: span.end };
            let waits = match self.config.buffer.kind {
                BufferKind::None => true,
                kind => {
                    self.buffer.push(Reverse(promise));
                    assert!(self.buffer.len() <= self.config.buffer.pages as usize, "a page has a place in the buffer");
                    durable && kind == BufferKind::Volatile
                }
            };
            if waits {
                promises.push(promise);
            }
            end = end.max(if waits { span.end } else { entered });
        }
        self.answered(1, at, end);
        Ok(Done { at: end, rests_on: self.rests_on(promises.into_iter()) })
    }

    /// When a page that arrived has a place in the buffer.
    fn enter_buffer(&mut self, arrived: u64) -> u64 {
        if self.config.buffer.kind == BufferKind::None {
            return arrived;
        }
        let mut entered = arrived;
        while self.buffer.len() >= self.config.buffer.pages as usize {
            let Reverse(first) = self.buffer.pop().expect("a full buffer has pages");
            // One that has ended is forgotten by its gate; what was known of it last holds.
            let end = self.ftl.nand().settles(first.block, first.promised).max(first.end);
            // Suspended meanwhile: another may be free before it.
            if self.buffer.peek().is_some_and(|Reverse(next)| next.end < end) && end > first.end {
                self.buffer.push(Reverse(Promise { end, ..first }));
                continue;
            }
            entered = entered.max(end);
        }
        self.buffer_waits += u64::from(entered > arrived);
        self.buffer_waited += entered - arrived;
        entered
    }

    /// Forgets whole pages of a range: they read as zeros. Parts of pages are left as they are.
    pub fn trim(&mut self, at: u64, offset: u64, len: u64) -> Result<u64, FlashError> {
        let start = self.start(at);
        let (first, end) = (offset.div_ceil(self.page), (offset + len) / self.page);
        if first < end {
            self.ftl.trim(first, end - first)?;
        }
        Ok(start)
    }

    /// Makes every completed write, and every trim, safe from power cuts.
    pub fn flush(&mut self, at: u64) -> Result<Done, FlashError> {
        let start = self.start(at);
        let end = match self.config.buffer.kind {
            BufferKind::Capacitor => start,
            BufferKind::None => start.max(self.ftl.settle(start)?),
            BufferKind::Volatile => start.max(self.programmed).max(self.ftl.settle(start)?),
        };
        self.answered(2, at, end);
        let volatile = self.config.buffer.kind == BufferKind::Volatile;
        let buffered = self.buffer.iter().filter(|_| volatile).map(|Reverse(p)| *p);
        Ok(Done { at: end, rests_on: self.rests_on(buffered) })
    }

    /// Cuts the power. With `held`, requests have been given that were to be caught half done: the cut falls at a
    /// random moment of their execution.
    pub fn power_cut(&mut self, now: u64, seed: u64, held: bool) -> NandCut {
        self.advance(now);
        self.buffer.clear();
        if self.config.buffer.kind == BufferKind::Capacitor {
            // The only error is a journal that cannot be written, on an array that takes no more writes at all.
            let _ = self.ftl.power_cut_bridged(self.now);
            return NandCut::default();
        }
        let mut rng = Rng::from_seed(seed);
        let at = self.ftl.nand().moment_of_cut(held, &mut rng);
        self.ftl.power_cut(at, rng.next_u64())
    }

    /// Turns the power on again: the drive finds its map, and is ready when it has.
    pub fn restore_power(&mut self, now: u64) -> Result<Recovery, FlashError> {
        self.advance(now);
        let found = self.ftl.recover(self.now);
        self.programmed = self.now;
        if let Ok(r) = &found {
            self.ready_at = r.ready_at;
        }
        found
    }
}
