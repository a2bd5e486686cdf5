//! Room for pins: how many frames commits may keep pinned, all together.
//!
//! A commit pins every page that it is going to change. If several did that page by page, all of them could hold frames
//! and wait for more, and a miss of anybody else would find none. So a commit first takes room for all the pages it may
//! need, all or none. At most half of the frames are given out, so that misses find one; fewer where instances are so
//! small that the pages of commits could fill one of them. Room is given in the order of arrival: a large commit is not
//! passed by small ones for ever.
//!
//! A transaction that waits here holds locks on keys and pages set aside, but no latch and no pin. One that has room
//! waits for latches, frames and the log, never for a lock on a key, and gives the room back with its last pin.
//!
//! Invariants: what is free and what is given out make `total`, but while that changes; [`AWAITED`] is set as long as
//! the queue has anybody; who has room was given at most `total` as it was then.

use super::Pool;
use std::collections::VecDeque;
use std::sync::Arc;
use varve_rt::atomic::{AtomicU64, Ordering::*};
use varve_rt::{Event, Mutex};

/// A commit may pin so many frames of any pool: a leaf, its parent, and what a split of both adds.
const LEAST: usize = 4;

/// Set while somebody waits: then nobody takes room but in the queue's order.
const AWAITED: u64 = 1 << 63;

struct Waiter {
    /// What it asks for; there may be less by the time of its turn.
    frames: u64,
    /// What it was given. Written before `granted` is set, read after.
    given: AtomicU64,
    granted: Event,
}

/// The room for pins of a pool.
pub(super) struct PinRoom {
    /// Frames that are not given out, and [`AWAITED`].
    free: AtomicU64,
    /// Frames that are given out, all together, or free.
    total: AtomicU64,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

impl PinRoom {
    pub(super) fn new(frames: usize) -> PinRoom {
        let total = frames as u64;
        assert!(total < AWAITED, "room is counted below the mark of who waits");
        PinRoom { free: AtomicU64::new(total), total: AtomicU64::new(total), queue: Mutex::default() }
    }

    /// From now on there is room for so many pins; waits until what is too much was given back. One at a time.
    pub(super) fn resize(&self, frames: usize) {
        let (frames, before) = (frames as u64, self.total.load(Acquire));
        assert!(frames < AWAITED, "room is counted below the mark of who waits");
        if frames > before {
            self.total.store(frames, Release);
            return self.give(frames - before);
        }
        // Taken, and never given back.
        let mut pins = self.take((before - frames) as usize);
        pins.frames = 0;
        // Who came first meanwhile may wait for more than there is from now on.
        let mut queue = self.queue.lock();
        self.total.store(frames, Release);
        self.grant(&mut queue);
    }

    /// Takes room for so many pins, or for as many as there may be; waits until there is.
    #[inline]
    pub(super) fn take(&self, frames: usize) -> Pins<'_> {
        // (Who asks for more found out how many he may have before the pool became so small.)
        let frames = (frames as u64).min(self.total.load(Acquire));
        let enough = |free| (free & AWAITED == 0 && free >= frames).then(|| free - frames);
        let taken = self.free.fetch_update(Acquire, Relaxed, enough).is_ok();
        Pins { room: self, frames: if taken { frames } else { self.wait(frames) } }
    }

    /// Waits for its turn; what it was given: what it asked for, or all there may be if that has become less. (Threads
    /// that a simulated power cut ends get none, and give none back.)
    #[cold]
    fn wait(&self, frames: u64) -> u64 {
        let waiter = Arc::new(Waiter { frames, given: AtomicU64::new(0), granted: Event::new() });
        {
            let mut queue = self.queue.lock();
            self.free.fetch_or(AWAITED, AcqRel);
            queue.push_back(waiter.clone());
            // What was given back before the line above was given back to nobody in particular.
            self.grant(&mut queue);
        }
        while !waiter.granted.is_set() && !varve_rt::dying() {
            waiter.granted.wait();
        }
        let given = waiter.given.load(Acquire);
        debug_assert!(given <= frames, "nobody is given more than was asked for");
        given
    }

