//! The files of a database directory, and the devices a database runs on.
//!
//! A directory holds `lock`, `data`, `log` and, with a tier, `fast`; the last three may be links to files or block
//! devices elsewhere. With an array there are `drive.0`, `drive.1` and so on instead of `data`, on native flash
//! there is `flash`, and where a worker has the pages `remote`, which says where it is. Nothing is created, renamed or
//! removed after creation, but for `fast` when a tier is attached or detached.

use super::options::{Layout, Options};
use super::remote::{self, REMOTE};
use super::{drives, flash, identity, volume};
use crate::error::{Error, Result};
use crate::index::{NearHost, NearOptions};
use crate::wal::{self, DbHeader, Log};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_device::{Device, DeviceError, DirLock, FileDevice, Options as FileOptions};
use varve_volume::array::{self, Array};
use varve_volume::flash::{FlashLayout, NativeFlash};
use varve_volume::plan::{DATA, FAST, Parts};

/// What a database is stored on.
#[derive(Clone)]
pub struct Devices {
    /// Superblocks and log.
    pub log: Arc<dyn Device>,
    /// What the volume of its pages is made of: [`DATA`], and what else it has by name, [`FAST`] for a tier.
    pub parts: Parts,
    /// What [`DATA`] is, if it is an array: it takes part in the database's generations.
    pub array: Option<Arc<Array>>,
    /// The database's directory, if it has one.
    pub dir: Option<PathBuf>,
    /// Drives of the array that it is opened without.
    pub missing: Vec<usize>,
    /// Who reaches the data device by itself and does parts of merges there.
    pub near: Option<NearOptions>,
}

impl Devices {
    /// A database whose pages are on one device.
    pub fn new(data: Arc<dyn Device>, log: Arc<dyn Device>) -> Devices {
        Devices { log, parts: Parts::new(data), array: None, dir: None, missing: Vec::new(), near: None }
    }

    /// A database whose pages lie on an array.
    pub fn on_array(array: Arc<Array>, log: Arc<dyn Device>) -> Devices {
        Devices { array: Some(array.clone()), ..Devices::new(array, log) }
    }

    /// A database whose pages lie on native flash.
    pub fn on_flash(flash: Arc<NativeFlash>, log: Arc<dyn Device>) -> Devices {
        Devices { parts: Parts::on_flash(flash.clone()), ..Devices::new(flash, log) }
    }

    /// The same with this device for a part: one that is new, or instead of the one that it had.
    pub fn with(self, name: &'static str, device: Arc<dyn Device>) -> Devices {
        Devices { parts: self.parts.with(name, Some(device)), ..self }
    }

    /// The same without a part.
    pub fn without(self, name: &str) -> Devices {
        assert!(name != DATA, "pages lie somewhere");
        Devices { parts: self.parts.without(name), ..self }
    }

    /// Refuses to leave page images out of the log where they are needed.
    pub(crate) fn check_images(&self, options: &Options, page_size: usize) -> Result<()> {
        if options.page_images || !self.parts.tear(page_size) {
            return Ok(());
        }
        let what = format!("a power cut may leave a page of {page_size} bytes half written here");
        Err(Error::Invalid(format!(
            "page_images = false cannot be used: {what}, and only the log makes it whole again"
        )))
    }

    /// The same with a worker for merges.
    pub fn with_near(self, near: NearOptions) -> Devices {
        Devices { near: Some(near), ..self }
    }

    /// Takes the worker, if there is one and pages may be written: what earlier openings left with it has ended then.
    pub(crate) fn attach_near(&self, options: &Options) -> Result<Option<NearHost>> {
        let Some(near) = self.near.clone().filter(|_| !options.read_only) else { return Ok(None) };
        let other = match () {
            () if self.array.is_some() => "an array",
            () if !self.parts.record()?.is_empty() => "native flash",
            () if self.part(FAST).is_some() => "a tier",
            () => return NearHost::attach(near, &options.faults()).map(Some),
        };
        let what = format!("a worker serves databases whose pages lie on one device, and this one has {other}");
        Err(Error::Invalid(format!("{what}: open it without a worker")))
    }

    /// The device of a part, if there is one.
    pub fn part(&self, name: &str) -> Option<&Arc<dyn Device>> {
        self.parts.get(name)
    }

    /// The device that holds the pages.
    pub(crate) fn data(&self) -> Result<&Arc<dyn Device>> {
        Ok(self.parts.data()?)
    }
}

