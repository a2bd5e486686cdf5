//! Trace formats: the published files hold what their keepers say, our format gives back what was put in, damage is an
//! error with a place, and no bytes whatever make a reader panic.

use std::path::{Path, PathBuf};
use varve::{Changed, Flush, KeyspaceId, PageId, TraceEvent};
use varve_lab::replay::{Objects, References, Shape};
use varve_lab::trace::compact::{About, Writer};
use varve_lab::trace::{CsvColumns, Format, ReadOptions, Reader, Record, Source, TraceError};
use varve_rt::Rng;
use varve_volume::WriteWhy;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces")
}

fn refs(file: &str, shape: &Shape) -> (References, Format) {
    let mut reader = Reader::open(&traces().join(file), &ReadOptions::default()).unwrap();
    (References::read(&mut reader, shape).unwrap(), reader.format())
}

fn all(bytes: &[u8], options: &ReadOptions) -> Result<Vec<Record>, TraceError> {
    let mut reader = Reader::of(Source::bytes("test", bytes.to_vec())?, options)?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        records.push(record);
    }
    Ok(records)
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
    all(bytes, &ReadOptions::default())
}

#[test]
fn published_traces_hold_what_their_keepers_say() {
    let (r, format) = refs("cloudPhysicsIO.vscsi.zst", &Shape::default());
    assert_eq!(format, Format::Vscsi1);
    assert_eq!((r.records, r.writes, r.len(), r.pages()), (113_872, 66_898, 1_053_519, 265_873));
    let seconds = r.span.map(|(first, last)| (last - first) as f64 / 1e9).unwrap();
    assert!((seconds - 7200.09).abs() < 0.01, "{seconds}");
    let starts = Shape { objects: Objects::Starts, ..Shape::default() };
    assert_eq!(refs("cloudPhysicsIO.vscsi.zst", &starts).0.len(), 113_872);
    let (r, format) = refs("arc-OLTP.lis.zst", &Shape::default());
    assert_eq!((format, r.records, r.len(), r.pages()), (Format::Lis, 914_145, 914_145, 186_880));
    // Pages of different devices are different pages; by number alone there are 13,179 and 46,141.
    let of_8k = Shape { page_size: 8192, ..Shape::default() };
    let (r, format) = refs("mqsim-tpcc-small.trace.zst", &of_8k);
    assert_eq!((format, r.records, r.pages()), (Format::Mqsim, 6_999, 13_216));
    assert!((1.0 - r.writes as f64 / r.records as f64 - 0.6259).abs() < 1e-4);
    let (r, format) = refs("mqsim-wsrch-small.trace.zst", &of_8k);
    assert_eq!((format, r.records, r.pages()), (Format::Mqsim, 24_783, 46_526));
}

#[test]
fn requests_are_cut_into_pages_from_the_start_sector() {
    let shape = Shape::default();
    // 4 KiB at the first sector of the partition; a request that straddles; one before the partition; an empty one.
    assert_eq!(shape.pages(63, 4096, 63), Some((0, 0)));
    assert_eq!(shape.pages(64, 4096, 63), Some((0, 1)));
    assert_eq!(shape.pages(0, 512, 63), Some((-8, -8)));
    assert_eq!(shape.pages(63, 0, 63), None);
    assert_eq!(shape.pages(100, 65536, 0), Some((12, 28)));
}

/// The bytes of a vscsi record of either version.
fn vscsi(version: u16, code: u16, bytes: u32, sector: u64, micros: u64) -> Vec<u8> {
    let mut b = Vec::new();
    if version == 1 {
        [7u32, bytes, 1].iter().for_each(|n| b.extend(n.to_le_bytes()));
        [code, version << 8].iter().for_each(|n| b.extend(n.to_le_bytes()));
    } else {
        [code, version << 8].iter().for_each(|n| b.extend(n.to_le_bytes()));
        [7u32, bytes, 1].iter().for_each(|n| b.extend(n.to_le_bytes()));
    }
    [sector, micros].iter().for_each(|n| b.extend(n.to_le_bytes()));
    if version == 2 {
        b.extend(99u64.to_le_bytes());
    }
    b
}

fn oracle_general(time: u32, id: u64) -> Vec<u8> {
    let mut b = time.to_le_bytes().to_vec();
    b.extend(id.to_le_bytes());
    b.extend(4096u32.to_le_bytes());
    b.extend((-1i64).to_le_bytes());
    b
}