    /// Lets those in that come first, as far as there is room.
    fn grant(&self, queue: &mut VecDeque<Arc<Waiter>>) {
        while let Some(first) = queue.front() {
            // (The pool may have become smaller since it came.)
            let frames = first.frames.min(self.total.load(Acquire));
            if self.free.load(Acquire) & !AWAITED < frames {
                return;
            }
            let before = self.free.fetch_sub(frames, AcqRel);
            assert!(before & AWAITED != 0, "while somebody waits nobody takes room past the queue");
            let first = queue.pop_front().expect("seen above");
            first.given.store(frames, Release);
            first.granted.set();
        }
        self.free.fetch_and(!AWAITED, AcqRel);
    }

    #[inline]
    fn give(&self, frames: u64) {
        let before = self.free.fetch_add(frames, AcqRel);
        let total = self.total.load(Acquire);
        assert!((before & !AWAITED) + frames <= total, "no more room is given back than was taken");
        if before & AWAITED != 0 {
            self.grant(&mut self.queue.lock());
        }
    }
}

/// Room for pins that was taken; dropped, it is given back.
#[must_use = "the room is given back when this is dropped"]
pub(crate) struct Pins<'p> {
    room: &'p PinRoom,
    frames: u64,
}

impl Pins<'_> {
    /// Gives back all but the room for so many pins.
    pub(crate) fn keep(&mut self, frames: usize) {
        let more = self.frames.saturating_sub(frames as u64);
        if more > 0 {
            self.frames -= more;
            debug_assert_eq!(self.frames, frames as u64, "what is kept was taken");
            self.room.give(more);
        }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        if !varve_rt::dying() && self.frames > 0 {
            self.room.give(self.frames);
        }
    }
}

impl Pool {
    /// Most frames that one commit may keep pinned: a quarter of them, or all that commits may pin if that is less.
    pub(crate) fn pin_limit(&self) -> usize {
        pin_limit(self.capacity_frames(), self.instances().len())
    }

    /// Takes room for so many pins, at most [`Pool::pin_limit`]; waits until there is. No latch or pin may be held.
    #[inline]
    pub(crate) fn room_for_pins(&self, frames: usize) -> Pins<'_> {
        debug_assert!(frames <= self.pin_limit(), "more than one commit may have");
        self.pin_room.take(frames)
    }
}

fn pin_limit(frames: usize, instances: usize) -> usize {
    (frames / 4).min(pinnable(frames, instances)).max(LEAST)
}

