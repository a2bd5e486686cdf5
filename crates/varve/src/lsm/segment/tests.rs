//! Segments against sorted lists: what goes in comes out, by every way of asking; and every flipped bit is seen.

use super::*;
use crate::lsm::filter::hash;
use crate::lsm::part::{Codec, Location};
use crate::lsm::ranges::{Fragments, RangeDelete};
use crate::lsm::samples::{Memory, Row, entries};
use crate::lsm::{Entries, EntryKind, PageSource, SegmentMeta, order};
use std::sync::Arc;
use varve_rt::Rng;

fn options(rng: &mut Rng) -> SegmentOptions {
    let codec = Codec::ALL[rng.below(3) as usize].1;
    let (bits_per_key, prefix) = ([0, 10][rng.below(2) as usize], [0, 4][rng.below(2) as usize]);
    SegmentOptions { id: 5, block_bytes: [300, 1000, 4000][rng.below(3) as usize], codec, bits_per_key, prefix }
}

fn written(rows: &[Row], ranges: &Fragments, options: &SegmentOptions, usable: usize) -> (Memory, SegmentMeta) {
    let mut memory = Memory::new(usable);
    let mut writer = SegmentWriter::new(options.clone(), usable);
    rows.iter().for_each(|row| writer.add(&row.entry(), &mut memory).expect("memory"));
    writer.add_ranges(ranges);
    let meta = writer.finish(&mut memory).expect("memory");
    assert_eq!(meta.pages, memory.pages.len() as u64);
    (memory, meta)
}

fn opened(memory: Memory) -> (Arc<SegmentReader>, Arc<Memory>) {
    let reader = SegmentReader::open(&memory, 5, memory.pages.len() as u64).expect("a segment");
    (Arc::new(reader), Arc::new(memory))
}

fn drawn_ranges(rng: &mut Rng) -> Fragments {
    let one = |rng: &mut Rng| {
        let start = rng.below(100);
        let key = |n: u64| format!("key/{n:04}").into_bytes();
        RangeDelete { start: key(start), end: key(start + 1 + rng.below(50)), commit: rng.below(50) }
    };
    Fragments::new((0..rng.below(4)).map(|_| one(rng)).collect::<Vec<_>>())
}

#[test]
fn what_goes_in_comes_out() {
    let mut rng = Rng::from_seed(5);
    for round in 0..60 {
        let rows = entries(&mut rng, [1, 7, 200, 700][round % 4]);
        let (ranges, options) = (drawn_ranges(&mut rng), options(&mut rng));
        let usable = [500, 992, 4064][rng.below(3) as usize];
        let (memory, meta) = written(&rows, &ranges, &options, usable);
        let (reader, source) = opened(memory);
        reader.check(&*source).expect("sound");
        assert_eq!((&reader.footer().meta, reader.ranges()), (&meta, &ranges));
        let deletions = rows.iter().filter(|row| row.kind == EntryKind::Delete).count() as u64;
        assert_eq!((meta.entries, meta.deletions), (rows.len() as u64, deletions));
        assert!(rows.iter().all(|row| (meta.commits.0..=meta.commits.1).contains(&row.commit)));
        assert!(rows.iter().all(|row| *meta.smallest <= *row.key && *row.key <= *meta.largest));
        asked(&reader, &source, &rows, &mut rng);
        walked(&reader, &source, &rows, &mut rng);
    }
}

fn asked(reader: &SegmentReader, source: &Memory, rows: &[Row], rng: &mut Rng) {
    for _ in 0..100 {
        let row = &rows[rng.below(rows.len() as u64) as usize];
        let key = if rng.one_in(3) { [&row.key[..], b"+"].concat() } else { row.key.clone() };
        let as_of = rng.below(60);
        let expected = rows.iter().find(|row| row.key == key && row.commit <= as_of);
        let found = reader.find(source, &key, as_of, Row::of).expect("sound");
        assert_eq!(found.as_ref(), expected);
        let passes = reader.may_have(source, hash(&key)).expect("sound");
        assert!(passes || !rows.iter().any(|row| row.key == key), "the filter misses no key");
        let prefix = &key[..key.len().min(4)];
        let passes = reader.may_have_prefix(source, prefix).expect("sound");
        assert!(passes || !rows.iter().any(|row| row.key.starts_with(prefix)), "nor a beginning");
    }
}

