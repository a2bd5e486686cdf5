//! The pipeline: reading, working and writing at the same time, each on a thread of its own, with bounded queues
//! between. After Zhang and others, *Pipelined Compaction for the LSM-tree* (IPDPS 2014).

use super::read::{Batch, Reading};
use super::{BATCH, Executor, Outputs, Piece, Tally, Task, work};
use crate::error::{Error, Result};
use crate::role;
use std::sync::Arc;
use varve_rt::channel::{Receiver, Sender, bounded};
use varve_rt::{JoinHandle, Panicked, try_spawn};

/// The executor.
pub(crate) struct Pcp {
    /// Batches that a queue holds.
    capacity: usize,
}

impl Pcp {
    /// With queues of about so many bytes each, 64 to 256 KB.
    pub(crate) fn new(queue_bytes: usize) -> Pcp {
        Pcp { capacity: (queue_bytes / BATCH).clamp(1, 4) }
    }
}

type Sent<T> = std::result::Result<T, Error>;

impl Executor for Pcp {
    fn name(&self) -> &'static str {
        "pcp"
    }

    fn run(&self, task: Arc<Task>, outputs: &mut dyn Outputs) -> Result<Tally> {
        let (to_work, batches) = bounded(self.capacity);
        let (to_write, pieces) = bounded(self.capacity);
        let reader = stage("merge reader", {
            let task = task.clone();
            move || read(task, &to_work)
        })?;
        // When the second thread cannot be had, the first one ends for want of a receiver.
        let worker = stage("merge worker", move || merge(&task, &batches, &to_write));
        let worker = match worker {
            Ok(worker) => worker,
            Err(e) => {
                let _ = reader.join();
                return Err(e);
            }
        };
        let written = write(&pieces, outputs);
        // Who waits to send sees that nobody receives any more.
        drop(pieces);
        let (tally, read) = (worker.join(), reader.join());
        let (tally, read) = (ended(tally), ended(read));
        written?;
        read.and(tally)
    }
}

fn stage<T: Send + 'static>(name: &'static str, life: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let role = role::current();
    let life = move || {
        role::set(role);
        life()
    };
    try_spawn(name, life).map_err(|e| Error::Resources(format!("no thread for a merge: {e}")))
}

/// What a stage came to. Its panic is one of who runs the merge, since it would panic again each time that the merge is
/// begun anew: it poisons a host's database, and ends a worker's job.
fn ended<T>(stage: std::result::Result<T, Panicked>) -> Result<T> {
    match stage {
        Ok(done) => Ok(done),
        Err(Panicked { power_cut: true, .. }) => Err(Error::Closed),
        Err(panicked) => panic!("a stage of a merge failed: {panicked}"),
    }
}

fn read(task: Arc<Task>, to_work: &Sender<Sent<Option<Batch>>>) {
    let mut reading = match Reading::new(task) {
        Ok(reading) => reading,
        Err(e) => return drop(to_work.send(Err(e))),
    };
    loop {
        let batch = reading.next();
        let last = !matches!(batch, Ok(Some(_)));
        if to_work.send(batch).is_err() || last {
            return;
        }
    }
}

/// Nobody sends or receives any more, and no error came: the database ends.
fn gone<E>(_: E) -> Error {
    Error::Closed
}

/// What came of a merge that failed, nobody asks.
fn merge(task: &Task, batches: &Receiver<Sent<Option<Batch>>>, to_write: &Sender<Sent<Option<Piece>>>) -> Tally {
    let mut next = || batches.recv().map_err(gone)?;
    let mut emit = |piece| to_write.send(Ok(Some(piece))).map_err(gone);
    let end = work::run(task, &mut next, &mut emit);
    let tally = end.as_ref().copied().unwrap_or_default();
    let _ = to_write.send(end.map(|_| None));
    tally
}

fn write(pieces: &Receiver<Sent<Option<Piece>>>, outputs: &mut dyn Outputs) -> Result<()> {
    while let Some(piece) = pieces.recv().map_err(gone)?? {
        outputs.pause()?;
        piece.put(outputs)?;
    }
    outputs.wait()
}
