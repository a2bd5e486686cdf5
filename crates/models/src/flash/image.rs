//! An image: a raw array that is kept in a file, with all rules of its cells, so that everything can be tried without a
//! chip. [`RawModel::open_image`] gives it as raw flash.
//!
//! The file has a head (what the array is, as TOML), a table of blocks, a table of pages, and the pages themselves; see
//! `docs/format.md`. What is done to the array is written at once, in the order in which it is given; a killed process
//! loses nothing. After a power cut of the machine everything is there that came before a fence, as far as the file
//! keeps what it was told to; a page that was being programmed cannot be read, a block that was being erased is as it
//! was or erased. An erase waits until what was written before it is on the device below.
//!
//! Invariants: a page is there if its entry bears the number of its block's erases; an entry is written after its page.

use super::nand::Kept;
use super::store::{MemPages, PageBytes, PageContents};
use super::{CellMode, Contents, FlashConfig, FlashError, Geometry, Nand, RawModel, Timing};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use varve_rt::Mutex;

const MAGIC: &[u8; 8] = b"VARVNAND";
const VERSION: u32 = 1;
/// Bytes of the head.
const HEAD: u64 = 64 << 10;
/// Bytes of a block's entry, and of a page's.
const BLOCK: u64 = 8;
const PAGE: u64 = 16;
/// States of a page's entry.
const THERE: u8 = 1;
const FAILED: u8 = 2;

/// What the head says.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    /// Whether operations take the time that they would take; else none.
    paced: bool,
    /// How each chip's cells are used.
    modes: Vec<CellMode>,
    /// The array.
    flash: FlashConfig,
}

fn broken(path: &Path, why: impl std::fmt::Display) -> FlashError {
    FlashError::Image { path: path.display().to_string(), why: why.to_string() }
}

fn damaged(path: &Path, why: impl std::fmt::Display) -> FlashError {
    FlashError::ImageDamaged { path: path.display().to_string(), why: why.to_string() }
}

/// Where things are.
#[derive(Clone, Copy)]
struct Places {
    geometry: Geometry,
    blocks: u64,
    pages: u64,
    data: u64,
    stride: u64,
}

impl Places {
    fn of(geometry: Geometry) -> Places {
        let pages = HEAD + (u64::from(geometry.blocks()) * BLOCK).next_multiple_of(4096);
        let all = u64::from(geometry.blocks()) * u64::from(geometry.pages_per_block);
        let stride = u64::from(geometry.page_bytes) + u64::from(geometry.spare_bytes);
        let data = pages + (all * PAGE).next_multiple_of(4096);
        assert!(data.is_multiple_of(4096), "pages begin where a file system's blocks do");
        Places { geometry, blocks: HEAD, pages, data, stride }
    }

    fn all_pages(&self) -> u64 {
        u64::from(self.geometry.blocks()) * u64::from(self.geometry.pages_per_block)
    }

    fn page(&self, page: u32) -> u64 {
        self.data + u64::from(page) * self.stride
    }

    fn len(&self) -> u64 {
        self.data + self.all_pages() * self.stride
    }
}

/// A page's entry.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// One more than the erases of its block when it was programmed.
    epoch: u32,
    /// CRC-32C of what its first program wrote.
    crc: u32,
    data: u16,
    spare: u16,
    /// Programs after the first.
    appended: u8,
    state: u8,
}

impl Entry {
    fn encode(&self) -> [u8; PAGE as usize] {
        let mut bytes = [0; PAGE as usize];
        bytes[..4].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.data.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.spare.to_le_bytes());
        (bytes[12], bytes[13]) = (self.appended, self.state);
        bytes
    }

    fn decode(bytes: &[u8]) -> Entry {
        let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let two = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"));
        Entry { epoch: four(0), crc: four(4), data: two(8), spare: two(10), appended: bytes[12], state: bytes[13] }
    }

    /// The checksum of what the first program of a page wrote.
    fn checksum(&self, data: &[u8], spare: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&data[..self.data.into()]), &spare[..self.spare.into()])
    }
}

