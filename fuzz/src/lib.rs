//! What is fuzzed: every parser of bytes that come from a device or a file, as a function of arbitrary bytes. None may
//! panic, hang, or take memory that its input does not account for; what one accepts must be usable.
//!
//! The formats have checksums, which no mutation would ever meet: a driver puts them right first, so that what lies
//! behind them is reached; every other input is left as it is.
//!
//! A fuzzer that finds nothing may be one that never gets far. So with `canary` each driver takes one refusal, deep
//! within its format, for a crash, as if the check were missing in the parser; the fuzzer must find that.
//!
//! The targets of cargo-fuzz call these functions, and so does a test of the main workspace, which needs no nightly
//! compiler.

#[path = "../../crates/cli/src/rows.rs"]
mod rows;

use std::sync::Arc;
use varve::wal::{Log, LogConfig};
use varve_device::{AlignedBuf, Device, Latched, read_at, write_at};
use varve_lab::experiment;
use varve_lab::trace::compact::Writer;
use varve_lab::trace::{ReadOptions, Reader, Source, TraceError};
use varve_models::{MemDevice, Profile};
use varve_volume::tier::{Tier, TierOptions};
use varve_volume::{KeyspaceId, PageId, PageStore, PageUse, ReadWhy, Single, WriteWhy, page as header};

/// A parser under test.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Feeds it; with `canary` a deep refusal is a panic.
    pub run: fn(&[u8], bool),
    /// Valid inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "page", run: page, seeds: page_seeds },
    Target { name: "log_record", run: log_record, seeds: log_record_seeds },
    Target { name: "superblock", run: superblock, seeds: superblock_seeds },
    Target { name: "tier_map", run: tier_map, seeds: tier_map_seeds },
    Target { name: "trace", run: trace, seeds: trace_seeds },
    Target { name: "profile", run: profile, seeds: profile_seeds },
    Target { name: "experiment", run: experiment, seeds: experiment_seeds },
    Target { name: "lsm_block", run: lsm_block, seeds: lsm_block_seeds },
    Target { name: "lsm_index", run: lsm_index, seeds: lsm_index_seeds },
    Target { name: "lsm_footer", run: lsm_footer, seeds: lsm_footer_seeds },
    Target { name: "lsm_segment", run: lsm_segment, seeds: lsm_segment_seeds },
    Target { name: "lsm_list", run: lsm_list, seeds: lsm_list_seeds },
    Target { name: "near_message", run: near_message, seeds: near_message_seeds },
    Target { name: "wire", run: wire, seeds: wire_seeds },
    Target { name: "load", run: load, seeds: load_seeds },
];

const PAGE: usize = 4096;
const BLOCK: usize = 4096;

#[track_caller]
fn canary(on: bool, refused: bool) {
    assert!(!(on && refused), "canary: a refusal deep within the format");
}

/// A page of a tree, sealed: the node in it, every slot and cell.
pub fn page(data: &[u8], on: bool) {
    let mut bytes = vec![0; PAGE];
    let len = data.len().min(PAGE);
    bytes[..len].copy_from_slice(&data[..len]);
    header::seal(&mut bytes, PageId(7));
    header::verify(&bytes, PageId(7)).expect("what was sealed verifies");
    let verdict = varve::parsers::node(&bytes);
    canary(on, verdict == varve::parsers::Verdict::Unsound);
}

fn page_seeds() -> Vec<Vec<u8>> {
    varve::parsers::nodes(PAGE)
}

/// The body of a log group: its records, and their changes made to a page.
pub fn log_record(data: &[u8], on: bool) {
    let verdict = varve::parsers::log_body(data, PAGE);
    canary(on, verdict == varve::parsers::Verdict::Unsound);
}

fn log_record_seeds() -> Vec<Vec<u8>> {
    varve::parsers::log_bodies(PAGE)
}

