//! The command as its users meet it, one file for each part of it. One program, so that tests that wait leave the
//! processor to others.

mod array;
mod basics;
mod demo;
mod embedder;
mod export;
mod flash;
mod interrupted;
mod lab;
mod lsm;
mod metrics;
mod misuse;
mod parsers;
mod probe;
mod replay;
mod rescue;
mod shell;
#[path = "../support/mod.rs"]
mod support;
mod tier;
mod worker;
mod worker_keys;
