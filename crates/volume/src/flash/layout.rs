//! How raw flash is divided: regions, each with chips of its own and a translation layer that is set up for what it
//! holds. What a database's superblock says of it.
//!
//! The record of a superblock, little endian: kind (1), version (1), geometry (7 x 4), number of regions (1); for each
//! region: logical pages (8), victims (1), candidates (4), cell mode (1), delta records of a page (1), their bytes (2),
//! whether collection merges them (1), number of runs of chips (1), and of each run its first chip (2) and their number
//! (2); its name and the names of its keyspaces, how many (1) and of each its length (1) and bytes. Version 1 has
//! nothing of delta records, version 2 nothing of names.

use super::delta::Scheme;
use crate::VolumeError;
use std::collections::BTreeMap;
use varve_device::flash::{CellMode, Geometry};
use varve_ftl::GcPolicy;

/// First byte of a record; those of a tier begin with others.
const FLASH: u8 = 3;
const VERSION: u8 = 3;
/// Before regions had names, and keyspaces of their own.
const WITHOUT_NAMES: u8 = 2;
/// Before there were delta records.
const WITHOUT_RECORDS: u8 = 1;
/// Most bytes of a record: what a superblock has for it.
const MOST: usize = 512;
/// Longest name of a region, bytes.
const LONGEST: usize = 32;
const _: () = assert!(LONGEST <= u8::MAX as usize, "a name's length is one byte");

const MODES: [CellMode; 6] =
    [CellMode::Slc, CellMode::Mlc, CellMode::OddMlc, CellMode::Pslc, CellMode::Tlc, CellMode::Qlc];
const POLICIES: [GcPolicy; 5] =
    [GcPolicy::Greedy, GcPolicy::Fifo, GcPolicy::CostBenefit, GcPolicy::DChoices, GcPolicy::Random];

/// A part of the flash that is mapped and collected by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionConfig {
    /// The chips that it owns.
    pub chips: Vec<u32>,
    /// How their cells are used.
    pub mode: CellMode,
    /// Victims of garbage collection.
    pub gc: GcPolicy,
    /// Candidates of [`GcPolicy::DChoices`].
    pub d: u32,
    /// Over-provisioning: the share of the pages of its chips that hold no data, more than 0 and less than 1. What
    /// `pages` says goes before it.
    pub spare_factor: f64,
    /// Logical pages of the flash; none: as the spare factor has it. A region that was made has some.
    pub pages: Option<u64>,
    /// Delta records that a page takes, N; 0: none, pages are written whole.
    pub n: u8,
    /// Bytes of a delta record, M: three for each byte that it changes.
    pub m: u16,
    /// Whether collection merges a page's records into it, so that it takes N again, or moves them along as they are.
    pub merge: bool,
    /// Its name, for messages and figures; may be empty.
    pub name: String,
    /// The keyspaces that live in it. None: all that no region names, and what the database needs besides.
    pub keyspaces: Vec<String>,
}

impl RegionConfig {
    /// These chips with single-level cells, greedy collection, a tenth of the pages to spare, and no delta records.
    pub fn of(chips: impl IntoIterator<Item = u32>) -> RegionConfig {
        let (chips, mode, gc) = (chips.into_iter().collect(), CellMode::Slc, GcPolicy::Greedy);
        let (name, keyspaces) = (String::new(), Vec::new());
        RegionConfig { chips, mode, gc, d: 2, spare_factor: 0.1, pages: None, n: 0, m: 0, merge: true, name, keyspaces }
    }

    /// Where its pages have their delta records.
    pub fn scheme(&self) -> Scheme {
        Scheme { n: self.n, m: self.m }
    }
}

/// The regions of an array of flash. Their pages follow each other: those of the first come first.
#[derive(Clone, Debug, PartialEq)]
pub struct FlashLayout {
    /// The regions.
    pub regions: Vec<RegionConfig>,
}

fn refuse(key: &str, value: impl std::fmt::Display, accepted: &str) -> VolumeError {
    VolumeError::Options(format!("regions.{key} = {value} cannot be used: {accepted}"))
}

