//! Damage at rest: databases whose files are damaged while nobody has them open, one damage at a time. Nothing may be
//! lost without a word, nothing read wrong, nothing may panic or never end. `docs/testing.md` says what is done and
//! what cannot be found.
//!
//! Layers, upper to lower: [`run`] (many damages, in parallel) over `trial` (one damaged database, opened, read,
//! written) and `build` (databases to damage). `truth`, `blow` and `tally` are pure but for the files they look at.

mod blow;
mod build;
mod files;
mod tally;
mod trial;
mod truth;

pub use tally::{Class, DamageFinding, DamageRow};

use super::book::Trace;
use blow::{Blow, Damage};
use build::{Database, Shape};
use files::{File, Files};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tally::Tally;
use varve::Mistake;
use varve_rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use varve_rt::{Mutex, Rng, channel};

/// Damages that share one database.
const PER_DATABASE: u64 = 4000;
/// One damage in so many strikes a large database, anywhere in it; the others go through a small one block by block.
const LARGE_EVERY: u64 = 16;
/// Databases held at once.
const MOST_DATABASES: usize = 4;

/// How the database ended before it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Closed cleanly.
    Closed,
    /// The power was cut under load.
    Crashed,
    /// And once more inside the recovery after it.
    Recovering,
}

impl State {
    /// All states.
    pub const ALL: [State; 3] = [State::Closed, State::Crashed, State::Recovering];

    /// Name for options and reports.
    pub fn name(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Crashed => "crashed",
            State::Recovering => "recovering",
        }
    }
}

/// What to damage, and how often.
#[derive(Clone, Debug)]
pub struct DamageOptions {
    /// Everything follows from it.
    pub seed: u64,
    /// Damages of each state.
    pub damages: u64,
    /// States of the databases.
    pub states: Vec<State>,
    /// A tier's manager, or `all`; none: a single device.
    pub tier: Option<String>,
    /// The databases remember which version of each page was written last (`detect_lost_writes`), so that no stale one
    /// may be believed.
    pub detect: bool,
    /// A mistake to build in, to see it caught.
    pub breakage: Option<Mistake>,
    /// Damages in parallel.
    pub jobs: usize,
    /// Findings after which no further damage is begun.
    pub most_findings: usize,
}

impl DamageOptions {
    /// `damages` of each state, single device, two jobs.
    pub fn new(damages: u64) -> DamageOptions {
        let states = State::ALL.to_vec();
        DamageOptions {
            seed: 1,
            damages,
            states,
            tier: None,
            detect: false,
            breakage: None,
            jobs: 2,
            most_findings: usize::MAX,
        }
    }

    fn shape(&self, place: &Place) -> Shape {
        let which = place.number << 8 | (place.state as u64) << 1 | u64::from(place.large);
        let seed = Rng::from_seed(self.seed ^ which << 20).next_u64();
        Shape::draw(seed, self.tier.as_deref(), place.large, self.breakage).detecting(self.detect)
    }

    fn replay(&self, state: State, number: u64) -> String {
        let mut text = format!("varve sim --damage {} --seed {}", self.damages, self.seed);
        text += &format!(" --state {} --damage-only {number} --trace", state.name());
        if let Some(tier) = &self.tier {
            text += &format!(" --layout tier --manager {tier}");
        }
        if self.detect {
            text += " --detect-lost-writes";
        }
        if let Some(breakage) = self.breakage {
            text += &format!(" --broken {}", breakage.name());
        }
        text
    }
}

/// What came out. Serialises to the tool's JSON.
#[derive(Clone, Debug, Serialize)]
pub struct DamageReport {
    /// Damages done.
    pub damages: u64,
    /// Names of the classes, in the order of the counts.
    pub classes: Vec<&'static str>,
    /// Counts of all damages by class.
    pub counts: [u64; Class::ALL.len()],
    /// What each state, file and kind of damage contributed.
    pub rows: Vec<DamageRow>,
    /// Damages that came to what must not be, in order.
    pub findings: Vec<DamageFinding>,
    /// Databases that could not be made, or were wrong without any damage.
    pub failures: Vec<String>,
    /// Whole run, seconds.
    pub seconds: f64,
}

impl DamageReport {
    /// Damages of a class.
    pub fn count(&self, class: Class) -> u64 {
        let at = Class::ALL.iter().position(|c| *c == class).expect("listed");
        self.counts[at]
    }

    /// Whether nothing came to what must not be.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && Class::ALL.iter().all(|class| !class.is_fault() || self.count(*class) == 0)
    }
}

/// Which database a damage strikes, and which of its damages it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    state: State,
    large: bool,
    number: u64,
}

impl Place {
    fn of(state: State, number: u64) -> (Place, u64) {
        let large = number % LARGE_EVERY == LARGE_EVERY - 1;
        let nth = if large { number / LARGE_EVERY } else { number - number / LARGE_EVERY };
        (Place { state, large, number: nth / PER_DATABASE }, nth % PER_DATABASE)
    }
}

/// A database with its damages in order.
struct Target {
    database: Database,
    damages: Vec<Damage>,
    /// Files of another database.
    foreign: Files,
}

impl Target {
    fn build(options: &DamageOptions, place: &Place) -> Result<Target, String> {
        let shape = options.shape(place);
        let database = build::build(&shape, place.state)?;
        let other = shape.with_seed(shape.seed ^ 0xf0e1);
        let foreign = build::build(&other, place.state)?.files;
        let damages = if place.large { Vec::new() } else { Damage::all(&database) };
        Ok(Target { database, damages, foreign })
    }

