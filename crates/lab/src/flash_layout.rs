//! How native flash is divided, as a file: which chips are a region, how its cells are used, and which keyspaces live
//! in it. `varve create --layout` reads one; what gives advice on flash writes one.
//!
//! ```toml
//! profile = "slc-emulator-16"            # the array; `varve create --flash-profile` goes before it
//! geometry = { blocks_per_plane = 64 }   # what is to be otherwise than in the profile
//!
//! [[region]]
//! name = "hot"
//! chips = "0..8"                         # 0 to 7; also "0..4, 9" or [0, 1, 2]
//! n = 2
//! m = 48
//! keyspaces = ["stock", "customer"]
//!
//! [[region]]
//! name = "rest"                          # without `keyspaces`: all that no region names
//! chips = "8..16"
//! ```

use crate::error::{Error, Result, bad_file};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use varve::FlashDriver;
use varve::flash::{FlashLayout, RegionConfig};
use varve_device::flash::{CellMode, Geometry, RawFlash};
use varve_models::Profile;
use varve_models::flash::{FlashConfig, GcPolicy, open_image};

/// The file. See the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayoutFile {
    /// Profile of the array, with `[flash]`: a name, or the path of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What is otherwise than in the profile.
    #[serde(skip_serializing_if = "Shape::is_empty")]
    pub geometry: Shape,
    /// The regions; the pages of the first come first.
    #[serde(rename = "region")]
    pub regions: Vec<RegionSpec>,
}

/// Parts of a geometry that take the place of a profile's. See [`Geometry`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Buses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Chips on each bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chips_per_channel: Option<u32>,
    /// Planes of a chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planes: Option<u32>,
    /// Blocks of a plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_per_plane: Option<u32>,
    /// Pages of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages_per_block: Option<u32>,
    /// Data bytes of a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u32>,
    /// Spare bytes of a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_bytes: Option<u32>,
}

impl Shape {
    fn is_empty(&self) -> bool {
        *self == Shape::default()
    }

    fn over(&self, g: Geometry) -> Geometry {
        Geometry {
            channels: self.channels.unwrap_or(g.channels),
            chips_per_channel: self.chips_per_channel.unwrap_or(g.chips_per_channel),
            planes: self.planes.unwrap_or(g.planes),
            blocks_per_plane: self.blocks_per_plane.unwrap_or(g.blocks_per_plane),
            pages_per_block: self.pages_per_block.unwrap_or(g.pages_per_block),
            page_bytes: self.page_bytes.unwrap_or(g.page_bytes),
            spare_bytes: self.spare_bytes.unwrap_or(g.spare_bytes),
        }
    }
}

/// Chips, as text (`"0..8, 12"`) or as a list of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ChipsForm", into = "String")]
pub struct Chips(pub Vec<u32>);

#[derive(Deserialize)]
#[serde(untagged, expecting = "give ranges and numbers, as in \"0..8, 12\", or a list, as in [0, 1]")]
enum ChipsForm {
    Text(String),
    List(Vec<u32>),
}

/// Most chips that a file can name: what an array has at most.
const MOST_CHIPS: u32 = 1 << 16;

impl TryFrom<ChipsForm> for Chips {
    type Error = String;

    fn try_from(form: ChipsForm) -> Result<Chips, String> {
        let text = match form {
            ChipsForm::List(chips) => return Ok(Chips(chips)),
            ChipsForm::Text(text) => text,
        };
        let accepted = || format!("chips = {text:?} cannot be used: ranges and numbers, as in \"0..8, 12\"");
        let mut chips = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (first, end) = match part.split_once("..") {
                Some((first, end)) => (first.trim().parse().ok(), end.trim().parse().ok()),
                None => (part.parse().ok(), part.parse().ok().and_then(|chip: u32| chip.checked_add(1))),
            };
            let range = first.zip(end).filter(|(first, end): &(u32, u32)| first < end && *end <= MOST_CHIPS);
            let (first, end) = range.ok_or_else(accepted)?;
            chips.extend(first..end);
        }
        Ok(Chips(chips))
    }
}

