//! Connections to the worker that a directory names.

use super::super::near_options::NearDecisions;
use super::super::options::RemotePart;
use super::invalid;
use crate::error::{Error, Result};
use crate::index::{NearOptions, RemoteWorker, this_machine};
use std::sync::Arc;
use varve_device::{Device, DeviceError};
pub use varve_wire::KeyFiles;
use varve_wire::tcp::{self, TcpConnector};
use varve_wire::{Keys, Refusal, RemoteDevice, Session, SessionOptions, WireError};

/// Whether the part can name a worker: its address stands for one, and its keys are there.
pub(super) fn check(part: &RemotePart) -> Result<()> {
    tcp::address(&part.address, part.keys.is_some()).map_err(invalid)?;
    part.keys.as_ref().map(Keys::read).transpose().map_err(invalid)?;
    Ok(())
}

/// The worker's device, and the worker itself, if it merges.
pub(super) fn connect(part: RemotePart, near: &NearDecisions) -> Result<(Arc<dyn Device>, Option<NearOptions>)> {
    let RemotePart { address, keys } = part;
    let keys = keys.as_ref().map(Keys::read).transpose().map_err(invalid)?;
    let connector = TcpConnector::new(&address, keys).map_err(invalid)?;
    let session = Session::open(connector, SessionOptions::default()).map_err(|e| match e {
        WireError::Refused { refusal: Refusal::InUse, .. } => Error::InUse(e.to_string()),
        e => DeviceError::Lost { device: format!("remote:{address}").into(), why: e.to_string().into() }.into(),
    })?;
    assert!(session.facts().info.block.is_power_of_two(), "what a worker says of its device was checked");
    let merges = session.facts().jobs.then(|| NearOptions {
        host: near.host,
        device: near.worker,
        load: Some(this_machine()),
        ..NearOptions::new(RemoteWorker::new(session.clone()))
    });
    Ok((RemoteDevice::new(session), merges))
}

#[cfg(test)]
mod tests {
    use super::super::*;

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
