//! Varve's runtime: everything that can wait, in two worlds behind one API.
//!
//! On an OS thread the primitives here are ordinary blocking ones at full speed. Inside a simulation
//! ([`sim::run`]) each thread is a stackful coroutine on one OS thread, under a seeded scheduler with a virtual
//! clock, so the very same code runs deterministically on modelled hardware. Which world applies is found at run
//! time, from the current context, and on slow paths only.
//!
//! Rules for code above this crate (lint- and test-enforced): clocks, threads, locks, thread locals, random sources
//! and hash maps come from here; a destructor never waits; atomics that order anything come from [`atomic`];
//! busy-waiting goes through [`spin`]. See `docs/runtime.md`.
//!
//! Lock order: nothing in this crate takes two locks at a time; the parking table of the simulation is touched by
//! one OS thread only.

pub mod atomic;
pub mod channel;
mod condvar;
mod cpu;
mod event;
mod hash;
mod local;
mod mutex;
mod park;
pub mod parking;
mod rng;
mod rwlock;
pub mod sim;
mod spin;
mod thread;
mod time;

pub use lock_api;

pub use condvar::Condvar;
pub use cpu::{Cost, CpuCosts, CpuUse, charge};
pub use event::Event;
pub use hash::{BuildHasher, FastHasher, HashMap, HashSet};
pub use local::Local;
pub use mutex::{ArcMutexGuard, MappedMutexGuard, Mutex, MutexGuard, RawMutex, hardware_mutex};
pub use rng::{Rng, rng};
pub use rwlock::{
    ArcRwLockReadGuard, ArcRwLockWriteGuard, MappedRwLockReadGuard, MappedRwLockWriteGuard, RawRwLock, RwLock,
    RwLockReadGuard, RwLockWriteGuard,
};
pub use spin::spin;
pub use thread::{
    JoinHandle, Panicked, current_name, dying, in_simulation, panicking, set_stack_size, spawn, spawn_daemon,
    stack_size, try_spawn, try_spawn_daemon, yield_now,
};
pub use time::{Instant, compute, now, sleep, unix_time};

/// The layer's page, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/runtime.md")]
struct Page;
