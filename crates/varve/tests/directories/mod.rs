//! Directories for tests of real files.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use varve::{Db, Layout, Options};

/// A place for a directory of a test's own, removed in the end.
pub struct Dir(pub PathBuf);

impl Dir {
    /// Nothing is there yet.
    pub fn absent(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("varve-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Dir(path)
    }

    /// An empty directory.
    pub fn new(name: &str) -> Dir {
        let dir = Dir::absent(name);
        std::fs::create_dir_all(&dir.0).unwrap();
        dir
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn options() -> Options {
    Options { cache_bytes: 4 << 20, ..Options::default() }
}

pub fn layout() -> Layout {
    Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() }
}

/// A database of one row.
pub fn create(dir: &Path) -> varve::Result<()> {
    let db = Db::create(dir, &layout(), options())?;
    db.create_keyspace("rows")?.put(b"key", b"value")?;
    db.close()
}

/// The one row is there.
#[track_caller]
pub fn sound(dir: &Path) {
    let db = Db::open(dir, options()).unwrap();
    assert_eq!(db.keyspace("rows").unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}
