//! A fork of a process that has a database open: whatever it asks for fails, and what it drops changes nothing. One
//! test, alone in its file: no other thread of the tests is in the middle of something at the fork.

mod directories;

use directories::Dir;
use varve::{Db, Error, KeyspaceKind, Layout, Options, Result, TxOptions};

/// Makes a child: 0 in it. One that waits for ever is killed.
fn fork() -> i32 {
    // SAFETY: the child makes calls of the engine, which fail, and ends by `end`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        // SAFETY: a system call without memory.
        unsafe { libc::alarm(60) };
    }
    pid
}

/// Ends a child at once, without what the tests' harness does at its end.
fn end(good: bool) -> ! {
    // SAFETY: a system call without memory.
    unsafe { libc::_exit(i32::from(!good)) }
}

/// Waits for a child's good end.
fn ended_well(pid: i32) {
    let mut status = 0;
    // SAFETY: the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child says above what went wrong");
}

fn refused<T>(what: &str, result: Result<T>) {
    match result {
        Err(error @ Error::Forked(_)) => assert!(error.to_string().contains("fork"), "{what}: {error}"),
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: done"),
    }
}

#[test]
fn what_a_fork_asks_of_its_parents_database_fails() {
    let dir = Dir::new("forks");
    let (path, other) = (dir.join("db"), dir.join("other"));
    let options = || Options::default().cache_mb(8);
    let db = Db::create(&path, &Layout::default(), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    let lsm = db.create_keyspace_of("lsm", KeyspaceKind::Lsm(Default::default())).unwrap();
    let mut first = db.begin().unwrap();
    for n in 0..1000u32 {
        first.put(&rows, n.to_be_bytes(), [7; 100]).unwrap();
        first.put(&lsm, n.to_be_bytes(), [7; 100]).unwrap();
    }
    first.commit().unwrap();
    let mut tx = db.begin().unwrap();
    tx.put(&rows, "open", "parent").unwrap();
    let reader = db.begin_with(TxOptions::read_only()).unwrap();
    let snapshot = db.snapshot().unwrap();
    let mut scan = snapshot.scan(&rows, ..).unwrap();
    scan.next().unwrap().unwrap();
    let mut handles = Some((db, rows, lsm, snapshot, scan, tx, reader));

    let child = fork();
    if child == 0 {
        let (db, rows, lsm, snapshot, mut scan, mut tx, reader) = handles.take().unwrap();
        let tries = std::panic::AssertUnwindSafe(move || {
            for keyspace in [&rows, &lsm] {
                refused("put", keyspace.put("child", "lost"));
                refused("delete", keyspace.delete(1u32.to_be_bytes()));
                refused("get", keyspace.get(1u32.to_be_bytes()));
                refused("clear", keyspace.clear());
                refused("scan", keyspace.first());
                refused("snapshot's get", snapshot.get(keyspace, 1u32.to_be_bytes()));
                refused("transaction's put", tx.put(keyspace, "child", "lost"));
            }
            refused("scan", scan.find_map(|row| row.err()).map_or(Ok(()), Err));
            refused("savepoint", tx.savepoint());
            refused("commit", tx.commit());
            refused("reader's commit", reader.commit());
            refused("begin", db.begin());
            refused("transact", db.transact(|tx| tx.put(&rows, "child", "lost")));
            refused("sync", db.sync());
            refused("checkpoint", db.checkpoint());
            refused("new keyspace", db.create_keyspace("child"));
            refused("open keyspace", db.keyspace("rows"));
            refused("close", db.close());
            refused("another database", Db::create(&other, &Layout::default(), options()));
            drop((db, rows, lsm, snapshot, scan));
            !other.exists()
        });
        end(std::panic::catch_unwind(tries).unwrap_or(false));
    }
    ended_well(child);

    // Dropped only, without a call that fails before.
    let child = fork();
    if child == 0 {
        drop(handles.take());
        end(true);
    }
    ended_well(child);

    // The parent goes on, and has its directory for itself.
    let (db, rows, lsm, snapshot, scan, tx, reader) = handles.take().unwrap();
    assert!(matches!(Db::open(&path, options()), Err(Error::InUse(_))));
    tx.commit().unwrap();
    lsm.put("open", "parent").unwrap();
    let mut child = -1;
    let result = db.transact(|tx| {
        tx.put(&rows, "within", "parent")?;
        child = fork();
        Ok(())
    });
    if child == 0 {
        end(matches!(result, Err(Error::Forked(_))));
    }
    result.unwrap();
    ended_well(child);
    assert_eq!(scan.count(), 999);
    reader.commit().unwrap();
    drop(snapshot);
    db.close().unwrap();

    let db = Db::open(&path, options()).unwrap();
    assert!(db.recovery_report().clean && db.check().unwrap().is_clean());
    let (rows, lsm) = (db.keyspace("rows").unwrap(), db.keyspace("lsm").unwrap());
    assert_eq!((rows.len().unwrap(), lsm.len().unwrap()), (1002, 1001));
    assert_eq!((rows.get("child").unwrap(), lsm.get("child").unwrap()), (None, None));
    db.close().unwrap();
}