impl From<Chips> for String {
    fn from(Chips(chips): Chips) -> String {
        let run = |run: &[u32]| match run {
            [one] => one.to_string(),
            run => format!("{}..{}", run[0], run[0] + run.len() as u32),
        };
        chips.chunk_by(|a, b| a + 1 == *b).map(run).collect::<Vec<_>>().join(", ")
    }
}

/// A region. What is left out is as in [`RegionConfig::of`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegionSpec {
    /// Its name, for messages and figures.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The chips that it owns; left out: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chips: Option<Chips>,
    /// How their cells are used; left out: as the profile has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<CellMode>,
    /// Delta records of a page; left out: none (in an experiment: as `layout.scheme` has it).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u8>,
    /// Bytes of a delta record, three for each that it changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub m: Option<u16>,
    /// Whether collection merges a page's records into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<bool>,
    /// Victims of garbage collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gc: Option<GcPolicy>,
    /// Candidates of `d-choices`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d: Option<u32>,
    /// The share of its pages that hold no data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_factor: Option<f64>,
    /// Logical pages, in place of the spare factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
    /// The keyspaces that live in it; left out: all that no region names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keyspaces: Vec<String>,
}

impl RegionSpec {
    /// A key that would do nothing, with its value, and why.
    fn idle(&self) -> Option<(&'static str, String, &'static str)> {
        let records = self.n.is_some_and(|n| n > 0);
        let m = self.m.filter(|m| *m > 0 && !records);
        let d = self.d.filter(|_| self.gc != Some(GcPolicy::DChoices));
        let spare = self.spare_factor.filter(|_| self.pages.is_some());
        m.map(|m| ("m", m.to_string(), "it is the size of n records: give n too"))
            .or_else(|| d.map(|d| ("d", d.to_string(), "it is for gc = \"d-choices\"")))
            .or_else(|| spare.map(|s| ("spare_factor", s.to_string(), "pages takes its place: give one of both")))
    }

    fn config(&self, flash: &FlashConfig, (n, m): (u8, u16)) -> RegionConfig {
        let all = || Chips((0..flash.geometry.chips()).collect());
        let of = RegionConfig::of(self.chips.clone().unwrap_or_else(all).0);
        RegionConfig {
            mode: self.mode.unwrap_or(flash.cell),
            n: self.n.unwrap_or(n),
            m: self.m.unwrap_or(m),
            merge: self.merge.unwrap_or(of.merge),
            gc: self.gc.unwrap_or(of.gc),
            d: self.d.unwrap_or(of.d),
            spare_factor: self.spare_factor.unwrap_or(of.spare_factor),
            pages: self.pages,
            name: self.name.clone(),
            keyspaces: self.keyspaces.clone(),
            ..of
        }
    }
}

/// What opens native flash in a program that has models: images of it.
pub fn image_driver() -> FlashDriver {
    FlashDriver(Arc::new(|path| Ok(open_image(path)? as Arc<dyn RawFlash>)))
}

/// The regions on an array; `scheme`: delta records of those that say nothing of them.
pub fn layout(regions: &[RegionSpec], flash: &FlashConfig, scheme: (u8, u16)) -> FlashLayout {
    FlashLayout { regions: regions.iter().map(|region| region.config(flash, scheme)).collect() }
}

