//! Clients that behave like a buffer pool over a tier, a model of what they know, and rounds of work that end with a
//! power cut.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varve_device::{AlignedBuf, Device, Faults, Health};
use varve_models::{FaultPlan, Faulty, Latency, MemDevice, MemOptions, PowerSupply};
use varve_rt::sim::{Config, Domain, run};
use varve_rt::{Mutex, Rng};
use varve_volume::tier::{ManagerOptions, MapRecovery, Tier, TierOptions};
use varve_volume::{KeyspaceId, PageId, PageIo, PageStore, PageUse, ReadWhy, Single, VolumeError, WriteWhy, page};

pub const SIZE: usize = 4096;
pub const CLIENTS: u64 = 3;
/// Pages of a client.
pub const OWN: u64 = 30;
pub const SLOTS: u64 = 40;

/// What is known of a page.
#[derive(Clone, Copy, Default, Debug)]
pub struct Known {
    /// The newest version whose write completed, and the newest begun.
    pub now: u64,
    pub begun: u64,
    /// The version that the last sync made durable.
    pub durable: u64,
}

pub type Model = Arc<Mutex<BTreeMap<u64, Known>>>;

struct Client {
    store: Arc<dyn PageStore>,
    model: Model,
    rng: Rng,
    first: u64,
    /// Pages in this client's pool, clean or dirty.
    pool: BTreeMap<u64, Held>,
}

struct Held {
    bytes: AlignedBuf,
    dirty: bool,
}

pub fn sealed(id: u64, lsn: u64) -> AlignedBuf {
    let mut bytes = AlignedBuf::new(SIZE);
    bytes[page::HEADER..].fill((lsn * 31 + id) as u8);
    page::set_kind(&mut bytes, 1);
    page::set_lsn(&mut bytes, lsn);
    page::set_keyspace(&mut bytes, KeyspaceId(id as u32 % 3));
    page::seal(&mut bytes, PageId(id));
    bytes
}

pub fn read(store: &dyn PageStore, id: u64) -> Result<AlignedBuf, VolumeError> {
    let mut bytes = AlignedBuf::new(SIZE);
    // SAFETY: `bytes` outlives the ticket, which is waited for.
    let mut ticket = store.submit(vec![unsafe { PageIo::read(PageId(id), ReadWhy::Demand, bytes.as_mut_ptr()) }]);
    ticket.wait(0)?;
    Ok(bytes)
}

pub fn write(store: &dyn PageStore, bytes: &AlignedBuf) -> Result<(), VolumeError> {
    let usage = PageUse { logical_reads: 3, ..PageUse::default() };
    let (id, keyspace) = (page::id(bytes), page::keyspace(bytes));
    // SAFETY: `bytes` outlives the ticket, which is waited for, and does not change.
    let io = unsafe { PageIo::write(id, keyspace, WriteWhy::Replacement, usage, bytes.as_ptr(), None) };
    store.submit(vec![io]).wait_all()
}

impl Client {
    /// Runs until the power fails.
    fn run(mut self) {
        while self.step().is_ok() {}
    }

    fn step(&mut self) -> Result<(), VolumeError> {
        // A few pages are used far more than the others.
        let hot = self.rng.below(3) > 0;
        let id = self.first + if hot { self.rng.below(OWN / 4) } else { self.rng.below(OWN) };
        match self.rng.below(20) {
            0..8 => self.use_page(id, false)?,
            8..14 => self.use_page(id, true)?,
            14..16 => self.clean(id)?,
            16..19 => self.evict()?,
            _ if self.rng.one_in(4) => self.sync()?,
            _ if self.rng.one_in(6) => self.free(id)?,
            _ => varve_rt::sleep(Duration::from_micros(self.rng.below(3000))),
        }
        while self.pool.len() > 8 {
            self.evict()?;
        }
        Ok(())
    }

