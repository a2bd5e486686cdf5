//! The host's side: what it knows of its worker, offers to it, and does when the worker fails.
//!
//! A worker that was started anew, or that another host took, does no jobs of the attachment before. The host is
//! *detached* then: it merges everything itself, and a thread attaches again, with pauses that grow ([`AGAIN`]).
//!
//! Lock order: `state` and `analyser` are leaves.
//!
//! Invariants: pages that were set aside for a job are given to nobody else before the worker has said that the job
//! ended; an answer is used once, and only if it is to the job that was asked.

use super::decision::{Analyser, Decision, DecisionOptions, Measures, Mode, share_of_inputs};
use super::job::{Answer, Done, How, Job, Part};
use super::share::{Load, ShareRule, Shares};
use super::worker::LoadFn;
use super::{LinkUse, Near, NotStarted, Progress};
use crate::error::{Error, Result};
use crate::lsm::executor::{Span, Tally, split};
use crate::lsm::picker::Plan;
use crate::lsm::{MergeBy, Segment};
use crate::space::direct::DirectPages;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{Faults, Mistake};
use varve_rt::atomic::{AtomicU64, Ordering};
use varve_rt::{Condvar, Instant, Mutex, now};

/// Jobs that a worker was given up on and that have not ended: with so many it is asked for nothing more.
const MOST_ORPHANS: usize = 4;
/// Between two tries to attach again, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// A database that ends waits so long for what is under way at its worker.
const LAST: Duration = Duration::from_secs(1);
/// A job may take so long for each megabyte that goes in, beside the patience.
const PER_MEGABYTE: Duration = Duration::from_secs(1);

/// A worker for the merges of a database, and how it is used.
#[derive(Clone)]
pub struct NearOptions {
    /// The worker.
    pub worker: Arc<dyn Near>,
    /// A job that takes longer than this, and a second for each megabyte, is done by the host. Default: 30 s.
    pub patience: Duration,
    /// How the host decides with `merge=copro+`.
    pub host: DecisionOptions,
    /// How the worker does.
    pub device: DecisionOptions,
    /// Says how busy the host is; none: it is idle.
    pub load: Option<LoadFn>,
}

impl NearOptions {
    /// With the published decisions.
    pub fn new(worker: Arc<dyn Near>) -> NearOptions {
        let (host, device) = (DecisionOptions::host(), DecisionOptions::device());
        NearOptions { worker, patience: Duration::from_secs(30), host, device, load: None }
    }
}

/// What one side did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SideStats {
    /// Sub-tasks done.
    pub tasks: u64,
    /// Those of them that were pipelined.
    pub pipelined: u64,
    /// Bytes of blocks read by them.
    pub read: u64,
    /// Bytes of pages written by them.
    pub written: u64,
    /// Pairs that went in.
    pub pairs: u64,
    /// Those of them with large values, as the side's decision takes it.
    pub large: u64,
    /// Time spent in them, without flushes that came between.
    pub time: Duration,
    /// How the last of them was done; none: there was none.
    pub mode: Option<Mode>,
    /// The share of large pairs, 0 to 1, that the last one was, or would have been, decided by.
    pub large_share: f64,
    /// What the side had to work with when a merge was last shared: use of processor and memory. None: nobody says.
    pub load: Option<Load>,
    /// Time that the side waited for the other one when its own part was done; of a worker about.
    pub waited: Duration,
}

impl SideStats {
    /// Bytes read and written for each second in sub-tasks; 0: there was none.
    pub fn bandwidth(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { (self.read + self.written) as f64 / seconds } else { 0.0 }
    }

    fn add(&mut self, tally: &Tally, mode: Mode, time: Duration) {
        self.tasks += 1;
        self.pipelined += u64::from(mode == Mode::Pipeline);
        self.read += tally.read;
        self.written += tally.written;
        self.pairs += tally.pairs;
        self.large += tally.large;
        self.time += time;
        self.mode = Some(mode);
    }
}

/// Sub-tasks that the host did itself because of the worker, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// The worker did not take the job, or had too many that do not end.
    pub refused: u64,
    /// The worker failed to do it.
    pub failed: u64,
    /// There was no answer in time.
    pub late: u64,
    /// The answer was damaged, or not to this job, or not of what is on the device.
    pub garbage: u64,
    /// The worker lost it: it was restarted, or is gone.
    pub lost: u64,
    /// Whole merges, while the worker was not attached to.
    pub detached: u64,
}