#[test]
fn every_format_is_told_from_its_content() {
    let block = |time, write, device, sector, bytes| Record::Block { time, write, device, sector, bytes };
    let object = |time, write, id| Record::Object { time, write, id };
    for version in [1, 2] {
        let bytes = [vscsi(version, 0x28, 4096, 63, 5), vscsi(version, 0x2a, 512, 71, 9)].concat();
        let expected = vec![block(5000, false, 0, 63, 4096), block(9000, true, 0, 71, 512)];
        assert_eq!(read(&bytes).unwrap(), expected, "version {version}");
        // Compressed it is the same.
        assert_eq!(read(&zstd::bulk::compress(&bytes, 1).unwrap()).unwrap(), expected);
    }
    let bytes = [oracle_general(1, 77), oracle_general(2, u64::MAX)].concat();
    let s = 1_000_000_000;
    assert_eq!(read(&bytes).unwrap(), [object(Some(s), false, 77), object(Some(2 * s), false, u64::MAX)]);
    assert_eq!(read(b"# lis\n\n10 2 0 1\r\n").unwrap(), [Record::Run { first: 10, count: 2 }]);
    assert_eq!(read(b"1000 3 64 16 1\n").unwrap(), [block(1000, false, 3, 64, 8192)]);
    assert_eq!(read(b"0.5 3 64 16 0\n").unwrap(), [block(500_000, true, 3, 64, 8192)]);
    assert_eq!(read(b"5\n6\n").unwrap(), [object(None, false, 5), object(None, false, 6)]);
    assert_eq!(read(b"1.5,9,4096\n").unwrap(), [object(Some(1_500_000_000), false, 9)]);
    let named = b"version,time,op,size,lbn\n1,2,2a,512,400\n1,3,28,512,401\n";
    assert_eq!(read(named).unwrap(), [object(Some(2 * s), true, 400), object(Some(3 * s), false, 401)]);
    let csv: CsvColumns = "id=1,op=2,delimiter=;".parse().unwrap();
    let options = ReadOptions { format: Some(Format::Csv), csv };
    let records = all(b"key-a;get\nkey-b;set\nkey-a;get\n", &options).unwrap();
    assert_eq!(records[0], records[2]);
    assert!(matches!(records[1], Record::Object { write: true, .. }));
}

#[test]
fn damage_is_an_error_with_a_place() {
    let said = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    let two = [vscsi(1, 0x28, 4096, 63, 5), vscsi(1, 0x2a, 512, 71, 9)].concat();
    assert!(said(&two[..40]).contains("byte 32"), "{}", said(&two[..40]));
    assert!(said(b"1 1 0 0\n2 x 0 0\n").contains("line 2: \"x\""));
    assert!(said(b"1 1 0 0\n2 1 0\n").contains("line 2: 3 columns"));
    assert!(said(b"1 1 0 0\n2 99999999999 0 0\n").contains("line 2: a run of"));
    assert!(said(b"1000 3 64 16 1\n1000 3 64 16 7\n").contains("line 2: type 7"));
    assert!(said(b"1\n2\nthree\n").contains("line 3: \"three\" is no number"));
    let named = ReadOptions { format: Some(Format::Ids), ..ReadOptions::default() };
    assert_eq!(all(b"1\n2\nthree\n", &named).unwrap().len(), 3);
    assert!(said(b"").contains("empty"));
    assert!(said(b"no trace at all\n").contains("--format"));
    assert!(said(&[0xff; 100]).contains("--format"));
    let mut packed = zstd::bulk::compress(&two.repeat(100_000), 1).unwrap();
    let middle = packed.len() / 2;
    packed.truncate(middle);
    assert!(said(&packed).contains("byte "), "{}", said(&packed));
    let missing = Reader::open(Path::new("/nonexistent/trace"), &ReadOptions::default());
    assert!(missing.err().unwrap().to_string().contains("/nonexistent/trace"));
}