fn walked(reader: &Arc<SegmentReader>, source: &Arc<Memory>, rows: &[Row], rng: &mut Rng) {
    let mut cursor = SegmentCursor::new(reader.clone(), source.clone());
    for _ in 0..60 {
        let row = &rows[rng.below(rows.len() as u64) as usize];
        let (key, commit) = (row.key.clone(), rng.below(60));
        let split = rows.partition_point(|row| order((&row.key, row.commit), (&key, commit)).is_lt());
        let (mut at, forward) = match rng.below(4) {
            0 => (Some(0), cursor.first()),
            1 => (Some(rows.len() - 1), cursor.last()),
            2 => (Some(split), cursor.seek(&key, commit)),
            _ => (split.checked_sub(1), cursor.seek_before(&key, commit)),
        };
        forward.expect("sound");
        for _ in 0..rng.below(40) {
            let expected = at.and_then(|at| rows.get(at));
            assert_eq!(cursor.entry().map(Row::of).as_ref(), expected);
            let Some(place) = at.filter(|at| *at < rows.len()) else { break };
            let back = rng.one_in(2);
            if back { cursor.prev() } else { cursor.next() }.expect("sound");
            at = if back { place.checked_sub(1) } else { Some(place + 1) };
        }
    }
}

#[test]
fn short_rows_take_a_page_a_block_and_long_ones_lose_little() {
    // Bytes of a value and of a page, bytes stored per byte at most, pages for a row.
    for (value, page, most, wanted) in [
        (100, 4096, 1.13, 1.0),
        (100, 8192, 1.1, 1.0),
        (1000, 4096, 1.08, 2.0),
        (1000, 8192, 1.15, 1.0),
        (5000, 4096, 1.05, 2.0),
    ] {
        let usable = page - 32;
        let options = SegmentOptions { id: 5, block_bytes: usable, codec: Codec::None, bits_per_key: 10, prefix: 0 };
        let row = |n: u64| {
            let key = format!("{n:016}").into_bytes();
            Row { key, commit: n, kind: EntryKind::Put, value: vec![n as u8; value] }
        };
        let rows: Vec<Row> = (0..2_000_000 / value as u64).map(row).collect();
        let (memory, meta) = written(&rows, &Fragments::default(), &options, usable);
        let stored = (meta.pages * page as u64) as f64 / meta.bytes as f64;
        let (reader, source) = opened(memory);
        source.seen.lock().clear();
        rows.iter().step_by(7).for_each(|row| {
            assert_eq!(reader.find(&*source, &row.key, 1 << 40, Row::of).expect("sound").as_ref(), Some(row));
        });
        let pages = source.seen.lock().len() as f64 / rows.iter().step_by(7).count() as f64 - 1.0;
        println!("{value} bytes, pages of {page}: {stored:.3} bytes stored per byte, {pages:.2} pages for a row");
        assert!(stored <= most && (pages - wanted).abs() < 0.05, "{value} in {page}: {stored}, {pages}");
    }
}

#[test]
fn a_flipped_bit_is_an_error_that_names_the_part() {
    let mut rng = Rng::from_seed(6);
    let rows = entries(&mut rng, 120);
    let ranges = Fragments::new([RangeDelete { start: b"a".to_vec(), end: b"z".to_vec(), commit: 9 }]);
    let mut named = std::collections::BTreeMap::new();
    for (_, codec) in Codec::ALL {
        let options = SegmentOptions { id: 5, block_bytes: 400, codec, bits_per_key: 10, prefix: 4 };
        let (sound, _) = written(&rows, &ranges, &options, 500);
        let bits = sound.pages.len() * 500 * 8;
        for bit in (0..bits).step_by(11) {
            let mut memory = Memory::new(500);
            memory.pages = sound.pages.clone();
            memory.pages[bit / 8 / 500][bit / 8 % 500] ^= 1 << (bit % 8);
            let error = SegmentReader::open(&memory, 5, memory.pages.len() as u64)
                .and_then(|reader| reader.check(&memory).map(|()| reader));
            let part = match error {
                Err(e) => named_part(&e.to_string()),
                Ok(reader) => {
                    same_as(Arc::new(reader), Arc::new(memory), &rows, &ranges);
                    "none: bytes between parts"
                }
            };
            *named.entry(part).or_insert(0) += 1;
        }
    }
    println!("{named:?}");
    assert_eq!(named.len(), 8, "every part was hit: {named:?}");
}

