//! The lab through its public surface, one file for each part of it.

mod backup;
mod damage;
mod dbbench;
mod engine_histories;
mod history;
mod host;
mod native_flash;
mod near_jobs;
mod near_points;
mod oracle;
mod probe;
mod replay;
mod simulated;
mod tpcb;
mod tpcc;
mod trace;
mod trace_record;
mod ycsb;
