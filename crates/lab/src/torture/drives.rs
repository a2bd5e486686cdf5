//! Operates the array of a child that is to be killed: extents move, drives come, are emptied and replaced.
//!
//! Drives that came are files `spare.N` in the directory of the first ones. A file that no name of the database leads
//! to is left of a drive that went, or of a change that was cut short: it is removed when the next child starts.

use super::TortureError;
use super::child::{DRIVE_BYTES, Orders, say};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve::array::ArrayPlan;
use varve::array::curve::Curve;
use varve::{Db, DrivePart, Error};
use varve_rt::Rng;

/// Most drives that it has at a time.
const MOST: usize = 5;

/// Works until the process is killed.
pub(super) fn run(db: &Db, orders: &Orders) -> Result<(), TortureError> {
    let beside = orders.beside();
    let mut operator = Operator { db, next: tidy(&orders.dir, &beside)?, beside, rng: Rng::from_seed(!orders.seed) };
    loop {
        varve_rt::sleep(Duration::from_millis(operator.rng.below(20)));
        let done = match operator.rng.below(8) {
            0..=3 => operator.plan(),
            4..=5 => operator.add(),
            6 => operator.drain(),
            _ => operator.replace(),
        };
        match done {
            // Something moves already, or there is no room.
            Ok(()) | Err(Error::Invalid(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> TortureError {
    let path = path.display().to_string();
    move |e| TortureError::Child(format!("{path}: {e}"))
}

/// Removes spare files that are nobody's; returns the number of the next one.
fn tidy(dir: &Path, beside: &Path) -> Result<u64, TortureError> {
    let list = |dir: &Path| -> Result<Vec<PathBuf>, TortureError> {
        let entries = std::fs::read_dir(dir).map_err(failed(dir))?;
        entries.map(|entry| Ok(entry.map_err(failed(dir))?.path())).collect()
    };
    let used: BTreeSet<PathBuf> = list(dir)?.iter().filter_map(|name| std::fs::canonicalize(name).ok()).collect();
    let mut next = 0;
    for file in list(beside)? {
        let number = file.file_name().and_then(|name| name.to_str()?.strip_prefix("spare.")?.parse::<u64>().ok());
        let Some(number) = number else { continue };
        next = next.max(number + 1);
        if std::fs::canonicalize(&file).is_ok_and(|path| !used.contains(&path)) {
            std::fs::remove_file(&file).map_err(failed(&file))?;
        }
    }
    Ok(next)
}

struct Operator<'d> {
    db: &'d Db,
    beside: PathBuf,
    /// Number of the next spare file.
    next: u64,
    rng: Rng,
}

impl Operator<'_> {
    fn live(&self) -> Vec<usize> {
        self.db.array_stats().map_or(Vec::new(), |stats| stats.drives.iter().map(|drive| drive.number).collect())
    }

    fn draw_live(&mut self) -> usize {
        let live = self.live();
        live[self.rng.below(live.len() as u64) as usize]
    }

    /// A drive that is new.
    fn part(&mut self) -> DrivePart {
        let path = self.beside.join(format!("spare.{}", self.next));
        self.next += 1;
        DrivePart { path, bytes: DRIVE_BYTES }
    }

    /// Extents move to drives drawn from the seed.
    fn plan(&mut self) -> varve::Result<()> {
        let live = self.live();
        let rate = |share: f64, _| 1.0 / (share / 500.0 + (1.0 - share) / 300.0);
        let curve = Curve::by(&[512, 8 << 10, 128 << 10, 2 << 20], rate).ok();
        let plan = self.db.array_plan(&vec![curve; live.last().map_or(0, |last| last + 1)])?;
        let extents = plan.drives.iter().map(|drive| drive.now.extents).sum::<usize>();
        let mut draw = |n: usize| self.rng.below(n.max(1) as u64) as usize;
        let some = 1 + draw(8);
        let moves = (0..some).map(|_| (draw(extents), live[draw(live.len())])).collect();
        let before = self.db.array_moves()?.done;
        self.db.array_apply(&ArrayPlan { layout: plan.now, moves, ..plan })?;
        self.wait()?;
        let moved = self.db.array_moves()?.done - before;
        say(&format!("@array moved {moved}"));
        Ok(())
    }

    fn add(&mut self) -> varve::Result<()> {
        if self.live().len() < MOST {
            let part = self.part();
            self.db.array_add(&part, None, false)?;
            say("@array added 1");
        }
        Ok(())
    }

    fn drain(&mut self) -> varve::Result<()> {
        let drive = self.draw_live();
        self.db.array_drain(drive)?;
        self.went(drive, "emptied")
    }

    fn replace(&mut self) -> varve::Result<()> {
        let (drive, part) = (self.draw_live(), self.part());
        self.db.array_replace(drive, &part, false)?;
        self.went(drive, "replaced")
    }

    /// Waits a while for what moves.
    fn wait(&mut self) -> varve::Result<()> {
        for _ in 0..self.rng.between(1, 300) {
            if !self.db.array_moves()?.running {
                break;
            }
            varve_rt::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn went(&mut self, drive: usize, how: &str) -> varve::Result<()> {
        self.wait()?;
        if !self.live().contains(&drive) {
            say(&format!("@array {how} 1"));
        }
        Ok(())
    }
}
