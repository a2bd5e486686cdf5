//! Files that are there whole or not at all.

use crate::output::{Failure, Rows, about};
use std::fs::{File, TryLockError};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that gets its name when it is whole and durable. Until then it is locked: who writes a file of the same name
/// meanwhile is refused, and what a killed process left is written anew.
pub struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
}

/// Without its name it is of no use.
impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.partial);
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Where a result goes that may be a stream: a file, or standard output, which is `-`.
pub enum Target {
    File(NewFile),
    Stdout(BufWriter<Rows>),
}

impl Target {
    pub fn of(path: &Path) -> Result<Target, Failure> {
        if path == Path::new("-") {
            return Ok(Target::Stdout(BufWriter::with_capacity(1 << 20, Rows)));
        }
        Ok(Target::File(NewFile::replacing(path)?))
    }

    /// How messages call it.
    pub fn shown(path: &Path) -> String {
        if path == Path::new("-") { "standard output".into() } else { path.display().to_string() }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Target::File(file) => file.finish(),
            Target::Stdout(mut out) => Ok(out.flush()?),
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Target::File(file) => file.write(bytes),
            Target::Stdout(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Target::File(file) => file.flush(),
            Target::Stdout(out) => out.flush(),
        }
    }
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::Exists(format!("{} exists: remove it, or choose another name", path.display()))),
        Err(_) => Ok(()),
    }
}

/// Only what is a file is replaced by one.
fn refuse_other_kinds(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(there) if !there.is_file() => {
            Err(Failure::Usage(format!("{} is there and is no file: choose another name", path.display())))
        }
        _ => Ok(()),
    }
}

/// Where a file lies.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl NewFile {
    /// A file that there is not yet.
    pub fn create(path: &Path) -> Result<NewFile, Failure> {
        NewFile::begin(path, refuse_existing)
    }

    /// A file that takes the place of the one of this name, if there is one; a link stays, and its file is replaced.
    pub fn replacing(path: &Path) -> Result<NewFile, Failure> {
        let linked = path.canonicalize();
        NewFile::begin(linked.as_deref().unwrap_or(path), refuse_other_kinds)
    }

    fn begin(path: &Path, refuse: fn(&Path) -> Result<(), Failure>) -> Result<NewFile, Failure> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let about = |e: std::io::Error| about(&partial, &e);
        refuse(path)?;
        if !folder(path).is_dir() {
            return Err(Failure::Failed(format!("{}: there is no folder {}", path.display(), folder(path).display())));
        }
        let file = File::options().write(true).create(true).truncate(false).open(&partial).map_err(about)?;
        let busy = || {
            Failure::Busy(format!("another process is writing {}: wait for it, or choose another name", path.display()))
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(busy()),
            // (Some file systems have no locks.)
            Err(TryLockError::Error(e)) if e.kind() != ErrorKind::Unsupported => return Err(about(e)),
            _ => {}
        }
        // Who had the lock before may have given the file its name, or removed it.
        refuse(path)?;
        let (locked, named) = (file.metadata().map_err(about)?, std::fs::metadata(&partial));
        if !named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino())) {
            return Err(busy());
        }
        file.set_len(0).map_err(about)?;
        Ok(NewFile { path: path.to_path_buf(), partial, file: BufWriter::with_capacity(1 << 20, file) })
    }

    /// Makes it durable and gives it its name.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.file.flush().and_then(|()| self.file.get_ref().sync_all()).map_err(|e| about(&self.partial, &e))?;
        std::fs::rename(&self.partial, &self.path).map_err(|e| about(&self.path, &e))?;
        let dir = folder(&self.path);
        File::open(dir).and_then(|d| d.sync_all()).map_err(|e| about(dir, &e))
    }
}