/// The file, shared by the array and by who waits for it.
pub(super) struct ImageFile {
    file: File,
    path: std::path::PathBuf,
    /// Something was written since the last sync.
    dirty: AtomicBool,
    /// How it failed first: nothing can be relied on any more.
    failed: Mutex<Option<String>>,
}

impl ImageFile {
    /// What was written is on the device below.
    pub(super) fn sync(&self) -> Result<(), FlashError> {
        if self.dirty.swap(false, SeqCst)
            && let Err(e) = self.file.sync_data()
        {
            self.fails(&e);
        }
        self.sound()
    }

    /// Fails once the file has failed.
    pub(super) fn sound(&self) -> Result<(), FlashError> {
        match &*self.failed.lock() {
            Some(why) => Err(broken(&self.path, format!("{why}: see to its file system, then open it again"))),
            None => Ok(()),
        }
    }

    fn fails(&self, error: &io::Error) {
        self.failed.lock().get_or_insert_with(|| error.to_string());
    }

    fn done<T>(&self, done: io::Result<T>) -> Option<T> {
        done.inspect_err(|e| self.fails(e)).ok()
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.dirty.store(true, SeqCst);
        self.done(self.file.write_all_at(bytes, at));
    }
}

/// The pages of an image. See the module.
struct ImagePages {
    file: Arc<ImageFile>,
    places: Places,
    entries: Vec<Entry>,
    erases: Vec<u32>,
}

impl ImagePages {
    fn epoch(&self, page: u32) -> u32 {
        self.erases[(page / self.places.geometry.pages_per_block) as usize] + 1
    }

    fn is_current(&self, page: u32) -> bool {
        self.entries[page as usize].epoch == self.epoch(page)
    }

    fn put_entry(&mut self, page: u32, entry: Entry) {
        self.entries[page as usize] = entry;
        self.file.write(self.places.pages + u64::from(page) * PAGE, &entry.encode());
    }

    /// Data and spare area of a page as the file has them.
    fn bytes(&self, page: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut data = vec![0; self.places.stride as usize];
        self.file.done(self.file.file.read_exact_at(&mut data, self.places.page(page)))?;
        let spare = data.split_off(self.places.geometry.page_bytes as usize);
        Some((data, spare))
    }
}

fn padded(bytes: &[u8], to: u32) -> Vec<u8> {
    let mut all = bytes.to_vec();
    assert!(all.len() <= to as usize, "what is programmed fits the page");
    all.resize(to as usize, 0xff);
    all
}

impl PageContents for ImagePages {
    fn get(&self, page: u32) -> Option<PageBytes> {
        let entry = self.entries[page as usize];
        if !self.is_current(page) || entry.state != THERE {
            return None;
        }
        let (data, spare) = self.bytes(page)?;
        let whole = entry.checksum(&data, &spare) == entry.crc;
        whole.then(|| PageBytes { data: Some(data.into()), spare: spare.into() })
    }

    fn set(&mut self, page: u32, bytes: Option<PageBytes>) {
        let (epoch, place) = (self.epoch(page), self.places.page(page));
        let Some(bytes) = bytes else {
            return self.put_entry(page, Entry { epoch, state: FAILED, ..Entry::default() });
        };
        let Geometry { page_bytes, spare_bytes, .. } = self.places.geometry;
        let data = bytes.data.as_deref().unwrap_or_default();
        let mut entry = self.entries[page as usize];
        let (new, spare) = (padded(data, page_bytes), padded(&bytes.spare, spare_bytes));
        if self.is_current(page) && entry.state == THERE {
            // An append: only what changed is written. The checksum is that of the first program.
            let Some(old) = self.bytes(page) else { return };
            for (old, new, at) in [(&old.0, &new, place), (&old.1, &spare, place + u64::from(page_bytes))] {
                let changed = |i: &usize| old[*i] != new[*i];
                if let (Some(first), Some(last)) = ((0..new.len()).find(changed), (0..new.len()).rfind(changed)) {
                    self.file.write(at + first as u64, &new[first..=last]);
                }
            }
            entry.appended += 1;
            entry.crc = entry.checksum(&new, &spare);
            return self.put_entry(page, entry);
        }
        entry =
            Entry { epoch, state: THERE, data: data.len() as u16, spare: bytes.spare.len() as u16, ..Entry::default() };
        entry.crc = entry.checksum(&new, &spare);
        self.file.write(place, &[new, spare].concat());
        self.put_entry(page, entry);
    }