/// Refuses names that are too long or stand twice, and regions that leave no place for what nobody names.
fn validate_names(regions: &[RegionConfig]) -> Result<(), VolumeError> {
    let mut owners = BTreeMap::new();
    for (number, region) in regions.iter().enumerate() {
        let (key, name) = (format!("{number}.name"), &region.name);
        if name.len() > LONGEST || name.chars().any(char::is_control) {
            return Err(refuse(&key, format!("{name:?}"), &format!("at most {LONGEST} bytes of text")));
        }
        if let Some(other) = regions[..number].iter().position(|other| !name.is_empty() && other.name == *name) {
            return Err(refuse(&key, format!("{name:?}"), &format!("another name: region {other} has this one")));
        }
        for keyspace in &region.keyspaces {
            let (key, value) = (format!("{number}.keyspaces"), format!("{keyspace:?}"));
            if keyspace.is_empty() || keyspace.len() > usize::from(u8::MAX) {
                return Err(refuse(&key, value, "the name of a keyspace"));
            }
            if let Some(other) = owners.insert(keyspace, number) {
                return Err(refuse(&key, value, &format!("a keyspace of one region: region {other} has it")));
            }
        }
    }
    if regions.iter().all(|region| !region.keyspaces.is_empty()) {
        let named: Vec<_> = regions.iter().flat_map(|region| &region.keyspaces).collect();
        let accepted = "one region without `keyspaces`, for those that no region names, and for the catalog";
        return Err(refuse("keyspaces", format!("{named:?}"), accepted));
    }
    Ok(())
}

/// Refuses delta records that the pages of a region cannot take.
fn validate_records(number: usize, region: &RegionConfig, geometry: &Geometry, nop: u8) -> Result<(), VolumeError> {
    let (n, m) = (region.n, region.m);
    if n == 0 {
        return Ok(());
    }
    if matches!(region.mode, CellMode::Mlc | CellMode::Tlc | CellMode::Qlc) {
        let accepted = format!("0 in {} mode: pages take appends in SLC, pSLC and odd-MLC mode", region.mode);
        return Err(refuse(&format!("{number}.n"), n, &accepted));
    }
    if n >= nop {
        let accepted = format!("at most {}: a page of this flash is programmed {nop} times", nop.saturating_sub(1));
        return Err(refuse(&format!("{number}.n"), n, &accepted));
    }
    let scheme = region.scheme();
    if scheme.spare_bytes() > geometry.spare_bytes as usize {
        let accepted = format!("fewer records: the spare area of a page has {} bytes", geometry.spare_bytes);
        return Err(refuse(&format!("{number}.n"), n, &accepted));
    }
    let most = geometry.page_bytes / 4;
    if m == 0 || !m.is_multiple_of(3) || u32::from(n) * u32::from(m) > most {
        let accepted = format!("a multiple of 3, and n x m at most a quarter of a page, {most} bytes");
        return Err(refuse(&format!("{number}.m"), m, &accepted));
    }
    Ok(())
}

impl FlashLayout {
    /// All chips of an array in one region.
    pub fn one(geometry: &Geometry) -> FlashLayout {
        FlashLayout { regions: vec![RegionConfig::of(0..geometry.chips())] }
    }

    /// Refuses regions that share a chip, that name one that there is not, records that their pages cannot take, names
    /// that stand twice, keyspaces without a region, and an array on which pages do not fit.
    /// `nop`: how often a page may be programmed between erases.
    pub fn validate(&self, geometry: &Geometry, nop: u8) -> Result<(), VolumeError> {
        if self.regions.is_empty() {
            return Err(refuse("len", 0, "at least one region"));
        }
        if !(512..=4096).contains(&geometry.page_bytes) {
            return Err(refuse("page_bytes", geometry.page_bytes, "an array with pages of 512 to 4096 bytes"));
        }
        let mut owners = vec![None; geometry.chips() as usize];
        for (number, region) in self.regions.iter().enumerate() {
            if region.chips.is_empty() {
                return Err(refuse(&format!("{number}.chips"), "[]", "at least one chip"));
            }
            for chip in &region.chips {
                let chips = format!("chips 0 to {}", geometry.chips() - 1);
                let key = format!("{number}.chips");
                let owner = owners.get_mut(*chip as usize).ok_or_else(|| refuse(&key, chip, &chips))?;
                if let Some(owner) = owner.replace(number) {
                    return Err(refuse(&key, chip, &format!("a chip that no other has: region {owner} has it")));
                }
            }
            validate_records(number, region, geometry, nop)?;
        }
        validate_names(&self.regions)
    }

    /// Whether a superblock's record names regions of flash.
    pub fn is_record(bytes: &[u8]) -> bool {
        bytes.first() == Some(&FLASH)
    }

