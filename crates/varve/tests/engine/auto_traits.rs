//! What may go from thread to thread, and what threads may share: the compiler looks whether it is so. All of it can be
//! shown, too.

use std::fmt::Debug;
use varve::{
    BulkLoad, Db, Durable, Error, KeyRange, Keyspace, Options, ReadFuture, Rows, Savepoint, Scan, Snapshot, Stats,
    Transaction, TypedKeyspace, TypedRows, WriteBatch,
};
use varve_rt::spawn;

const fn send<T: Send + Debug>() {}
const fn share<T: Send + Sync + Debug>() {}

/// Handles and options: threads may share them.
const _: () = {
    share::<Db>();
    share::<Keyspace>();
    share::<TypedKeyspace<String, u64>>();
    share::<Snapshot>();
    share::<Transaction>();
    share::<Savepoint>();
    share::<WriteBatch>();
    share::<KeyRange<'static>>();
    share::<Options>();
    share::<Stats>();
    share::<Error>();
    share::<Durable>();
    share::<BulkLoad>();
};

/// What is taken row by row, or polled: it belongs to one thread at a time.
const _: () = {
    send::<Rows<'static>>();
    send::<Rows<'_>>();
    send::<Scan<'static>>();
    send::<Scan<'_>>();
    send::<TypedRows<'static, String, u64>>();
    send::<ReadFuture<Option<Vec<u8>>>>();
};

#[test]
fn iterators_and_transactions_go_to_other_threads() {
    let db = Db::in_memory(Options::default().cache_mb(8)).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    rows.put("a", "1").unwrap();
    let (mut iter, mut tx) = (rows.iter().unwrap(), db.begin().unwrap());
    let own = rows.clone();
    let reader = spawn("reader", move || assert_eq!(iter.next().unwrap().unwrap().0, b"a"));
    let writer = spawn("writer", move || {
        tx.put(&own, "b", "2").unwrap();
        let mut rows = tx.iter(&own).unwrap();
        let shown = format!("{rows:?}");
        assert!(shown.contains("rows"), "{shown}");
        assert_eq!(rows.next_back().unwrap().unwrap().1, b"2");
        tx.commit().unwrap();
    });
    reader.join().unwrap();
    writer.join().unwrap();
    assert_eq!(rows.len().unwrap(), 2);
    drop(rows);
    db.close().unwrap();
}
