//! Single operations of the tier's devices that fail: what was promised before holds, nothing is promised after that
//! cannot be kept, reads go on. A fast device that holds copies only costs no more than those.

mod tier_support;

use std::sync::Arc;
use std::time::Duration;
use tier_support::{SIZE, read, sealed, write};
use varve_device::{Device, DeviceError, DeviceInfo, DeviceStats, Io, OpKind, Ticket};
use varve_models::{MemDevice, Powered};
use varve_rt::Mutex;
use varve_rt::sim::{Config, run};
use varve_volume::tier::{Keeper, MapRecovery, Tier, TierOptions};
use varve_volume::{KeyspaceId, PageId, PageStore, PageUse, Single, VolumeError, page};

const OWNER: [u8; 16] = [3; 16];

/// What a device does with the requests of a kind.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Good,
    /// The n-th from now on fails.
    Fails(OpKind, u32),
    /// The next one fails and loses what was not durable.
    Loses(OpKind),
    /// They wait.
    Waits(OpKind),
    /// Everything fails.
    Dead,
}

struct Moody {
    inner: Arc<MemDevice>,
    mood: Mutex<Mood>,
    /// Requests that wait.
    waiting: Mutex<u32>,
}

impl Moody {
    fn new(pages: u64) -> Arc<Moody> {
        let inner = MemDevice::new(pages * SIZE as u64);
        Arc::new(Moody { inner, mood: Mutex::new(Mood::Good), waiting: Mutex::new(0) })
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    /// Whether what was to fail did; it is good from here on.
    fn did_fail(&self) -> bool {
        std::mem::replace(&mut *self.mood.lock(), Mood::Good) == Mood::Good
    }

    fn power_cut(&self) {
        self.set(Mood::Good);
        self.inner.power_cut(1);
        self.inner.restore_power();
    }

    /// Waits until a request waits.
    fn until_it_waits(&self) {
        while *self.waiting.lock() == 0 {
            varve_rt::sleep(Duration::from_micros(100));
        }
    }

    fn fails(&self, batch: &[Io]) -> bool {
        let has = |op: OpKind| batch.iter().any(|io| io.op.kind() == op);
        let mut mood = self.mood.lock();
        match *mood {
            Mood::Fails(op, n) if has(op) => {
                *mood = if n == 0 { Mood::Good } else { Mood::Fails(op, n - 1) };
                n == 0
            }
            Mood::Loses(op) if has(op) => {
                *mood = Mood::Good;
                self.inner.power_cut(5);
                self.inner.restore_power();
                true
            }
            mood => mood == Mood::Dead,
        }
    }
}

impl Device for Moody {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> Result<(), DeviceError> {
        self.inner.set_len(len)
    }
    fn submit(&self, batch: Vec<Io>) -> Ticket {
        let op = batch.first().map_or(OpKind::Read, |io| io.op.kind());
        if self.fails(&batch) {
            let device = self.info().name;
            let error = DeviceError::Io { op, device, offset: 0, len: 0, errno: 5, retryable: true };
            return Ticket::ready(batch.iter().map(|_| Err(error.clone())).collect());
        }
        *self.waiting.lock() += 1;
        while *self.mood.lock() == Mood::Waits(op) {
            varve_rt::sleep(Duration::from_micros(100));
        }
        *self.waiting.lock() -= 1;
        self.inner.submit(batch)
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
}

/// Notes what it is told.
#[derive(Default)]
struct Notes {
    broken: Mutex<Option<String>>,
    forsaken: Mutex<bool>,
}

impl Keeper for Notes {
    fn broken(&self, cause: &VolumeError) {
        *self.broken.lock() = Some(cause.to_string());
    }
    fn forsake(&self) -> Result<(), VolumeError> {
        *self.forsaken.lock() = true;
        Ok(())
    }
}

struct Rig {
    fast: Arc<Moody>,
    slow: Arc<Moody>,
    tier: Arc<Tier>,
    notes: Arc<Notes>,
}

fn named(manager: &str) -> TierOptions {
    TierOptions { manager: manager.into(), ..TierOptions::default() }
}

fn rig(options: TierOptions) -> Rig {
    let (fast, slow) = (Moody::new(200), Moody::new(6000));
    let home = Single::new(slow.clone(), SIZE).unwrap();
    let tier = Tier::create(home, fast.clone(), OWNER, options).unwrap();
    let notes = Arc::new(Notes::default());
    tier.answer_to(notes.clone());
    tier.start().unwrap();
    Rig { fast, slow, tier, notes }
}

impl Rig {
    fn lsn(&self, id: u64) -> Result<u64, VolumeError> {
        read(&self.tier, id).map(|bytes| page::lsn(&bytes))
    }

    fn change(&self, id: u64, lsn: u64) {
        self.tier.dirtied(PageId(id), KeyspaceId(1), PageUse::default());
        write(&self.tier, &sealed(id, lsn)).unwrap();
    }