const LOG: &str = "log";
/// The link to native flash.
pub(super) const FLASH: &str = "flash";

/// Whether a directory holds a database (its log and data files). What is left of a creation that was cut short is
/// none.
pub fn exists(dir: &Path) -> bool {
    (dir.join(DATA).exists() || drives::count(dir) > 0 || flash::is_there(dir) || remote::is_there(dir))
        && dir.join(LOG).exists()
        && !is_unfinished(dir)
}

/// Whether the database in a directory has a tier: what its superblock says, wherever the fast device is.
pub fn has_tier(dir: &Path) -> bool {
    header(dir).is_some_and(|header| volume::has_tier(&header.options))
}

/// Whether the pages of the database in a directory lie on an array.
pub fn has_array(dir: &Path) -> bool {
    drives::count(dir) > 0
}

/// Whether a device is what an attachment to this database, or its creation, left that was cut short: nothing of use is
/// on it.
pub fn is_left_over(dir: &Path, fast: &Path) -> bool {
    if let Some(ours) = begun(dir) {
        let target = std::fs::canonicalize(fast).ok();
        let is = |part: &str| target.is_some() && std::fs::canonicalize(dir.join(part)).ok() == target;
        // A drive bears the identity from the first on; what else was named was looked at before the creation began.
        return match owner(fast) {
            Some(owner) => {
                owner == ours && drives::names(dir).chain([DATA, FAST].map(String::from)).any(|part| is(&part))
            }
            None => [DATA, FAST].into_iter().any(is),
        };
    }
    let owner = peek(fast).and_then(|device| varve_volume::tier::owner(&*device).ok().flatten());
    owner.is_some() && owner == header(dir).filter(|_| !has_tier(dir)).map(|header| header.uuid)
}

/// A file to be looked at; none if it cannot be opened.
fn peek(path: &Path) -> Option<Arc<FileDevice>> {
    let how = FileOptions { read_only: true, direct: false, io_uring: false, ..FileOptions::default() };
    FileDevice::open(path, how).ok()
}

fn header(dir: &Path) -> Option<DbHeader> {
    wal::read_header(&*peek(&dir.join(LOG))?).ok()
}

/// Whether a file is not there, or has nothing but zeros where a database begins.
pub(super) fn is_blank(path: &Path) -> bool {
    const LOOK: u64 = 64 << 10;
    let Ok(meta) = std::fs::metadata(path) else { return true };
    if !meta.is_file() && !meta.file_type().is_block_device() {
        return false;
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LOOK).read_to_end(&mut head));
    read.is_ok() && head.iter().all(|byte| *byte == 0)
}

/// Whether what a directory holds of a database is left of a creation that was cut short.
fn is_unfinished(dir: &Path) -> bool {
    match peek(&dir.join(LOG)).map(|log| wal::read_header(&*log)) {
        Some(Err(Error::Unfinished(_))) => true,
        Some(Ok(_)) => false,
        _ => is_blank(&dir.join(LOG)) && is_blank(&dir.join(DATA)) && drives::are_blank(dir),
    }
}

/// The identity of a creation in a directory that was cut short after the first of its files was its own.
fn begun(dir: &Path) -> Option<[u8; 16]> {
    is_unfinished(dir).then(|| wal::creation(&*peek(&dir.join(LOG))?)).flatten()
}

/// The header of a database that is made, whose pages leave `room` bytes alone. On an array that holds nothing yet it
/// has the array's identity: what is left on the drives is then known by the log when creation is cut short.
pub(super) fn new_header(page_size: usize, room: usize, array: Option<&Array>) -> DbHeader {
    let mut uuid = [0; 16];
    match array.filter(|array| array.len() == 0).and_then(Array::identity) {
        Some((id, _)) => uuid = id,
        None => varve_rt::rng().fill_bytes(&mut uuid),
    }
    let room = u16::try_from(room).expect("less than a page is left alone");
    DbHeader { uuid, page_size: page_size as u32, room, created: varve_rt::unix_time(), options: Vec::new() }
}

pub(crate) struct OpenDir {
    pub devices: Devices,
    pub lock: DirLock,
    /// Whether the directory was not there before.
    pub made: bool,
}

