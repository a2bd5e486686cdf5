//! `varve worker keygen`: a private key and its certificate, by which the sides of a connection know each other.

use crate::output::{Failure, Out, about, say};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Modes of the files: the key is for its owner only.
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("no key was made: {e}"))
}

/// Makes a file that is not there, durable with its name.
fn write(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = made.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::Exists(format!("{} is there already and is not overwritten: choose another name", path.display()))
        }
        _ => about(path, &e),
    })?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|e| {
        let _ = fs::remove_file(path);
        about(path, &e)
    })
}

pub fn keygen(out: Out, key: &Path) -> Result<(), Failure> {
    let mut name = key.as_os_str().to_owned();
    name.push(".cert");
    let certificate = PathBuf::from(name);
    let pair = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(vec!["worker".to_string()]).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, "varve");
    let signed = params.self_signed(&pair).map_err(failed)?;
    // The certificate first: if its name is taken, no key is left behind.
    write(&certificate, PUBLIC, &signed.pem())?;
    write(key, PRIVATE, &format!("{}{}", signed.pem(), pair.serialize_pem())).inspect_err(|_| {
        let _ = fs::remove_file(&certificate);
    })?;
    if out.json {
        let (key, certificate) = (key.display().to_string(), certificate.display().to_string());
        say!("{}", json!({ "key": key, "certificate": certificate }))?;
        return Ok(());
    }
    say!("{}: the private key of this side, for its --key; keep it here", key.display())?;
    say!("{}: its certificate; copy it to the other side, for the --peer there", certificate.display())?;
    Ok(())
}