    fn use_page(&mut self, id: u64, change: bool) -> Result<(), VolumeError> {
        let known = self.model.lock().get(&id).copied().unwrap_or_default();
        if !self.pool.contains_key(&id) {
            let bytes = match known.now {
                0 => sealed(id, 0),
                lsn => {
                    let bytes = read(&*self.store, id)?;
                    assert_eq!(page::lsn(&bytes), lsn, "page {id} is read as it was written last");
                    assert_eq!(bytes[SIZE - 1], (lsn * 31 + id) as u8);
                    bytes
                }
            };
            self.pool.insert(id, Held { bytes, dirty: false });
        }
        if change {
            let lsn = {
                let mut model = self.model.lock();
                let known = model.entry(id).or_default();
                known.begun.max(page::lsn(&self.pool[&id].bytes)) + 1
            };
            let held = self.pool.get_mut(&id).expect("loaded above");
            if !std::mem::replace(&mut held.dirty, true) {
                self.store.dirtied(PageId(id), KeyspaceId(0), PageUse::default());
            }
            held.bytes = sealed(id, lsn);
        }
        Ok(())
    }

    fn clean(&mut self, id: u64) -> Result<(), VolumeError> {
        let Some(held) = self.pool.get_mut(&id).filter(|h| h.dirty) else { return Ok(()) };
        let lsn = page::lsn(&held.bytes);
        self.model.lock().get_mut(&id).expect("it was changed").begun = lsn;
        write(&*self.store, &held.bytes)?;
        held.dirty = false;
        self.model.lock().get_mut(&id).expect("it was changed").now = lsn;
        Ok(())
    }

    fn evict(&mut self) -> Result<(), VolumeError> {
        let Some(&id) = self.pool.keys().nth(self.rng.below(self.pool.len().max(1) as u64) as usize) else {
            return Ok(());
        };
        self.clean(id)?;
        let held = self.pool.remove(&id).expect("chosen above");
        if page::lsn(&held.bytes) > 0 {
            let usage = PageUse { logical_reads: 5, ..PageUse::default() };
            self.store.evict_clean(PageId(id), &held.bytes, usage);
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), VolumeError> {
        let before: Vec<(u64, u64)> = self.model.lock().iter().map(|(id, k)| (*id, k.now)).collect();
        self.store.sync()?;
        let mut model = self.model.lock();
        for (id, now) in before {
            if let Some(known) = model.get_mut(&id) {
                known.durable = known.durable.max(now);
            }
        }
        Ok(())
    }

    /// Frees a page; it is made anew at once, as the engine does with a free page that it uses again.
    fn free(&mut self, id: u64) -> Result<(), VolumeError> {
        self.pool.remove(&id);
        let lsn = {
            let mut model = self.model.lock();
            let Some(known) = model.get_mut(&id).filter(|k| k.now > 0) else { return Ok(()) };
            known.begun += 1;
            known.begun
        };
        self.store.discard(&[PageId(id)])?;
        write(&*self.store, &sealed(id, lsn))?;
        self.model.lock().get_mut(&id).expect("found above").now = lsn;
        Ok(())
    }
}

pub fn device(pages: u64, name: &str, seed: u64, slow: u64) -> Arc<MemDevice> {
    let us = |low, high| (Duration::from_micros(low), Duration::from_micros(high));
    let latency = Latency {
        read: us(20 * slow, 60 * slow),
        write: us(15 * slow, 80 * slow),
        durable: us(40 * slow, 200 * slow),
        flush: us(50 * slow, 300 * slow),
    };
    MemDevice::with(pages * SIZE as u64, MemOptions { name: name.into(), latency, seed, ..MemOptions::default() })
}

pub fn options(manager: &str, map_recovery: MapRecovery) -> TierOptions {
    TierOptions {
        manager: manager.into(),
        options: ManagerOptions { outqueue: Some(20), ..ManagerOptions::default() },
        zone: 0.25,
        map_recovery,
        staging_pages: 8,
        reserve: Some(2),
        dirty_ceiling: 0.8,
        ..TierOptions::default()
    }
}

#[derive(Default, Debug)]
pub struct Seen {
    pub fast_hits: u64,
    pub copied_home: u64,
    pub maps: u64,
    pub invalidated: u64,
    pub damaged: u64,
    pub rounds: u64,
    pub recovered: u64,
    /// Changes of the fast device that ended: attached, detached, grown, cut, flushed.
    pub changes: [u64; 5],
}

/// What the database would note durably of its fast device: the identity that it was attached with, and whether that is
/// done.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    None,
    Attaching([u8; 16]),
    Attached([u8; 16]),
}

/// Somebody who changes the fast device while others work.
struct Operator {
    tier: Arc<Tier>,
    fast: Arc<dyn Device>,
    note: Arc<Mutex<Note>>,
    rng: Rng,
    seen: Arc<Mutex<Seen>>,
}