/// Makes the files of a new database; the directory may exist but must not hold a database. What a creation left that
/// was cut short goes first. All names are durable before anything is written to the files.
pub(crate) fn create(dir: &Path, layout: &Layout, options: &Options) -> Result<OpenDir> {
    let made = dir.symlink_metadata().is_err();
    make_dir(dir)?;
    let mut lock = lock(dir, false)?;
    let mut left = None;
    if drives::count(dir) > 0
        || [DATA, LOG, FAST, FLASH, REMOTE].iter().any(|part| dir.join(part).symlink_metadata().is_ok())
    {
        if !is_unfinished(dir) {
            return Err(Error::holds_database(dir.display()));
        }
        // What is on flash bears no identity: that a creation began which names it says that it was looked at before.
        left = begun(dir).and_then(|_| std::fs::canonicalize(dir.join(FLASH)).ok());
        remove(dir);
    }
    let devices = make_parts((dir, &mut lock), layout, options, left);
    // What was made now is to be locked, too.
    match devices.and_then(|devices| lock_parts(&mut lock, (dir, true), false).map(|()| devices)) {
        Ok(devices) => Ok(OpenDir { devices, lock, made }),
        Err(e) => {
            if matches!(e, Error::InUse(_)) {
                // Nothing was made yet but links to what others have.
                all_parts(dir).map(|part| dir.join(part)).filter(|path| path.is_symlink()).for_each(|link| {
                    let _ = std::fs::remove_file(link);
                });
            }
            take_back(dir, made, lock);
            Err(e)
        }
    }
}

/// Removes what a creation left that failed, and the directory if it was made for it. Its lock is held until then.
pub(crate) fn take_back(dir: &Path, made: bool, lock: DirLock) {
    remove(dir);
    if made {
        // Files of somebody else keep the directory.
        let only_lock = |found: std::fs::ReadDir| found.flatten().all(|entry| entry.file_name() == DirLock::FILE);
        if std::fs::read_dir(dir).is_ok_and(only_lock) {
            let _ = std::fs::remove_file(dir.join(DirLock::FILE)).and_then(|()| std::fs::remove_dir(dir));
        }
    }
    drop(lock);
}

/// The same after the lock was given up. Who has it now removes by itself what it finds.
pub(crate) fn take_back_later(dir: &Path, made: bool) {
    if let Ok(lock) = lock(dir, false) {
        take_back(dir, made, lock);
    }
}

/// `left`: flash with what a creation left that was cut short.
fn make_parts(
    (dir, lock): (&Path, &mut DirLock),
    layout: &Layout,
    options: &Options,
    left: Option<PathBuf>,
) -> Result<Devices> {
    if let Some(log_dir) = &layout.log_dir {
        make_dir(log_dir)?;
        link(dir, LOG, log_dir)?;
    }
    if let Some(data) = &layout.data {
        link(dir, DATA, data)?;
    }
    if let Some(part) = &layout.remote {
        remote::name(dir, part)?;
    }
    if let Some(fast) = &layout.fast {
        link(dir, FAST, fast)?;
    }
    if let Some(array) = &layout.array {
        drives::link(dir, &array.drives)?;
    }
    if let Some(part) = &layout.flash {
        link(dir, FLASH, &part.path)?;
        sync_parent(&dir.join(FLASH))?;
    }
    // Before anything is written.
    lock_parts(lock, (dir, true), false)?;
    let devices = match &layout.array {
        None if layout.flash.is_some() => on_flash(dir, layout, options, left)?,
        None => open_files(dir, options, true, layout.fast.is_some())?,
        Some(array) => {
            let (log, fast) = (open_file(dir, LOG, options, true)?, layout.fast.as_ref());
            let fast = fast.map(|_| open_file(dir, FAST, options, true)).transpose()?;
            if !layout.overwrite {
                fast.iter().try_for_each(refuse_owned)?;
            }
            // What bears the identity after a crash is of a creation that was cut short.
            let header = new_header(layout.page_size, 0, None);
            Log::begin_creation(&*log, &header)?;
            let array = drives::create((dir, header.uuid), array, options, layout.overwrite)?;
            let devices = Devices { dir: Some(dir.into()), ..Devices::on_array(array, log) };
            fast.into_iter().fold(devices, |devices, fast| devices.with(FAST, fast))
        }
    };
    let parts = [LOG, DATA, FAST].map(String::from).into_iter().chain(drives::names(dir));
    for part in parts.filter(|part| dir.join(part).symlink_metadata().is_ok()) {
        sync_parent(&dir.join(part))?;
    }
    if !layout.overwrite && layout.array.is_none() && layout.flash.is_none() {
        devices.parts.iter().try_for_each(|(_, device)| refuse_owned(device))?;
    }
    Ok(devices)
}

