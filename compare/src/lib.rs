//! Varve beside other embedded storage engines: adapters that put each behind the lab's `Store` trait, workloads, and
//! a runner that interleaves the engines and sets their medians side by side.
//!
//! - [`engine`]: what the harness asks of an engine besides `Store`; Varve's own answer;
//! - [`adapter`]: the other engines;
//! - [`bench`]: the workloads, each over any engine;
//! - [`runner`]: rounds, temporary directories, samples;
//! - [`report`]: medians, ratios, the Markdown table and the JSON file.

pub mod adapter;
pub mod bench;
pub mod engine;
pub mod options;
pub mod report;
pub mod runner;

pub use varve_lab::{Error, Result};
