//! Long values that were replaced while a snapshot was open: they stay where they are until the snapshot needs them no
//! longer.

use std::io::Write;
use varve::{Db, Devices, Durability, Error, Keyspace, Layout, Options, Snapshot};
use varve_models::MemDevice;
use varve_rt::{Rng, sim, spawn};

const LONG: usize = 1 << 20;

fn database() -> (Db, Keyspace) {
    let layout = Layout { page_size: 4096, log_bytes: 8 << 20, ..Layout::default() };
    let durability = Durability::None;
    let options = Options { cache_bytes: 8 << 20, durability, snapshot_disk_bytes: Some(0), ..Options::default() };
    let db = Db::create_on(Devices::new(MemDevice::new(0), MemDevice::new(0)), &layout, options).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    (db, rows)
}

/// Does something when the first piece of a value arrives.
struct Meanwhile<F: FnMut()> {
    value: Vec<u8>,
    first: F,
}

impl<F: FnMut()> Write for Meanwhile<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.value.is_empty() {
            (self.first)();
        }
        self.value.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes values of many pages, which take the lowest that are free.
fn use_free_pages(rows: &Keyspace) {
    (0..8u8).for_each(|n| rows.put(&[b'n', n], &vec![n; LONG / 8]).unwrap());
}

/// Replaces small values until some snapshot has lost its old ones.
fn overwrite_until_one_is_too_old(db: &Db, rows: &Keyspace) {
    for n in 0u32.. {
        if db.stats().txn.snapshots_evicted > 0 {
            return;
        }
        rows.put(&n.to_be_bytes(), &[1; 500]).unwrap();
    }
}

fn read(snapshot: &Snapshot, rows: &Keyspace, meanwhile: impl FnMut()) -> Result<Vec<u8>, Error> {
    let mut to = Meanwhile { value: Vec::new(), first: meanwhile };
    snapshot.get_to(rows, b"long", &mut to).map(|_| to.value)
}

#[test]
fn a_long_value_that_is_replaced_while_it_is_read_is_read_to_its_end() {
    let (db, rows) = database();
    rows.put_from(b"long", &mut &vec![1; LONG][..]).unwrap();
    let snapshot = db.snapshot().unwrap();
    let value = read(&snapshot, &rows, || {
        rows.put_from(b"long", &mut &vec![2; LONG / 2][..]).unwrap();
        use_free_pages(&rows);
    });
    assert!(value.unwrap() == vec![1; LONG]);
    let value = read(&snapshot, &rows, || assert!(rows.delete(b"long").unwrap()));
    assert!(value.unwrap() == vec![1; LONG]);
    assert_eq!(rows.get(b"long").unwrap(), None);
    drop(snapshot);
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

#[test]
fn a_snapshot_that_lost_its_old_values_shows_nothing_of_what_took_their_pages() {
    let (db, rows) = database();
    rows.put_from(b"long", &mut &vec![1; LONG][..]).unwrap();
    let snapshot = db.snapshot().unwrap();
    let value = read(&snapshot, &rows, || {
        assert!(rows.delete(b"long").unwrap());
        overwrite_until_one_is_too_old(&db, &rows);
        use_free_pages(&rows);
    });
    assert!(matches!(value, Err(Error::SnapshotTooOld)), "{:?}", value.map(|v| v.len()));
    assert!(matches!(snapshot.get(&rows, b"long"), Err(Error::SnapshotTooOld)));
    drop(snapshot);
    assert!(db.check().unwrap().is_clean());
    db.close().unwrap();
}

/// Readers hold snapshots while a writer replaces, shortens and deletes values of all lengths: each snapshot sees one
/// state, to its end.
#[test]
fn snapshots_of_values_of_all_lengths_each_see_one_state() {
    for seed in 0..8 {
        sim::run(sim::Config { seed, chaos: true, ..sim::Config::default() }, move || {
            let (db, rows) = database();
            let write = |rng: &mut Rng, round: u8| {
                db.transact(|tx| {
                    for key in 0..6u8 {
                        // Every value of a state begins with its number.
                        let len = [1, 200, 5000, 70_000][rng.below(4) as usize];
                        match rng.below(3) {
                            0 => tx.put_from(&rows, &[key], &mut &vec![round; len][..]).map(drop)?,
                            _ => tx.put(&rows, &[key], &vec![round; len])?,
                        }
                    }
                    Ok(())
                })
                .unwrap();
            };
            let mut rng = Rng::from_seed(seed);
            write(&mut rng, 0);
            let readers: Vec<_> = (0..3)
                .map(|n| {
                    let (db, rows) = (db.clone(), rows.clone());
                    spawn(format!("reader {n}"), move || (0..6).for_each(|_| sees_one_state(&db, &rows)))
                })
                .collect();
            (1..12).for_each(|round| write(&mut rng, round));
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            assert!(db.check().unwrap().is_clean());
            let versions = db.stats().budget.iter().find(|c| c.class.name() == "versions").unwrap().used;
            assert_eq!(versions, 0, "seed {seed}: what is charged when no snapshot is open");
            db.close().unwrap();
        })
        .unwrap();
    }
}

fn sees_one_state(db: &Db, rows: &Keyspace) {
    let snapshot = db.snapshot().unwrap();
    let state: Vec<_> = snapshot.scan(rows, ..).unwrap().map(|row| row.unwrap()).collect();
    let round = state[0].1[0];
    assert_eq!((state.len(), snapshot.count(rows, ..).unwrap()), (6, 6));
    for (key, value) in &state {
        assert!(value.iter().all(|b| *b == round), "key {key:?} is not of round {round}");
        assert!(snapshot.get(rows, key).unwrap().as_ref() == Some(value));
        let mut copy = Vec::new();
        assert_eq!(snapshot.get_to(rows, key, &mut copy).unwrap(), Some(value.len() as u64));
        assert!(copy == *value);
    }
}
