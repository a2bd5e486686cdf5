//! Blocks against a sorted list.

use super::*;
use crate::lsm::samples::{Row, entries};
use varve_rt::Rng;

fn built(rows: &[Row]) -> Vec<u8> {
    let mut builder = BlockBuilder::default();
    for row in rows {
        let expected = builder.len_with(&row.entry());
        builder.add(&row.entry());
        assert_eq!(builder.len(), expected, "the length is known beforehand");
    }
    let expected = builder.len();
    let bytes = builder.finish().to_vec();
    assert_eq!(bytes.len(), expected);
    bytes
}

#[test]
fn every_entry_is_found_and_nothing_else() {
    let mut rng = Rng::from_seed(7);
    for _ in 0..60 {
        let rows = entries(&mut rng, 90);
        let bytes = built(&rows);
        let block = Block::parse(&bytes).expect("a block");
        block.validate().expect("sound");
        for _ in 0..200 {
            let key = rows[rng.below(rows.len() as u64) as usize].key.clone();
            let key = if rng.one_in(2) { key } else { [&key[..], b"x"].concat() };
            let as_of = rng.below(60);
            let found = rows.iter().find(|row| row.key == key && row.commit <= as_of);
            let expected = match found {
                Some(row) => Look::Found(row.entry()),
                None if rows.iter().any(|row| row.key > key) => Look::Absent,
                None => Look::Past,
            };
            assert_eq!(block.find(&key, as_of).expect("sound"), expected);
            let mut place = Place::default();
            place.seek(&block, &key, as_of).expect("sound");
            let first = rows.iter().find(|row| order((&row.key, row.commit), (&key, as_of)).is_ge());
            assert_eq!(place.is_valid().then(|| place.entry(&block)), first.map(Row::entry));
        }
    }
}

#[test]
fn a_walk_goes_both_ways() {
    let mut rng = Rng::from_seed(8);
    for n in [1, 2, 15, 16, 17, 33, 100] {
        let rows = entries(&mut rng, n);
        let bytes = built(&rows);
        let block = Block::parse(&bytes).expect("a block");
        let mut place = Place::default();
        place.first(&block).expect("sound");
        for row in &rows {
            assert_eq!(place.entry(&block), row.entry());
            place.next(&block).expect("sound");
        }
        assert!(!place.is_valid());
        place.last(&block).expect("sound");
        for row in rows.iter().rev() {
            assert_eq!(place.entry(&block), row.entry());
            place.prev(&block).expect("sound");
        }
        assert!(!place.is_valid());
    }
}

#[test]
fn a_walk_turns_round_anywhere() {
    let mut rng = Rng::from_seed(10);
    for _ in 0..60 {
        let rows = entries(&mut rng, 90);
        let bytes = built(&rows);
        let block = Block::parse(&bytes).expect("a block");
        let mut place = Place::default();
        place.first(&block).expect("sound");
        let mut at = 0;
        for _ in 0..400 {
            assert_eq!(place.entry(&block), rows[at].entry());
            match rng.below(12) {
                0 => {
                    at = rng.below(rows.len() as u64) as usize;
                    place.seek(&block, &rows[at].key, rows[at].commit).expect("sound");
                }
                1 => {
                    at = rows.len() - 1;
                    place.last(&block).expect("sound");
                }
                2..=5 if at + 1 < rows.len() => {
                    at += 1;
                    place.next(&block).expect("sound");
                }
                _ if at > 0 => {
                    at -= 1;
                    place.prev(&block).expect("sound");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn bytes_that_are_no_block_are_refused_without_a_panic() {
    let mut rng = Rng::from_seed(9);
    let rows = entries(&mut rng, 60);
    let sound = built(&rows);
    let mut refused = 0;
    for n in 0..8 * sound.len() {
        let mut bytes = sound.clone();
        bytes[n / 8] ^= 1 << (n % 8);
        let Ok(block) = Block::parse(&bytes) else {
            refused += 1;
            continue;
        };
        refused += u32::from(block.validate().is_err());
        look_around(&block, &rows[n % rows.len()].key);
    }
    assert!(refused > sound.len() as u32, "not only values were hit: {refused}");
    assert!(Block::parse(&[]).is_err() && Block::parse(&[0; 12]).is_err());
}

/// Whatever it says, it comes to an end and does not panic.
fn look_around(block: &Block<'_>, key: &[u8]) {
    let _ = block.find(key, 30);
    let mut place = Place::default();
    let _ = place.seek(block, key, 30);
    for back in [false, true] {
        let start = if back { place.last(block) } else { place.first(block) };
        let mut steps = start.map(|()| 0);
        while let Ok(n) = steps
            && place.is_valid()
        {
            assert!(n <= block.bytes.len(), "a walk has an end");
            place.entry(block);
            let step = if back { place.prev(block) } else { place.next(block) };
            steps = step.map(|()| n + 1);
        }
    }
}