impl Fallbacks {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.each().iter().map(|(_, n)| n).sum()
    }

    /// The counts with their names.
    pub fn each(&self) -> [(&'static str, u64); 6] {
        let Fallbacks { refused, failed, late, garbage, lost, detached } = *self;
        let by_answer = [("refused", refused), ("failed", failed), ("late", late), ("garbage", garbage)];
        let [a, b, c, d] = by_answer;
        [a, b, c, d, ("lost", lost), ("detached", detached)]
    }
}

/// What merges near the data came to since the database was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NearStats {
    /// The host's sub-tasks.
    pub host: SideStats,
    /// The worker's.
    pub device: SideStats,
    /// Merges that were cut in two.
    pub cut: u64,
    /// The host's share of the last merge, as it was wanted.
    pub share: f64,
    /// Bytes of jobs and answers.
    pub message_bytes: u64,
    /// What went over the connection to the worker, jobs, answers and blocks; none: it is in this process.
    pub link: Option<LinkUse>,
    /// What the host did instead of the worker.
    pub fallbacks: Fallbacks,
    /// Why it did so last.
    pub last_fallback: Option<String>,
    /// Of these parts, how many were taken up from the last segment that the worker had finished.
    pub resumed: u64,
    /// Bytes of pages of the segments that need not be made again by that.
    pub resumed_bytes: u64,
    /// Answers that came after the host had done the work itself. They were dropped.
    pub dropped: u64,
    /// Jobs given up that have not ended: their pages are kept from use.
    pub orphans: u64,
    /// Whether the worker is attached to; if not, the host merges everything itself.
    pub attached: bool,
    /// Times that it was attached to, the opening included.
    pub attachments: u64,
    /// Tries to attach again that failed.
    pub attach_failures: u64,
    /// Why the last of them failed.
    pub last_attach_failure: Option<String>,
}

/// Why the host does a part itself.
#[derive(Debug)]
pub(crate) enum Fallback {
    Refused(String),
    Failed(String),
    Late,
    Garbage(String),
    Lost(String),
}

/// A job that the worker was given.
pub(crate) struct Offer {
    pub job: Job,
    /// The pages that were set aside for it.
    pub pages: DirectPages,
    pub since: Instant,
    pub until: Instant,
    /// What the worker said last of what is finished.
    pub part: Option<Part>,
}

fn is_to(answer: &Answer, job: &Job) -> bool {
    (answer.generation, answer.id) == (job.generation, job.id)
}

struct State {
    /// The attachment; none: the worker is being attached to again.
    generation: Option<u64>,
    /// A thread does that.
    attaching: bool,
    /// The database ends.
    stops: bool,
    shares: Shares,
    decision: Decision,
    /// Jobs that were given up and may still write to their pages.
    orphans: Vec<(u64, DirectPages)>,
    stats: NearStats,
}

/// A database's worker.
pub(crate) struct Host {
    options: NearOptions,
    next: AtomicU64,
    state: Mutex<State>,
    /// What is written.
    analyser: Mutex<Analyser>,
    /// The database ends, or `attaching` changed.
    changed: Condvar,
    /// A mistake: any answer is believed.
    any_answer: bool,
}

/// Segments as the rule of the split has them; their bytes in pages.
fn shares(segments: &[Arc<Segment>]) -> Vec<split::Share<'_>> {
    let metas = segments.iter().map(|segment| &segment.meta);
    metas.map(|meta| split::Share { smallest: &meta.smallest, largest: &meta.largest, bytes: meta.pages }).collect()
}

/// How an executor splits merges and does the host's part; none: it needs no worker.
pub(crate) fn merges_near(by: MergeBy) -> Option<(ShareRule, Option<Mode>)> {
    match by {
        MergeBy::Sequential | MergeBy::Pcp => None,
        MergeBy::Cokv => Some((ShareRule::Half, Some(Mode::Linear))),
        MergeBy::Copro => Some((ShareRule::Half, Some(Mode::Pipeline))),
        MergeBy::CoproPlus => Some((ShareRule::Half, None)),
        MergeBy::Tstore => Some((ShareRule::Time, Some(Mode::Pipeline))),
        MergeBy::Dstore => Some((ShareRule::Resources, Some(Mode::Pipeline))),
        MergeBy::Near => Some((ShareRule::Near, Some(Mode::Pipeline))),
    }
}