    /// The `nth` damage of this database.
    fn damage(&self, nth: u64) -> Damage {
        match self.damages.get(nth as usize) {
            Some(damage) => *damage,
            None => Damage::draw(&self.database, &mut Rng::from_seed(self.database.shape.seed ^ nth << 20)),
        }
    }

    fn run(&self, nth: u64, detects: bool, trace: Trace) -> (Damage, Class, String) {
        let (database, damage) = (&self.database, self.damage(nth));
        let mut files = database.files.copy();
        damage.strike(database, &self.foreign, &mut files, database.shape.seed ^ nth);
        let seen = trial::run(&database.shape, &files, &database.truth, database.limits, trace);
        let stale = match damage.blow {
            // As if all files were of that moment: no page is newer than the log's end.
            Blow::OldFile { moment } if damage.file == File::Log && seen.untrue.is_some() => {
                let truth = &database.moments[moment].truth;
                trial::run(&database.shape, &files, truth, database.limits, Trace::off()).untrue.is_none()
            }
            _ => !detects && damage.is_plausible(database),
        };
        (damage, tally::judge(&damage, &seen, stale), seen.text())
    }
}

/// A database, or why it could not be made.
type Shelf = (Place, Arc<Result<Target, String>>);

/// Databases made so far, newest last.
#[derive(Default)]
struct Library(Mutex<Vec<Shelf>>);

impl Library {
    fn get(&self, options: &DamageOptions, place: &Place) -> Arc<Result<Target, String>> {
        let mut known = self.0.lock();
        if let Some((_, target)) = known.iter().find(|(p, _)| p == place) {
            return target.clone();
        }
        if known.len() == MOST_DATABASES {
            known.remove(0);
        }
        let target = Arc::new(Target::build(options, place));
        known.push((*place, target.clone()));
        target
    }
}

/// Result of a damage: its state's index, its number, and what it came to, or why there is no database.
type Done = (usize, u64, Result<(Damage, Class, String), String>);

/// Does all the damages. `progress` is called from the calling thread with the number done.
pub fn run(options: &DamageOptions, mut progress: impl FnMut(u64)) -> DamageReport {
    let start = varve_rt::now();
    let (next, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let library = Arc::new(Library::default());
    let (sender, receiver) = channel::unbounded();
    let threads: Vec<_> = (0..options.jobs.max(1))
        .map(|job| {
            let (next, stop, library) = (next.clone(), stop.clone(), library.clone());
            let (sender, options) = (sender.clone(), options.clone());
            varve_rt::spawn(format!("damages {job}"), move || {
                let all = options.damages * options.states.len() as u64;
                while !stop.load(SeqCst) {
                    let at = next.fetch_add(1, SeqCst);
                    if at >= all || sender.send(one(&options, &library, at)).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    drop(sender);
    let mut report = Collect::default();
    while let Ok(done) = receiver.recv() {
        report.add(options, done);
        progress(report.damages);
        if report.findings.len() + report.failures.len() >= options.most_findings {
            stop.store(true, SeqCst);
        }
    }
    for thread in threads {
        thread.join().expect("a trial's panics are caught by its simulation");
    }
    report.finish(options, start.elapsed().as_secs_f64())
}

fn one(options: &DamageOptions, library: &Library, at: u64) -> Done {
    let (state, number) = ((at / options.damages) as usize, at % options.damages);
    let (place, nth) = Place::of(options.states[state], number);
    let target = library.get(options, &place);
    let result = match &*target {
        Ok(target) => Ok(target.run(nth, options.detect, Trace::off())),
        Err(why) => Err(format!("{} database {}: {why}", place.state.name(), place.number)),
    };
    (state, number, result)
}

/// The report that grows.
#[derive(Default)]
struct Collect {
    damages: u64,
    tally: Tally,
    findings: BTreeMap<(usize, u64), DamageFinding>,
    failures: BTreeMap<String, u64>,
}

impl Collect {
    fn add(&mut self, options: &DamageOptions, (state, number, result): Done) {
        let (damage, class, seen) = match result {
            Ok(done) => done,
            Err(why) => return *self.failures.entry(why).or_default() += 1,
        };
        self.damages += 1;
        self.tally.add(state, &damage, class);
        if class.is_fault() {
            let (damage, replay) = (damage.to_string(), options.replay(options.states[state], number));
            self.findings.insert((state, number), DamageFinding { number, class, damage, seen, replay });
        }
    }

    fn finish(self, options: &DamageOptions, seconds: f64) -> DamageReport {
        let states: Vec<_> = options.states.iter().map(|s| s.name()).collect();
        let rows = self.tally.rows(&states);
        let mut counts = [0; Class::ALL.len()];
        for row in &rows {
            counts.iter_mut().zip(row.counts).for_each(|(sum, n)| *sum += n);
        }
        DamageReport {
            damages: self.damages,
            classes: Class::ALL.iter().map(|c| c.name()).collect(),
            counts,
            rows,
            findings: self.findings.into_values().collect(),
            failures: self.failures.into_iter().map(|(why, n)| format!("{why} ({n} damages not done)")).collect(),
            seconds,
        }
    }
}

/// Does one damage of the first state again, and tells `sink` what happens. Returns what it came to, and what was seen.
pub fn damage_only(
    options: &DamageOptions,
    number: u64,
    sink: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(Class, String), String> {
    let sink: super::book::Sink = Arc::new(sink);
    let (place, nth) = Place::of(options.states[0], number);
    let target = Target::build(options, &place)?;
    sink(&format!("{:#?}", target.database.shape));
    sink(&format!("damage {number}: {}", target.damage(nth)));
    let (_, class, seen) = target.run(nth, options.detect, Trace::to(sink));
    Ok((class, seen))
}