fn named_part(error: &str) -> &'static str {
    let parts =
        ["data block", "index block", "top of the index", "filter", "range deletions", "footer", "segment trailer"];
    assert!(error.contains("page ") && error.contains("keyspace 7"), "{error}");
    let part = parts.into_iter().find(|part| error.contains(part)).unwrap_or_else(|| panic!("no part in {error}"));
    assert!(part != "data block" || error.contains("(keys from \""), "{error}");
    part
}

fn same_as(reader: Arc<SegmentReader>, source: Arc<Memory>, rows: &[Row], ranges: &Fragments) {
    assert_eq!(reader.ranges(), ranges);
    let mut cursor = SegmentCursor::new(reader, source);
    cursor.first().expect("sound");
    for row in rows {
        assert_eq!(cursor.entry(), Some(row.entry()));
        cursor.next().expect("sound");
    }
    assert_eq!(cursor.entry(), None);
}

#[test]
fn another_segment_in_its_place_is_told() {
    let mut rng = Rng::from_seed(7);
    let options = SegmentOptions { id: 5, block_bytes: 400, codec: Codec::None, bits_per_key: 10, prefix: 0 };
    let old = written(&entries(&mut rng, 400), &Fragments::default(), &options, 500).0;
    let new = written(&entries(&mut rng, 400), &Fragments::default(), &options, 500).0;
    let pages = new.pages.len() as u64;
    let wrong = SegmentReader::open(&new, 6, pages).expect_err("another number").to_string();
    assert!(wrong.contains("it is of segment 5, not 6"), "{wrong}");
    assert!(SegmentReader::open(&new, 5, pages - 1).is_err() && SegmentReader::open(&new, 5, 0).is_err());
    // A page whose write was lost: the whole page is sound, but of a segment before.
    let reader = SegmentReader::open(&new, 5, pages).expect("sound");
    for page in 0..new.pages.len().min(old.pages.len()) {
        let mut mixed = Memory::new(500);
        mixed.pages = new.pages.clone();
        mixed.pages[page] = old.pages[page].clone();
        let found = reader.check(&mixed).is_err() || SegmentReader::open(&mixed, 5, pages).is_err();
        assert!(found, "page {page}");
        let key = b"key/0100";
        let sound = reader.find(&new, key, 60, Row::of).expect("sound");
        assert!(reader.find(&mixed, key, 60, Row::of).map_or(true, |found| found == sound), "page {page}");
    }
    let _ = new.usable();
}

/// Look-ups and walks trust the checksums of pages, which say nothing of a page that is whole and of another time.
#[test]
fn a_row_of_another_segment_is_never_shown() {
    let mut rng = Rng::from_seed(8);
    for (codec, block_bytes) in [(Codec::None, 1500), (Codec::None, 400), (Codec::Lz4, 1500)] {
        let options = SegmentOptions { id: 5, block_bytes, codec, bits_per_key: 10, prefix: 0 };
        let rows = entries(&mut rng, 300);
        let (new, meta) = written(&rows, &Fragments::default(), &options, 500);
        let old = written(&entries(&mut rng, 300), &Fragments::default(), &options, 500).0;
        let (reader, mut damaged) = (Arc::new(SegmentReader::open(&new, 5, meta.pages).expect("sound")), 0);
        for page in 0..new.pages.len().min(old.pages.len()) {
            let mut mixed = Memory::new(500);
            mixed.pages = new.pages.clone();
            mixed.pages[page] = old.pages[page].clone();
            let mixed = Arc::new(mixed);
            for row in rows.iter().step_by(7) {
                let found = reader.find(&*mixed, &row.key, row.commit, Row::of);
                assert!(found.is_err() || found.is_ok_and(|found| found.as_ref() == Some(row)), "page {page}");
            }
            let mut cursor = SegmentCursor::of_checked_pages(reader.clone(), mixed);
            for back in [false, true] {
                let mut moved = if back { cursor.last() } else { cursor.first() };
                let mut expected: Vec<&Row> = rows.iter().collect();
                while moved.is_ok()
                    && let Some(entry) = cursor.entry()
                {
                    let row = if back { expected.pop() } else { Some(expected.remove(0)) };
                    assert_eq!(Some(&Row::of(entry)), row, "page {page}");
                    moved = if back { cursor.prev() } else { cursor.next() };
                }
                damaged += usize::from(moved.is_err());
                assert!(moved.is_err() || expected.is_empty(), "page {page}");
            }
        }
        assert!(damaged > 10, "pages of blocks were exchanged: {damaged}");
    }
}

