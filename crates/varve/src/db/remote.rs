//! The pages of a database in a directory that lie with a worker: `remote`, a text that says where.
//! (`docs/format.md`, `docs/near.md`)

use super::devices::{path_error, sync_parent};
use super::identity;
use super::options::RemotePart;
use crate::error::{Error, Result};
use crate::index::{NearOptions, RemoteWorker};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, absolute};
use std::sync::Arc;
use varve_device::{Device, DeviceError};
use varve_wire::tcp::{self, TcpConnector};
use varve_wire::{KeyFiles, Keys, RemoteDevice, Session, SessionOptions, WireError};

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
    Ok(text.ok_or_else(|| invalid(format!("{}: name keys by UTF-8 on one line", path.display())))?.to_string())
}

/// Leaves the address of a worker in the directory of a new database.
pub(super) fn name(dir: &Path, part: &RemotePart) -> Result<()> {
    let address = &part.address;
    tcp::address(address, part.keys.is_some()).map_err(invalid)?;
    assert!(!address.contains('\n'), "an address that stands for one has one line");
    let text = match &part.keys {
        None => format!("{HEAD}\n{address}\n"),
        Some(files) => {
            Keys::read(files).map_err(invalid)?;
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
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(MOST).read_to_string(&mut text));
    read.map_err(|e| path_error("read", &path, &e))?;
    let bad = || {
        let what = format!(
            "{}: not two lines, `{HEAD}` and the address of a worker as HOST:PORT, nor four, `{HEAD_WITH_KEYS}`, the \
             address, `key PATH` and `peer PATH`",
            path.display()
        );
        Error::Mismatch(what)
    };
    parse(&text).ok_or_else(bad)
}

/// The device of the worker that a directory names, and the worker itself, if it merges.
pub(super) fn open(dir: &Path) -> Result<(Arc<dyn Device>, Option<NearOptions>)> {
    let RemotePart { address, keys } = place(dir)?;
    let keys = keys.as_ref().map(Keys::read).transpose().map_err(invalid)?;
    let connector = TcpConnector::new(&address, keys).map_err(invalid)?;
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
        assert!(!is_there(&dir) && place(&dir).is_err());
        let far = name(&dir, &"10.0.0.1:7070".into()).unwrap_err().to_string();
        assert!(far.contains("loopback") && !is_there(&dir), "{far}");
        name(&dir, &"127.0.0.1:7070".into()).unwrap();
        assert!(is_there(&dir) && name(&dir, &"127.0.0.1:7071".into()).is_err());
        assert_eq!(place(&dir).unwrap(), "127.0.0.1:7070".into());
        std::fs::write(dir.join(REMOTE), "varve remote 2\nfar:1\nkey /a b\npeer c\n").unwrap();
        let keys = Some(KeyFiles { key: "/a b".into(), peer: "c".into() });
        assert_eq!(place(&dir).unwrap(), RemotePart { address: "far:1".into(), keys });
        let bad = ["", "varve remote 1\n", "varve remote 2\n127.0.0.1:1\n", "127.0.0.1:1\n"];
        let more = ["varve remote 1\n127.0.0.1:1\nkey a\n", "varve remote 2\nfar:1\npeer a\nkey b\n"];
        for bad in bad.into_iter().chain(more) {
            std::fs::write(dir.join(REMOTE), bad).unwrap();
            assert!(matches!(place(&dir), Err(Error::Mismatch(_))), "{bad:?}");
        }
        std::fs::write(dir.join(REMOTE), [0xff; 50_000]).unwrap();
        assert!(place(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