fn random_events(rng: &mut Rng, n: u64) -> Vec<(u64, TraceEvent)> {
    let mut time = 0;
    let event = |rng: &mut Rng| {
        let page = PageId(if rng.below(20) == 0 { rng.next_u64() } else { rng.below(5000) });
        match rng.below(8) {
            0 => TraceEvent::Create(page),
            1 => TraceEvent::Prefetch(page),
            2 => TraceEvent::Discard(page),
            3 => {
                let why =
                    [WriteWhy::Replacement, WriteWhy::Recoverability, WriteWhy::Checkpoint][rng.below(3) as usize];
                let net = rng.below(8192) as u32;
                let gross = (rng.below(4) > 0).then(|| net + rng.below(28) as u32);
                let changed = (rng.below(2) == 0).then_some(Changed { net, gross });
                let id = if rng.below(4) == 0 { u32::MAX } else { rng.next_u64() as u32 };
                let keyspace = (rng.below(4) > 0).then_some(KeyspaceId(id));
                let (new, whole) = (rng.below(2) == 0, rng.below(2) == 0);
                TraceEvent::Flush(Flush { page, why, keyspace, new, whole, changed })
            }
            4 => TraceEvent::Write(page),
            _ => TraceEvent::Read(page),
        }
    };
    (0..n)
        .map(|_| {
            time += rng.below(3000) * 1000;
            (time, event(rng))
        })
        .collect()
}

fn written(events: &[(u64, TraceEvent)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 8192).unwrap();
    events.iter().for_each(|(time, event)| writer.push(*time, *event).unwrap());
    writer.finish().unwrap()
}

#[test]
fn our_format_gives_back_what_was_put_in() {
    let mut rng = Rng::from_seed(5);
    for n in [0, 1, 1000, 32 << 10, 70_000] {
        let events = random_events(&mut rng, n);
        let bytes = written(&events);
        let back: Vec<Record> =
            events.iter().map(|(time, event)| Record::Pool { time: *time, event: *event }).collect();
        assert!(read(&bytes).unwrap() == back, "{n} events");
        let reader = Reader::of(Source::bytes("t", bytes).unwrap(), &ReadOptions::default()).unwrap();
        assert_eq!(reader.page_size(), Some(8192));
    }
}

/// A trace of the first version of our format, with these record bytes.
fn first_version(records: &[u8], count: u32) -> Vec<u8> {
    let sealed = |mut bytes: Vec<u8>| {
        let crc = crc32c::crc32c(&bytes).to_le_bytes();
        bytes.extend(crc);
        bytes
    };
    let header = [&b"VRVTRACE"[..], &[1, 0, 0, 0], &4096_u32.to_le_bytes(), &[0; 12]].concat();
    let block = |raw: &[u8], records: u32| {
        let body = if raw.is_empty() { Vec::new() } else { zstd::bulk::compress(raw, 3).unwrap() };
        let sizes = [body.len() as u32, raw.len() as u32, records].map(u32::to_le_bytes).concat();
        let sums = [&u64::from(count).to_le_bytes()[..], &crc32c::crc32c(&body).to_le_bytes()].concat();
        [sealed([&b"blk1"[..], &sizes, &sums].concat()), body].concat()
    };
    [sealed(header), block(records, count), block(&[], 0)].concat()
}

#[test]
fn the_first_version_of_our_format_is_read_and_has_no_keyspaces() {
    // A read of page 3, a flush of page 4 of which 200 bytes changed, and one of page 4 with no base.
    let records = [&[0, 6, 2][..], &[5 | 2 << 3 | 0x20, 2, 0, 200, 1], &[5, 0, 0]].concat();
    let bytes = first_version(&records, 3);
    let flush = |new, net: Option<u32>, why| {
        let changed = net.map(|net| Changed { net, gross: None });
        TraceEvent::Flush(Flush { page: PageId(4), why, keyspace: None, new, whole: false, changed })
    };
    let events = [
        TraceEvent::Read(PageId(3)),
        flush(false, Some(200), WriteWhy::Checkpoint),
        flush(true, None, WriteWhy::Replacement),
    ];
    let found: Vec<Record> = read(&bytes).unwrap();
    assert_eq!(found, events.map(|event| Record::Pool { time: 1000, event }));
    let reader = Reader::of(Source::bytes("t", bytes).unwrap(), &ReadOptions::default()).unwrap();
    assert_eq!((reader.version(), reader.page_size()), (Some(1), Some(4096)));
    // What only the second version has is no record of the first.
    assert!(read(&first_version(&[5 | 0x40, 0, 0], 1)).is_err());
}