/// The end of a page may be of another segment when power fails. The trailers' own checksums are right then.
#[test]
fn a_page_torn_before_its_trailer_is_told() {
    let mut rng = Rng::from_seed(9);
    let drawn = |rng: &mut Rng| footer::trailer(Location { offset: rng.next_u64() as u32, len: 90, checksum: 7 }, 6);
    let page = |trailer: &[u8]| {
        let mut page = vec![0; 4096 - trailer.len()];
        page.extend_from_slice(trailer);
        varve_volume::page::seal(&mut page, varve_volume::PageId(5));
        page
    };
    let mut old = drawn(&mut rng);
    for _ in 0..100 {
        let new = drawn(&mut rng);
        let mut torn = page(&new);
        torn[4096 - new.len()..].copy_from_slice(&old);
        assert!(
            varve_volume::page::verify(&torn, varve_volume::PageId(5)).is_err(),
            "{old:?} after the page of {new:?}"
        );
        old = new;
    }
}

#[test]
fn trailers_of_version_1_are_read() {
    let place = Location { offset: 81_904, len: 84, checksum: 1_375_778_009 };
    let mut trailer = footer::trailer(place, 6);
    assert_eq!(footer::read_trailer(&trailer), Ok((place, 6)));
    trailer[8] = 1;
    assert!(footer::read_trailer(&trailer).is_err(), "its checksum is one of version 2");
    let crc = crc32c::crc32c(&trailer[..28]);
    trailer[28..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(footer::read_trailer(&trailer), Ok((place, 6)));
}

/// Its length on the page is right, what unpacks from it is shorter.
#[test]
fn a_filter_with_fewer_lines_than_it_should_have_is_damaged() {
    let mut rng = Rng::from_seed(8);
    let options = SegmentOptions { id: 5, block_bytes: 1000, codec: Codec::None, bits_per_key: 10, prefix: 0 };
    let (mut memory, _) = written(&entries(&mut rng, 200), &Fragments::default(), &options, 992);
    let footer = SegmentReader::open(&memory, 5, memory.pages.len() as u64).expect("a segment").footer().clone();
    let page = &mut memory.pages[footer.filter_at as usize / 992];
    let stored = u32::from_le_bytes(page[8..12].try_into().expect("four bytes")) as usize;
    // LZ4 of literals alone: a token, the rest of their number, they themselves.
    let literals = (15..stored).find(|n| 2 + (n - 15) / 255 + n == stored).expect("some number fits");
    page[5] = Codec::Lz4 as u8;
    page[12..16].copy_from_slice(&(literals as u32).to_le_bytes());
    page[16] = 0xf0;
    page[17..17 + (literals - 15) / 255].fill(0xff);
    page[17 + (literals - 15) / 255] = ((literals - 15) % 255) as u8;
    let (reader, source) = opened(memory);
    let asked: Vec<_> = (0..100u64).map(|n| reader.may_have(&*source, hash(&n.to_le_bytes()))).collect();
    let told = asked.iter().filter_map(|asked| asked.as_ref().err()).map(|e| e.to_string());
    assert!(told.clone().count() > 0 && told.clone().count() < 100, "the last line alone is not there: {asked:?}");
    assert!(told.clone().all(|e| e.contains("filter") && e.contains("fewer lines")), "{asked:?}");
}