    /// What a superblock says of regions that were made on an array of this shape.
    pub fn encode(&self, geometry: &Geometry) -> Result<Vec<u8>, VolumeError> {
        let mut bytes = vec![FLASH, VERSION];
        shape(geometry).iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.push(self.regions.len() as u8);
        for region in &self.regions {
            let pages = region.pages.expect("a region that was made has a number of pages");
            let place = |at: Option<usize>| at.expect("each has a number") as u8;
            bytes.extend(pages.to_le_bytes());
            bytes.push(place(POLICIES.iter().position(|p| *p == region.gc)));
            bytes.extend(region.d.to_le_bytes());
            bytes.push(place(MODES.iter().position(|m| *m == region.mode)));
            bytes.push(region.n);
            bytes.extend(region.m.to_le_bytes());
            bytes.push(u8::from(region.merge));
            let runs: Vec<&[u32]> = region.chips.chunk_by(|a, b| a + 1 == *b).collect();
            bytes.push(runs.len().min(usize::from(u8::MAX)) as u8);
            for run in runs {
                bytes.extend((run[0] as u16).to_le_bytes());
                bytes.extend((run.len() as u16).to_le_bytes());
            }
            put_text(&mut bytes, &region.name);
            bytes.push(region.keyspaces.len().min(usize::from(u8::MAX)) as u8);
            region.keyspaces.iter().for_each(|name| put_text(&mut bytes, name));
        }
        if bytes.len() > MOST {
            let accepted = "fewer regions, chips that follow each other, or fewer names of keyspaces";
            return Err(refuse("len", self.regions.len(), accepted));
        }
        debug_assert!(
            FlashLayout::decode(&bytes).is_ok_and(|(made, shape)| {
                shape == *geometry && made.regions.iter().zip(&self.regions).all(|(a, b)| a.chips == b.chips)
            }),
            "a record that is written can be read"
        );
        Ok(bytes)
    }

