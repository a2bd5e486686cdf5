//! One thread does it all, one thing after the other: it reads a batch, merges it, writes what came of it, and waits
//! until that is written.

use super::read::Reading;
use super::{Executor, Outputs, Piece, Tally, Task, work};
use crate::error::Result;
use std::sync::Arc;

/// The executor.
pub(crate) struct Sequential;

impl Executor for Sequential {
    fn name(&self) -> &'static str {
        "sequential"
    }

    fn run(&self, task: Arc<Task>, outputs: &mut dyn Outputs) -> Result<Tally> {
        let mut reading = Reading::new(task.clone())?;
        let mut write = |piece: Piece| {
            outputs.pause()?;
            piece.put(outputs)?;
            outputs.wait()
        };
        work::run(&task, &mut || reading.next(), &mut write)
    }
}
