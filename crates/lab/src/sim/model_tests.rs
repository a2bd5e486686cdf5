//! The model is tested on histories whose verdict is known: a checker that cannot fail shows nothing.

use super::*;

fn d(n: u64) -> Digest {
    Digest::of(&n.to_le_bytes())
}

fn row(key: &str) -> Row {
    (0, key.as_bytes().to_vec())
}

fn tx(id: u64, position: u64, end: End, durability: Durability, acts: Vec<Act>) -> Tx {
    Tx {
        id,
        durability,
        acts,
        end,
        position,
        began_after: 0,
        ended_by: u64::MAX,
        last_beside: id,
        snapshot: None,
        single: false,
        as_of_horizon: false,
    }
}

fn put(key: &str, n: u64) -> Act {
    Act::Put(row(key), d(n))
}

fn get(key: &str, n: Option<u64>) -> Act {
    Act::Get(row(key), n.map(d))
}

fn scan(rows: &[(&str, u64)], reverse: bool, limit: usize) -> Act {
    let rows = rows.iter().map(|(k, n)| (k.as_bytes().to_vec(), d(*n))).collect();
    Act::Scan(ScanSeen { space: 0, from: b"a".to_vec(), to: b"z".to_vec(), reverse, limit, rows })
}

fn settle(txs: Vec<Tx>, marks: &[u64], kept: Kept) -> Result<State, String> {
    let mut history = History::new(State::new());
    txs.into_iter().for_each(|tx| history.add(tx));
    history.settle(marks, kept, None).map(|settled| settled.state).map_err(|wrong| wrong.0)
}

use Durability::{None as Lazy, Sync};
use End::{Acknowledged as Acked, InDoubt};

#[test]
fn a_prefix_is_accepted_whatever_of_the_unacknowledged_survived() {
    let txs = || {
        vec![
            tx(1, 10, Acked, Sync, vec![put("a", 1), put("b", 1)]),
            tx(3, 30, InDoubt, Sync, vec![put("b", 3)]),
            tx(2, 20, Acked, Lazy, vec![put("a", 2)]),
        ]
    };
    for (marks, a, b) in [(&[1][..], 1, 1), (&[1, 2], 2, 1), (&[1, 2, 3], 2, 3)] {
        let state = settle(txs(), marks, Kept::Sync).unwrap();
        assert_eq!((state[&row("a")].digest, state[&row("b")].digest), (d(a), d(b)), "{marks:?}");
    }
}

#[test]
fn losses_holes_and_ghosts_are_refused() {
    let txs = || {
        vec![
            tx(1, 10, Acked, Sync, vec![put("a", 1)]),
            tx(2, 20, Acked, Lazy, vec![put("a", 2)]),
            tx(3, 30, InDoubt, Sync, vec![put("b", 3)]),
            tx(4, 0, End::None, Sync, vec![put("b", 4)]),
        ]
    };
    assert!(settle(txs(), &[], Kept::Sync).unwrap_err().contains("lost"));
    assert!(settle(txs(), &[1, 3], Kept::Sync).unwrap_err().contains("prefix"));
    assert!(settle(txs(), &[1, 4], Kept::Sync).unwrap_err().contains("never committed"));
    assert!(settle(txs(), &[1], Kept::All).unwrap_err().contains("clean close"));
    assert!(settle(txs(), &[1, 2], Kept::All).is_ok());
}

