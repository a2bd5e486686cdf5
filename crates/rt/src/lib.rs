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
//!
//! Modules, from below: `cost ended hash instant random stack_size` · `wait` · `world` · `atomic local rng spin time
//! work` · `inside park` · `event mutex parking rwlock` · `condvar thread` · `fork` · `channel host` · `domain` ·
//! `sim`.

pub mod atomic;
pub mod channel;
mod condvar;
mod cost;
#[cfg(feature = "sim")]
mod domain;
mod ended;
mod event;
mod fork;
mod hash;
#[cfg(feature = "sim")]
mod host;
mod inside;
mod instant;
mod local;
mod mutex;
mod park;
pub mod parking;
mod random;
mod rng;
mod rwlock;
#[cfg(feature = "sim")]
pub mod sim;
mod spin;
mod stack_size;
mod thread;
mod time;
#[cfg_attr(not(feature = "sim"), expect(dead_code, reason = "some words are the simulated world's alone"))]
mod wait;
mod work;
#[cfg_attr(not(feature = "sim"), path = "world/absent.rs")]
mod world;

pub use lock_api;

pub use condvar::Condvar;
pub use cost::{Cost, CpuCosts, CpuUse};
pub use ended::Panicked;
pub use event::Event;
pub use fork::{Kept, Process, forked_among_threads, watch_forks};
pub use hash::{BuildHasher, FastHasher, HashMap, HashSet};
pub use inside::Inside;
pub use instant::Instant;
pub use local::Local;
pub use mutex::{ArcMutexGuard, MappedMutexGuard, Mutex, MutexGuard, RawMutex, hardware_mutex};
pub use random::Rng;
pub use rng::rng;
pub use rwlock::{
    ArcRwLockReadGuard, ArcRwLockWriteGuard, MappedRwLockReadGuard, MappedRwLockWriteGuard, RawRwLock, RwLock,
    RwLockReadGuard, RwLockWriteGuard,
};
pub use spin::spin;
pub use stack_size::{set_stack_size, stack_size};
pub use thread::{
    JoinHandle, catch_panic, current_name, dying, in_simulation, panicking, parallelism, running as running_threads,
    spawn, spawn_daemon, try_spawn, try_spawn_daemon, yield_now,
};
pub use time::{now, sleep, unix_time};
pub use work::{charge, compute};
pub use world::{costs_modelled, thread_number};

/// The layer's page, whose examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/runtime.md")]
struct Page;
