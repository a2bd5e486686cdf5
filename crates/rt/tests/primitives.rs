//! Every primitive through its public surface. Each case runs on OS threads; `tests/simulation.rs` runs the same
//! cases inside simulations.

mod cases;

macro_rules! os {
    ($($name:ident),* $(,)?) => { $( #[test] fn $name() { cases::$name(); } )* };
}

os!(
    mutex_excludes,
    rwlock_excludes,
    rwlock_writer_is_not_starved,
    rwlock_downgrade,
    try_and_timed_locks,
    condvar_passes_turns,
    condvar_times_out,
    event_releases_all,
    channel_keeps_order,
    channel_bounds,
    channel_disconnects,
    local_is_per_thread,
    inside_is_per_thread,
    join_reports_panics,
    sleep_takes_time,
    parking_by_address,
);
