//! Rows that leave all at once: range deletes that are transactions of their own, over the rows that the model follows,
//! and keyspaces of the clients' own that are cleared, renamed and dropped while a snapshot goes on seeing them.

use super::book::{self, Must};
use super::client::{Client, Next};
use super::model::Act;
use super::rows::Digest;
use super::script::Reshape;
use std::sync::Arc;
use std::time::Duration;
use varve::{Durability, Error, Keyspace, Result, Snapshot};
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};

type Rows = Vec<(Vec<u8>, Digest)>;

/// The rows of a keyspace as a snapshot sees them.
fn rows(snapshot: &Snapshot, space: &Keyspace) -> Result<Rows> {
    snapshot.scan(space, ..)?.map(|row| row.map(|(key, value)| (key, Digest::of(&value)))).collect()
}

impl Client {
    /// Deletes a range, or all, in a transaction of its own. It leaves no mark, as other single operations.
    pub(super) fn cut(&self, space: u8, range: Option<(u32, u32)>, durability: Durability) -> Next {
        let (id, began_after) = self.shared.begin();
        let position = Arc::new(AtomicU64::new(0));
        let (from, to) = range.unwrap_or((0, self.shared.plan.keys.count));
        let (from, to) = (self.key(space, from), self.key(space, to));
        self.shared.trace.event(|| format!("client {}: cut {id} {durability:?} {space} {range:?}", self.number));
        let mut seen = book::tx(id, began_after, durability, vec![Act::DeleteRange(space, from.clone(), to.clone())]);
        seen.single = true;
        let at = self.shared.write_down(seen, position.clone());
        let rows = self.space(space);
        let result = match range {
            Some(_) => rows.delete_range_telling(&from..&to, durability, &position),
            None => rows.delete_range_telling(.., durability, &position),
        };
        match result {
            Ok(()) => {
                if position.load(SeqCst) == 0 {
                    // It found nothing, which is as good as read.
                    self.shared.amend(at, vec![Act::Count(space, from, to, 0)]);
                }
                self.shared.acknowledged(at);
                self.shared.count("range deletes of their own", 1);
                Next::Go
            }
            Err(e) => self.refused(at, &e, &position, &format!("range delete {id}")),
        }
    }

    /// Changes one of the client's own keyspaces as a whole while a snapshot is open, and looks what both see of it.
    pub(super) fn reshape(&self, which: u8, how: Reshape) -> Next {
        let base = format!("own-{}-{which}", self.number);
        let names = [base.clone(), format!("{base}-renamed")];
        let there = |name: &&String| matches!(self.shared.own(name), Must::Exist | Must::Empty);
        let Some(name) = names.iter().find(there) else {
            return match self.shared.own(&base) {
                Must::Absent => self.keyspace(which, 30, 60),
                _ => Next::Go,
            };
        };
        let other = names.iter().find(|other| *other != name).expect("there are two");
        self.shared.trace.event(|| format!("client {}: {how:?} {name}", self.number));
        match self.reshaped(name, other, how) {
            Ok(Ok(())) => Next::Go,
            Ok(Err(what)) => {
                self.shared.wrong(format!("client {}: {name}, {how:?} under a snapshot: {what}", self.number));
                Next::End
            }
            Err(e) => self.after(&e, &format!("{how:?} of {name}")),
        }
    }

    fn reshaped(&self, name: &str, other: &str, how: Reshape) -> Result<std::result::Result<(), String>> {
        let (shared, db) = (&self.shared, &self.db);
        let space = db.keyspace(name)?;
        let snapshot = db.snapshot()?;
        let before = rows(&snapshot, &space)?;
        let was = shared.own(name);
        match how {
            Reshape::Clear => {
                shared.set_own(name, Must::Exist);
                space.clear()?;
                shared.set_own(name, Must::Empty);
                shared.count("cleared under a snapshot", 1);
            }
            Reshape::Rename if shared.own(other) != Must::Absent => return Ok(Ok(())),
            Reshape::Rename => {
                [name, other].iter().for_each(|name| shared.set_own(name, Must::Either));
                db.rename_keyspace(name, other)?;
                shared.set_own(name, Must::Absent);
                shared.set_own(other, was);
                shared.count("renamed under a snapshot", 1);
            }
            Reshape::Drop => {
                shared.set_own(name, Must::Either);
                db.drop_keyspace(name)?;
                shared.set_own(name, Must::Absent);
                shared.count("dropped under a snapshot", 1);
            }
        }
        varve_rt::sleep(Duration::from_micros(before.len() as u64 * 50));
        if rows(&snapshot, &space)? != before {
            return Ok(Err(format!("the snapshot does not see the {} rows that it saw before", before.len())));
        }
        Ok(match how {
            Reshape::Clear => match rows(&db.snapshot()?, &space)?.len() {
                0 => Ok(()),
                n => Err(format!("{n} rows are there afterwards")),
            },
            Reshape::Rename => match rows(&db.snapshot()?, &db.keyspace(other)?)? == before {
                true => Ok(()),
                false => Err("its rows are others under the new name".into()),
            },
            Reshape::Drop => match db.keyspace(name) {
                Err(Error::NoSuchKeyspace(_)) => Ok(()),
                Err(e) => return Err(e),
                Ok(_) => Err("it is there afterwards".into()),
            },
        })
    }
}