#[test]
fn single_operations_leave_no_mark_and_are_told_by_what_they_left() {
    let single = |id, position, end, durability, acts| Tx { single: true, ..tx(id, position, end, durability, acts) };
    let txs = || {
        vec![
            single(1, 10, Acked, Lazy, vec![put("a", 1)]),
            tx(2, 20, Acked, Sync, vec![put("b", 2)]),
            single(3, 30, Acked, Sync, vec![put("a", 3)]),
            single(4, 40, InDoubt, Lazy, vec![Act::Delete(row("b"))]),
            single(5, 50, Acked, Lazy, vec![Act::Has(row("b"), false), put("c", 5)]),
            tx(6, 60, InDoubt, Sync, vec![put("d", 6)]),
        ]
    };
    let settle = |marks: &[u64], rows: &[(&str, u64)]| {
        let mut history = History::new(State::new());
        txs().into_iter().for_each(|tx| history.add(tx));
        let found = rows.iter().map(|(key, n)| (row(key), d(*n))).collect();
        history.settle(marks, Kept::Sync, Some(&found)).map(|settled| settled.lost).map_err(|wrong| wrong.0)
    };
    assert_eq!(settle(&[2], &[("a", 3), ("b", 2)]), Ok(3), "the delete is gone, and what came after");
    assert_eq!(settle(&[2], &[("a", 3)]), Ok(2));
    assert_eq!(settle(&[2], &[("a", 3), ("c", 5)]), Ok(1));
    assert_eq!(settle(&[2, 6], &[("a", 3), ("c", 5), ("d", 6)]), Ok(0));
    for (marks, rows) in [
        (&[2][..], &[("a", 1), ("b", 2)][..]),
        (&[2], &[("a", 3), ("b", 2), ("c", 5)]),
        (&[2, 6], &[("a", 3), ("d", 6)]),
        (&[], &[("a", 3)]),
    ] {
        assert!(settle(marks, rows).is_err(), "an acknowledged one is lost, or there is a hole: {rows:?}");
    }
}

#[test]
fn reads_are_checked_at_the_commit_number_with_own_writes_on_top() {
    let own = vec![get("a", Some(1)), put("a", 7), get("a", Some(7)), Act::Savepoint, Act::Delete(row("a"))]
        .into_iter()
        .chain([get("a", None), Act::RollbackTo(0), get("a", Some(7)), scan(&[("a", 7)], false, 9)]);
    let good = vec![tx(1, 10, Acked, Sync, vec![put("a", 1)]), tx(2, 20, Acked, Sync, own.collect())];
    assert_eq!(settle(good, &[1, 2], Kept::Sync).unwrap()[&row("a")].digest, d(7));
    let stale = vec![
        tx(1, 10, Acked, Sync, vec![put("a", 1)]),
        tx(2, 20, Acked, Sync, vec![put("a", 2)]),
        tx(3, 30, Acked, Sync, vec![get("a", Some(1)), put("b", 3)]),
    ];
    assert!(settle(stale, &[1, 2, 3], Kept::Sync).unwrap_err().contains("read rows-a/a"));
}

#[test]
fn a_phantom_is_refused() {
    let phantom = |seen: &[(&str, u64)]| {
        vec![
            tx(1, 10, Acked, Sync, vec![put("c", 1)]),
            tx(2, 20, Acked, Sync, vec![put("b", 2)]),
            tx(3, 30, Acked, Sync, vec![scan(seen, false, 9), put("q", 3)]),
        ]
    };
    assert!(settle(phantom(&[("c", 1)]), &[1, 2, 3], Kept::Sync).unwrap_err().contains("scanned"));
    assert!(settle(phantom(&[("b", 2), ("c", 1)]), &[1, 2, 3], Kept::Sync).is_ok());
}

#[test]
fn scans_end_at_their_limit_and_run_both_ways() {
    let txs = |act: Act| {
        vec![
            tx(
                1,
                10,
                Acked,
                Sync,
                vec![put("a", 1), put("b", 2), put("c", 3), Act::DeleteRange(0, b"b".into(), b"c".into())],
            ),
            tx(2, 20, Acked, Sync, vec![act, put("q", 1)]),
        ]
    };
    for (rows, reverse, limit, ok) in [
        (&[("a", 1), ("c", 3)][..], false, 9, true),
        (&[("c", 3), ("a", 1)], true, 9, true),
        (&[("c", 3)], true, 1, true),
        (&[("c", 3)], true, 2, false),
        (&[("a", 1), ("b", 2), ("c", 3)], false, 9, false),
    ] {
        assert_eq!(settle(txs(scan(rows, reverse, limit)), &[1, 2], Kept::Sync).is_ok(), ok, "{rows:?}");
    }
    let count = |n| Act::Count(0, b"a".into(), b"d".into(), n);
    assert!(settle(txs(count(2)), &[1, 2], Kept::Sync).is_ok());
    assert!(settle(txs(count(3)), &[1, 2], Kept::Sync).is_err());
}

