//! Native flash of a database: images, and their layouts.

use crate::args::flash::FlashArgs;
use crate::output::{Failure, unreadable};
use std::path::Path;
use varve::flash::FlashLayout;
use varve::{FlashDriver, FlashPart};
use varve_device::flash::{CellMode, FlashError};
use varve_lab::flash_layout::{self, LayoutFile};
use varve_models::flash::{FlashConfig, create_image, image_config};

/// What opens native flash: images of it.
pub fn driver() -> FlashDriver {
    flash_layout::image_driver()
}

/// How each chip's cells are used: as its region says.
fn modes(flash: &FlashConfig, layout: &FlashLayout) -> Vec<CellMode> {
    let mut modes = vec![flash.cell; flash.geometry.chips() as usize];
    for region in &layout.regions {
        region.chips.iter().for_each(|chip| modes[*chip as usize] = region.mode);
    }
    modes
}

/// The flash of a new database, if one is asked for, and the bytes of its pages; its image is made where there is none.
pub fn part(a: &FlashArgs) -> Result<Option<(FlashPart, u32)>, Failure> {
    let Some(path) = &a.flash else { return Ok(None) };
    let failed = |e: &dyn std::fmt::Display| Failure::Failed(e.to_string());
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(e.to_string());
    let unusable = |e: FlashError| match e {
        FlashError::ImageDamaged { .. } => Failure::Found(format!("{e}; or remove it, and a new one is made")),
        e => failed(&e),
    };
    let load = |path| LayoutFile::load(path).map_err(|e| unreadable(path, e.to_string(), Failure::Usage));
    let file = a.regions.as_deref().map(load).transpose()?.unwrap_or_default();
    let profile = a.flash_profile.as_deref();
    let (flash, layout) = match path.exists() && profile.is_none() && file.profile.is_none() {
        // It says itself what it is.
        true => {
            let (flash, _) = image_config(path).map_err(unusable)?;
            let layout = file.on(&flash).map_err(|e| usage(&e))?;
            (flash, layout)
        }
        false => file.build(profile).map_err(|e| usage(&e))?,
    };
    let wanted = modes(&flash, &layout);
    match path.exists() {
        true => fits(path, &flash, &wanted, image_config(path).map_err(unusable)?)?,
        false => create_image(path, &flash, &wanted, a.flash_paced).map_err(|e| failed(&e))?,
    }
    let part = FlashPart { path: path.clone(), regions: layout, driver: driver() };
    Ok(Some((part, flash.geometry.page_bytes)))
}

/// Refuses an image that is another array than the layout is for.
fn fits(
    path: &Path,
    flash: &FlashConfig,
    wanted: &[CellMode],
    (there, modes): (FlashConfig, Vec<CellMode>),
) -> Result<(), Failure> {
    let image = path.display();
    if there.geometry != flash.geometry {
        let (is, wanted) = (there.geometry, flash.geometry);
        return Err(Failure::Failed(format!("{image} has the geometry {is:?}, and the layout is for {wanted:?}")));
    }
    if let Some(chip) = (0..modes.len()).find(|chip| modes[*chip] != wanted[*chip]) {
        let (is, wanted) = (modes[chip], wanted[chip]);
        return Err(Failure::Failed(format!("{image} uses chip {chip} in {is} mode, and the layout in {wanted} mode")));
    }
    Ok(())
}