/// What each side merges; none: nothing.
pub(crate) struct Parts {
    pub host: Option<Span>,
    pub device: Option<Span>,
}

impl Host {
    /// Takes the worker. What earlier openings of the database left with it has ended when this returns.
    pub(crate) fn attach(options: NearOptions, faults: &Faults) -> Result<Host> {
        let checked = options.host.check().and(options.device.check());
        checked.map_err(Error::Invalid)?;
        let attached = options.worker.attach();
        let generation = attached.map_err(|why| Error::Resources(format!("the worker cannot be used: {why}")))?;
        let (decision, analyser) = (Decision::new(options.host), Mutex::new(Analyser::new(options.host.window)));
        let state = Mutex::new(State {
            generation: Some(generation),
            attaching: false,
            stops: false,
            shares: Shares::default(),
            decision,
            orphans: Vec::new(),
            stats: NearStats { attachments: 1, ..NearStats::default() },
        });
        let any_answer = faults.has(Mistake::NearAnyAnswer);
        Ok(Host { options, next: AtomicU64::new(1), state, analyser, changed: Condvar::new(), any_answer })
    }

    /// Whether a merge may be shared. If not, it is counted as the host's, and the worker is being attached to again.
    pub(crate) fn is_attached(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        if state.generation.is_some() {
            return true;
        }
        state.stats.fallbacks.detached += 1;
        if !state.attaching && !state.stops {
            state.attaching = true;
            drop(state);
            self.begin_to_attach();
        }
        false
    }

    /// The worker does not know this attachment any more.
    fn detach(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == Some(generation) {
            state.generation = None;
        }
    }

    fn begin_to_attach(self: &Arc<Self>) {
        let this = self.clone();
        if varve_rt::try_spawn_daemon("near attach", move || this.attach_again()).is_err() {
            // The next merge tries again.
            self.state.lock().attaching = false;
        }
    }

    /// The life of the thread that attaches again.
    fn attach_again(&self) {
        let mut pause = AGAIN[0];
        let mut state = self.state.lock();
        while !state.stops && !varve_rt::dying() {
            drop(state);
            let attached = self.options.worker.attach();
            state = self.state.lock();
            match attached {
                Ok(generation) => {
                    assert!(state.generation.is_none(), "a host that is attached does not attach again");
                    state.generation = Some(generation);
                    state.stats.attachments += 1;
                    break;
                }
                Err(why) => {
                    state.stats.attach_failures += 1;
                    state.stats.last_attach_failure = Some(why);
                }
            }
            let until = now() + pause;
            while !state.stops && !varve_rt::dying() && !self.changed.wait_until(&mut state, until) {}
            pause = (pause * 2).min(AGAIN[1]);
        }
        assert!(state.attaching, "one thread attaches again");
        state.attaching = false;
        drop(state);
        self.changed.notify_all();
    }

    /// What it came to.
    pub(crate) fn stats(&self) -> NearStats {
        let link = self.options.worker.link();
        let state = self.state.lock();
        let (orphans, attached) = (state.orphans.len() as u64, state.generation.is_some());
        NearStats { orphans, attached, link, ..state.stats.clone() }
    }

    fn load(&self) -> Load {
        self.options.load.as_ref().map(|load| load()).unwrap_or_default()
    }

    /// How a merge of so many bytes is divided.
    pub(crate) fn divide(&self, rule: ShareRule, plan: &Plan, bytes: u64) -> Parts {
        let (host, device) = (self.load(), self.options.worker.load());
        let mut state = self.state.lock();
        let share = state.shares.host_share(rule, bytes, &host, &device);
        assert!((0.0..=1.0).contains(&share), "a share is a share");
        state.stats.share = share;
        state.stats.host.load = self.options.load.is_some().then_some(host);
        state.stats.device.load = Some(device);
        let all = || Some(Span::default());
        if share <= 0.0 || share >= 1.0 {
            return if share <= 0.0 {
                Parts { host: None, device: all() }
            } else {
                Parts { host: all(), device: None }
            };
        }
        match split::cut(&shares(&plan.next), &shares(&plan.inputs), share) {
            Some(key) => {
                state.stats.cut += 1;
                let (to, from) = (Some(key.to_vec()), Some(key.to_vec()));
                Parts { host: Some(Span { from: None, to }), device: Some(Span { from, to: None }) }
            }
            None if state.shares.device_is_faster() => Parts { host: None, device: all() },
            None => Parts { host: all(), device: None },
        }
    }