impl Operator {
    /// Lengths of the fast device in pages; the larger ones need larger tables, which lie behind the slots.
    const SIZES: [u64; 8] = [172, 176, 180, 190, 215, 460, 640, 700];

    /// Runs until the power fails.
    fn run(mut self) -> Result<(), VolumeError> {
        loop {
            varve_rt::sleep(Duration::from_micros(self.rng.below(20_000)));
            let done = self.change();
            match done {
                Ok(kind) => self.seen.lock().changes[kind] += 1,
                Err(e) if power_failed(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    fn change(&mut self) -> Result<usize, VolumeError> {
        if self.tier.fast().is_none() {
            let owner = [self.rng.below(256) as u8; 16];
            *self.note.lock() = Note::Attaching(owner);
            self.tier.attach(self.fast.clone(), owner)?;
            *self.note.lock() = Note::Attached(owner);
            return Ok(0);
        }
        match self.rng.below(6) {
            0 => {
                self.tier.detach()?;
                *self.note.lock() = Note::None;
                Ok(1)
            }
            1 => self.tier.all_home().map(|()| 4),
            _ => {
                let pages = Self::SIZES[self.rng.below(Self::SIZES.len() as u64) as usize];
                let resized = self.tier.resize(pages * SIZE as u64)?;
                Ok(if resized.after > resized.before { 2 } else { 3 })
            }
        }
    }
}

/// The tier as the database would open it.
pub fn reopen(
    home: Arc<dyn PageStore>,
    fast: Arc<dyn Device>,
    note: &Mutex<Note>,
    options: TierOptions,
) -> Result<Arc<Tier>, VolumeError> {
    let known = *note.lock();
    match known {
        Note::None => Tier::without(home, options),
        Note::Attached(owner) => Tier::open(home, fast, owner, options),
        // Until it is done every page is at home.
        Note::Attaching(owner) => {
            let tier = match Tier::open(home.clone(), fast.clone(), owner, options.clone()) {
                Err(VolumeError::Tier { .. } | VolumeError::TierWrecked { .. }) => {
                    Tier::create(home, fast, owner, options)
                }
                other => other,
            }?;
            *note.lock() = Note::Attached(owner);
            Ok(tier)
        }
    }
}

fn power_failed(e: &VolumeError) -> bool {
    e.to_string().contains("lost power") || e.to_string().contains("cannot be read")
}

/// Checks what a cut left and writes anew what the log would: every page that was written since the last sync.
pub fn verify(store: &dyn PageStore, model: &Model, seen: &mut Seen) -> Result<(), String> {
    let pages: Vec<(u64, Known)> = model.lock().iter().map(|(id, known)| (*id, *known)).collect();
    for (id, known) in pages {
        let found = read(store, id).map(|bytes| page::lsn(&bytes));
        let written_since = known.begun > known.durable;
        match &found {
            Ok(lsn) if *lsn == known.durable || written_since => {}
            Err(VolumeError::Damaged { .. }) if written_since || known.durable == 0 => seen.damaged += 1,
            other => return Err(format!("page {id}: {other:?}, but {known:?}")),
        }
        if written_since {
            let lsn = known.begun + 1;
            store.dirtied(PageId(id), KeyspaceId(0), PageUse::default());
            write(store, &sealed(id, lsn)).map_err(|e| e.to_string())?;
            model.lock().insert(id, Known { now: lsn, begun: lsn, durable: known.durable });
        }
    }
    store.sync().map_err(|e| e.to_string())?;
    model.lock().values_mut().for_each(|known| known.durable = known.now);
    Ok(())
}

/// Rounds of work and power cuts; with `changes` somebody attaches, detaches and resizes the fast device meanwhile.
pub fn crashes(seed: u64, options: TierOptions, changes: bool) -> Result<Seen, String> {
    crashes_with(Faults::default(), seed, options, changes)
}

/// The same with something that goes wrong in each life after the first.
pub fn crashes_with(faults: Faults, seed: u64, options: TierOptions, changes: bool) -> Result<Seen, String> {
    let outcome = run(Config { seed, chaos: true, ..Config::default() }, move || {
        let slow = device(CLIENTS * OWN, "slow", seed, 4);
        let fast = device(SLOTS + 140, "fast", seed + 1, 1);
        let memory = [slow.clone(), fast.clone()];
        let supply = PowerSupply::new();
        supply.attach(slow.clone());
        supply.attach(fast.clone());
        let plan = || FaultPlan::new(seed);
        let slow: Arc<dyn Device> = Faulty::powered(slow, plan(), supply.clone());
        let fast: Arc<dyn Device> = Faulty::powered(fast, plan(), supply.clone());
        let home: Arc<dyn PageStore> = Single::new(slow, SIZE).unwrap();
        let model: Model = Arc::default();
        let mut rng = Rng::from_seed(seed);
        let mut seen = Seen::default();
        Tier::create(home.clone(), fast.clone(), [1; 16], options.clone()).map_err(|e| e.to_string())?;
        let note = Arc::new(Mutex::new(Note::Attached([1; 16])));
        for round in 0..5 {
            let domain = Domain::new(format!("round {round}"));
            let (result, done) = (Arc::new(Mutex::new(Ok(()))), Arc::new(varve_rt::Event::new()));
            let totals = Arc::new(Mutex::new(std::mem::take(&mut seen)));
            let (home, fast, options, model) = (home.clone(), fast.clone(), options.clone(), model.clone());
            let (theirs, ready, mut forked, sums) = (result.clone(), done.clone(), rng.fork(), totals.clone());
            let (arm, note) = (supply.clone(), note.clone());
            let over = Arc::new(varve_rt::Event::new());
            let (end, faults) = (over.clone(), faults.clone());
            let thread = domain.spawn("round", move || {
                let opened = reopen(home, fast.clone(), &note, options);
                let tier = match opened {
                    Ok(tier) => tier,
                    Err(e) => {
                        *theirs.lock() = Err(format!("open: {e}"));
                        return ready.set();
                    }
                };
                tier.belongs_to(&Health::with(faults));
                tier.start().unwrap();
                let store: Arc<dyn PageStore> = Arc::new(tier.clone());
                sums.lock().recovered += tier.tier_stats().occupied;
                tier.verify();
                if let Err(e) = verify(&*store, &model, &mut sums.lock()) {
                    *theirs.lock() = Err(e);
                    return ready.set();
                }
                arm.cut_at(arm.ops() + 200 + forked.below(1500), forked.next_u64());
                ready.set();
                let clients: Vec<_> = (0..CLIENTS)
                    .map(|n| {
                        let (first, rng, pool) = (n * OWN, forked.fork(), BTreeMap::new());
                        let client = Client { store: store.clone(), model: model.clone(), rng, first, pool };
                        varve_rt::spawn(format!("client {n}"), move || client.run())
                    })
                    .collect();
                let operator = changes.then(|| {
                    let (tier, rng, seen) = (tier.clone(), forked.fork(), sums.clone());
                    let operator = Operator { tier, fast, note, rng, seen };
                    varve_rt::spawn("operator", move || operator.run())
                });
                match operator.map(|operator| operator.join()) {
                    Some(Ok(Err(e))) => *theirs.lock() = Err(format!("a change failed: {e}")),
                    Some(Err(panicked)) if !panicked.power_cut => *theirs.lock() = Err(panicked.to_string()),
                    _ => {}
                }
                for client in clients {
                    if let Err(panicked) = client.join()
                        && !panicked.power_cut
                    {
                        *theirs.lock() = Err(panicked.to_string());
                    }
                }
                tier.verify();
                let stats = tier.tier_stats();
                let mut sums = sums.lock();
                sums.fast_hits += stats.counters.fast_reads;
                sums.copied_home += stats.counters.slow_copies;
                sums.maps += stats.counters.maps;
                sums.invalidated += stats.counters.invalidated;
                sums.rounds += 1;
                end.set();
            });
            done.wait();
            if result.lock().is_ok() {
                // Everybody may have failed before the power did.
                while over.wait_for(Duration::from_millis(5)) && supply.is_on() {}
                supply.cut(seed);
                // The clients see the loss of power and end by themselves, so that the totals are taken.
                let _ = thread.join();
            }
            domain.power_cut();
            supply.cut_at(0, 0);
            memory.iter().for_each(|device| device.verify());
            supply.restore();
            result.lock().clone().map_err(|e| format!("round {round}: {e}"))?;
            seen = std::mem::take(&mut *totals.lock());
        }
        Ok(seen)
    });
    outcome.unwrap()
}
