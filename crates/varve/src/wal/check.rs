//! Checking a log while it is open.

use super::log::Log;
use super::reader::{LogReader, Step};
use crate::error::{Damage, Error, Result};

/// What a check of the log found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCheck {
    /// Groups from the redo point to the durable end.
    pub groups: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Everything that is wrong.
    pub damages: Vec<Damage>,
    /// Damaged superblocks mended from their copies over the database's life.
    pub mended: u64,
}

impl Log {
    /// Reads every group that a recovery would need now, and reports the damage that opening found in a superblock.
    /// Checkpoints cannot complete meanwhile.
    pub fn check(&self) -> Result<LogCheck> {
        let mut check = LogCheck::default();
        if let Some(what) = &self.found_damaged {
            check
                .damages
                .push(Damage::Superblock(format!("the second one was damaged when the database was opened: {what}")));
        }
        let disk = self.disk.lock();
        check.mended = disk.sb.mended;
        if disk.sb.clean {
            return Ok(check);
        }
        let reader = LogReader::new(self.dev.clone(), disk.sb.clone(), self.salt, disk.sb.redo);
        let mut reader = reader.in_use(self.durable_lsn());
        loop {
            match reader.next_group() {
                Ok(Step::Group(group)) => {
                    check.groups += 1;
                    check.bytes += group.end - group.start;
                }
                Ok(Step::End(_)) => break,
                Err(Error::Corrupt(damage)) => {
                    check.damages.push(damage);
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(check)
    }
}
