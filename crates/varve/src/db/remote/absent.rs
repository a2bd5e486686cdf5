//! A build without the feature `near`: it reaches no worker, and says so.

use super::super::near_options::NearDecisions;
use super::super::options::RemotePart;
use crate::error::{Error, Result};
use crate::index::NearOptions;
use std::path::PathBuf;
use std::sync::Arc;
use varve_device::Device;

/// Where the keys of one side are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// Its private key and its certificate, as `varve worker keygen` makes them; nobody but its owner may read it.
    pub key: PathBuf,
    /// The certificate of the other side.
    pub peer: PathBuf,
}

fn without(part: &RemotePart) -> Error {
    Error::NotBuilt { what: format!("the pages lie with the worker at {}", part.address), feature: "near" }
}

/// Names no worker: the database could not be opened.
pub(super) fn check(part: &RemotePart) -> Result<()> {
    Err(without(part))
}

pub(super) fn connect(part: RemotePart, _: &NearDecisions) -> Result<(Arc<dyn Device>, Option<NearOptions>)> {
    Err(without(&part))
}