/// The devices of a new database on native flash.
fn on_flash(dir: &Path, layout: &Layout, options: &Options, left: Option<PathBuf>) -> Result<Devices> {
    let part = layout.flash.as_ref().expect("the caller has looked");
    if layout.data.is_some() || layout.fast.is_some() {
        return Err(Error::Invalid("native flash has all pages: give no data or fast device beside it".into()));
    }
    let log = open_file(dir, LOG, options, true)?;
    if !layout.overwrite {
        refuse_owned(&log)?;
    }
    let overwrite = layout.overwrite || left.is_some_and(|left| std::fs::canonicalize(&part.path).ok() == Some(left));
    let begin = || Log::begin_creation(&*log, &new_header(layout.page_size, 0, None));
    let flash = flash::create(dir, part, overwrite, begin)?;
    Ok(Devices { dir: Some(dir.into()), ..Devices::on_flash(flash, log) })
}

/// Fails when a device holds something of a database.
pub(super) fn refuse_owned(device: &Arc<dyn Device>) -> Result<()> {
    let device = &**device;
    let tier = varve_volume::tier::owner(device)?.is_some();
    let owned = tier || array::membership(device)?.is_some() || identity::holds_pages(device)?;
    if owned || wal::read_header(device).is_ok() {
        return Err(Error::holds_database(device.info().name));
    }
    Ok(())
}

/// Leaves a link to a part of the database elsewhere: to a block device or file, or to a file of the database's name in
/// a directory.
pub(super) fn link(dir: &Path, part: &str, to: &Path) -> Result<()> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(|e| path_error("find", path, &e));
    let target = match to.is_dir() {
        true => {
            let file = std::fs::canonicalize(to).map_err(|e| path_error("find", to, &e))?.join(part_name(dir, part));
            if file.exists() && !is_blank(&file) {
                return Err(Error::holds_database(file.display()));
            }
            file
        }
        false => absolute(to)?,
    };
    refuse_second_use(dir, part, &target)?;
    let link = dir.join(part);
    std::os::unix::fs::symlink(&target, &link).map_err(|e| path_error("link", &link, &e))
}

/// Fails when a file, or block device, is a part of the database already. (Of two drives the array says it.)
fn refuse_second_use(dir: &Path, part: &str, target: &Path) -> Result<()> {
    let whole = |path: &Path| std::fs::canonicalize(path).or_else(|_| std::fs::read_link(path)).ok();
    let (target, named) = (target.to_path_buf(), whole(target));
    let is_drive = |name: &str| name.starts_with("drive.");
    let mut others = all_parts(dir).filter(|other| other != part && !(is_drive(other) && is_drive(part)));
    let is_it = |other: &String| {
        let there = whole(&dir.join(other));
        there.is_some() && (there == named || there.as_ref() == Some(&target))
    };
    match others.find(is_it) {
        Some(other) => Err(Error::Invalid(format!(
            "{} is the database's own `{other}`: give another file or device for `{part}`",
            target.display()
        ))),
        None => Ok(()),
    }
}

/// The names that a directory may have of parts of a database, and its lock.
fn all_parts(dir: &Path) -> impl Iterator<Item = String> {
    [DATA, LOG, FAST, FLASH, DirLock::FILE].map(String::from).into_iter().chain(drives::names(dir))
}

/// Adds a fast device to the directory of a database that has none. A link that is there is left of an attachment that
/// was cut short, or of the end of a tier.
fn link_fast(dir: &Path, to: &Path) -> Result<()> {
    if has_tier(dir) {
        return Err(Error::holds_database(dir.join(FAST).display()));
    }
    unlink_fast(dir)?;
    link(dir, FAST, to)
}

/// Takes the fast device out of the directory; what it holds stays where it is.
pub(crate) fn unlink_fast(dir: &Path) -> Result<()> {
    let link = dir.join(FAST);
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link).map_err(|e| path_error("remove", &link, &e))?;
        sync_parent(&link)?;
    }
    Ok(())
}

