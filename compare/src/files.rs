//! Directories of databases.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use varve_lab::{Error, Result};

/// A directory that is removed with everything in it when the value is dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes a directory in `parent` whose name says `name` and the process.
    pub fn new(parent: &Path, name: &str) -> Result<TempDir> {
        let path = parent.join(format!("varve-compare-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| {
            Error::store(format!("cannot make the directory {}: {e}; choose another --dir", path.display()))
        })?;
        Ok(TempDir(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {e}; remove it by hand", self.0.display());
        }
    }
}

/// Every file in a directory and below, with its size in bytes.
pub fn files(dir: &Path) -> std::io::Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let (path, meta) = entry.and_then(|e| Ok((e.path(), e.metadata()?)))?;
        if meta.is_dir() {
            found.extend(files(&path)?);
        } else if meta.is_file() {
            found.push((path, meta.len()));
        }
    }
    Ok(found)
}

/// Takes the files of a directory out of the system's page cache, so that nobody reads what another process left there.
pub fn drop_page_cache(dir: &Path) -> Result<()> {
    let drop = || -> std::io::Result<()> {
        for (path, _) in files(dir)? {
            let file = File::open(path)?;
            file.sync_all()?;
            // SAFETY: the descriptor is open; the call has no memory to touch.
            match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
                0 => (),
                code => return Err(std::io::Error::from_raw_os_error(code)),
            }
        }
        Ok(())
    };
    drop().map_err(|e| Error::store(format!("cannot empty the page cache of {}: {e}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_files_below_and_removes_all() {
        let dir = TempDir::new(&std::env::temp_dir(), "files-test").expect("a directory");
        std::fs::create_dir(dir.path().join("below")).expect("a directory");
        std::fs::write(dir.path().join("below/file"), [1; 5000]).expect("written");
        let found = files(dir.path()).expect("readable");
        assert_eq!(found, [(dir.path().join("below/file"), 5000)]);
        drop_page_cache(dir.path()).expect("dropped");
        let path = dir.path().to_path_buf();
        drop(dir);
        assert!(!path.exists());
    }
}
