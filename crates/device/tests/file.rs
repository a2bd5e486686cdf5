//! Real files: contents, batches from many threads, locks of directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_device::sys::{Portable, Syscalls, System};
use varve_device::*;
use varve_rt::Rng;

/// A fresh directory, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("varve-file-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn create() -> Options {
    Options { create: true, ..Options::default() }
}

/// A way to execute requests.
#[derive(Clone)]
struct Variant {
    options: Options,
    /// As on any Unix.
    portable: bool,
}

impl Variant {
    fn open(&self, path: impl AsRef<Path>) -> Arc<FileDevice> {
        let sys: Arc<dyn Syscalls> =
            if self.portable { Arc::new(Portable::default()) } else { Arc::new(System::default()) };
        FileDevice::open_with(path, self.options.clone(), sys).unwrap()
    }
}

/// The ways to execute requests that this machine has; all must behave alike.
fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for (direct, io_uring) in [(true, true), (true, false), (false, true), (false, false)] {
        for (prewrite, portable) in [(false, false), (false, true), (true, false), (true, true)] {
            let options = Options { direct, io_uring, prewrite, punch_holes: prewrite, ..create() };
            all.push(Variant { options, portable });
        }
    }
    all
}

#[test]
fn on_any_unix_a_batch_goes_to_threads_and_what_is_lacking_is_said() {
    let dir = Dir::new("portable");
    let system = Arc::new(Portable::default());
    let dev = FileDevice::open_with(dir.0.join("f"), create(), system.clone()).unwrap();
    dev.set_len(64 * 4096).unwrap();
    let data = AlignedBuf::copy_padded(&[7; 64 * 4096], 4096);
    // SAFETY: `data` outlives the ticket, which is waited for.
    let write = |i: usize| unsafe { Io::write(i as u64 * 4096, data.as_ptr().add(i * 4096), 4096, i == 63) };
    dev.submit((0..64).map(write).chain([Io::flush()]).collect()).wait_all().unwrap();
    assert!(system.threads() > 0, "nobody but the caller worked");
    // The durable write, which is two calls.
    let (info, stats) = (dev.info(), dev.stats());
    assert_eq!(
        (info.access.as_str(), stats.durable_writes, stats.write.count, stats.flush.count),
        ("cached, threads", 1, 64, 1)
    );
    let lacking = info.fallback.unwrap();
    assert!(
        lacking.contains("direct I/O") && lacking.contains("RWF_DSYNC") && lacking.contains("fallocate"),
        "{lacking}"
    );
    let mut back = AlignedBuf::new(64 * 4096);
    read_at(&*dev, 0, &mut back).unwrap();
    assert!(back[..] == data[..]);
}

#[test]
fn a_nameless_file_leaves_nothing_behind() {
    let dev = FileDevice::in_memory("nameless-test", Options::default()).unwrap();
    dev.set_len(8192).unwrap();
    let mut buf = AlignedBuf::copy_padded(&[5; 8192], 4096);
    write_at(&*dev, 0, &buf, true).unwrap();
    buf.clear();
    read_at(&*dev, 0, &mut buf).unwrap();
    assert!(buf.iter().all(|b| *b == 5));
    let names = std::fs::read_dir(std::env::temp_dir()).unwrap().map(|e| e.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().starts_with("varve-nameless-test")));
}

#[test]
fn files_grow_with_zeros_and_keep_their_bytes() {
    let dir = Dir::new("grow");
    for (i, mut variant) in variants().into_iter().enumerate() {
        let path = dir.0.join(i.to_string());
        let dev = variant.open(&path);
        assert_eq!(dev.len(), 0);
        dev.set_len(3 << 20).unwrap();
        let mut buf = AlignedBuf::copy_padded(&[1; 8192], 4096);
        read_at(&*dev, (3 << 20) - 8192, &mut buf).unwrap();
        assert!(buf.iter().all(|&b| b == 0));
        buf.fill(5);
        write_at(&*dev, 4096, &buf, true).unwrap();
        dev.set_len(8192).unwrap();
        dev.set_len(16384).unwrap();
        flush(&*dev).unwrap();
        drop(dev);

        assert_eq!(std::fs::metadata(&path).unwrap().len(), 16384);
        variant.options = Options { create: false, read_only: true, ..variant.options };
        let dev = variant.open(&path);
        assert_eq!(dev.len(), 16384);
        let mut all = AlignedBuf::new(16384);
        read_at(&*dev, 0, &mut all).unwrap();
        let sums: Vec<u32> = all.chunks(4096).map(|c| c.iter().map(|&b| u32::from(b)).sum()).collect();
        assert_eq!(sums, [0, 5 * 4096, 0, 0], "what was cut off reads as zeros when it comes back");
        let refused = write_at(&*dev, 0, &buf, false).unwrap_err();
        assert!(matches!(refused, DeviceError::ReadOnly { .. }), "{refused}");
        assert!(matches!(dev.set_len(0), Err(DeviceError::ReadOnly { .. })));
        assert!(matches!(read_at(&*dev, 16384, &mut buf), Err(DeviceError::OutOfRange { .. })));
    }
}

