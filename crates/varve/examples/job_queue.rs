//! A job queue that survives crashes: jobs leave it in order, each to one worker, and only when they are done.
//!
//! Run: `cargo run --release -p varve --example job_queue`

use varve::{Db, Keyspace, Options, Result, TxOptions};

/// Jobs by number; a job that somebody works on lies in `taken` meanwhile.
struct Queue {
    db: Db,
    waiting: Keyspace,
    taken: Keyspace,
}

impl Queue {
    fn open(path: &std::path::Path) -> Result<Queue> {
        let db = Db::open_or_create(path, Options::default().cache_mb(16))?;
        let (waiting, taken) = (db.keyspace_or_create("waiting")?, db.keyspace_or_create("taken")?);
        let queue = Queue { db, waiting, taken };
        queue.put_back()?;
        Ok(queue)
    }

    /// Adds a job behind all others.
    fn push(&self, job: &str) -> Result<()> {
        self.db.transact(|tx| {
            let last = tx.scan_rev(&self.waiting, ..)?.next().transpose()?;
            let number = last.map_or(0, |(key, _)| u64::from_be_bytes(key.try_into().expect("keys are numbers")) + 1);
            tx.put(&self.waiting, number.to_be_bytes(), job)
        })
    }

    /// Takes the first job, does it, and forgets it. A job that fails goes back to its place.
    fn work<E: From<varve::Error>>(
        &self,
        mut job: impl FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        let first = self.db.transact(|tx| {
            let Some((number, job)) = tx.scan(&self.waiting, ..)?.next().transpose()? else { return Ok(None) };
            tx.delete(&self.waiting, &number)?;
            tx.put(&self.taken, &number, &job)?;
            Ok(Some((number, job)))
        })?;
        let Some((number, work)) = first else { return Ok(false) };
        let done = job(&work);
        self.db.try_transact(TxOptions::default(), |tx| -> std::result::Result<(), E> {
            tx.delete(&self.taken, &number)?;
            if done.is_err() {
                tx.put(&self.waiting, &number, &work)?;
            }
            Ok(())
        })?;
        done.map(|()| true)
    }

    /// After a crash: what was taken is not done.
    fn put_back(&self) -> Result<()> {
        while let Some((number, job)) = self.taken.pop_first()? {
            self.waiting.put(number, job)?;
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("varve-job-queue-{}", std::process::id()));
    let queue = Queue::open(&path)?;
    for job in ["wash", "dry", "iron"] {
        queue.push(job)?;
    }
    let mut done = Vec::new();
    // The second job fails once, and waits again.
    let failed = loop {
        let worked = queue.work(|job| -> std::result::Result<(), Box<dyn std::error::Error>> {
            let job = String::from_utf8(job.to_vec())?;
            if job == "dry" && done.len() == 1 {
                done.push("rain");
                return Err("it rains".into());
            }
            println!("done: {job}");
            done.push(if job == "dry" { "dry" } else { "other" });
            Ok(())
        });
        if let Err(why) = worked {
            break why;
        }
    };
    assert_eq!((failed.to_string().as_str(), queue.waiting.len()?), ("it rains", 2));
    while queue.work(|job| -> Result<()> {
        println!("done: {}", String::from_utf8_lossy(job));
        Ok(())
    })? {}
    assert!(queue.waiting.is_empty()? && queue.taken.is_empty()?);
    queue.db.close()?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
