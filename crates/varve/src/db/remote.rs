//! The pages of a database in a directory that lie with a worker: `remote`, a text of two lines that says where.
//! (`docs/format.md`, `docs/near.md`)

use super::devices::{path_error, sync_parent};
use super::identity;
use crate::error::{Error, Result};
use crate::index::{NearOptions, RemoteWorker};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use varve_device::{Device, DeviceError};
use varve_wire::tcp::{TcpConnector, loopback};
use varve_wire::{RemoteDevice, Session, SessionOptions, WireError};

/// The file's name.
pub(super) const REMOTE: &str = "remote";
/// Its first line; the second is the address.
const HEAD: &str = "varve remote 1";
/// More is no address.
const MOST: u64 = 1024;

/// Whether a directory says that its pages lie with a worker.
pub(super) fn is_there(dir: &Path) -> bool {
    dir.join(REMOTE).symlink_metadata().is_ok()
}

/// Leaves the address of a worker in the directory of a new database.
pub(super) fn name(dir: &Path, address: &str) -> Result<()> {
    loopback(address).map_err(|e| Error::Invalid(e.to_string()))?;
    assert!(!address.contains('\n'), "an address that stands for one has one line");
    let path = dir.join(REMOTE);
    let written = File::create_new(&path).and_then(|mut file| {
        writeln!(file, "{HEAD}\n{address}")?;
        file.sync_all()
    });
    written.map_err(|e| path_error("write", &path, &e))?;
    sync_parent(&path)
}

/// The address that a directory holds.
fn address(dir: &Path) -> Result<String> {
    let path = dir.join(REMOTE);
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(MOST).read_to_string(&mut text));
    read.map_err(|e| path_error("read", &path, &e))?;
    let address = text.strip_prefix(HEAD).map(str::trim).filter(|address| !address.is_empty());
    let bad = || {
        let what = format!("{}: not two lines, `{HEAD}` and the address of a worker as HOST:PORT", path.display());
        Error::Mismatch(what)
    };
    Ok(address.ok_or_else(bad)?.to_string())
}

/// The device of the worker that a directory names, and the worker itself, if it merges.
pub(super) fn open(dir: &Path) -> Result<(Arc<dyn Device>, Option<NearOptions>)> {
    let address = address(dir)?;
    let connector = TcpConnector::new(&address).map_err(|e| Error::Invalid(e.to_string()))?;
    let session = Session::open(connector, SessionOptions::default()).map_err(|e| match e {
        WireError::Refused { refusal: varve_wire::Refusal::InUse, .. } => Error::InUse(e.to_string()),
        e => DeviceError::Lost { device: format!("remote:{address}").into(), why: e.to_string().into() }.into(),
    })?;
    assert!(session.facts().info.block.is_power_of_two(), "what a worker says of its device was checked");
    let near = session.facts().jobs.then(|| NearOptions::new(RemoteWorker::new(session.clone())));
    Ok((RemoteDevice::new(session), near))
}

/// What a creation that was cut short left with the worker goes, if it is the one that `ours` names.
pub(super) fn give_up(dir: &Path, ours: Option<[u8; 16]>) {
    if let Ok((device, _)) = open(dir)
        && ours.is_some()
        && identity::owner(&*device) == ours
    {
        // What stays there is refused by the next creation, which says so.
        let _ = device.set_len(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_what_is_none_is_refused() {
        let dir = std::env::temp_dir().join(format!("varve-remote-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        assert!(!is_there(&dir) && address(&dir).is_err());
        let far = name(&dir, "10.0.0.1:7070").unwrap_err().to_string();
        assert!(far.contains("loopback") && !is_there(&dir), "{far}");
        name(&dir, "127.0.0.1:7070").unwrap();
        assert!(is_there(&dir) && name(&dir, "127.0.0.1:7071").is_err());
        assert_eq!(address(&dir).unwrap(), "127.0.0.1:7070");
        for bad in ["", "varve remote 1\n", "varve remote 2\n127.0.0.1:1\n", "127.0.0.1:1\n"] {
            std::fs::write(dir.join(REMOTE), bad).unwrap();
            assert!(matches!(address(&dir), Err(Error::Mismatch(_))), "{bad:?}");
        }
        std::fs::write(dir.join(REMOTE), [0xff; 5000]).unwrap();
        assert!(address(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