#[test]
fn bytes_past_the_last_whole_block_are_not_part_of_the_device() {
    let dir = Dir::new("tail");
    for prewrite in [false, true] {
        let path = dir.0.join(format!("{prewrite}"));
        std::fs::write(&path, vec![9; 4096 + 100]).unwrap();
        let dev = FileDevice::open(&path, Options { prewrite, ..Options::default() }).unwrap();
        assert_eq!(dev.len(), 4096);
        dev.set_len(8192).unwrap();
        let mut buf = AlignedBuf::new(8192);
        read_at(&*dev, 0, &mut buf).unwrap();
        assert!(buf[..4096].iter().all(|&b| b == 9) && buf[4096..].iter().all(|&b| b == 0));
    }
}

#[test]
fn trims_give_space_back_when_asked() {
    let dir = Dir::new("trim");
    let dev = FileDevice::open(dir.0.join("f"), Options { punch_holes: true, ..create() }).unwrap();
    dev.set_len(1 << 20).unwrap();
    write_at(&*dev, 0, &AlignedBuf::copy_padded(&[1; 8192], 4096), false).unwrap();
    dev.submit(vec![Io::trim(4096, 4096)]).wait_all().unwrap();
    let mut buf = AlignedBuf::new(8192);
    read_at(&*dev, 0, &mut buf).unwrap();
    assert!(buf[..4096].iter().all(|&b| b == 1));
    if dev.info().capabilities.trim {
        assert!(buf[4096..].iter().all(|&b| b == 0));
    }
    assert_eq!(dev.len(), 1 << 20);
}

#[test]
fn a_batch_larger_than_a_ring() {
    let dir = Dir::new("large");
    for (i, variant) in variants().into_iter().enumerate() {
        let dev = variant.open(dir.0.join(i.to_string()));
        dev.set_len(1000 * 4096).unwrap();
        let data: Vec<_> = (0..1000u64).map(|i| AlignedBuf::copy_padded(&i.to_le_bytes(), 4096)).collect();
        // SAFETY: the buffers outlive the ticket, which is waited for.
        let write =
            |(i, b): (usize, &AlignedBuf)| unsafe { Io::write(i as u64 * 4096, b.as_ptr(), 4096, i % 100 == 0) };
        dev.submit(data.iter().enumerate().map(write).collect()).wait_all().unwrap();
        let mut back: Vec<_> = (0..1000).map(|_| AlignedBuf::new(4096)).collect();
        // SAFETY: the buffers outlive the ticket, which is waited for.
        let read = |(i, b): (usize, &mut AlignedBuf)| unsafe { Io::read(i as u64 * 4096, b.as_mut_ptr(), 4096) };
        let mut ticket = dev.submit(back.iter_mut().enumerate().map(read).collect());
        for i in (0..1000).rev() {
            ticket.wait(i).unwrap();
            assert!(ticket.try_done(i));
        }
        drop(ticket);
        assert!(data.iter().zip(&back).all(|(a, b)| a[..] == b[..]));
        let stats = dev.stats();
        assert_eq!((stats.read.count, stats.write.count, stats.durable_writes), (1000, 1000, 10));
        assert_eq!(stats.read.bytes, 1000 * 4096);
    }
}

