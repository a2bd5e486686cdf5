//! The API as programs use it: types that go from thread to thread, databases without a place, typed keyspaces,
//! deleting while reading, commits that are waited for later.

use std::collections::BTreeMap;
use varve::*;

fn options() -> Options {
    Options::default().cache_mb(8)
}

/// What can be sent, shared and printed.
#[test]
fn handles_go_from_thread_to_thread() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn sent<T: Send + std::fmt::Debug>() {}
    shared::<Db>();
    shared::<Keyspace>();
    shared::<TypedKeyspace<std::rc::Rc<u8>, std::cell::Cell<u8>>>();
    shared::<Snapshot>();
    shared::<Options>();
    shared::<Layout>();
    shared::<Stats>();
    shared::<WriteBatch>();
    shared::<Error>();
    shared::<KeyRange<'static>>();
    sent::<Transaction>();
    sent::<Rows>();
    sent::<Scan<'static>>();
    sent::<BulkLoad>();
    shared::<ReadFuture<Option<Vec<u8>>>>();
    shared::<ReadFuture<std::rc::Rc<u8>>>();
}

#[test]
fn databases_without_a_place_work_and_leave_nothing() {
    let names = || -> Vec<_> {
        let mine = format!("varve-{}-", std::process::id());
        let files = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|f| f.file_name());
        files.filter(|name| name.to_string_lossy().starts_with(&mine)).collect()
    };
    for make in [Db::in_memory, Db::temporary] {
        let (one, other) = (make(options()).unwrap(), make(options()).unwrap());
        let rows = one.keyspace_or_create("rows").unwrap();
        // More than the cache holds.
        for n in 0..200u32 {
            rows.put(n.to_be_bytes(), vec![n as u8; 100_000]).unwrap();
        }
        assert_eq!(rows.get(7u32.to_be_bytes()).unwrap(), Some(vec![7; 100_000]));
        assert!(other.keyspaces().unwrap().is_empty(), "they are two");
        assert!(one.check().unwrap().is_clean());
        assert_eq!(names(), [""; 0]);
        drop(rows);
        one.close().unwrap();
    }
}

#[test]
fn owned_keys_make_ranges() {
    let db = Db::in_memory(options()).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    for key in ["a", "b", "c"] {
        rows.put(key, "").unwrap();
    }
    let (from, to) = (String::from("a"), vec![b'c']);
    assert_eq!(rows.range(from.clone()..).unwrap().count(), 3);
    assert_eq!(rows.range(..to.clone()).unwrap().count(), 2);
    assert_eq!(rows.range([b'b']..=[b'c']).unwrap().count(), 2);
    assert_eq!(rows.range(KeyRange::of(&(from.as_str()..="b"))).unwrap().count(), 2);
    rows.delete_range(to..).unwrap();
    assert_eq!(db.begin().unwrap().count(&rows, from..).unwrap(), 2);
}