    fn erase(&mut self, _first: u32, _count: u32) {
        // Their entries do not bear the number of erases that their block has now.
    }

    fn note(&mut self, block: u32, erases: u32, bad: bool) {
        // What took the place of the block's pages is there for sure.
        let _ = self.file.sync();
        self.erases[block as usize] = erases;
        let mut bytes = [0; BLOCK as usize];
        bytes[..4].copy_from_slice(&erases.to_le_bytes());
        bytes[4] = u8::from(bad);
        self.file.write(self.places.blocks + u64::from(block) * BLOCK, &bytes);
    }

    fn fork(&self) -> Box<dyn PageContents> {
        let mut copy = MemPages::new(self.entries.len() as u32);
        (0..self.entries.len() as u32).for_each(|page| copy.set(page, self.get(page)));
        Box::new(copy)
    }

    fn resident_bytes(&self) -> u64 {
        self.entries.len() as u64 * size_of::<Entry>() as u64
    }
}

/// The same array, whose operations take no time.
fn at_once(flash: &FlashConfig) -> FlashConfig {
    let none = |times: &[f64]| vec![0.0; times.len()];
    let Timing { read_us, program_us, .. } = &flash.timing;
    let (read_us, program_us) = (none(read_us), none(program_us));
    let timing = Timing { read_us, program_us, erase_us: 0.0, channel_mb_s: 1e6, command_us: 0.0 };
    FlashConfig { timing, suspend: None, ..flash.clone() }
}

/// What an image says of itself; `none`: what is wrong with a file that is none.
fn read_head(file: &File, path: &Path, none: FlashError) -> Result<Head, FlashError> {
    let len = file.metadata().map_err(|e| broken(path, e))?.len();
    let mut head = vec![0; len.min(HEAD) as usize];
    file.read_exact_at(&mut head, 0).map_err(|e| broken(path, e))?;
    let known = head.len().min(MAGIC.len());
    if head[..known] != MAGIC[..known] {
        return Err(none);
    }
    if len < HEAD {
        return Err(damaged(path, format_args!("it was cut to {len} bytes, less than its head; put it back whole")));
    }
    let four = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let (version, crc, len) = (four(8), four(12), four(16) as usize);
    if version > VERSION {
        return Err(broken(
            path,
            format_args!("it has version {version}; this release knows {VERSION}: use a newer one"),
        ));
    }
    let text = head.get(20..20 + len).filter(|text| crc32c::crc32c(text) == crc);
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or_else(|| damaged(path, "its head is not what was written; put it back"))?;
    toml::from_str(text).map_err(|e| broken(path, format_args!("its head cannot be read: {}", e.message())))
}

/// Fails if the file is shorter than its head says.
fn is_whole(file: &File, path: &Path, places: &Places) -> Result<(), FlashError> {
    let (len, whole) = (file.metadata().map_err(|e| broken(path, e))?.len(), places.len());
    if len >= whole {
        return Ok(());
    }
    Err(damaged(
        path,
        format_args!(
            "it was cut to {len} of its {whole} bytes; put it back whole, or make it as long again \
             (`truncate -s {whole}`): then `salvage` finds what was not cut off"
        ),
    ))
}