/// Removes the files of a database that did not come to be; of a block device, or a file of somebody else's, only the
/// link to it. The log goes last: as long as it is there it says that this is no database.
fn remove(dir: &Path) {
    let ours = peek(&dir.join(LOG)).and_then(|log| wal::creation(&*log));
    if remote::is_there(dir) {
        remote::give_up(dir, ours);
    }
    for part in drives::names(dir).chain([DATA, FAST, FLASH, REMOTE, LOG].map(String::from)) {
        let link = dir.join(&part);
        let inside = link.symlink_metadata().is_ok_and(|meta| meta.is_file());
        if let Ok(target) = std::fs::canonicalize(&link)
            && target.is_file()
            && (inside || part == LOG || is_blank(&target) || ours.is_some() && ours == owner(&target))
        {
            let _ = std::fs::remove_file(target);
        }
        let _ = std::fs::remove_file(&link);
        let _ = sync_parent(&link);
    }
}

/// The identity that a data device, a fast device or a drive bears.
fn owner(path: &Path) -> Option<[u8; 16]> {
    let device: Arc<dyn Device> = peek(path)?;
    let drive = || Some(array::membership(&*device).ok()??.array);
    identity::owner(&*device).or_else(|| varve_volume::tier::owner(&*device).ok().flatten()).or_else(drive)
}

/// Fails when there are no files of a database to be opened.
fn expect(dir: &Path) -> Result<()> {
    let missing = |part: &str| std::fs::metadata(dir.join(part)).is_err();
    // What may not be looked at is not missing.
    if let Err(e) = std::fs::metadata(dir.join(LOG))
        && e.kind() == ErrorKind::PermissionDenied
    {
        return Err(Error::Permission(format!("{} cannot be read: {}", dir.display(), e.kind())));
    }
    match (missing(DATA) && drives::count(dir) == 0 && missing(FLASH) && missing(REMOTE), missing(LOG)) {
        (false, false) => Ok(()),
        _ if is_unfinished(dir) && !missing(LOG) => Err(Error::Unfinished(dir.display().to_string())),
        (true, true) => Err(Error::NoDatabase(dir.display().to_string())),
        (data, _) => {
            let on_flash = flash::is_there(dir) || header(dir).is_some_and(|h| FlashLayout::is_record(&h.options));
            let pages = if on_flash { FLASH } else { DATA };
            let (there, gone) = if data { (LOG, pages) } else { (pages, LOG) };
            Err(Error::Mismatch(format!("`{there}` is in {}, and `{gone}` is not", dir.display())))
        }
    }
}

/// Opens the files of an existing database.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<OpenDir> {
    expect(dir)?;
    let mut lock = lock(dir, options.read_only)?;
    // A link that leads nowhere is a fast device that is missing; whether that matters the superblock says. One that
    // the superblock does not know of is left of an attachment that was cut short, or of a tier that has ended: nothing
    // of use is there.
    let fast = dir.join(FAST).exists() && !options.without_tier && has_tier(dir);
    lock_parts(&mut lock, (dir, fast), options.read_only)?;
    let devices = open_files(dir, options, false, fast)?;
    Ok(OpenDir { devices, lock, made: false })
}

/// Opens the files of a database to save what is on them: also without its log, or the file that is locked.
pub(crate) fn open_to_salvage(dir: &Path, options: &Options) -> Result<OpenDir> {
    let there = |part: String| dir.join(part).symlink_metadata().is_ok();
    if !there(DirLock::FILE.into()) && all_parts(dir).any(there) {
        // Readers make none; on a file system that is read-only there need be none.
        let _ = DirLock::exclusive(dir);
    }
    let alone = !there(LOG.into()) && dir.join(DATA).exists();
    if !alone {
        return open(dir, options);
    }
    let mut lock = lock(dir, true)?;
    lock_parts(&mut lock, (dir, false), true)?;
    let log = FileDevice::in_memory(LOG, FileOptions::default())?;
    Ok(OpenDir { devices: Devices::new(open_file(dir, DATA, options, false)?, log), lock, made: false })
}

/// Opens the files of an existing database and a fast device that is new to it, a file of `bytes` if it is none yet.
pub(crate) fn open_attaching(dir: &Path, fast: &Path, bytes: u64, options: &Options) -> Result<OpenDir> {
    expect(dir)?;
    let mut lock = lock(dir, false)?;
    link_fast(dir, fast)?;
    lock_parts(&mut lock, (dir, true), false).inspect_err(|_| drop(unlink_fast(dir)))?;
    let devices = attach_files(dir, bytes, options).inspect_err(|_| drop(unlink_fast(dir)))?;
    lock_parts(&mut lock, (dir, true), false)?;
    sync_parent(&dir.join(FAST))?;
    Ok(OpenDir { devices, lock, made: false })
}

