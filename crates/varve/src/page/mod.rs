//! Changes of pages: what an edit is, the groups in which edits reach the log, and what both need.

mod edit;
mod group;
mod horizon;
mod kernel;

pub(crate) use edit::PageEdit;
pub(crate) use group::{Group, PageMut, PageNo};
pub(crate) use horizon::OnItsWay;
pub use kernel::PageChangeStats;
pub(crate) use kernel::{Counters, Kernel};