/// Both superblocks of a log, their checksums put right.
pub fn superblock(data: &[u8], on: bool) {
    let device = MemDevice::new(0);
    device.set_len(4 << 20).expect("memory");
    let mut blocks = AlignedBuf::new(2 * BLOCK);
    let len = data.len().min(2 * BLOCK);
    blocks[..len].copy_from_slice(&data[..len]);
    for block in blocks.chunks_mut(BLOCK).filter(|block| block.iter().any(|b| *b != 0)) {
        let crc = crc32c::crc32c(&block[..BLOCK - 4]);
        block[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    write_at(&*device, 0, &blocks, false).expect("within the device");
    let opened = Log::open(device, LogConfig::default(), true);
    let deep = |e: varve::Error| {
        matches!(&e, varve::Error::Corrupt(_))
            && !["magic", "truncated"].iter().any(|word| e.to_string().contains(word))
    };
    canary(on, opened.err().is_some_and(deep));
}

fn superblock_seeds() -> Vec<Vec<u8>> {
    let device = MemDevice::new(0);
    let devices = varve::Devices::new(MemDevice::new(0), device.clone());
    let layout = varve::Layout { page_size: PAGE, log_bytes: 1 << 20, ..varve::Layout::default() };
    let db = varve::Db::create_on(devices, &layout, varve::Options::default().cache_mb(1)).expect("a database");
    db.close().expect("closed");
    let mut blocks = AlignedBuf::new(2 * BLOCK);
    read_at(&*device, 0, &mut blocks).expect("it has two superblocks");
    vec![blocks.to_vec()]
}

/// Bytes of the fast device that is fuzzed, and pages at home.
const FAST: u64 = 1 << 20;
const HOME: u64 = 64;

fn tier_devices() -> (Arc<Single>, Arc<MemDevice>) {
    let slow = MemDevice::new(0);
    slow.set_len(HOME * PAGE as u64).expect("memory");
    let fast = MemDevice::new(0);
    fast.set_len(FAST).expect("memory");
    (Single::new(slow, PAGE).expect("a store"), fast)
}

/// A fast device: `data` lies over the blocks of one that was in use; the checksums of the blocks touched are put
/// right.
pub fn tier_map(data: &[u8], on: bool) {
    let (home, fast) = tier_devices();
    let owner = [7; 16];
    let mut image = AlignedBuf::new(FAST as usize);
    let len = data.len().min(image.len());
    image[..len].copy_from_slice(&data[..len]);
    for block in image[..len.next_multiple_of(BLOCK).min(FAST as usize)].chunks_mut(BLOCK) {
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }
    write_at(&*fast, 0, &image, false).expect("within the device");
    let options = TierOptions::default();
    match Tier::open(home, fast, owner, options) {
        Ok(tier) => {
            let mut page = AlignedBuf::new(PAGE);
            for id in 0..HOME {
                let _ = varve_volume::read_pages(&tier, PageId(id), ReadWhy::Demand, &mut page);
            }
            // The seed's map names no page: the fuzzer made one that does.
            canary(on, tier.tier_stats().recovery.pages > 0);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

fn tier_map_seeds() -> Vec<Vec<u8>> {
    let (home, fast) = tier_devices();
    let tier = Tier::create(home, fast.clone(), [7; 16], TierOptions::default()).expect("a tier");
    for id in 0..12 {
        let mut bytes = AlignedBuf::new(PAGE);
        bytes[64..128].fill(id as u8 + 1);
        header::set_keyspace(&mut bytes, KeyspaceId(1));
        header::seal(&mut bytes, PageId(id));
        let how = (KeyspaceId(1), WriteWhy::Replacement, PageUse::default());
        varve_volume::write_pages(&tier, &[(PageId(id), &bytes)], how).expect("written");
    }
    tier.sync().expect("durable");
    tier.save_map().expect("a map");
    let mut image = AlignedBuf::new(FAST as usize);
    read_at(&*fast, 0, &mut image).expect("the whole device");
    // The tables are at the beginning; the slots behind them are not parsed.
    vec![image[..16 * BLOCK].to_vec()]
}

/// A trace of any format, told by its content; the checksums of our own are put right.
pub fn trace(data: &[u8], on: bool) {
    let mut bytes = data.to_vec();
    seal_trace(&mut bytes);
    let refused = read_trace(bytes).err().map(|e| e.to_string());
    canary(on, refused.is_some_and(|e| e.contains("record") || e.contains("line 2")));
}

fn read_trace(bytes: Vec<u8>) -> Result<u64, TraceError> {
    let mut reader = Reader::of(Source::bytes("fuzz", bytes)?, &ReadOptions::default())?;
    let mut records = 0;
    while reader.next_record()?.is_some() && records < 100_000 {
        records += 1;
    }
    Ok(records)
}

/// Puts the checksums of header and blocks right, as far as the lengths go.
fn seal_trace(bytes: &mut [u8]) {
    if !bytes.starts_with(b"VRVTRACE") {
        return;
    }
    let u32_at = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"));
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 32) {
        // A block's body follows its header; its checksum is in it.
        let stored = if at == 0 { 0 } else { u32_at(head, 4) as usize };
        let body = bytes.get(at + 32..at + 32 + stored).map(crc32c::crc32c);
        if let (Some(body), true) = (body, at > 0) {
            bytes[at + 24..at + 28].copy_from_slice(&body.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[at..at + 28]);
        bytes[at + 28..at + 32].copy_from_slice(&crc.to_le_bytes());
        at += 32 + stored;
    }
}

fn trace_seeds() -> Vec<Vec<u8>> {
    use varve::TraceEvent::{Create, Prefetch, Read, Write};
    let mut writer = Writer::new(Vec::new(), 4096).expect("memory");
    for n in 0..200u64 {
        let page = PageId(n * 7 % 31);
        let event = match n % 4 {
            0 => Read(page),
            1 => Write(page),
            2 => Create(page),
            _ => Prefetch(page),
        };
        writer.push(n * 10, event).expect("memory");
    }
    let own = writer.finish().expect("memory");
    let texts =
        ["1\n2\n3\n2\n", "10 4 0 1\n20 8 0 2\n", "time,id,size\n1,5,4096\n2,6,4096\n", "0 0 100 8 1\n1 0 200 8 0\n"];
    texts.iter().map(|text| text.as_bytes().to_vec()).chain([own]).collect()
}

/// A device profile; one that is accepted is written and read again as the same.
pub fn profile(data: &[u8], on: bool) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Profile::parse(text, "fuzz.toml") {
        Ok(profile) => {
            let text = profile.to_toml();
            let again = Profile::parse(&text, "again.toml").unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(again.to_toml(), text);
        }
        Err(e) => canary(on, e.to_string().contains("must") || e.to_string().contains("between")),
    }
}

fn profile_seeds() -> Vec<Vec<u8>> {
    let load = |name: &&str| Profile::load(name).expect("it comes with the program").to_toml().into_bytes();
    Profile::names().iter().map(load).collect()
}

/// An experiment, expanded to its points.
pub fn experiment(data: &[u8], on: bool) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for quick in [false, true] {
        let request = experiment::Request { quick, ..experiment::Request::default() };
        let read = experiment::read("fuzz", "fuzz.toml", text, request);
        canary(on, read.err().is_some_and(|e| e.to_string().contains("point ") || e.to_string().contains("give ")));
    }
}

fn experiment_seeds() -> Vec<Vec<u8>> {
    experiment::BUILT_IN.iter().map(|(_, text)| text.as_bytes().to_vec()).collect()
}

/// A block of an LSM segment: entries and restarts.
pub fn lsm_block(data: &[u8], on: bool) {
    canary(on, varve::parsers::block(data) == varve::parsers::Verdict::Unsound);
}

fn lsm_block_seeds() -> Vec<Vec<u8>> {
    varve::parsers::blocks()
}

/// An entry of a segment's index, and a part after it, as it is stored.
pub fn lsm_index(data: &[u8], on: bool) {
    canary(on, varve::parsers::location(data) == varve::parsers::Verdict::Unsound);
}

fn lsm_index_seeds() -> Vec<Vec<u8>> {
    varve::parsers::locations()
}

/// The footer of a segment.
pub fn lsm_footer(data: &[u8], on: bool) {
    canary(on, varve::parsers::footer(data) == varve::parsers::Verdict::Unsound);
}

fn lsm_footer_seeds() -> Vec<Vec<u8>> {
    varve::parsers::footers()
}

/// A row of the list of segments.
pub fn lsm_list(data: &[u8], on: bool) {
    canary(on, varve::parsers::listed(data) == varve::parsers::Verdict::Unsound);
}

fn lsm_list_seeds() -> Vec<Vec<u8>> {
    varve::parsers::lists()
}

/// A job for a worker near the data, or an answer: the body, under a right head; the first byte says which.
pub fn near_message(data: &[u8], on: bool) {
    let Some((which, body)) = data.split_first() else { return };
    let verdict = varve::parsers::near_message(which % 2 == 0, body);
    canary(on, verdict == varve::parsers::Verdict::Unsound);
}

fn near_message_seeds() -> Vec<Vec<u8>> {
    let seed = |(is_job, body): (bool, Vec<u8>)| [&[u8::from(!is_job)], &body[..]].concat();
    varve::parsers::near_messages().into_iter().map(seed).collect()
}

/// What has come over a connection, and what was sent.
struct Fed {
    comes: varve_rt::Mutex<Option<Vec<u8>>>,
    sent: varve_rt::Mutex<Vec<u8>>,
}

impl varve_wire::Connection for Fed {
    fn send(&self, bytes: &[u8]) -> std::io::Result<()> {
        self.sent.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn recv(&self, into: &mut Vec<u8>) -> std::io::Result<bool> {
        let comes = self.comes.lock().take().filter(|bytes| !bytes.is_empty());
        into.extend_from_slice(comes.as_deref().unwrap_or_default());
        Ok(comes.is_some())
    }

    fn close(&self) {}

    fn peer(&self) -> Arc<str> {
        "fuzz".into()
    }
}

/// Puts the checksums of frames right, as far as they are found.
fn seal_frames(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = bytes.get(at + 2..at + 6) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        let end = at + 8 + length;
        if bytes.len() < end + 4 {
            return;
        }
        let crc = crc32c::crc32c(&bytes[at..end]);
        bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
        at = end + 4;
    }
}

/// What comes over a connection, to a worker or, if the first byte is odd, to a host. Whatever it is, what a worker
/// answers are frames.
pub fn wire(data: &[u8], on: bool) {
    use varve_wire::{Client, Decoder, Limits, Role, WireError, Worker, metrics::Metrics};
    let Some((which, bytes)) = data.split_first() else { return };
    let (to_host, mut bytes) = (which % 2 == 1, bytes.to_vec());
    std::hint::black_box(Metrics::decode(&bytes));
    seal_frames(&mut bytes);
    let outcome = varve_rt::sim::run(varve_rt::sim::Config::default(), move || {
        let fed = Arc::new(Fed { comes: varve_rt::Mutex::new(Some(bytes)), sent: varve_rt::Mutex::default() });
        if to_host {
            let limit = std::time::Duration::from_secs(1);
            let said = Client::hello(fed.clone(), Role::Owner, 7, limit);
            return matches!(said, Err(WireError::Garbage { .. }));
        }
        let limits = Limits { threads: 1, ..Limits::default() };
        let worker = Worker::new(Latched::new(MemDevice::new(64 << 10)), None, limits).expect("a thread");
        worker.serve(fed.clone());
        worker.stop();
        let (mut decoder, mut malformed) = (Decoder::from_worker(), false);
        decoder.buffer().extend_from_slice(&fed.sent.lock());
        while let Some(frame) = decoder.next_frame().expect("a worker sends frames") {
            let refused = frame.flag & varve_wire::REFUSED != 0;
            malformed |= refused && frame.body().starts_with(&(varve_wire::Refusal::Malformed as u16).to_le_bytes());
        }
        malformed
    });
    canary(on, outcome.unwrap());
}

fn wire_seeds() -> Vec<Vec<u8>> {
    use varve_wire::{FROM_HOST, FROM_WORKER, Op, encode};
    let hello = |role: u8| [&[role][..], &9u64.to_le_bytes()].concat();
    let bodies = [
        (Op::Hello, hello(0)),
        (Op::SetLen, (128u64 << 10).to_le_bytes().to_vec()),
        (Op::Write, [&4096u64.to_le_bytes()[..], &[1], &[7; 4096]].concat()),
        (Op::Read, [&4096u64.to_le_bytes()[..], &4096u32.to_le_bytes()].concat()),
        (Op::Trim, [0u64, 4096].map(u64::to_le_bytes).concat()),
        (Op::Flush, Vec::new()),
        (Op::JobStart, vec![1; 40]),
        (Op::Metrics, Vec::new()),
    ];
    let frames = |bodies: &[(Op, Vec<u8>)]| {
        let frame = |(n, (op, body)): (usize, &(Op, Vec<u8>))| encode(*op as u16, FROM_HOST, 0, n as u64 + 1, &[body]);
        [vec![0], bodies.iter().enumerate().flat_map(frame).collect()].concat()
    };
    // A worker's hello, as `varve_wire::Facts` lays it out.
    let mut facts = [&3u64.to_le_bytes()[..], &256u32.to_le_bytes(), &[1], &(1u64 << 20).to_le_bytes(), &[2]].concat();
    for n in [4096u32, 512, 32] {
        facts.extend_from_slice(&n.to_le_bytes());
    }
    facts.extend_from_slice(&[1, 1]);
    facts.extend_from_slice(&0u64.to_le_bytes());
    for text in ["device", "memory", ""] {
        varve_wire::put_bytes(&mut facts, text.as_bytes());
    }
    let answer = [vec![1], encode(Op::Hello as u16, FROM_WORKER, 0, 1, &[&facts])].concat();
    vec![frames(&bodies), frames(&bodies[..1]), frames(&[(Op::Hello, hello(1)), bodies[7].clone()]), answer]
}

/// Usable bytes of a page of the segments that are fuzzed.
const SEGMENT_PAGE: usize = 480;

/// A whole segment: filter, range deletions and all. The checksum of the trailer is put right, and those of the parts
/// as far as they are found.
pub fn lsm_segment(data: &[u8], on: bool) {
    let mut bytes = data.to_vec();
    varve::parsers::seal_segment(&mut bytes, SEGMENT_PAGE);
    canary(on, varve::parsers::segment(&bytes, SEGMENT_PAGE) == varve::parsers::Verdict::Unsound);
}

fn lsm_segment_seeds() -> Vec<Vec<u8>> {
    varve::parsers::segments(SEGMENT_PAGE)
}

/// Rows for `varve load`, in both formats.
pub fn load(data: &[u8], on: bool) {
    // What is accepted is looked at, that is all.
    let keep = |row: rows::Row| {
        std::hint::black_box((row.keyspace, row.key, row.value));
        Ok::<(), rows::Bad>(())
    };
    let _ = (rows::csv(data, false, false, keep), rows::csv(data, true, true, keep));
    let refused = rows::jsonl(data, keep).err().map(|e| e.to_string());
    canary(on, refused.is_some_and(|e| e.contains("is not hexadecimal")));
}

fn load_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "{\"key\":\"a\",\"value\":\"1\"}\n{\"keyspace\":\"k\",\"key_hex\":\"00ff\",\"value_hex\":\"\"}\n",
        "a,1\nb,2\n",
        "key,value\n00ff,0a\n01,02\n",
        "{\"key\":12,\"value\":1.5}\n\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
