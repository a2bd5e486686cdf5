//! A panic, wherever it strikes, leaves nobody waiting and nothing half done: the database is poisoned and says why.

use crate::trap::Trap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use varve::{Db, Devices, Durability, Error, Keyspace, KeyspaceKind, Layout, LsmOptions, Options, PoolOptions};
use varve_device::Device;
use varve_models::MemDevice;

fn options() -> Options {
    Options { cache_bytes: 4 << 20, pool_frames: 96, log_max_bytes: 4 << 20, ..Options::default() }
}

fn create(data: Arc<dyn Device>, log: Arc<dyn Device>) -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
    let db = Db::create_on(Devices::new(data, log), &layout, options()).unwrap();
    db.create_keyspace("calm").unwrap().put(b"key", b"value").unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

/// Puts rows until that fails; how many were acknowledged, and with what it failed.
fn fill(rows: &Keyspace, client: u64, durability: Durability) -> (u64, Error) {
    for n in 0..1_000_000u64 {
        let key = [client.to_be_bytes(), n.to_be_bytes()].concat();
        if let Err(e) = rows.put_with(&key, &[n as u8; 500], durability) {
            return (n, e);
        }
    }
    panic!("nothing failed");
}

fn assert_reads_go_on(db: &Db) {
    assert_eq!(db.keyspace("calm").unwrap().get(b"key").unwrap().unwrap(), b"value");
}

fn assert_kept(data: Arc<dyn Device>, log: Arc<dyn Device>, acknowledged: &[(u64, u64)]) {
    let db = Db::open_on(Devices::new(data, log), options()).unwrap();
    assert!(db.check().unwrap().is_clean());
    let rows = db.keyspace("rows").unwrap();
    for (client, count) in acknowledged {
        let there = |n: &u64| rows.get(&[client.to_be_bytes(), n.to_be_bytes()].concat()).unwrap().is_some();
        assert_eq!((0..*count).filter(there).count() as u64, *count, "client {client}");
    }
}

/// It writes for others, who would wait for ever.
#[test]
fn a_panic_of_who_writes_the_log_reaches_all_who_wait() {
    for at in [0, 3, 40] {
        let (data, log) = (MemDevice::new(0), Trap::new("client"));
        let (db, rows) = create(data.clone(), log.clone());
        log.arm(at);
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let rows = rows.clone();
                varve_rt::spawn(format!("client {client}"), move || fill(&rows, client, Durability::Sync))
            })
            .collect();
        let ends: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        let panicked = ends.iter().filter(|end| end.is_err()).count();
        assert_eq!(panicked, 1, "one of them led");
        let mut acknowledged = Vec::new();
        for (client, end) in ends.into_iter().enumerate() {
            if let Ok((count, error)) = end {
                assert!(matches!(&error, Error::Poisoned(why) if why.contains("panicked")), "{error}");
                acknowledged.push((client as u64, count));
            }
        }
        assert_reads_go_on(&db);
        assert!(db.close().is_err());
        drop((db, rows));
        assert_kept(data, log.inner.clone(), &acknowledged);
    }
}

