//! What the drives of an array give: curves from profiles, given or kept in the database's directory.
//!
//! `curve.N.toml` is the profile of drive N, as `varve probe --save` writes it.

use crate::new_file::NewFile;
use crate::output::{Failure, about, complain, profile};
use std::io::Write;
use std::path::{Path, PathBuf};
use varve::array::curve::Curve;
use varve_device::drive_identity;
use varve_lab::probe;
use varve_models::Profile;

/// Sizes at which a curve is taken from a profile, bytes: all that the engine asks for.
const SIZES: [u64; 8] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// No drive of one box is faster, MB/s (assumed: sixteen lanes of PCI Express 5).
const MOST: f64 = 64_000.0;

fn kept(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("curve.{number}.toml"))
}

/// The curve of a profile: of random requests, since what clients ask for is.
pub fn of(profile: &Profile) -> Result<Curve, Failure> {
    let Some(mix) = &profile.mix else {
        return Err(Failure::Usage(format!(
            "{} does not say what the drive gives at each share of reads: `varve probe DIR --save FILE` measures that",
            profile.name
        )));
    };
    let rate = |share, bytes| mix.throughput(share, false, bytes);
    for bytes in SIZES {
        if let Some(share) = [0.0, 0.5, 1.0].into_iter().find(|share| rate(*share, bytes) > MOST) {
            let mb_s = rate(share, bytes);
            return Err(Failure::Usage(format!(
                "{} says {mb_s:.0} MB/s for requests of {bytes} bytes: no drive gives that; probe it again",
                profile.name
            )));
        }
    }
    Curve::by(&SIZES, rate).map_err(|e| Failure::Usage(format!("{}: {e}", profile.name)))
}

/// Name and curve of a profile that is given by its name or file, with the bytes of the drive.
pub fn load(name: &str) -> Result<(String, Curve, u64), Failure> {
    let profile = profile(name)?;
    Ok((profile.name.clone(), of(&profile)?, profile.capacity()))
}

/// Those given for the drives of these numbers, in order, or else those that are kept.
pub fn for_drives(dir: &Path, numbers: &[usize], given: &[String]) -> Result<Vec<Option<Curve>>, Failure> {
    let mut curves = vec![None; numbers.last().map_or(0, |last| last + 1)];
    if !given.is_empty() && given.len() != numbers.len() {
        return Err(Failure::Usage(format!(
            "the array has {} drives, and {} curves are given: give one for each, in their order",
            numbers.len(),
            given.len()
        )));
    }
    for (i, number) in numbers.iter().enumerate() {
        let file = kept(dir, *number);
        let name = match given.get(i) {
            Some(name) => name.clone(),
            None if file.exists() => file.display().to_string(),
            None => continue,
        };
        let profile = profile(&name)?;
        if i < given.len() {
            warn_if_other(dir, *number, &profile);
        }
        curves[*number] = Some(of(&profile)?);
    }
    Ok(curves)
}

/// Says so if a profile was measured on another drive than the one that it is given for.
fn warn_if_other(dir: &Path, number: usize, profile: &Profile) {
    let there = drive_identity(&dir.join(format!("drive.{number}")));
    if let Some(what) = differs(number, profile, there.as_deref()) {
        complain(what);
    }
}

fn differs(number: usize, profile: &Profile, there: Option<&str>) -> Option<String> {
    let (measured, there) = (profile.drive.as_deref()?, there?);
    (measured != there).then(|| {
        format!(
            "the curve {} was measured on {measured}, and drive {number} is {there}: measure that one, `varve probe \
             DIR --save FILE`",
            profile.name
        )
    })
}

/// Measures what a drive gives, in the directory that its file is in, or will be.
pub fn measured(path: &Path) -> Result<Profile, Failure> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = if path.is_dir() { path } else { above };
    if dir.starts_with("/dev") {
        return Err(Failure::Usage(format!(
            "{} has no directory to measure in: measure it before it is part of anything, and give the curve",
            path.display()
        )));
    }
    let report = probe::on_path(dir, &probe::Options::quick(), |_, _, _| {})?;
    let profile = probe::fit(&report, &path.file_name().map_or("drive".into(), |name| name.to_string_lossy()))?;
    of(&profile).map(|_| profile)
}

/// Keeps a profile for a drive, durably.
pub fn keep(dir: &Path, number: usize, name: &str) -> Result<(), Failure> {
    keep_profile(dir, number, &profile(name)?)
}

/// The same of a profile that was measured or read.
pub fn keep_profile(dir: &Path, number: usize, profile: &Profile) -> Result<(), Failure> {
    of(profile)?;
    warn_if_other(dir, number, profile);
    let file = kept(dir, number);
    if let Ok(before) = std::fs::read_to_string(&file)
        && before != profile.to_toml()
    {
        complain(format_args!("drive {number} had another curve, which is replaced"));
    }
    let mut new = NewFile::replacing(&file)?;
    new.write_all(profile.to_toml().as_bytes()).map_err(|e| about(&file, &e))?;
    new.finish()
}

/// A drive is gone, and its curve with it.
pub fn forget(dir: &Path, number: usize) {
    let _ = std::fs::remove_file(kept(dir, number));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_of_another_drive_is_told() {
        let profile = |drive: Option<&str>| Profile { drive: drive.map(String::from), ..Profile::default() };
        let said = |measured, there| differs(2, &profile(measured), there);
        assert_eq!(said(Some("A, 1"), Some("A, 1")), None);
        assert_eq!((said(None, Some("A, 1")), said(Some("A, 1"), None)), (None, None), "nobody knows");
        let what = said(Some("A, 1"), Some("A, 2")).expect("another one");
        assert!(what.contains("measured on A, 1") && what.contains("drive 2 is A, 2"), "{what}");
    }
}