    /// A copy of the page gets a slot, and is there.
    fn admit(&self, id: u64, lsn: u64) {
        let bytes = sealed(id, lsn);
        write(&self.tier, &bytes).unwrap();
        assert!(self.tier.evict_clean(PageId(id), &bytes, PageUse { logical_reads: 3, ..PageUse::default() }));
        varve_rt::sleep(Duration::from_secs(1));
    }

    /// The tier as the database would open it after a power cut: a forsaken fast device is not used.
    fn cut(self) -> Rig {
        let Rig { fast, slow, tier, notes } = self;
        tier.stop();
        let options = tier.options().clone();
        [&fast, &slow].iter().for_each(|device| device.power_cut());
        let home = Single::new(slow.clone(), SIZE).unwrap();
        let forsaken = *notes.forsaken.lock();
        let opened = if forsaken { Tier::create } else { Tier::open };
        Rig { tier: opened(home, fast.clone(), OWNER, options).unwrap(), fast, slow, notes }
    }
}

fn in_simulation(f: impl FnOnce() + Send + 'static) {
    run(Config::default(), f).unwrap();
}

fn io_error() -> String {
    "errno 5".into()
}

/// What the tier does to record where pages are, each of whose flushes can fail.
type Work = fn(&Rig) -> Result<(), VolumeError>;
const RECORDING: [(&str, Work); 4] = [
    ("map", |r| r.tier.save_map()),
    ("sync", |r| r.tier.sync()),
    ("growth", |r| r.tier.resize(640 * SIZE as u64).map(|_| ())),
    ("cut", |r| r.tier.resize(165 * SIZE as u64).map(|_| ())),
];

#[test]
fn copies_whose_standing_could_not_be_recorded_are_not_used_again() {
    for (name, work) in RECORDING {
        for n in 0..4 {
            in_simulation(move || {
                let rig = rig(named("cw"));
                rig.admit(7, 10);
                rig.tier.sync().unwrap();
                rig.fast.set(Mood::Fails(OpKind::Flush, n));
                let done = work(&rig);
                let failed = rig.fast.did_fail();
                assert!(failed || done.is_ok(), "{name} {n}");
                assert_eq!(failed, rig.tier.forsaken(), "{name} {n}: it held copies only");
                rig.change(7, 20);
                rig.tier.sync().unwrap();
                assert_eq!(*rig.notes.forsaken.lock(), failed, "noted before anything is promised");
                assert_eq!(rig.lsn(7).unwrap(), 20);
                assert_eq!(*rig.notes.broken.lock(), None);
                assert_eq!(rig.cut().lsn(7).unwrap(), 20, "{name} {n}: the sync had promised it");
            });
        }
    }
}

#[test]
fn after_a_failed_flush_of_what_only_the_fast_device_has_nothing_is_promised() {
    let detach: (&str, Work) = ("detach", |r| r.tier.detach().map(|_| ()));
    for (name, work) in RECORDING.into_iter().chain([detach]) {
        for n in 0..4 {
            in_simulation(move || {
                let rig = rig(named("lru2"));
                (0..3).for_each(|id| write(&rig.tier, &sealed(id, 10)).unwrap());
                rig.tier.sync().unwrap();
                rig.fast.set(Mood::Fails(OpKind::Flush, n));
                let done = work(&rig);
                let failed = rig.fast.did_fail();
                if !failed {
                    return done.unwrap();
                }
                done.unwrap_err();
                assert!(rig.notes.broken.lock().as_ref().is_some_and(|why| why.contains(&io_error())), "{name} {n}");
                (0..3).for_each(|id| rig.change(id, 20));
                (0..3).for_each(|id| assert_eq!(rig.lsn(id).unwrap(), 20, "reads go on"));
                for again in 0..20 {
                    let why = rig.tier.sync().unwrap_err().to_string();
                    assert!(why.contains(&io_error()), "{name} {n}, sync {again}: {why}");
                }
                let rig = rig.cut();
                for id in 0..3 {
                    // (Or torn: it was written since, and the log has it.)
                    let found = rig.lsn(id);
                    let kept = matches!(found, Ok(10..) | Err(VolumeError::Damaged { .. }));
                    assert!(kept, "{name} {n}: the first sync had promised 10: {found:?}");
                }
            });
        }
    }
}

#[test]
fn a_sync_does_not_promise_what_a_failed_one_lost() {
    for manager in ["lru2", "cw"] {
        in_simulation(move || {
            // One page's worth of admissions a day: page 0 is newer on the fast device, the others go home.
            let rig = rig(TierOptions { daily_budget: Some(SIZE as u64), ..named(manager) });
            (0..60).for_each(|id| write(&rig.tier, &sealed(id, 10)).unwrap());
            rig.tier.sync().unwrap();
            (0..60).for_each(|id| write(&rig.tier, &sealed(id, 20)).unwrap());
            rig.slow.set(Mood::Loses(OpKind::Flush));
            let first = if manager == "cw" { rig.tier.sync() } else { rig.tier.all_home() };
            first.unwrap_err();
            assert!(rig.notes.broken.lock().is_some());
            rig.tier.sync().unwrap_err();
            rig.tier.all_home().and_then(|()| rig.tier.sync()).unwrap_err();
            let kept = (0..60).filter(|id| rig.lsn(*id).is_ok_and(|lsn| lsn == 20)).count();
            assert!(kept < 60, "the flush that failed lost something");
        });
    }
}

#[test]
fn a_page_on_its_way_home_is_not_overtaken_by_a_slot_given_up() {
    in_simulation(|| {
        // The first write takes the day's budget, later ones go home.
        let rig = Arc::new(rig(TierOptions { daily_budget: Some(SIZE as u64), ..named("lru2") }));
        write(&rig.tier, &sealed(7, 50)).unwrap();
        // It is at home, but nobody could tell: the slot goes on to hold what is newer.
        write(&**rig.tier.slow(), &sealed(7, 50)).unwrap();
        rig.slow.set(Mood::Waits(OpKind::Write));
        let mover = {
            let tier = rig.tier.clone();
            varve_rt::spawn("mover", move || tier.all_home())
        };
        rig.slow.until_it_waits();
        rig.fast.set(Mood::Fails(OpKind::Read, 0));
        // A read of the slot fails while home is being written.
        let reader = {
            let rig = rig.clone();
            varve_rt::spawn("reader", move || rig.lsn(7))
        };
        varve_rt::sleep(Duration::from_millis(20));
        // (The pool writes no page that is being read; another tier's client could not either.)
        rig.slow.set(Mood::Good);
        assert_eq!(reader.join().unwrap().unwrap(), 50);
        write(&rig.tier, &sealed(7, 60)).unwrap();
        mover.join().unwrap().unwrap();
        rig.tier.sync().unwrap();
        assert_eq!(rig.lsn(7).unwrap(), 60, "the mover's older version overwrote it");
    });
}

#[test]
fn as_much_as_wants_to_comes_and_goes_while_a_flush_does_not_end() {
    for map_recovery in [MapRecovery::Zone, MapRecovery::Scan, MapRecovery::Log] {
        in_simulation(move || {
            let rig = rig(TierOptions { map_recovery, memory_interval: None, ..named("cw") });
            write(&rig.tier, &sealed(1, 1)).unwrap();
            rig.fast.set(Mood::Waits(OpKind::Flush));
            let tier = rig.tier.clone();
            let syncer = varve_rt::spawn("syncer", move || tier.sync());
            rig.fast.until_it_waits();
            let mut taken = 0;
            for round in 0..200 {
                for id in 10..40 {
                    let bytes = sealed(id, 10 + round);
                    write(&rig.tier, &bytes).unwrap();
                    let usage = PageUse { logical_reads: 3, ..PageUse::default() };
                    taken += u64::from(rig.tier.evict_clean(PageId(id), &bytes, usage));
                }
                varve_rt::sleep(Duration::from_millis(1));
                (10..40).for_each(|id| rig.tier.dirtied(PageId(id), KeyspaceId(1), PageUse::default()));
            }
            let slots = rig.tier.tier_stats().slots;
            assert!((slots..=2 * slots + 30).contains(&taken), "{taken} pages were admitted to {slots} slots");
            rig.fast.set(Mood::Good);
            syncer.join().unwrap().unwrap();
            rig.tier.sync().unwrap();
            rig.tier.save_map().unwrap();
            rig.admit(50, 9);
            let rig = rig.cut();
            assert_eq!(rig.tier.tier_stats().slots, slots);
        });
    }
}

#[test]
fn a_cache_that_dies_costs_no_more_than_its_copies() {
    for manager in ["cw", "dw", "tac"] {
        in_simulation(move || {
            let rig = rig(named(manager));
            for id in 0..60 {
                let bytes = sealed(id, 10);
                write(&rig.tier, &bytes).unwrap();
                rig.tier.evict_clean(PageId(id), &bytes, PageUse { logical_reads: 3, ..PageUse::default() });
                read(&rig.tier, id).unwrap();
            }
            varve_rt::sleep(Duration::from_secs(1));
            rig.tier.sync().unwrap();
            assert!(rig.tier.tier_stats().occupied > 10, "{manager}");
            rig.fast.set(Mood::Dead);
            (0..60).for_each(|id| assert_eq!(rig.lsn(id).unwrap(), 10, "{manager}"));
            for lsn in 20..40 {
                (0..60).for_each(|id| rig.change(id, lsn));
                rig.tier.sync().unwrap();
            }
            assert!(rig.tier.forsaken() && rig.tier.tier_stats().failed, "{manager}");
            assert_eq!(*rig.notes.broken.lock(), None);
            let errors = rig.fast.stats();
            (0..60).for_each(|id| assert_eq!(rig.lsn(id).unwrap(), 39, "{manager}"));
            assert_eq!(rig.fast.stats(), errors, "it is not asked any more");
            // It is back after the cut, with what it held.
            let rig = rig.cut();
            (0..60).for_each(|id| assert_eq!(rig.lsn(id).unwrap(), 39, "{manager}"));
        });
    }
}