#[test]
fn rows_are_deleted_while_they_are_read() {
    let db = Db::in_memory(options()).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    let mut model = BTreeMap::new();
    db.transact(|tx| {
        for n in 0..5000u32 {
            tx.put(&rows, n.to_be_bytes(), n.to_string())?;
            model.insert(n, n.to_string());
        }
        Ok(())
    })
    .unwrap();
    let mut tx = db.begin().unwrap();
    // Its own writes are looked at too.
    tx.put(&rows, 7000u32.to_be_bytes(), "seven").unwrap();
    let mut seen = Vec::new();
    let removed = tx.retain(&rows, 100u32.to_be_bytes().., |key, value| {
        seen.push(u32::from_be_bytes(key.try_into().unwrap()));
        value.len() % 2 == 0
    });
    assert_eq!(seen, (100..5000).chain([7000]).collect::<Vec<_>>(), "each row once, in order");
    let odd = |n: u32, text: &str| n >= 100 && text.len() % 2 == 1;
    assert_eq!(removed.unwrap(), model.iter().filter(|(n, text)| odd(**n, text)).count() as u64 + 1);
    assert_eq!(rows.len().unwrap(), 5000, "nobody else sees it yet");
    tx.commit().unwrap();
    model.retain(|n, text| !odd(*n, text));
    let left = rows.iter().unwrap().map(|row| u32::from_be_bytes(row.unwrap().0.try_into().unwrap()));
    assert_eq!(left.collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
}

#[test]
fn typed_keyspaces_say_when_a_row_is_of_another_type() {
    let db = Db::in_memory(options()).unwrap();
    let people = db.typed_keyspace::<u32, String>("people").unwrap();
    for (n, name) in [(70_000, "Grace"), (3, "Ada"), (255, "Kurt")] {
        people.put(&n, &name.to_string()).unwrap();
    }
    assert!(!people.insert_if_absent(&3, &"Eve".into()).unwrap());
    let rows: Vec<_> = people.range(..70_000).unwrap().rev().map(Result::unwrap).collect();
    assert_eq!(rows, [(255, "Kurt".to_string()), (3, "Ada".to_string())]);
    assert_eq!((people.first().unwrap().unwrap().0, people.last().unwrap().unwrap().0), (3, 70_000));
    db.transact(|tx| {
        let name = people.get_in(tx, &3)?.unwrap();
        people.put_in(tx, &4, &name)?;
        people.delete_in(tx, &3)
    })
    .unwrap();
    assert_eq!((people.get(&3).unwrap(), people.get(&4).unwrap()), (None, Some("Ada".into())));
    let by_name = db.typed_keyspace::<String, Json<Vec<u32>>>("by name").unwrap();
    by_name.put("Ada", &Json(vec![4])).unwrap();
    let before = db.snapshot().unwrap();
    by_name.put("Ada", &Json(vec![4, 5])).unwrap();
    assert_eq!(by_name.get_at(&before, "Ada").unwrap(), Some(Json(vec![4])));
    assert_eq!(by_name.multi_get_at(&before, ["Eve", "Ada"]).unwrap(), [None, Some(Json(vec![4]))]);
    assert_eq!(by_name.multi_get(["Ada"]).unwrap(), [Some(Json(vec![4, 5]))]);
    let in_one = |tx: &mut Transaction| {
        people.put_in(tx, &5, &"Emmy".into())?;
        people.multi_get_in(tx, &[5, 6, 4])
    };
    assert_eq!(db.transact(in_one).unwrap(), [Some("Emmy".into()), None, Some("Ada".into())]);
    people.keyspace().put([0, 0, 0, 9], [0xff, 0xfe]).unwrap();
    let error = people.get(&9).unwrap_err().to_string();
    assert!(error.contains("people") && error.contains("0xfffe") && error.contains("another type"), "{error}");
    assert!(people.iter().unwrap().any(|row| row.is_err()));
    people.keyspace().put("longer key", "x").unwrap();
    assert!(people.last().is_err(), "a key of another type");
}

#[test]
fn a_ticket_tells_when_a_commit_is_durable() {
    let db = Db::temporary(options().async_delay(std::time::Duration::from_secs(3600))).unwrap();
    let rows = db.keyspace_or_create("rows").unwrap();
    let mut tx = db.begin().unwrap();
    tx.put(&rows, "a", "1").unwrap();
    let first = tx.commit_ticket().unwrap();
    assert!(db.durable_lsn() < first, "nobody waited for it");
    assert_eq!(db.snapshot().unwrap().get(&rows, "a").unwrap(), Some(b"1".to_vec()), "it has taken effect");
    let mut tx = db.begin().unwrap();
    tx.get(&rows, "a").unwrap();
    let second = tx.commit_ticket().unwrap();
    assert!(second >= first, "what it read is durable no earlier");
    db.wait_durable(first).unwrap();
    assert!(db.durable_lsn() >= first);
    assert!(matches!(db.wait_durable(Lsn::MAX), Err(Error::Invalid(_))));
}
