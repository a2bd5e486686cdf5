//! TPC-C on the in-memory store, at small scales: the load is consistent, runs keep it consistent, and every
//! condition notices what it is there for.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use varve_lab::adapter::mem::{Isolation, MemOptions, MemStore};
use varve_lab::adapter::{Direction, Durability, End, KeyRange, Store, TxMode, Txn, transact};
use varve_lab::driver::{RunOptions, RunResult, Until, run};
use varve_lab::tpcc::random::NuRandC;
use varve_lab::tpcc::row::Row;
use varve_lab::tpcc::schema::{Customer, District, Order, OrderLine, Tables, Warehouse, key};
use varve_lab::tpcc::{CheckReport, Condition, Mix, Options, Scale, Tpcc, check, load};

fn loaded(scale: Scale) -> Arc<MemStore> {
    let store = Arc::new(MemStore::default());
    load(&store, scale, 42, 3, |_| {}).expect("loads");
    store
}

fn drive(store: &Arc<MemStore>, options: Options, transactions: u64, threads: usize) -> RunResult {
    let workload = Arc::new(Tpcc::new(&**store, options).expect("is loaded"));
    let until = Until::Transactions(transactions);
    run(store, &workload, &RunOptions { threads, until, ..RunOptions::default() }, |_| {}).expect("runs")
}

fn consistent(store: &MemStore) -> CheckReport {
    let report = check(store, |_, _| {}).expect("can be read");
    assert!(report.consistent(), "{report}");
    report
}

