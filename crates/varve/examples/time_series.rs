//! Measurements by sensor and time, in an LSM keyspace: written all the time, read by range, old ones removed.
//!
//! Run: `cargo run --release -p varve --example time_series`

use varve::{Db, Durability, Keyspace, KeyspaceKind, LsmOptions, Options, Result};

/// Sensor, then time: the measurements of a sensor lie together, in order.
fn key(sensor: u32, second: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&sensor.to_be_bytes());
    key[4..].copy_from_slice(&second.to_be_bytes());
    key
}

/// The mean of a sensor's measurements from one second to another, that one not included.
fn mean(series: &Keyspace, sensor: u32, from: u64, to: u64) -> Result<Option<f64>> {
    let (mut sum, mut n) = (0.0, 0u32);
    for row in series.range(&key(sensor, from)..&key(sensor, to))? {
        let (_, value) = row?;
        sum += f64::from_be_bytes(value.try_into().expect("values are numbers"));
        n += 1;
    }
    Ok((n > 0).then(|| sum / f64::from(n)))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("varve-time-series-{}", std::process::id()));
    let db = Db::open_or_create(&path, Options { durability: Durability::None, ..Options::default().cache_mb(32) })?;
    let series = db.keyspace_or_create_of("series", KeyspaceKind::Lsm(LsmOptions::default()))?;
    for minute in 0..60 {
        // A minute of three sensors is one commit.
        db.transact(|tx| {
            for second in 60 * minute..60 * minute + 60 {
                for sensor in 0..3 {
                    let celsius = 20.0 + f64::from(sensor) + second as f64 / 3600.0;
                    tx.put(&series, key(sensor, second), celsius.to_be_bytes())?;
                }
            }
            Ok(())
        })?;
    }
    db.sync()?;
    println!("sensor 1, second half hour: {:.2} degrees", mean(&series, 1, 1800, 3600)?.expect("it has measurements"));
    let (last, _) = series.range(&key(2, 0)..&key(3, 0))?.next_back().expect("it has rows")?;
    assert_eq!(last, key(2, 3599));

    // What is older than half an hour goes.
    for sensor in 0..3 {
        series.delete_range(&key(sensor, 0)..&key(sensor, 1800))?;
    }
    assert_eq!((series.len()?, mean(&series, 1, 0, 1800)?), (3 * 1800, None));
    drop(series);
    db.close()?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
