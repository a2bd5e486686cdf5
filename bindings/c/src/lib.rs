//! Varve for programs in C: `include/varve.h`, which cbindgen makes from these sources (a test holds the two together;
//! `UPDATE=1 cargo test -p varve-c --test header` writes it). Doc comments here are those of the header, so they speak
//! of C.
//!
//! Rules of every function that is exported:
//! - it takes pointers that may be null, and checks them;
//! - nothing unwinds out of it: [`error::run`] turns panics into `VARVE_INTERNAL`;
//! - enums go out only: a number from C that is no variant would be undefined behaviour;
//! - what belongs to the engine is [`Kept`](varve_bindings::Kept), so a forked child neither uses nor drops it.
//!
//! Modules, from below: `memory` · `error` · `options` · `db` · `keyspace` · `snapshot` · `tx` · `iter` · `batch`.
#![allow(non_camel_case_types, reason = "names as the C header has them")]
#![allow(clippy::missing_safety_doc, reason = "the header states at its head what callers must keep to")]

mod batch;
mod db;
mod error;
mod iter;
mod keyspace;
mod memory;
mod options;
mod snapshot;
mod tx;

pub use batch::*;
pub use db::*;
pub use error::*;
pub use iter::*;
pub use keyspace::*;
pub use memory::*;
pub use options::*;
pub use snapshot::*;
pub use tx::*;