#[test]
fn refused_requests_leave_the_rest_of_the_batch_alone() {
    let dir = Dir::new("refused");
    let dev = FileDevice::open(dir.0.join("f"), create()).unwrap();
    dev.set_len(8192).unwrap();
    let buf = AlignedBuf::copy_padded(&[3; 4096], 4096);
    // SAFETY: `buf` outlives the ticket, which is waited for.
    let batch = unsafe {
        vec![
            Io::write(8192, buf.as_ptr(), 4096, false),
            Io::write(0, buf.as_ptr(), 4096, false),
            Io::write(100, buf.as_ptr(), 4096, false),
        ]
    };
    let mut ticket = dev.submit(batch);
    assert!(matches!(ticket.wait(0), Err(DeviceError::OutOfRange { .. })));
    assert_eq!(ticket.wait(1), Ok(()));
    assert!(matches!(ticket.wait(2), Err(DeviceError::Misaligned { .. })));
    assert!(matches!(ticket.wait(0), Err(DeviceError::OutOfRange { .. })), "again the same");
    assert!(matches!(
        FileDevice::open(dir.0.join("missing"), Options::default()),
        Err(DeviceError::Io { errno: 2, .. })
    ));
    assert!(FileDevice::open(&dir.0, Options::default()).is_err(), "a directory is no device");
}

/// Threads write and read back their own blocks, in batches with several tickets open, while one flushes.
#[test]
fn many_threads() {
    let dir = Dir::new("threads");
    for (io_uring, portable) in [(true, false), (false, false), (true, true)] {
        let variant = Variant { options: Options { io_uring, ..create() }, portable };
        let dev = variant.open(dir.0.join(format!("{io_uring} {portable}")));
        dev.set_len(8 * 64 * 4096).unwrap();
        let workers: Vec<_> = (0..8u64)
            .map(|t| {
                let dev = dev.clone();
                varve_rt::spawn(format!("worker {t}"), move || stress(&*dev, t))
            })
            .collect();
        let flusher = {
            let dev = dev.clone();
            varve_rt::spawn("flusher", move || (0..10).for_each(|_| flush(&*dev).unwrap()))
        };
        workers.into_iter().for_each(|w| w.join().unwrap());
        flusher.join().unwrap();
        assert_eq!(dev.stats().write.count, dev.stats().read.count);
        assert_eq!(dev.stats().read.errors, 0);
        let busy = dev.stats().busy.expect("files measure it");
        assert!(busy.in_flight == 0 && busy.nanos > 0, "{busy:?}");
    }
}

fn stress(dev: &dyn Device, thread: u64) {
    let mut rng = Rng::from_seed(thread);
    for round in 0..40u64 {
        let first = thread * 64 + rng.below(32);
        let count = 1 + rng.below(32);
        let fill = |i: u64| AlignedBuf::copy_padded(&[thread, round, i].map(u64::to_le_bytes).concat(), 4096);
        let data: Vec<_> = (0..count).map(fill).collect();
        let half = (count / 2) as usize;
        // SAFETY: the buffers outlive both tickets, which are waited for.
        let mut ios: Vec<_> = data
            .iter()
            .zip(first..)
            .map(|(b, at)| unsafe { Io::write(at * 4096, b.as_ptr(), 4096, round % 16 == 0) })
            .collect();
        let rest = ios.split_off(half);
        let (one, two) = (dev.submit(ios), dev.submit(rest));
        two.wait_all().unwrap();
        one.wait_all().unwrap();
        for (i, at) in (0..count).zip(first..) {
            let mut buf = AlignedBuf::new(4096);
            read_at(dev, at * 4096, &mut buf).unwrap();
            assert!(buf[..] == data[i as usize][..], "thread {thread}, round {round}, block {at}");
        }
    }
}

/// A ticket may be waited for by another thread than the one that submitted, even after that one has ended.
#[test]
fn tickets_move_between_threads() {
    let dir = Dir::new("move");
    let dev = FileDevice::open(dir.0.join("f"), create()).unwrap();
    dev.set_len(1 << 20).unwrap();
    for i in 0..50u64 {
        let submitter = {
            let dev = dev.clone();
            varve_rt::spawn("submitter", move || {
                let data = Box::new(AlignedBuf::copy_padded(&[i as u8; 65536], 4096));
                // SAFETY: `data` is handed over with the ticket and outlives it.
                let ticket = dev.submit(vec![unsafe { Io::write(0, data.as_ptr(), data.len(), true) }, Io::flush()]);
                (data, ticket)
            })
        };
        let (data, ticket) = submitter.join().unwrap();
        ticket.wait_all().unwrap();
        let mut back = AlignedBuf::new(65536);
        read_at(&*dev, 0, &mut back).unwrap();
        assert!(back[..] == data[..]);
    }
}