    /// The regions that a superblock's record names, and the shape of the array that they were made on.
    pub fn decode(bytes: &[u8]) -> Result<(FlashLayout, Geometry), VolumeError> {
        let mut at = Reader(bytes);
        let mut read = || -> Option<(FlashLayout, Geometry)> {
            let [FLASH, version @ WITHOUT_RECORDS..=VERSION] = at.take::<2>()? else { return None };
            let mut shape = [0; 7];
            for n in &mut shape {
                *n = u32::from_le_bytes(at.take()?);
            }
            let [regions] = at.take::<1>()?;
            let regions = (0..regions).map(|_| at.region(version)).collect::<Option<Vec<_>>>()?;
            Some((FlashLayout { regions }, of_shape(shape)))
        };
        let unknown = "the superblock's record of its flash is of another release: use that one";
        read().ok_or_else(|| VolumeError::Invalid(unknown.into()))
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let len = u8::try_from(text.len()).expect("names were checked");
    bytes.push(len);
    bytes.extend(text.as_bytes());
}

fn shape(g: &Geometry) -> [u32; 7] {
    let Geometry { channels, chips_per_channel, planes, blocks_per_plane, pages_per_block, page_bytes, spare_bytes } =
        *g;
    [channels, chips_per_channel, planes, blocks_per_plane, pages_per_block, page_bytes, spare_bytes]
}

fn of_shape(shape: [u32; 7]) -> Geometry {
    let [channels, chips_per_channel, planes, blocks_per_plane, pages_per_block, page_bytes, spare_bytes] = shape;
    Geometry { channels, chips_per_channel, planes, blocks_per_plane, pages_per_block, page_bytes, spare_bytes }
}

/// What is left of a record.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_at_checked(N)?;
        self.0 = rest;
        taken.try_into().ok()
    }

    fn text(&mut self) -> Option<String> {
        let [len] = self.take::<1>()?;
        let (text, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn region(&mut self, version: u8) -> Option<RegionConfig> {
        let pages = Some(u64::from_le_bytes(self.take()?));
        let gc = *POLICIES.get(usize::from(self.take::<1>()?[0]))?;
        let d = u32::from_le_bytes(self.take()?);
        let mode = *MODES.get(usize::from(self.take::<1>()?[0]))?;
        let (mut n, mut m, mut merge) = (0, 0, true);
        if version > WITHOUT_RECORDS {
            [n] = self.take::<1>()?;
            m = u16::from_le_bytes(self.take()?);
            merge = self.take::<1>()? != [0];
        }
        let [runs] = self.take::<1>()?;
        let mut chips = Vec::new();
        for _ in 0..runs {
            let first = u32::from(u16::from_le_bytes(self.take()?));
            let number = u32::from(u16::from_le_bytes(self.take()?));
            chips.extend(first..first + number);
        }
        let (mut name, mut keyspaces) = (String::new(), Vec::new());
        if version > WITHOUT_NAMES {
            name = self.text()?;
            let [names] = self.take::<1>()?;
            keyspaces = (0..names).map(|_| self.text()).collect::<Option<_>>()?;
        }
        Some(RegionConfig { chips, mode, gc, d, pages, n, m, merge, name, keyspaces, ..RegionConfig::of([]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Geometry = Geometry {
        channels: 2,
        chips_per_channel: 4,
        planes: 1,
        blocks_per_plane: 64,
        pages_per_block: 32,
        page_bytes: 4096,
        spare_bytes: 128,
    };

    #[test]
    fn a_record_says_what_was_made() {
        let slc = RegionConfig { pages: Some(5000), n: 2, m: 48, merge: false, ..RegionConfig::of([0, 1, 2, 7]) };
        let mlc = RegionConfig { mode: CellMode::OddMlc, gc: GcPolicy::DChoices, d: 9, ..RegionConfig::of([4, 3]) };
        let (name, keyspaces) = ("hot".into(), vec!["stock".into(), "größe".into()]);
        let layout = FlashLayout { regions: vec![slc, RegionConfig { pages: Some(70), name, keyspaces, ..mlc }] };
        let record = layout.encode(&SHAPE).unwrap();
        assert!(FlashLayout::is_record(&record));
        assert_eq!(FlashLayout::decode(&record).unwrap(), (layout, SHAPE));
        for len in 0..record.len() {
            assert!(FlashLayout::decode(&record[..len]).is_err(), "{len} bytes are no record");
        }
    }

    #[test]
    fn a_record_of_before_names_or_delta_records_is_read() {
        let layout = FlashLayout { regions: vec![RegionConfig { pages: Some(9), ..RegionConfig::of([3]) }] };
        let mut record = layout.encode(&SHAPE).unwrap();
        record.truncate(record.len() - 2);
        record[1] = WITHOUT_NAMES;
        assert_eq!(FlashLayout::decode(&record).unwrap(), (layout.clone(), SHAPE));
        record[1] = WITHOUT_RECORDS;
        let at = 2 + 7 * 4 + 1 + 8 + 1 + 4 + 1;
        record.drain(at..at + 4);
        assert_eq!(FlashLayout::decode(&record).unwrap(), (layout, SHAPE));
    }

    #[test]
    fn records_that_pages_cannot_take_say_why() {
        let why = |n, m, mode| {
            let region = RegionConfig { n, m, mode, ..RegionConfig::of([0]) };
            FlashLayout { regions: vec![region] }.validate(&SHAPE, 4).map_err(|e| e.to_string())
        };
        assert!(why(3, 48, CellMode::Slc).is_ok() && why(2, 510, CellMode::OddMlc).is_ok());
        assert!(why(4, 48, CellMode::Slc).unwrap_err().contains("regions.0.n = 4 cannot be used: at most 3"));
        assert!(why(2, 50, CellMode::Slc).unwrap_err().contains("regions.0.m = 50"));
        assert!(why(2, 513, CellMode::Slc).unwrap_err().contains("at most a quarter of a page, 1024 bytes"));
        assert!(why(2, 0, CellMode::Slc).unwrap_err().contains("regions.0.m = 0"));
        assert!(why(1, 48, CellMode::Tlc).unwrap_err().contains("TLC mode"));
    }

    #[test]
    fn a_layout_that_cannot_be_says_why() {
        let layout = |regions: &[&[u32]]| FlashLayout {
            regions: regions.iter().map(|chips| RegionConfig::of(chips.iter().copied())).collect(),
        };
        let why = |layout: &FlashLayout| layout.validate(&SHAPE, 4).unwrap_err().to_string();
        assert!(layout(&[&[0, 1], &[2, 5]]).validate(&SHAPE, 4).is_ok());
        assert!(why(&layout(&[&[0, 1], &[2, 1]])).contains("regions.1.chips = 1"), "a shared chip");
        assert!(why(&layout(&[&[0, 8]])).contains("chips 0 to 7"));
        assert!(why(&layout(&[&[0], &[]])).contains("regions.1.chips = []"));
        assert!(why(&layout(&[])).contains("at least one region"));
    }

    #[test]
    fn names_that_cannot_be_say_why() {
        let region = |chip: u32, name: &str, keyspaces: &[&str]| RegionConfig {
            name: name.into(),
            keyspaces: keyspaces.iter().map(|k| k.to_string()).collect(),
            ..RegionConfig::of([chip])
        };
        let check = |regions: [RegionConfig; 2]| {
            FlashLayout { regions: regions.into() }.validate(&SHAPE, 4).map_err(|e| e.to_string())
        };
        assert!(check([region(0, "hot", &["a", "b"]), region(1, "rest", &[])]).is_ok());
        assert!(check([region(0, "", &[]), region(1, "", &[])]).is_ok());
        let why = check([region(0, "hot", &["a"]), region(1, "cold", &["b"])]).unwrap_err();
        assert!(why.contains(r#"regions.keyspaces = ["a", "b"]"#) && why.contains("one region without"), "{why}");
        let why = check([region(0, "hot", &["a", "a"]), region(1, "", &[])]).unwrap_err();
        assert!(why.contains(r#"regions.0.keyspaces = "a""#), "{why}");
        let why = check([region(0, "hot", &["a"]), region(1, "hot", &[])]).unwrap_err();
        assert!(why.contains(r#"regions.1.name = "hot""#), "{why}");
    }
}