/// A miss forces the log before it takes a dirty page's frame, which it has latched by then (`rw`).
#[test]
fn a_panic_of_who_takes_a_frame_leaves_no_page_latched() {
    let (data, log) = (MemDevice::new(0), Trap::new("client"));
    let layout = Layout { page_size: 4096, log_bytes: 1 << 20, ..Layout::default() };
    let options =
        Options { pool: PoolOptions::preset("rw").unwrap(), async_delay: Duration::from_secs(60), ..options() };
    let db = Db::create_on(Devices::new(data, log.clone()), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    log.arm(0);
    let client = varve_rt::spawn("client", {
        let rows = rows.clone();
        move || fill(&rows, 0, Durability::None)
    });
    assert!(client.join().is_err() && log.sprung());
    let (done, wait) = varve_rt::channel::unbounded();
    varve_rt::spawn("reader", move || {
        // Rows whose log is lost are refused; but an answer comes.
        let answers = (0..5000u64).map(|n| rows.get(&[0u64.to_be_bytes(), n.to_be_bytes()].concat()));
        done.send(answers.filter(Result::is_err).count()).unwrap();
    });
    let refused = wait.recv_timeout(Duration::from_secs(60)).expect("a reader waits for ever");
    assert!(refused > 0);
}

#[test]
fn a_panic_of_a_thread_in_the_background_is_told() {
    for (whose, on_log) in
        [("log-flusher", true), ("cleaner", false), ("checkpointer", false), ("recoverability", false)]
    {
        let (data, log) = (Trap::new(whose), Trap::new(whose));
        let (db, rows) = create(data.clone(), log.clone());
        let trap = if on_log { &log } else { &data };
        trap.arm(0);
        let (count, error) = match whose {
            "log-flusher" => loop {
                // Nobody waits for these.
                fill_some(&rows);
                while log.left.load(Ordering::SeqCst) == 0 {
                    varve_rt::sleep(Duration::from_millis(10));
                }
                if let Err(e) = rows.put(b"durable", b"x") {
                    break (0, e);
                }
            },
            _ => fill(&rows, 0, Durability::Sync),
        };
        assert!(trap.sprung(), "{whose}");
        assert!(matches!(&error, Error::Poisoned(why) if why.contains(whose)), "{whose}: {error}");
        assert_reads_go_on(&db);
        assert!(db.close().is_err());
        drop((db, rows));
        assert_kept(data.inner.clone(), log.inner.clone(), &[(0, count)]);
    }
}

/// Those who wait for memory, or for merges, get an answer when nobody flushes or merges any more.
#[test]
fn a_panic_of_who_flushes_and_merges_reaches_all_who_wait() {
    for merges in [false, true] {
        let (data, log) = (Trap::new("merger"), MemDevice::new(0));
        let (db, _) = create(data.clone(), log.clone());
        let lsm = LsmOptions { memtable_bytes: 64 << 10, segment_bytes: 64 << 10, ..LsmOptions::default() };
        let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(lsm)).unwrap();
        let (done, wait) = varve_rt::channel::unbounded();
        for client in 0..4u64 {
            let (done, events, db) = (done.clone(), events.clone(), db.clone());
            varve_rt::spawn(format!("client {client}"), move || {
                let end = match client {
                    0 => (0..1000).find_map(|_| db.wait_for_merges().err()).expect("nothing failed"),
                    1 => (0..1000).find_map(|_| events.compact(None, ..).err()).expect("nothing failed"),
                    _ => fill(&events, client, Durability::None).1,
                };
                done.send(end).unwrap();
            });
        }
        if merges {
            // A while after they have begun.
            varve_rt::sleep(Duration::from_millis(100));
        }
        data.arm(0);
        for _ in 0..4 {
            let error = wait.recv_timeout(Duration::from_secs(60)).expect("somebody waits for ever");
            assert!(matches!(&error, Error::Poisoned(why) if why.contains("merger")), "{error}");
        }
        assert!(data.sprung());
        assert_reads_go_on(&db);
        assert!(db.close().is_err());
    }
}

fn fill_some(rows: &Keyspace) {
    for n in 0..100u64 {
        let _ = rows.put_with(&[7u64.to_be_bytes(), n.to_be_bytes()].concat(), b"soon", Durability::Async);
    }
}

/// A commit in pieces that ends between two of them, as a thread that writes the log panics, its own or the flusher's,
/// lets go of its locks. Who reads by locks sees no half of it.
#[test]
fn a_panic_amid_the_pieces_of_a_commit_shows_nobody_half_of_it() {
    let mut half_way = 0;
    for writes in (0..24).step_by(2) {
        let (data, log) = (MemDevice::new(0), Trap::new(""));
        let (db, rows) = create(data.clone(), log.clone());
        let put_all = |db: &Db, rows: &Keyspace, value: u8| {
            db.transact(|tx| (0..4000u64).try_for_each(|n| tx.put(rows, n.to_be_bytes(), [value; 400])))
        };
        put_all(&db, &rows, 1).unwrap();
        let (other, large) = (db.clone(), rows.clone());
        log.arm(writes);
        let panicked = varve_rt::spawn("large", move || put_all(&other, &large, 2).unwrap()).join().is_err();
        log.arm(i64::MAX);
        let whole = |seen: varve::Result<Vec<u8>>| match seen {
            Ok(values) => assert!(values.iter().all(|value| *value == values[0]), "half a commit after {writes}"),
            Err(error) => assert!(panicked && matches!(error, Error::Poisoned(_)), "{error}"),
        };
        whole(db.begin().and_then(|mut tx| tx.scan(&rows, ..)?.map(|row| Ok(row?.1[0])).collect()));
        whole(db.snapshot().and_then(|snapshot| snapshot.scan(&rows, ..)?.map(|row| Ok(row?.1[0])).collect()));
        drop((db, rows));
        let db = Db::open_on(Devices::new(data, log), options()).unwrap();
        half_way += db.recovery_report().finished;
        whole(
            db.snapshot().and_then(|snapshot| snapshot.scan(&db.keyspace("rows")?, ..)?.map(|r| Ok(r?.1[0])).collect()),
        );
    }
    assert!(half_way > 0, "no panic struck between two pieces");
}