    /// How the host does its part, and from how many bytes on a value is large; `fixed`: how its executor wants it.
    pub(crate) fn mode(&self, fixed: Option<Mode>, inputs: impl Iterator<Item = (u64, u64)>) -> (Mode, usize) {
        let large_bytes = self.options.host.large_bytes;
        let of_inputs = share_of_inputs(inputs, large_bytes);
        let load = self.load();
        let large = self.analyser.lock().share().unwrap_or(of_inputs);
        let mut state = self.state.lock();
        state.stats.host.large_share = large;
        let measures = Measures { cpu: load.cpu, memory: load.memory, large };
        (fixed.unwrap_or_else(|| state.decision.decide(measures)), large_bytes as usize)
    }

    /// How the worker is to do its part.
    pub(crate) fn how(&self, fixed: Option<Mode>) -> How {
        fixed.map_or(How::Decides(self.options.device), How::As)
    }

    /// Attachment and number of the next job. While there is no attachment the job is refused.
    pub(crate) fn next_job(&self) -> (u64, u64) {
        (self.state.lock().generation.unwrap_or(0), self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether it decides by what is written.
    pub(crate) fn counts_writes(&self) -> bool {
        self.options.host.window > 0
    }

    /// Pairs were written with values of so many bytes.
    pub(crate) fn note_writes(&self, values: impl ExactSizeIterator<Item = usize>) {
        let (pairs, large_bytes) = (values.len() as u64, self.options.host.large_bytes as usize);
        let large = values.filter(|bytes| *bytes > large_bytes).count() as u64;
        self.analyser.lock().note(pairs, large);
    }

    /// The host has done a sub-task, which took so long without what was more urgent.
    pub(crate) fn note_host(&self, tally: &Tally, mode: Mode, time: Duration) {
        assert!(tally.large <= tally.pairs, "large pairs are pairs");
        let mut state = self.state.lock();
        state.shares.host.note(tally.read + tally.written, time);
        state.stats.host.add(tally, mode, time);
    }

    /// So long was the worker waited for.
    pub(crate) fn note_wait(&self, time: Duration) {
        self.state.lock().stats.host.waited += time;
    }

    /// The host does a part itself, and why.
    pub(crate) fn note_fallback(&self, why: &Fallback) {
        let mut state = self.state.lock();
        let fallbacks = &mut state.stats.fallbacks;
        let (count, text) = match why {
            Fallback::Refused(text) => (&mut fallbacks.refused, text.clone()),
            Fallback::Failed(text) => (&mut fallbacks.failed, text.clone()),
            Fallback::Late => (&mut fallbacks.late, "there was no answer in time".into()),
            Fallback::Garbage(text) => (&mut fallbacks.garbage, text.clone()),
            Fallback::Lost(text) => (&mut fallbacks.lost, text.clone()),
        };
        *count += 1;
        state.stats.last_fallback = Some(text);
    }

    /// Gives the worker a job whose outputs go to these pages.
    pub(crate) fn offer(&self, job: Job, pages: DirectPages) -> std::result::Result<Offer, Fallback> {
        assert!(!job.runs.is_empty() && !job.room.is_empty(), "a job has something to do, and room for it");
        self.reap();
        if self.state.lock().generation != Some(job.generation) {
            return Err(Fallback::Refused("the worker is being attached to again".into()));
        }
        if self.state.lock().orphans.len() >= MOST_ORPHANS {
            return Err(Fallback::Refused("jobs of the worker do not end".into()));
        }
        let Some(bytes) = job.encode() else { return Err(Fallback::Refused("the job is too long to be sent".into())) };
        self.state.lock().stats.message_bytes += bytes.len() as u64;
        let inputs: u64 = job.runs.iter().flatten().map(|segment| segment.meta.pages).sum();
        let megabytes = ((inputs * job.pages.size as u64) >> 20) as u32;
        let since = now();
        let until = since + self.options.patience + PER_MEGABYTE * megabytes;
        match self.options.worker.start(job.id, &bytes) {
            Ok(()) => Ok(Offer { job, pages, since, until, part: None }),
            Err(NotStarted::Detached(why)) => {
                self.detach(job.generation);
                Err(Fallback::Refused(why))
            }
            Err(NotStarted::Refused(why)) => {
                // Whether it has begun nobody knows.
                self.give_up(Offer { job, pages, since, until, part: None });
                Err(Fallback::Refused(why))
            }
        }
    }

    /// Waits at most so long for a job; none: it is under way. Its pages are the caller's again unless it is late.
    pub(crate) fn wait(&self, offer: &mut Offer, most: Duration) -> Option<std::result::Result<Done, Fallback>> {
        match self.options.worker.wait(offer.job.id, most) {
            Progress::Running => (now() >= offer.until).then_some(Err(Fallback::Late)),
            Progress::Further(bytes) => {
                self.state.lock().stats.message_bytes += bytes.len() as u64;
                let job = &offer.job;
                // What is damaged, or of another job, says nothing.
                let ours = |part: &Part| (part.generation, part.id) == (job.generation, job.id);
                let known = offer.part.as_ref().map_or(0, |part| part.segments.len());
                let part = Part::decode(&bytes).ok().filter(|part| ours(part) && part.segments.len() > known);
                offer.part = part.or(offer.part.take());
                (now() >= offer.until).then_some(Err(Fallback::Late))
            }
            Progress::Lost(why) => Some(Err(Fallback::Lost(why))),
            Progress::Ended(bytes) => {
                self.state.lock().stats.message_bytes += bytes.len() as u64;
                let garbage = |what: &str| Some(Err(Fallback::Garbage(format!("the worker's answer: {what}"))));
                match Answer::decode(&bytes) {
                    Err(what) => garbage(what),
                    Ok(answer) if !is_to(&answer, &offer.job) && !self.any_answer => garbage("it is to another job"),
                    Ok(Answer { done: Err(why), .. }) => Some(Err(Fallback::Failed(why))),
                    Ok(Answer { done: Ok(done), .. }) => Some(Ok(done)),
                }
            }
        }
    }

    /// A part that the worker lost goes on after segments of so many bytes.
    pub(crate) fn note_resumed(&self, bytes: u64) {
        let stats = &mut self.state.lock().stats;
        (stats.resumed, stats.resumed_bytes) = (stats.resumed + 1, stats.resumed_bytes + bytes);
    }

    /// The worker has done a job, and what it wrote is as it says; the host was done so long after it was given away.
    pub(crate) fn note_device(&self, done: &Done, host_done: Duration) {
        let mut state = self.state.lock();
        let device = &mut state.stats.device;
        // On its way, and in the queue, a job is for a moment only.
        device.waited += host_done.saturating_sub(done.time);
        device.large_share = done.share.min(1.0);
        state.shares.device.note(done.tally.read + done.tally.written, done.time);
        state.stats.device.add(&done.tally, done.mode, done.time);
    }

    /// The answer is not wanted any more. The pages are kept until the job has ended.
    pub(crate) fn give_up(&self, offer: Offer) {
        self.options.worker.cancel(offer.job.id);
        self.state.lock().orphans.push((offer.job.id, offer.pages));
    }

    /// Gives the pages back of jobs that were given up and have ended.
    pub(crate) fn reap(&self) {
        let orphans = std::mem::take(&mut self.state.lock().orphans);
        let mut left = Vec::new();
        for (id, pages) in orphans {
            match self.options.worker.wait(id, Duration::ZERO) {
                Progress::Running | Progress::Further(_) => left.push((id, pages)),
                Progress::Ended(_) => self.state.lock().stats.dropped += 1,
                Progress::Lost(_) => {}
            }
        }
        self.state.lock().orphans.append(&mut left);
    }

    /// The database ends: what is under way at the worker gets a moment to end.
    pub(crate) fn end(&self) {
        let until = now() + LAST;
        let mut state = self.state.lock();
        state.stops = true;
        self.changed.notify_all();
        while state.attaching && !varve_rt::dying() && !self.changed.wait_until(&mut state, until) {}
        drop(state);
        self.reap();
        while !self.state.lock().orphans.is_empty() && now() < until && !varve_rt::dying() {
            varve_rt::sleep(Duration::from_millis(10));
            self.reap();
        }
    }
}
