//! Databases that nobody else sees, and that end with the process: in memory, and in files without a name.

use super::devices::path_error;
use super::{Db, Devices, Layout, Options};
use crate::error::Result;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use varve_device::{Device, FileDevice, Options as FileOptions};

/// The files of such a database.
const PARTS: [&str; 2] = ["data", "log"];

impl Db {
    /// A new database in memory, for tests and for data that may go with the process. It works as one on a device does,
    /// commits included, but its files are memory: beside the cache it takes as much as is stored, and nothing of it is
    /// there when the last handle is dropped.
    ///
    /// ```
    /// use varve::{Db, Options};
    /// let db = Db::in_memory(Options::default().cache_mb(8))?;
    /// db.keyspace_or_create("words")?.put("hello", "world")?;
    /// # Ok::<(), varve::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Resources` or `NoSpace` when the system has no memory left; those of [`Db::create`].
    pub fn in_memory(options: Options) -> Result<Db> {
        let options = Options { direct_io: false, trim: options.trim.or(Some(true)), ..options };
        let [data, log] = PARTS.map(|part| -> Result<Arc<dyn Device>> {
            let how = FileOptions { direct: false, punch_holes: true, ..FileOptions::default() };
            Ok(FileDevice::in_memory(part, how)?)
        });
        let db = Db::create_on(Devices::new(data?, log?), &Layout::default(), options)?;
        debug_assert!(db.keyspaces()?.is_empty(), "it is new");
        Ok(db)
    }

    /// A new database in files of the system's directory for temporary files (`TMPDIR`) that lose their names at once:
    /// they go with the last handle, or with the process, however it ends.
    ///
    /// # Errors
    /// `Invalid` when files cannot be made there; those of [`Db::create`].
    pub fn temporary(options: Options) -> Result<Db> {
        let [data, log] = PARTS.map(|part| -> Result<Arc<dyn Device>> {
            let path = new_file(part)?;
            let (direct, prewrite) = (options.direct_io, part == "log");
            let device = FileDevice::open(&path, FileOptions { direct, prewrite, ..FileOptions::default() });
            std::fs::remove_file(&path).map_err(|e| path_error("remove", &path, &e))?;
            debug_assert!(!path.exists(), "it has no name any more");
            Ok(device?)
        });
        let db = Db::create_on(Devices::new(data?, log?), &Layout::default(), options)?;
        debug_assert!(db.keyspaces()?.is_empty(), "it is new");
        Ok(db)
    }
}

/// A new, empty file in the directory for temporary files.
fn new_file(part: &str) -> Result<PathBuf> {
    let mut n = 0u64;
    loop {
        let path = std::env::temp_dir().join(format!("varve-{}-{n}.{part}", std::process::id()));
        match File::create_new(&path) {
            Ok(_) => return Ok(path),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => n += 1,
            Err(e) => return Err(path_error("create", &path, &e)),
        }
    }
}