/// Frames that may be pinned by commits, of so many in so many instances.
///
/// A page can lie in one instance only, by its id's hash, so `n` pinned pages put about `m = n / instances` into each,
/// give or take `sqrt(m)`. They must leave each instance a frame for misses. So either all fit into half of one
/// instance, or `m` with eight times its spread fits into one: `m + 8 sqrt(m) <= frames of one`, solved for `m`. From
/// 128 frames on that is half of an instance or more.
pub(super) fn pinnable(frames: usize, instances: usize) -> usize {
    let each = frames / instances;
    let spread = ((16.0 + each as f64).sqrt() - 4.0).powi(2) * instances as f64;
    (spread as usize).max(each / 2).min(frames / 2).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::atomic::AtomicU64;
    use varve_rt::{Rng, sim, sleep, spawn, yield_now};

    /// In simulations with chaos, and once on OS threads.
    fn in_both_worlds(seeds: u64, f: fn(u64)) {
        for seed in 0..seeds {
            sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, move || f(seed)).unwrap();
        }
        f(seeds);
    }

    #[test]
    fn no_more_is_given_out_than_there_is_and_all_comes_back() {
        in_both_worlds(30, |seed| {
            const ALL: u64 = 20;
            let room = Arc::new(PinRoom::new(ALL as usize));
            let out = Arc::new(AtomicU64::new(0));
            let clients = (0..5).map(|client| {
                let (room, out) = (room.clone(), out.clone());
                spawn(format!("client {client}"), move || {
                    let mut rng = Rng::from_seed(seed * 10 + client);
                    for _ in 0..60 {
                        let (n, kept) = (1 + rng.below(ALL), rng.below(ALL));
                        let mut pins = room.take(n as usize);
                        assert!(out.fetch_add(n, SeqCst) + n <= ALL);
                        yield_now();
                        if kept < n {
                            out.fetch_sub(n - kept, SeqCst);
                        }
                        pins.keep(kept as usize);
                        yield_now();
                        out.fetch_sub(n.min(kept), SeqCst);
                        drop(pins);
                    }
                })
            });
            clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
            assert_eq!((room.free.load(SeqCst), room.queue.lock().len()), (ALL, 0));
        });
    }

    #[test]
    fn who_waits_while_the_room_shrinks_gets_what_there_is() {
        in_both_worlds(10, |_| {
            let room = Arc::new(PinRoom::new(10));
            let held = room.take(6);
            let waiting = |room: &PinRoom| room.queue.lock().len();
            let until = |n: usize| {
                while waiting(&room) < n {
                    sleep(std::time::Duration::from_millis(1));
                }
            };
            let shrinking = room.clone();
            let shrinks = spawn("shrinks", move || shrinking.resize(4));
            until(1);
            let clients = [10, 3].map(|frames| {
                let client = room.clone();
                let client = spawn(format!("asks for {frames}"), move || client.take(frames).frames);
                until(if frames == 10 { 2 } else { 3 });
                client
            });
            drop(held);
            shrinks.join().unwrap();
            assert_eq!(clients.map(|client| client.join().unwrap()), [4, 3], "all there is, and what was asked for");
            assert_eq!((room.free.load(SeqCst), room.total.load(SeqCst), waiting(&room)), (4, 4, 0));
        });
    }

    #[test]
    fn pinned_pages_leave_each_instance_frames_for_misses() {
        assert_eq!(pinnable(10_000, 1), 5000);
        assert_eq!(pinnable(32 << 10, 8), 16 << 10, "half of the frames where instances are large");
        assert_eq!((pinnable(48, 3), pin_limit(48, 3)), (8, 8), "one instance of 16 can take them all");
        let mut rng = Rng::from_seed(1);
        for _ in 0..2000 {
            let (each, instances) = (8 + rng.below(300) as usize, 1 + rng.below(16) as usize);
            let pinned = pinnable(each * instances, instances);
            let mut counts = vec![0; instances];
            (0..pinned).for_each(|_| counts[rng.below(instances as u64) as usize] += 1);
            assert!(counts.iter().all(|n| *n < each), "{pinned} in {instances} instances of {each}: {counts:?}");
        }
    }

    #[test]
    fn who_comes_first_is_let_in_first() {
        sim::run(sim::Config::default(), || {
            let room = Arc::new(PinRoom::new(10));
            let (held, order) = (room.take(6), Arc::new(Mutex::new(Vec::new())));
            let ms = std::time::Duration::from_millis;
            let clients = [8, 3, 10, 1].map(|frames| {
                let (room, order) = (room.clone(), order.clone());
                let client = spawn(format!("asks for {frames}"), move || {
                    let _pins = room.take(frames);
                    order.lock().push(frames);
                    sleep(ms(5));
                });
                sleep(ms(1));
                client
            });
            assert!(order.lock().is_empty(), "three would fit beside the six, but eight were asked for before");
            drop(held);
            clients.into_iter().for_each(|client| client.join().unwrap());
            assert_eq!(*order.lock(), [8, 3, 10, 1]);
        })
        .unwrap();
    }
}