impl LayoutFile {
    /// Reads a file. Errors name the file, its line and the key.
    pub fn load(path: &Path) -> Result<LayoutFile> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => LayoutFile::parse(&text, &file),
            Err(e) => bad_file(&file, None, "layout", format!("it cannot be read: {e}")),
        }
    }

    /// Reads the text of `file` (its name, for messages).
    pub fn parse(text: &str, file: &str) -> Result<LayoutFile> {
        toml::from_str(text).or_else(|e| {
            let line = e.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let at = line.and_then(|line| text.lines().nth(line - 1)).unwrap_or_default();
            let key = at.split('=').next().unwrap_or_default().trim();
            bad_file(file, line, if key.is_empty() { "layout" } else { key }, e.message().replace('\n', " "))
        })
    }

    /// The same as text that [`LayoutFile::parse`] reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("its maps have names for keys")
    }

    /// The regions on an array that is there; parts of a geometry that the file has must be the array's. Errors name
    /// key and value.
    pub fn on(&self, flash: &FlashConfig) -> Result<FlashLayout> {
        if self.geometry.over(flash.geometry) != flash.geometry {
            let (is, wanted) = (flash.geometry, self.geometry.over(flash.geometry));
            return Err(Error::Profile(format!("the flash has the geometry {is:?}, and the layout is for {wanted:?}")));
        }
        for (index, region) in self.regions.iter().enumerate() {
            if let Some((key, value, why)) = region.idle() {
                return Err(Error::Profile(format!("regions.{index}.{key} = {value} does nothing: {why}")));
            }
        }
        let one = [RegionSpec::default()];
        let layout = layout(if self.regions.is_empty() { &one } else { &self.regions }, flash, (0, 0));
        layout.validate(&flash.geometry, flash.nop).map_err(|e| Error::Profile(e.to_string()))?;
        Ok(layout)
    }

    /// The array and its regions; `profile` goes before the file's own. Errors name key and value.
    pub fn build(&self, profile: Option<&str>) -> Result<(FlashConfig, FlashLayout)> {
        let wanted = "regions need an array: `profile` in the layout, or --flash-profile, such as slc-emulator-16";
        let name = profile.or(self.profile.as_deref()).ok_or_else(|| Error::Profile(wanted.into()))?;
        let found = Profile::load(name).map_err(|e| Error::Profile(e.to_string()))?;
        let none = || Error::Profile(format!("profile = {name:?} cannot be used: a profile with [flash] is needed"));
        let mut flash = found.flash.ok_or_else(none)?;
        flash.geometry = self.geometry.over(flash.geometry);
        flash.geometry.validate().map_err(|e| Error::Profile(e.to_string()))?;
        let layout = self.on(&flash)?;
        Ok((flash, layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"
        profile = "slc-emulator-16"
        geometry = { blocks_per_plane = 64 }

        [[region]]
        name = "hot"
        chips = "0..4, 6, 9..11"
        n = 2
        m = 48
        gc = "cost-benefit"
        spare_factor = 0.2
        keyspaces = ["stock"]

        [[region]]
        chips = [4, 5]
    "#;

    #[test]
    fn a_file_says_what_an_array_is_divided_into() {
        let file = LayoutFile::parse(EXAMPLE, "x.toml").unwrap();
        let (flash, layout) = file.build(None).unwrap();
        assert_eq!((flash.geometry.blocks_per_plane, flash.geometry.channels), (64, 4));
        let hot = &layout.regions[0];
        assert_eq!((&hot.chips[..], hot.n, hot.m), (&[0, 1, 2, 3, 6, 9, 10][..], 2, 48));
        assert_eq!((&hot.name[..], &hot.keyspaces[..]), ("hot", &["stock".to_string()][..]));
        assert_eq!((hot.gc, hot.spare_factor, hot.merge), (GcPolicy::CostBenefit, 0.2, true));
        assert_eq!((&layout.regions[1].chips[..], layout.regions[1].n), (&[4, 5][..], 0));
        assert_eq!(LayoutFile::parse(&file.to_toml(), "y.toml").unwrap(), file, "{}", file.to_toml());
    }

    #[test]
    fn a_file_that_cannot_be_used_says_where() {
        let why = |text: &str| LayoutFile::parse(text, "x.toml").unwrap_err().to_string();
        let found = why("profile = \"a\"\n[[region]]\nchips = \"4..4\"\n");
        assert!(found.contains("x.toml, line 3: chips") && found.contains("\"4..4\""), "{found}");
        let found = why("[[region]]\nspare = 0.1\n");
        assert!(found.contains("x.toml, line 2") && found.contains("`spare`"), "{found}");
        let build = |text: &str, profile| LayoutFile::parse(text, "x.toml").unwrap().build(profile);
        assert!(build("", None).unwrap_err().to_string().contains("--flash-profile"));
        assert!(build("", Some("disk-15k")).unwrap_err().to_string().contains("[flash]"));
        assert!(build("", Some("slc-emulator-16")).is_ok(), "one region of all chips");
        let shared = "[[region]]\nchips = \"0..3\"\n[[region]]\nchips = \"2..16\"\n";
        let found = build(shared, Some("slc-emulator-16")).unwrap_err().to_string();
        assert!(found.contains("regions.1.chips = 2"), "{found}");
    }
}