fn attach_files(dir: &Path, bytes: u64, options: &Options) -> Result<Devices> {
    let how = FileOptions { create: true, direct: options.direct_io, ..FileOptions::default() };
    let device = FileDevice::open(dir.join(FAST), how)?;
    if device.len() < bytes {
        device.set_len(bytes)?;
    }
    let devices = open_files(dir, options, false, false)?;
    Ok(devices.with(FAST, device))
}

fn open_file(dir: &Path, name: &str, options: &Options, create: bool) -> Result<Arc<dyn Device>> {
    let (read_only, direct, prewrite) = (options.read_only, options.direct_io, name == LOG);
    let punch_holes = name == DATA && options.trim == Some(true);
    let how = FileOptions { create, read_only, direct, prewrite, punch_holes, ..FileOptions::default() };
    Ok(FileDevice::open(dir.join(name), how)?)
}

fn open_files(dir: &Path, options: &Options, create: bool, fast: bool) -> Result<Devices> {
    let open = |name: &str| open_file(dir, name, options, create);
    let log = open(LOG)?;
    let devices = match !create && drives::count(dir) > 0 {
        true => {
            let (array, missing) = drives::open(dir, options)?;
            Devices { dir: Some(dir.into()), missing, ..Devices::on_array(array, log) }
        }
        false if !create && flash::is_there(dir) => {
            let flash = flash::open(dir, &*log, options)?;
            Devices { dir: Some(dir.into()), ..Devices::on_flash(flash, log) }
        }
        false if remote::is_there(dir) => {
            let (data, near) = remote::open(dir, &options.near)?;
            // With a tier over it the worker's device does not hold all pages.
            Devices { near: near.filter(|_| !fast), ..Devices::new(data, log) }
        }
        false => Devices::new(open(DATA)?, log),
    };
    if fast { Ok(devices.with(FAST, open(FAST)?)) } else { Ok(devices) }
}

/// The name of a part in a directory that several databases may share.
fn part_name(dir: &Path, part: &str) -> PathBuf {
    let name = dir.file_name().map_or_else(|| "varve".into(), |n| n.to_string_lossy().into_owned());
    PathBuf::from(format!("{name}.{part}"))
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => Error::Invalid(format!(
            "cannot create {0}: a file, or a link to nothing, has this name; remove it, or choose another directory",
            dir.display()
        )),
        _ => path_error("create", dir, &e),
    })?;
    sync_parent(dir)
}

/// Makes the name of a file durable, and of what it is a link to.
pub(super) fn sync_parent(path: &Path) -> Result<()> {
    let target = std::fs::canonicalize(path).ok();
    for path in [Some(path), target.as_deref()].into_iter().flatten() {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Block devices have names that nobody makes.
        if !parent.starts_with("/dev") {
            let synced = File::open(parent).and_then(|dir| dir.sync_all());
            synced.map_err(|e| path_error("make durable", parent, &e))?;
        }
    }
    Ok(())
}

fn lock(dir: &Path, read_only: bool) -> Result<DirLock> {
    let lock = if read_only { DirLock::shared(dir) } else { DirLock::exclusive(dir) };
    lock.map_err(|e| match e {
        DeviceError::Locked { .. } => Error::InUse(e.to_string()),
        other => other.into(),
    })
}

/// Locks the parts: another directory may have links to them, and somebody may have removed the file `lock`. (The image
/// of native flash has a lock of its own.) What is not there yet is nobody's. `fast`: the database has a fast device.
fn lock_parts(lock: &mut DirLock, (dir, fast): (&Path, bool), read_only: bool) -> Result<()> {
    let of_its_own = |part: &String| part == FLASH || part == DirLock::FILE || part == FAST && !fast;
    for part in all_parts(dir).filter(|part| !of_its_own(part)) {
        let path = dir.join(&part);
        if path.exists() {
            lock.add(&path, !read_only).map_err(|e| match e {
                DeviceError::Locked { .. } => {
                    let target = std::fs::canonicalize(&path).unwrap_or(path);
                    Error::InUse(format!("cannot be opened: `{part}` ({}) is in use from elsewhere", target.display()))
                }
                other => other.into(),
            })?;
        }
    }
    Ok(())
}

pub(super) fn path_error(what: &str, path: &Path, e: &std::io::Error) -> Error {
    let told = format!("cannot {what} {}: {e}", path.display());
    match e.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::Permission(told),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::NoSpace(path.display().to_string()),
        _ => Error::Invalid(told),
    }
}
