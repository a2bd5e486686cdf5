//! The pages of a database in a directory that lie with a worker: `remote`, a text that says where.
//! (`docs/format.md`, `docs/near.md`)
//!
//! Reaching it needs the feature `near`.

#[cfg(not(feature = "near"))]
mod absent;
#[cfg(feature = "near")]
mod present;

#[cfg(not(feature = "near"))]
pub use absent::KeyFiles;
#[cfg(not(feature = "near"))]
use absent::{check, connect};
#[cfg(feature = "near")]
pub use present::KeyFiles;
#[cfg(feature = "near")]
use present::{check, connect};

use super::devices::{path_error, sync_parent};
use super::identity;
use super::near_options::NearDecisions;
use super::options::RemotePart;
use crate::error::{Error, Result};
use crate::index::NearOptions;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, absolute};
use std::sync::Arc;
use varve_device::Device;

/// The file's name.
pub(super) const REMOTE: &str = "remote";
/// Its first line; the second is the address.
const HEAD: &str = "varve remote 1";
/// Its first line where there are keys: behind the address are lines with `key ` and `peer ` and a path each.
const HEAD_WITH_KEYS: &str = "varve remote 2";
/// More is no address with two paths.
const MOST: u64 = 16 << 10;

/// Whether a directory says that its pages lie with a worker.
pub(super) fn is_there(dir: &Path) -> bool {
    dir.join(REMOTE).symlink_metadata().is_ok()
}

fn invalid(e: impl std::fmt::Display) -> Error {
    Error::Invalid(e.to_string())
}

/// A path as a line holds it.
fn line(path: &Path) -> Result<String> {
    let whole = absolute(path).map_err(|e| path_error("find", path, &e))?;
    let text = whole.to_str().filter(|text| !text.contains('\n'));
    Ok(text
        .ok_or_else(|| invalid(format!("{path:?}: the names of keys are noted as lines of UTF-8: rename it")))?
        .to_string())
}

/// Leaves the address of a worker in the directory of a new database.
pub(super) fn name(dir: &Path, part: &RemotePart) -> Result<()> {
    check(part)?;
    let address = &part.address;
    assert!(!address.contains('\n'), "an address that stands for one has one line");
    let text = match &part.keys {
        None => format!("{HEAD}\n{address}\n"),
        Some(files) => {
            let (key, peer) = (line(&files.key)?, line(&files.peer)?);
            format!("{HEAD_WITH_KEYS}\n{address}\nkey {key}\npeer {peer}\n")
        }
    };
    let path = dir.join(REMOTE);
    let written = File::create_new(&path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|e| path_error("write", &path, &e))?;
    sync_parent(&path)
}

/// What the text says, if it says something.
fn parse(text: &str) -> Option<RemotePart> {
    let mut lines = text.lines().map(str::trim);
    let (head, address) = (lines.next()?, lines.next()?);
    let keys = match head {
        HEAD => None,
        HEAD_WITH_KEYS => {
            let key = lines.next()?.strip_prefix("key ")?.trim().into();
            Some(KeyFiles { key, peer: lines.next()?.strip_prefix("peer ")?.trim().into() })
        }
        _ => return None,
    };
    let empty = |line: &str| line.is_empty();
    (!address.is_empty() && lines.all(empty)).then(|| RemotePart { address: address.into(), keys })
}

/// Where the worker of a directory is.
fn place(dir: &Path) -> Result<RemotePart> {
    let path = dir.join(REMOTE);
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    read.map_err(|e| path_error("read", &path, &e))?;
    let bad = || {
        let what = format!(
            "{}: not two lines, `{HEAD}` and the address of a worker as HOST:PORT, nor four, `{HEAD_WITH_KEYS}`, the \
             address, `key PATH` and `peer PATH`",
            path.display()
        );
        Error::Mismatch(what)
    };
    let text = std::str::from_utf8(&bytes).ok();
    text.and_then(parse).ok_or_else(bad)
}

/// The device of the worker that a directory names, and the worker itself, if it merges; how it and the host decide.
pub(super) fn open(dir: &Path, near: &NearDecisions) -> Result<(Arc<dyn Device>, Option<NearOptions>)> {
    connect(place(dir)?, near)
}

/// What a creation that was cut short left with the worker goes, if it is the one that `ours` names.
pub(super) fn give_up(dir: &Path, ours: Option<[u8; 16]>) {
    if let Ok((device, _)) = open(dir, &NearDecisions::default())
        && ours.is_some()
        && identity::owner(&*device) == ours
    {
        // What stays there is refused by the next creation, which says so.
        let _ = device.set_len(0);
    }
}