/// Makes an image with nothing on it; `modes`: how the cells of each chip are used. `paced`: its operations take the
/// time that they would take. Durable when it returns. Fails where a file is.
pub fn create_image(path: &Path, flash: &FlashConfig, modes: &[CellMode], paced: bool) -> Result<(), FlashError> {
    flash.validate()?;
    assert_eq!(modes.len(), flash.geometry.chips() as usize, "each chip has a mode");
    let mut nand = Nand::with_store(flash, Contents::Nothing, Box::new(MemPages::new(0)))?;
    modes.iter().enumerate().try_for_each(|(chip, mode)| nand.set_mode(chip as u32, *mode))?;
    let head = Head { paced, modes: modes.to_vec(), flash: flash.clone() };
    let text = toml::to_string(&head).map_err(|e| broken(path, e))?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(crc32c::crc32c(text.as_bytes()).to_le_bytes());
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    if bytes.len() as u64 > HEAD {
        return Err(broken(path, "what describes it does not fit its head: fewer chips"));
    }
    let io = |e: io::Error| broken(path, e);
    if path.symlink_metadata().is_ok() {
        return Err(io(io::ErrorKind::AlreadyExists.into()));
    }
    // It gets its name when it is whole: who is killed before leaves nothing that looks like an image that was cut.
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&unfinished).map_err(io)?;
    let written = file
        .set_len(Places::of(flash.geometry).len())
        .and_then(|()| file.write_all_at(&bytes, 0))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&unfinished, path));
    written.inspect_err(|_| drop(std::fs::remove_file(&unfinished))).map_err(io)
}

/// What an image is an array of.
pub fn image_config(path: &Path) -> Result<(FlashConfig, Vec<CellMode>), FlashError> {
    let file = File::open(path).map_err(|e| broken(path, e))?;
    let none = broken(path, "it is no image of flash: make one with `varve create --flash image:PATH`");
    let head = read_head(&file, path, none)?;
    head.flash.validate()?;
    is_whole(&file, path, &Places::of(head.flash.geometry))?;
    Ok((head.flash, head.modes))
}

/// Opens an image, for one process at a time. What is none any more is damaged.
pub fn open_image(path: &Path) -> Result<Arc<RawModel>, FlashError> {
    assert!(!varve_rt::in_simulation(), "a simulation has no files: use a model in memory");
    let io = |e: io::Error| broken(path, e);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
    if file.try_lock().is_err() {
        return Err(broken(path, "another process uses it"));
    }
    let none = damaged(path, "it was overwritten: it is no image of flash any more; put it back");
    let Head { paced, modes, flash } = read_head(&file, path, none)?;
    flash.validate()?;
    let places = Places::of(flash.geometry);
    is_whole(&file, path, &places)?;
    let (mut blocks, mut pages) =
        (vec![0; (flash.geometry.blocks() as u64 * BLOCK) as usize], vec![0; (places.all_pages() * PAGE) as usize]);
    file.read_exact_at(&mut blocks, places.blocks).map_err(io)?;
    file.read_exact_at(&mut pages, places.pages).map_err(io)?;
    let kept: Vec<(u32, bool)> = blocks
        .chunks_exact(BLOCK as usize)
        .map(|entry| (u32::from_le_bytes(entry[..4].try_into().expect("four bytes")), entry[4] != 0))
        .collect();
    let entries: Vec<Entry> = pages.chunks_exact(PAGE as usize).map(Entry::decode).collect();
    let (dirty, failed) = (AtomicBool::new(false), Mutex::default());
    let file = Arc::new(ImageFile { file, path: path.into(), dirty, failed });
    let erases = kept.iter().map(|(erases, _)| *erases).collect();
    let store = ImagePages { file: file.clone(), places, entries, erases };
    let per = flash.geometry.pages_per_block;
    let state = |(block, (erases, bad)): (u32, &(u32, bool))| {
        let last = (0..per).rfind(|page| store.is_current(block * per + page));
        Kept { erases: *erases, bad: *bad, last }
    };
    let state: Vec<Kept> = (0..).zip(&kept).map(state).collect();
    let appended = |page: u32| if store.is_current(page) { store.entries[page as usize].appended } else { 0 };
    let appended = (0..store.entries.len() as u32).map(appended).collect();
    let config = if paced { flash.clone() } else { at_once(&flash) };
    let nand = Nand::kept(&config, &modes, Box::new(store), (&state, appended))?;
    let name = std::path::absolute(path).unwrap_or_else(|_| path.into()).display().to_string();
    Ok(RawModel::on_image(nand, (name.as_str().into(), flash.endurance), file))
}