#[test]
fn a_trace_tells_of_its_database() {
    let keyspaces = [(KeyspaceId(1), "stock".to_string()), (KeyspaceId(u32::MAX), String::new())];
    let about = About { pages: 70_000, keyspaces: keyspaces.into() };
    let mut writer = Writer::new(Vec::new(), 4096).unwrap();
    writer.push(5000, TraceEvent::Read(PageId(9))).unwrap();
    writer.about(&about).unwrap();
    let bytes = writer.finish().unwrap();
    let mut reader = Reader::of(Source::bytes("t", bytes.clone()).unwrap(), &ReadOptions::default()).unwrap();
    while reader.next_record().unwrap().is_some() {}
    assert_eq!(reader.about(), about);
    assert_eq!(read(&bytes).unwrap().len(), 1, "what it tells is no event");
}

/// A byte changed, lost or added anywhere is noticed: everything lies under a checksum.
#[test]
fn any_damage_to_our_format_is_noticed() {
    let mut rng = Rng::from_seed(6);
    let bytes = written(&random_events(&mut rng, 40_000));
    for _ in 0..400 {
        let mut damaged = bytes.clone();
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(3) {
            0 => damaged[at] ^= 1 << rng.below(8),
            1 => damaged.truncate(at),
            _ => damaged.insert(at, rng.next_u64() as u8),
        }
        // An inserted byte may repeat its neighbour.
        assert!(damaged == bytes || all(&damaged, &ours()).is_err(), "damage at byte {at} of {}", bytes.len());
    }
    let mut newer = bytes;
    newer[8] = 9;
    let crc = crc32c::crc32c(&newer[..28]).to_le_bytes();
    newer[28..32].copy_from_slice(&crc);
    assert!(matches!(read(&newer), Err(TraceError::Newer { found: 9, .. })));
}

fn ours() -> ReadOptions {
    ReadOptions { format: Some(Format::Varve), ..ReadOptions::default() }
}

/// Random bytes, and valid traces with random damage, in every format: records or an error, never a panic or an endless
/// loop.
#[test]
fn no_bytes_make_a_reader_panic() {
    let valid: Vec<Vec<u8>> = vec![
        (0..200).flat_map(|i| vscsi(1, 0x28, 4096, i * 8, i)).collect(),
        (0..200).flat_map(|i| vscsi(2, 0x2a, 4096, i * 8, i)).collect(),
        (0..200).flat_map(|i| oracle_general(i, i.into())).collect(),
        (0..200).flat_map(|i| format!("{i} 1 0 {i}\n").into_bytes()).collect(),
        (0..200).flat_map(|i| format!("{i} 0 {i} 8 1\n").into_bytes()).collect(),
        (0..200).flat_map(|i| format!("{i}.5,{i},8\n").into_bytes()).collect(),
        written(&random_events(&mut Rng::from_seed(1), 2000)),
    ];
    let seeds = match std::env::var("TRACE_SEED") {
        Ok(seed) => vec![seed.parse().expect("TRACE_SEED is a number")],
        Err(_) => (0..1500).collect(),
    };
    for seed in seeds {
        let mut rng = Rng::from_seed(seed);
        let mut bytes = if rng.below(4) == 0 {
            (0..rng.below(3000)).map(|_| rng.next_u64() as u8).collect()
        } else {
            valid[rng.below(valid.len() as u64) as usize].clone()
        };
        for _ in 0..rng.below(6) {
            if bytes.is_empty() {
                break;
            }
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => bytes.truncate(at),
                2 => drop(bytes.splice(at..at, *b"-99999999999999999999,")),
                _ => bytes.insert(at, rng.next_u64() as u8),
            }
        }
        if rng.below(8) == 0 {
            bytes = zstd::bulk::compress(&bytes, 1).unwrap();
        }
        let outcome = std::panic::catch_unwind(|| {
            let _ = read(&bytes);
            for name in Format::NAMES {
                let options = ReadOptions { format: Some(name.parse().unwrap()), ..ReadOptions::default() };
                let Ok(source) = Source::bytes("fuzz", bytes.clone()) else { continue };
                let Ok(mut reader) = Reader::of(source, &options) else { continue };
                let _ = References::read(&mut reader, &Shape { page_size: 1 << 20, ..Shape::default() });
            }
        });
        if let Err(panic) = outcome {
            eprintln!("TRACE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
