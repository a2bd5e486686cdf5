//! Reading: the data blocks of a merge's inputs, each once, in the order in which merging needs them.
//!
//! A run's next block is needed when the merge has passed the separator of the block before it. So the blocks of all
//! runs are read by that separator, and the merge never waits for one that is read much later.

use super::{BATCH, Input, Task};
use crate::error::Result;
use crate::lsm::part::Location;
use std::sync::Arc;

/// A data block, as it is stored.
pub(super) struct Fetched {
    pub run: usize,
    /// Which segment of the run it is of.
    pub input: usize,
    pub at: Location,
    pub stored: Vec<u8>,
}

/// Data blocks that were read together.
pub(super) type Batch = Vec<Fetched>;

struct Place {
    run: usize,
    input: usize,
    at: Location,
    /// The merge needs the block when it has passed this key.
    after: Vec<u8>,
}

/// The reading of a merge.
pub(super) struct Reading {
    task: Arc<Task>,
    /// The blocks that are left, the next one last.
    left: Vec<Place>,
}

impl Reading {
    /// Reads the indexes of the inputs that have keys of the task's range.
    pub(super) fn new(task: Arc<Task>) -> Result<Reading> {
        let mut left = Vec::new();
        for (run, inputs) in task.runs.iter().enumerate() {
            let mut after = Vec::new();
            for (input, Input { reader, source }) in inputs.iter().enumerate() {
                if !task.range.meets(&reader.footer().meta) {
                    continue;
                }
                reader.for_each_block(&**source, &mut |at, separator| {
                    let after = std::mem::replace(&mut after, separator.to_vec());
                    // Its keys lie from the one separator to the other, both included.
                    if !task.range.is_after(separator) && !task.range.is_before(&after) {
                        left.push(Place { run, input, at, after });
                    }
                })?;
            }
        }
        // Stable: blocks of a run stay in their order where separators are equal.
        left.sort_by(|a, b| a.after.cmp(&b.after));
        left.reverse();
        Ok(Reading { task, left })
    }

    /// The next batch; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Batch>> {
        let (mut batch, mut bytes) = (Batch::new(), 0);
        while bytes < BATCH
            && let Some(Place { run, input, at, .. }) = self.left.pop()
        {
            let Input { reader, source } = &self.task.runs[run][input];
            let stored = reader.stored(&**source, at)?;
            bytes += stored.len();
            batch.push(Fetched { run, input, at, stored });
        }
        Ok((!batch.is_empty()).then_some(batch))
    }
}
