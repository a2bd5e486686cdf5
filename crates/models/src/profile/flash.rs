//! Flash drives from profiles: what they hold at first, and what they tell as models.

use super::{Build, ProfileError};
use crate::flash::{Contents, Drive, FlashConfig, FlashError};
use crate::{FlashModel, ModelStats, Modelled, Sparse};
use std::sync::Arc;
use std::time::Duration;
use varve_device::Device;
use varve_rt::Rng;

/// Bytes copied at a time; a multiple of every flash page.
const PIECE: usize = 1 << 20;

/// What is wrong with a section: the key, and what is accepted.
pub(super) fn check(config: &FlashConfig) -> Result<(), (String, String)> {
    let told = |e: FlashError| match e {
        FlashError::Config { field, value, accepted } => (field, format!("is {value}; accepted: {accepted}")),
        other => ("flash".into(), other.to_string()),
    };
    config.validate().map_err(told)?;
    match config.ftl.logical_pages {
        Some(n) if n > 0 => Ok(()),
        _ => Err(("ftl".into(), "a profile states logical_pages, the pages that the host sees".into())),
    }
}

/// Bytes that the host sees.
pub(super) fn capacity(config: &FlashConfig) -> u64 {
    config.ftl.logical_pages.unwrap_or(0) * u64::from(config.geometry.page_bytes)
}

/// The drive, holding the bytes it is given as if they had been written once, in order, long ago; aged if asked for.
pub(super) fn drive(config: &FlashConfig, name: String, how: &Build) -> Result<Drive, ProfileError> {
    let mut config = FlashConfig { name, ..config.clone() };
    config.ftl.seed = how.seed;
    let unfit = |e: FlashError| ProfileError::Unfit { name: config.name.clone(), why: e.to_string() };
    let contents = if how.keep { Contents::Full } else { Contents::Spare };
    let mut drive = Drive::new(&config, contents).map_err(unfit)?;
    let mut at = 0;
    let mut piece = vec![0; PIECE];
    while at < how.len {
        let part = (how.len - at).min(PIECE as u64) as usize;
        if !how.contents.is_hole(at, part) {
            how.contents.read(at, &mut piece[..part]);
            let now = drive.flush(0).map_err(unfit)?.at;
            drive.write(now, at, &piece[..part], true).map_err(unfit)?;
        }
        at += part as u64;
    }
    if how.aged > 0.0 {
        age(&mut drive, how.aged, how.seed).map_err(unfit)?;
    }
    drive.rest().map_err(unfit)?;
    Ok(drive.fork())
}

/// Fills the drive, and then overwrites `times` as many pages as it has at random places. Every page keeps its bytes.
fn age(drive: &mut Drive, times: f64, seed: u64) -> Result<(), FlashError> {
    let bytes = u64::from(drive.config().geometry.page_bytes);
    let pages = drive.capacity() / bytes;
    let mut rng = Rng::from_seed(seed ^ 0xa6ed);
    let mut page = vec![0; bytes as usize];
    let overwrites = (times * pages as f64) as u64;
    let in_order = 0..pages;
    for lpn in in_order.chain((0..overwrites).map(|_| rng.below(pages))) {
        drive.peek(lpn * bytes, &mut page)?;
        let now = drive.flush(0)?.at;
        drive.write(now, lpn * bytes, &page, true)?;
    }
    Ok(())
}

/// The device: over a fork of the drive it is given, or over one made for it.
pub(super) fn build(config: &FlashConfig, name: String, how: &Build) -> Result<Arc<dyn Modelled>, ProfileError> {
    let drive = match &how.drive {
        Some(drive) if drive.config().geometry == config.geometry => drive.fork(),
        Some(_) => {
            let why = "the drive to be copied has another geometry".to_string();
            return Err(ProfileError::Unfit { name, why });
        }
        None => drive(config, name, how)?,
    };
    Ok(FlashModel::with_drive(drive, how.len))
}

impl Modelled for FlashModel {
    fn contents(&self) -> Sparse {
        let mut all = Sparse::new();
        let mut piece = vec![0; PIECE];
        let (mut at, len) = (0, self.len());
        while at < len {
            let part = (len - at).min(PIECE as u64) as usize;
            if self.peek(at, &mut piece[..part]).is_ok() {
                all.write(at, &piece[..part]);
            }
            at += part as u64;
        }
        all
    }

    fn drive(&self) -> Option<Arc<Drive>> {
        Some(Arc::new(self.fork_drive()))
    }

    fn model_stats(&self) -> ModelStats {
        let stats = self.flash_stats();
        let (ops, busy, waited) =
            stats.gates.iter().fold((0, 0, 0), |(o, b, w), g| (o + g.ops, b + g.busy, w + g.waited));
        ModelStats {
            busy: Duration::from_nanos(busy),
            parts: stats.gates.len() as u32,
            waited: Duration::from_nanos(waited),
            served: ops,
            deepest: 0,
            details: vec![
                ("host_reads", stats.ftl.host_reads as f64),
                ("host_writes", stats.ftl.host_writes as f64),
                ("host_appends", stats.ftl.host_appends as f64),
                ("gc_copies", stats.ftl.gc_copies as f64),
                ("erases", stats.ftl.erases as f64),
                ("cache_writes", stats.ftl.cache_writes as f64),
                ("fold_copies", stats.ftl.fold_copies as f64),
                ("suspensions", (stats.nand.suspended_programs + stats.nand.suspended_erases) as f64),
                ("write_amplification", stats.ftl.write_amplification()),
                ("spare_factor", stats.spare_factor),
            ],
        }
    }
}