#[test]
fn a_directory_has_one_writer_or_many_readers() {
    let dir = Dir::new("lock");
    assert!(matches!(DirLock::shared(&dir.0), Err(DeviceError::Io { errno: 2, .. })), "readers create nothing");
    let writer = DirLock::exclusive(&dir.0).unwrap();
    let pid = Some(std::process::id());
    for second in [DirLock::exclusive(&dir.0), DirLock::shared(&dir.0)] {
        let error = second.unwrap_err();
        assert!(matches!(&error, DeviceError::Locked { pid: p, .. } if *p == pid), "{error}");
        assert!(error.to_string().contains(&format!("this process (pid {})", std::process::id())), "{error}");
    }
    drop(writer);
    let readers = [DirLock::shared(&dir.0).unwrap(), DirLock::shared(&dir.0).unwrap()];
    assert!(matches!(DirLock::exclusive(&dir.0), Err(DeviceError::Locked { .. })));
    drop(readers);
    DirLock::exclusive(&dir.0).unwrap();
}

/// What nobody made as a lock keeps its bytes.
#[test]
fn a_lock_that_is_something_else_is_refused_as_it_is() {
    let dir = Dir::new("lock3");
    let (lock, other) = (dir.0.join("lock"), dir.0.join("other"));
    std::fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink("other", &lock).unwrap();
    let refused = |what: &str| {
        for error in [DirLock::exclusive(&dir.0).unwrap_err(), DirLock::shared(&dir.0).unwrap_err()] {
            assert!(matches!(error, DeviceError::NoLock { .. }) && error.to_string().contains(what), "{error}");
        }
    };
    refused("is a link");
    std::fs::remove_file(&lock).unwrap();
    std::fs::hard_link(&other, &lock).unwrap();
    let error = DirLock::exclusive(&dir.0).unwrap_err();
    assert!(matches!(error, DeviceError::NoLock { .. }), "{error}");
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    // What a writer left, and a crash.
    for left in ["4711\n", "", "\0\0\0\0"] {
        std::fs::write(&lock, left).unwrap();
        for _ in 0..30 {
            DirLock::exclusive(&dir.0).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), format!("{}\n", std::process::id()));
    }
}

#[test]
fn a_lock_held_by_another_process_names_it() {
    let dir = Dir::new("lock2");
    drop(DirLock::exclusive(&dir.0).unwrap());
    // A process that holds the lock and has written its id as we do.
    let script = "echo $$ > lock; exec 9<>lock; flock -n 9 || exit 1; echo ready; read line";
    let child = std::process::Command::new("bash")
        .args(["-c", script])
        .current_dir(&dir.0)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return };
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    if line.trim() == "ready" {
        let error = DirLock::exclusive(&dir.0).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", child.id())), "{error}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    DirLock::exclusive(&dir.0).unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let dir = Dir::new("errors");
    let path = dir.0.join("f");
    let dev = FileDevice::open(&path, create()).unwrap();
    dev.set_len(8192).unwrap();
    // Somebody truncates the file behind our back.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let mut buf = AlignedBuf::new(8192);
    let error = read_at(&*dev, 0, &mut buf).unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
    // SAFETY: `buf` outlives the ticket, which is waited for.
    let error = dev.submit(vec![unsafe { Io::read(0, buf.as_mut_ptr(), 8192) }]).wait_all().unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
    let name: Arc<str> = "x".into();
    assert!(matches!(
        DeviceError::from_errno(OpKind::Write, &name, 0, 1, libc::EDQUOT),
        DeviceError::NoSpace { op: OpKind::Write, .. }
    ));
    assert!(!DeviceError::from_errno(OpKind::Flush, &name, 0, 0, libc::EINTR).is_retryable());
    assert!(DeviceError::from_errno(OpKind::Read, &name, 0, 0, libc::EAGAIN).is_retryable());
}