fn write(store: &MemStore, body: impl Fn(&Tables<MemStore>, &mut <MemStore as Store>::Txn<'_>)) {
    let tables = Tables::open(store, false).unwrap();
    transact(store, TxMode::ReadWrite, Durability::Sync, |tx| {
        body(&tables, tx);
        Ok(((), End::Commit))
    })
    .unwrap();
}

/// Reads a row, changes it, writes it back.
fn alter<R: Row>(
    store: &MemStore,
    ks: impl Fn(&Tables<MemStore>) -> &<MemStore as Store>::Keyspace,
    key: &[u8],
    change: impl Fn(&mut R),
) {
    write(store, |t, tx| {
        let mut row = tx.get(ks(t), key, |v| R::decode(v.expect("the row exists")).unwrap()).unwrap();
        change(&mut row);
        tx.put(ks(t), key, row.as_bytes()).unwrap();
    });
}

fn failed(store: &MemStore) -> (BTreeSet<Condition>, String) {
    let report = check(store, |_, _| {}).expect("can be read");
    (report.counts.keys().copied().collect(), report.to_string())
}

#[test]
fn the_load_is_consistent_and_does_not_depend_on_the_threads() {
    let scale = Scale::tiny(2);
    let report = consistent(&loaded(scale));
    assert_eq!(report.rows["warehouse"], 2);
    assert_eq!(report.rows["district"], 4);
    assert_eq!(report.rows["customer"], 4 * 30);
    assert_eq!(report.rows["history"], 4 * 30);
    assert_eq!(report.rows["order"], 4 * 30);
    assert_eq!(report.rows["new_order"], 4 * 9);
    assert_eq!(report.rows["item"], 100);
    assert_eq!(report.rows["stock"], 200);

    let dump = |threads: usize| {
        let store = Arc::new(MemStore::default());
        let mut rows = 0;
        load(&store, scale, 7, threads, |p| rows = p.rows).unwrap();
        let lines = store.keyspace("order_line").unwrap();
        let mut all = Vec::new();
        transact(&*store, TxMode::ReadOnly, Durability::Sync, |tx| {
            tx.scan(&lines, KeyRange::ALL, Direction::Forward, |k, v| {
                // The date of the load differs between the two.
                let mut row = OrderLine::decode(v).unwrap();
                row.set_delivery_d(u64::from(row.delivery_d() != 0));
                all.push((k.to_vec(), row.as_bytes().to_vec()));
                ControlFlow::Continue(())
            })?;
            Ok(((), End::Commit))
        })
        .unwrap();
        (all, rows)
    };
    assert!(dump(1) == dump(4), "one thread and four load the same rows");
}

#[test]
fn an_interrupted_load_is_repeated_and_another_scale_refused() {
    let store = Arc::new(MemStore::default());
    load(&store, Scale::tiny(1), 1, 1, |_| {}).unwrap();
    let meta = store.keyspace("tpcc_meta").unwrap();
    write(&store, |_, tx| tx.delete(&meta, b"loaded").unwrap());
    assert!(varve_lab::tpcc::loaded(&*store).unwrap().is_none());
    assert!(Tpcc::new(&*store, Options::default()).is_err());
    load(&store, Scale::tiny(1), 2, 1, |_| {}).unwrap();
    consistent(&store);
    let refused = load(&store, Scale::tiny(2), 1, 1, |_| {}).unwrap_err();
    assert!(refused.to_string().contains("not loaded"), "{refused}");
}

#[test]
fn runs_keep_the_data_consistent() {
    let store = loaded(Scale::tiny(2));
    let result = drive(&store, Options::default(), 3000, 4);
    assert_eq!(result.total.count, 3000);
    let count = |name: &str| result.kinds.iter().find(|k| k.name == name).expect("a kind").count;
    assert!((1200..1500).contains(&count("new_order")), "45 % new orders: {}", count("new_order"));
    assert!((1140..1440).contains(&count("payment")), "43 % payments: {}", count("payment"));
    assert!(count("order_status") > 60 && count("delivery") > 60 && count("stock_level") > 60);
    let rolled_back = result.kinds[0].rolled_back;
    assert!((1..40).contains(&rolled_back), "about 1 % of the new orders is rolled back: {rolled_back}");
    let report = consistent(&store);
    assert!(report.rows["history"] > 4 * 30 + 1000);
    assert!(report.rows["order"] > 4 * 30 + 1000);
}

#[test]
fn a_deck_deals_its_cards() {
    let store = loaded(Scale::tiny(1));
    let result = drive(&store, Options { mix: Mix::Deck, ..Options::default() }, 230, 1);
    let counts: Vec<u64> = result.kinds.iter().map(|k| k.count).collect();
    assert_eq!(counts, [100, 100, 10, 10, 10]);
    consistent(&store);
}

#[test]
fn the_check_holds_while_transactions_run() {
    let store = loaded(Scale::tiny(1));
    let checker = {
        let store = store.clone();
        varve_rt::spawn("checker", move || {
            for _ in 0..5 {
                consistent(&store);
            }
        })
    };
    drive(&store, Options::default(), 2000, 2);
    checker.join().unwrap();
}

#[test]
fn the_read_only_variant_writes_nothing() {
    let store = loaded(Scale::tiny(2));
    let before = store.stats().log_bytes;
    let result = drive(&store, Options { read_only: true, ..Options::default() }, 500, 2);
    assert_eq!(result.workload, "tpcc-read-only");
    assert_eq!(result.total.count, 500);
    assert_eq!(store.stats().log_bytes, before);
}

#[test]
fn lost_updates_are_noticed() {
    let store = Arc::new(MemStore::new(MemOptions { isolation: Isolation::ReadCommitted, ..MemOptions::default() }));
    load(&store, Scale::tiny(1), 42, 1, |_| {}).unwrap();
    let two = |delta: i64| {
        let mut tx = store.begin(TxMode::ReadWrite, Durability::Sync).unwrap();
        let tables = Tables::open(&*store, false).unwrap();
        let at = key::warehouse(1);
        let mut row = tx.get(&tables.warehouse, &at, |v| Warehouse::decode(v.unwrap()).unwrap()).unwrap();
        row.set_ytd(row.ytd() + delta);
        tx.put(&tables.warehouse, &at, row.as_bytes()).unwrap();
        tx
    };
    let (a, b) = (two(100), two(200));
    a.commit().unwrap();
    b.commit().unwrap();
    let (conditions, text) = failed(&store);
    assert!(conditions.contains(&Condition::Clause(1)) && conditions.contains(&Condition::Clause(8)), "{text}");
}

#[test]
fn every_condition_fails_by_name() {
    use Condition::Clause;
    let delivered = |o: &mut Order| o.set_carrier_id(3);
    type Alteration = (Vec<Condition>, &'static str, Box<dyn Fn(&MemStore)>);
    let cases: Vec<Alteration> = vec![
        (
            vec![Clause(1), Clause(8)],
            "warehouse 1",
            Box::new(|s| alter::<Warehouse>(s, |t| &t.warehouse, &key::warehouse(1), |r| r.set_ytd(r.ytd() + 1))),
        ),
        (
            vec![Clause(2)],
            "district 1/2",
            Box::new(|s| alter::<District>(s, |t| &t.district, &key::district(1, 2), |r| r.set_next_o_id(99))),
        ),
        (
            vec![Clause(3), Clause(5), Clause(11)],
            "district 1/1",
            Box::new(|s| write(s, |t, tx| tx.delete(&t.new_order, &key::order(1, 1, 25)).unwrap())),
        ),
        (
            vec![Clause(4), Clause(6)],
            "order 1/1/30",
            Box::new(|s| write(s, |t, tx| tx.delete(&t.order_line, &key::order_line(1, 1, 30, 5)).unwrap())),
        ),
        (
            vec![Clause(5), Clause(7)],
            "order 1/2/30",
            Box::new(move |s| alter::<Order>(s, |t| &t.order, &key::order(1, 2, 30), delivered)),
        ),
        (
            vec![Clause(7), Clause(10), Clause(12)],
            "order_line 1/1/30/1",
            Box::new(|s| {
                let at = key::order_line(1, 1, 30, 1);
                alter::<OrderLine>(s, |t| &t.order_line, &at, |r| r.set_delivery_d(5));
            }),
        ),
        (
            vec![Clause(1), Clause(9)],
            "district 1/1",
            Box::new(|s| alter::<District>(s, |t| &t.district, &key::district(1, 1), |r| r.set_ytd(0))),
        ),
        (
            vec![Clause(10), Clause(12)],
            "customer 1/2/7",
            Box::new(|s| alter::<Customer>(s, |t| &t.customer, &key::customer(1, 2, 7), |r| r.set_balance(i64::MIN))),
        ),
        (
            vec![Clause(11)],
            "district 1/2",
            Box::new(|s| alter::<Customer>(s, |t| &t.customer, &key::customer(1, 2, 7), |r| r.set_delivery_cnt(9))),
        ),
        (
            vec![Clause(12)],
            "customer 1/1/1",
            Box::new(|s| alter::<Customer>(s, |t| &t.customer, &key::customer(1, 1, 1), |r| r.set_ytd_payment(1))),
        ),
        (
            vec![Condition::Stock],
            "stock 1/9",
            Box::new(|s| {
                use varve_lab::tpcc::schema::Stock;
                alter::<Stock>(s, |t| &t.stock, &key::stock(1, 9), |r| r.set_ytd(r.ytd() + 1));
            }),
        ),
        (
            vec![Condition::Index],
            "customer_by_name",
            Box::new(|s| alter::<Customer>(s, |t| &t.customer, &key::customer(1, 1, 1), |r| r.set_last(b"NOBODY"))),
        ),
    ];
    for (expected, row, apply) in cases {
        let store = loaded(Scale::tiny(1));
        apply(&store);
        let (conditions, text) = failed(&store);
        assert_eq!(conditions, expected.iter().copied().collect(), "{text}");
        assert!(text.contains(row), "{row} is named: {text}");
        if let Clause(n) = expected[0] {
            assert!(text.contains(&format!("consistency condition {n} fails")), "{text}");
        }
    }
}

#[test]
fn indexes_for_foreign_keys_are_kept_and_held_against_their_tables() {
    let scale = Scale { foreign_keys: true, ..Scale::tiny(2) };
    let store = loaded(scale);
    consistent(&store);
    drive(&store, Options::default(), 500, 2);
    consistent(&store);
    for name in ["order_line_by_stock", "stock_by_item", "history_by_customer"] {
        for stray in [false, true] {
            let store = loaded(scale);
            drive(&store, Options::default(), 50, 1);
            let ks = store.find_keyspace(name).unwrap().expect("the scale has it");
            let mut last = None;
            transact(&*store, TxMode::ReadOnly, Durability::Sync, |tx| {
                tx.scan(&ks, KeyRange::ALL, Direction::Reverse, |k, _| {
                    last = Some(k.to_vec());
                    ControlFlow::Break(())
                })?;
                Ok(((), End::Commit))
            })
            .unwrap();
            let last = last.expect("it is not empty");
            let (key, why) = match stray {
                false => (last, "the entry is missing"),
                true => ([&last[..], b"x"].concat(), "the entry has no row in the table"),
            };
            write(&store, |_, tx| if stray { tx.put(&ks, &key, b"") } else { tx.delete(&ks, &key) }.unwrap());
            let (conditions, text) = failed(&store);
            assert_eq!(conditions, [Condition::Index].into(), "{text}");
            assert!(text.contains(name) && text.contains(why), "{text}");
        }
    }
    let plain = loaded(Scale::tiny(1));
    assert!(plain.find_keyspace("order_line_by_stock").unwrap().is_none(), "a scale without them has none");
}

#[test]
fn a_row_written_by_hand_fails_a_condition_and_never_panics() {
    let names = [
        "warehouse",
        "district",
        "customer",
        "customer_by_name",
        "history",
        "order",
        "order_by_customer",
        "new_order",
        "order_line",
        "item",
        "stock",
    ];
    for name in names {
        for value in [&b"hello"[..], b"", &[0xff; 700]] {
            let store = loaded(Scale::tiny(1));
            let ks = store.keyspace(name).unwrap();
            let mut first = None;
            transact(&*store, TxMode::ReadOnly, Durability::Sync, |tx| {
                tx.scan(&ks, KeyRange::ALL, Direction::Forward, |k, v| {
                    first = Some((k.to_vec(), v.to_vec()));
                    ControlFlow::Break(())
                })?;
                Ok(((), End::Commit))
            })
            .unwrap();
            let (key, old) = first.unwrap();
            let garbled: Vec<u8> = vec![0xff; old.len()];
            for value in [value, &garbled] {
                if value == old {
                    continue;
                }
                write(&store, |_, tx| tx.put(&ks, &key, value).unwrap());
                let (conditions, text) = failed(&store);
                assert!(!conditions.is_empty(), "{name}: {text}");
                assert!(text.contains(" fails ("), "{name}: {text}");
            }
            // A run over such data ends with an error or not at all, but does not panic.
            let workload = Arc::new(Tpcc::new(&*store, Options::default()).unwrap());
            let until = Until::Transactions(50);
            let _ = run(&store, &workload, &RunOptions { threads: 1, until, ..RunOptions::default() }, |_| {});
        }
        for key in [&b""[..], b"x", b"a key by hand", &[0xff; 40]] {
            let store = loaded(Scale::tiny(1));
            let ks = store.keyspace(name).unwrap();
            write(&store, |_, tx| tx.put(&ks, key, b"").unwrap());
            let (conditions, text) = failed(&store);
            assert!(!conditions.is_empty(), "a stray key in {name} is noticed: {text}");
        }
    }
}

#[test]
fn the_run_constant_keeps_its_distance_from_the_load_constant() {
    let mut rng = varve_rt::Rng::from_seed(5);
    for _ in 0..2000 {
        let load = NuRandC::for_load(&mut rng);
        let delta = NuRandC::for_run(&load, &mut rng).last.abs_diff(load.last);
        assert!((65..=119).contains(&delta) && delta != 96 && delta != 112, "{delta}");
    }
}

#[test]
fn the_result_has_its_keys_and_a_table() {
    let store = loaded(Scale::tiny(1));
    let workload = Arc::new(Tpcc::new(&*store, Options::default()).unwrap());
    let time = Duration::from_millis(200);
    let interval = Duration::from_millis(20);
    let warmup = Duration::from_millis(20);
    let options = RunOptions { threads: 2, warmup, until: Until::Time(time), interval, rate: None };
    let mut intervals = 0;
    let result = run(&store, &workload, &options, |_| intervals += 1).unwrap();
    assert!(intervals >= 2);
    let json = result.to_json();
    let keys = "workload tpmc threads seconds p50_us p99_us p999_us hit_ratio device_reads device_writes bytes_written \
                peak_rss_mb consistent";
    for key in keys.split_whitespace() {
        assert!(json.get(key).is_some(), "{key} is missing from {json}");
    }
    let table = result.to_table();
    for part in ["new_order", "p99.9 ms", "tpmC", "hit ratio", "fsyncs", "stalls"] {
        assert!(table.contains(part), "{part} is missing from\n{table}");
    }
}
