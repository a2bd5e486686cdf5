//! What works in the background of an open database, and how it ends: by a close, by the drop of the last handle, or by
//! an opening that fails on the way. Afterwards nothing is written to the database's devices, and its directory is
//! free.
//!
//! Invariant: once `ended` is set, nothing is written any more, and the directory may be another's.

use super::arrays::ArrayService;
use super::formers::Reclaimer;
use crate::buffer::Pool;
use crate::error::Result;
use crate::index::Indexes;
use crate::txn::Readers;
use crate::wal::Log;
use crate::wal::checkpoint::Checkpointer;
use std::sync::Arc;
use varve_device::{Health, Mistake};
use varve_rt::Mutex;
use varve_rt::atomic::{AtomicBool, Ordering};
use varve_volume::Admin;

/// Threads of a database, made one after the other. Dropped, all of them end.
pub(super) struct Services {
    log: Arc<Log>,
    pool: Arc<Pool>,
    volume: Arc<dyn Admin>,
    checkpointer: Mutex<Option<Arc<Checkpointer>>>,
    array: Mutex<Option<Arc<ArrayService>>>,
    reclaimer: Mutex<Option<Arc<Reclaimer>>>,
    indexes: Mutex<Option<Arc<Indexes>>>,
    readers: Mutex<Option<Arc<Readers>>>,
    ended: AtomicBool,
}

impl Services {
    /// Over layers of which none has a thread yet.
    pub fn new(log: Arc<Log>, pool: Arc<Pool>, volume: Arc<dyn Admin>) -> Services {
        Services {
            log,
            pool,
            volume,
            checkpointer: Mutex::new(None),
            array: Mutex::new(None),
            reclaimer: Mutex::new(None),
            indexes: Mutex::new(None),
            readers: Mutex::new(None),
            ended: AtomicBool::new(false),
        }
    }

    /// Takes the checkpointer in, and starts it.
    pub fn start_checkpointer(&self, checkpointer: &Arc<Checkpointer>) -> Result<()> {
        *self.checkpointer.lock() = Some(checkpointer.clone());
        checkpointer.start()
    }

    /// Takes the array's thread in, before it is started.
    pub fn add_array(&self, array: &Arc<ArrayService>) {
        *self.array.lock() = Some(array.clone());
    }

    /// Takes in what takes trees apart, before it is started.
    pub fn add_reclaimer(&self, reclaimer: &Arc<Reclaimer>) {
        *self.reclaimer.lock() = Some(reclaimer.clone());
    }

    /// Takes what works for indexes in, before it is started.
    pub fn add_indexes(&self, indexes: &Arc<Indexes>) {
        *self.indexes.lock() = Some(indexes.clone());
    }

    /// Takes in what reads for others, before it has a thread.
    pub fn add_readers(&self, readers: &Arc<Readers>) {
        *self.readers.lock() = Some(readers.clone());
    }

    fn health(&self) -> &Arc<Health> {
        self.log.health()
    }

    /// Tells every thread to end; waits for none.
    fn end(&self) {
        self.readers.lock().as_ref().inspect(|readers| readers.end());
        self.reclaimer.lock().as_ref().inspect(|reclaimer| reclaimer.end());
        self.array.lock().as_ref().inspect(|array| array.end());
        self.indexes.lock().as_ref().inspect(|indexes| indexes.end());
        self.checkpointer.lock().as_ref().inspect(|checkpointer| checkpointer.end());
        self.pool.end();
        self.log.end();
        self.volume.end();
    }

    /// Ends every thread and waits for it. What they were writing is written.
    pub fn stop(&self) {
        self.end();
        let readers = self.readers.lock().take();
        readers.inspect(|readers| readers.stop());
        let reclaimer = self.reclaimer.lock().take();
        reclaimer.inspect(|reclaimer| reclaimer.stop());
        // It asks for checkpoints.
        let array = self.array.lock().take();
        array.inspect(|array| array.stop());
        let indexes = self.indexes.lock().take();
        indexes.inspect(|indexes| indexes.stop());
        let checkpointer = self.checkpointer.lock().take();
        checkpointer.inspect(|checkpointer| checkpointer.stop());
        self.pool.stop();
        self.log.stop();
        self.volume.stop();
    }

    /// After [`Services::stop`]: nothing is written any more, and somebody else may open the database.
    pub fn let_go(&self) {
        self.ended.store(true, Ordering::Release);
        self.health().end();
        self.health().unlock();
    }
}

impl Drop for Services {
    /// Nobody holds the database any more. On an OS thread this waits: what was acknowledged becomes durable, the
    /// threads end, then the directory is let go. In a simulation, where a destructor never waits, and while the thread
    /// unwinds, nothing is written: the database is poisoned and the threads are told to end; the last of them lets go
    /// of the directory.
    fn drop(&mut self) {
        if self.ended.load(Ordering::Acquire) || self.log.faults().has(Mistake::DropGoesOn) {
            return;
        }
        let waits = !varve_rt::in_simulation() && !varve_rt::panicking();
        if waits {
            // What fails here was not promised to be durable.
            let _ = self.log.wait_durable(self.log.end_lsn());
        } else {
            self.health().poison("the database was dropped without being closed");
        }
        // From here on the threads meet refusals, so that none goes on for long.
        self.health().end();
        self.end();
        if waits {
            self.stop();
            self.let_go();
        }
    }
}
