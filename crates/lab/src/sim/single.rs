//! A client's single operations: a get, put or delete outside of any transaction.
//!
//! They leave no mark; the model finds out from the rows which of them survived. What a deletion found is a read.

use super::book;
use super::client::{Client, Next};
use super::model::Act;
use super::rows::{self, Digest};
use super::script::Step;
use std::sync::Arc;
use varve::{Durability, KeyspaceKind, Result};
use varve_rt::atomic::{AtomicU64, Ordering::SeqCst};

impl Client {
    /// Does one step of a script on its own.
    pub(super) fn single(&self, step: &Step, durability: Durability) -> Next {
        let (id, began_after) = self.shared.begin();
        let position = Arc::new(AtomicU64::new(0));
        let (space, index, value) = match *step {
            Step::Get { space, index } | Step::Delete { space, index } => (space, index, None),
            Step::Put { space, index, len } => {
                (space, index, Some(rows::value(rows::tag(id, 0), len.unwrap_or(24) as usize)))
            }
            _ => unreachable!("a single operation is of one key"),
        };
        let row = (space, self.key(space, index));
        let write = match (step, &value) {
            (Step::Delete { .. }, _) => vec![Act::Delete(row.clone())],
            (_, Some(value)) => vec![Act::Put(row.clone(), Digest::of(value))],
            (_, None) => Vec::new(),
        };
        self.shared.trace.event(|| format!("client {}: single {id} {durability:?} {step:?}", self.number));
        let mut seen = book::tx(id, began_after, durability, write.clone());
        seen.single = true;
        let of_lsm = matches!(self.shared.plan.kind(usize::from(space)), KeyspaceKind::Lsm(_));
        seen.as_of_horizon = of_lsm && matches!(step, Step::Get { .. });
        let at = self.shared.write_down(seen, position.clone());
        let result: Result<Vec<Act>> = match (step, &value) {
            (Step::Get { .. }, _) => self.space(space).get(&row.1).map(|found| {
                let digest = found.as_deref().map(Digest::of);
                vec![Act::Get(row, digest)]
            }),
            _ => {
                let told = self.space(space).write_telling(&row.1, value.as_deref(), durability, &position);
                told.map(|existed| match &value {
                    // A value put over itself changes nothing and has no commit number: it is as good as read.
                    Some(value) if position.load(SeqCst) == 0 => vec![Act::Get(row, Some(Digest::of(value)))],
                    Some(_) => write,
                    None if existed => [vec![Act::Has(row, true)], write].concat(),
                    None => vec![Act::Has(row, false)],
                })
            }
        };
        match result {
            Ok(acts) => {
                self.shared.amend(at, acts);
                self.shared.acknowledged(at);
                self.shared.count("single operations", 1);
                Next::Go
            }
            Err(e) => self.refused(at, &e, &position, &format!("operation {id}")),
        }
    }
}