#[test]
fn snapshots_are_checked_at_their_number_and_readers_in_their_window() {
    let txs = |mut reader: Tx| {
        reader.id = 9;
        vec![tx(1, 10, Acked, Sync, vec![put("a", 1)]), tx(2, 20, Acked, Sync, vec![put("a", 2), put("b", 2)]), reader]
    };
    let reader = |snapshot, acts| Tx { snapshot, began_after: 10, ..tx(9, 0, Acked, Sync, acts) };
    assert!(settle(txs(reader(Some(10), vec![get("a", Some(1)), get("b", None)])), &[1, 2], Kept::Sync).is_ok());
    assert!(settle(txs(reader(Some(15), vec![get("a", Some(1)), get("b", None)])), &[1, 2], Kept::Sync).is_ok());
    assert!(settle(txs(reader(Some(20), vec![get("a", Some(1))])), &[1, 2], Kept::Sync).is_err());
    for (a, b, ok) in [(Some(1), None, true), (Some(2), Some(2), true), (Some(1), Some(2), false), (None, None, false)]
    {
        let acts = vec![get("a", a), get("b", b)];
        assert_eq!(settle(txs(reader(None, acts)), &[1, 2], Kept::Sync).is_ok(), ok, "{a:?} {b:?}");
    }
}

/// A read as of the horizon may miss what was not acknowledged when it began, but nothing that was.
#[test]
fn reads_as_of_the_horizon_see_all_that_was_acknowledged() {
    let history = |first_ended: bool, seen| {
        let last_beside = if first_ended { 1 } else { 9 };
        let reader = Tx { began_after: 20, single: true, as_of_horizon: true, ..tx(9, 0, Acked, Sync, vec![seen]) };
        vec![
            Tx { last_beside, ..tx(1, 10, Acked, Sync, vec![put("a", 1)]) },
            tx(2, 20, Acked, Sync, vec![put("b", 2)]),
            reader,
        ]
    };
    let may = |first_ended, seen| settle(history(first_ended, seen), &[1, 2], Kept::Sync).is_ok();
    assert!(may(false, get("a", None)) && may(false, get("a", Some(1))));
    assert!(may(true, get("a", Some(1))) && !may(true, get("a", None)));
    assert!(may(false, get("b", Some(2))) && !may(false, get("b", None)), "what is known of later shows");
    let strict = Tx { as_of_horizon: false, ..history(false, get("a", None)).pop().unwrap() };
    let mut txs = history(false, get("a", None));
    *txs.last_mut().unwrap() = strict;
    assert!(settle(txs, &[1, 2], Kept::Sync).is_err(), "other readers keep to the commit order");
}

#[test]
fn an_acknowledged_reader_of_a_lost_sync_commit_is_refused() {
    let txs = |end| {
        vec![tx(1, 10, InDoubt, Sync, vec![put("a", 1)]), tx(2, 20, end, Lazy, vec![get("a", Some(1)), put("b", 2)])]
    };
    assert!(settle(txs(Acked), &[], Kept::Sync).unwrap_err().contains("had read from sync commit"));
    assert!(settle(txs(InDoubt), &[], Kept::Sync).is_ok());
    assert!(settle(txs(Acked), &[1], Kept::Sync).is_ok());
}

#[test]
fn commit_order_against_real_time_is_refused() {
    let late = Tx { began_after: 25, ..tx(2, 20, Acked, Sync, vec![put("a", 2)]) };
    let txs = vec![tx(1, 25, Acked, Sync, vec![put("b", 1)]), late];
    assert!(settle(txs, &[1, 2], Kept::Sync).unwrap_err().contains("began after"));
}

#[test]
fn comparing_states_names_the_rows() {
    let state = settle(vec![tx(1, 10, Acked, Sync, vec![put("a", 1), put("b", 2)])], &[1], Kept::Sync).unwrap();
    let mut found: BTreeMap<Row, Digest> = [(row("a"), d(1)), (row("b"), d(2))].into();
    assert!(compare(&state, &found).is_ok());
    found.insert(row("x"), d(9));
    assert!(compare(&state, &found).unwrap_err().0.contains("rows-a/x"));
    found.remove(&row("x"));
    found.remove(&row("b"));
    assert!(compare(&state, &found).unwrap_err().0.contains("found nothing"));
}
