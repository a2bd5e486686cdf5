//! `varve worker`: a device and its merges for a database elsewhere, and how such a worker is.

use crate::args::worker::{KeyArgs, Worker, WorkerCommand};
use crate::keygen::keygen;
use crate::metrics::{endpoint::Endpoint, worker as text};
use crate::output::{Failure, Out, Stdout, about, bytes, complain, read_keys, say, table};
use serde_json::json;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve::{JobService, WorkerOptions};
use varve_device::{Device, FileDevice, Latched, Options as FileOptions};
use varve_rt::{Instant, Mutex, now};
use varve_wire::metrics::{self, Metrics};
use varve_wire::tcp::{Incoming, Listener, TcpConnector, address};
use varve_wire::{Handler, Keys, Limits, Op, Role, Session, SessionOptions};

/// Part of the memory that requests may take; merges have the rest.
const REQUESTS: u64 = 4;
/// How long a worker may take to answer `status`.
const SOON: Duration = Duration::from_secs(5);
/// Between two tries when the system has no connection left to give.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two complaints about connections.
const QUIET: Duration = Duration::from_secs(1);

pub fn run(out: Out, a: &Worker) -> Result<(), Failure> {
    match (&a.command, &a.listen, &a.data) {
        (Some(WorkerCommand::Status { address, keys }), _, _) => status(out, address, keys),
        (Some(WorkerCommand::Keygen { file }), _, _) => keygen(out, file),
        (None, Some(listen), Some(data)) => serve(out, a, listen, data),
        _ => Err(Failure::Usage("give --listen HOST:PORT and --data PATH".into())),
    }
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::Failed(e.to_string())
}

/// The file that a worker owns, locked for as long as the handle lives.
fn own(path: &Path) -> Result<(PathBuf, File), Failure> {
    let path = if path.is_dir() { path.join("worker.data") } else { path.to_path_buf() };
    let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = open.map_err(|e| about(&path, &e))?;
    let kind = file.metadata().map_err(|e| about(&path, &e))?.file_type();
    if !kind.is_file() && !std::os::unix::fs::FileTypeExt::is_block_device(&kind) {
        return Err(Failure::Failed(format!("{} is neither a file nor a block device", path.display())));
    }
    match file.try_lock() {
        Ok(()) => Ok((path, file)),
        Err(TryLockError::WouldBlock) => {
            let what = format!("{} is in use by another worker: stop that first", path.display());
            Err(Failure::Engine(varve::Error::InUse(what)))
        }
        Err(TryLockError::Error(e)) => Err(about(&path, &e)),
    }
}

/// The keys that were given.
fn keys(a: &KeyArgs) -> Result<Option<Arc<Keys>>, Failure> {
    a.files().as_ref().map(read_keys).transpose()
}

fn serve(out: Out, a: &Worker, listen: &str, data: &Path) -> Result<(), Failure> {
    let keys = keys(&a.keys)?;
    let address = address(listen, keys.is_some()).map_err(|e| Failure::Usage(e.to_string()))?;
    let (path, _lock) = own(data)?;
    let how = FileOptions { create: true, direct: !a.buffered, ..FileOptions::default() };
    let device = Latched::new(FileDevice::open(&path, how).map_err(failed)?);
    let memory = a.memory_mb << 20;
    let limits = Limits::within(memory / REQUESTS);
    let jobs = match usize::try_from(a.jobs).expect("at most 64") {
        0 => None,
        jobs => {
            let load = varve::this_machine();
            let options =
                WorkerOptions { jobs, memory: memory - limits.memory().min(memory / 2), ..WorkerOptions::default() };
            let merges = varve::Worker::start(device.clone(), WorkerOptions { load: Some(load), ..options })?;
            Some(JobService::new(merges) as Arc<dyn Handler>)
        }
    };
    let listener = Listener::bind(address, keys).map_err(|e| {
        let help = match e.kind() {
            std::io::ErrorKind::AddrInUse => "another process listens there: choose another port, or 0 for any",
            _ => "choose an address of this machine, as in 127.0.0.1:7070",
        };
        Failure::Failed(format!("cannot listen at {listen}: {e}; {help}"))
    })?;
    let worker = varve_wire::Worker::new(device.clone(), jobs, limits).map_err(failed)?;
    let at = listener.address()?;
    let watched = worker.clone();
    let endpoint = a.metrics.as_ref().map(|address| Endpoint::of(address, move || text::text(watched.metrics())));
    let metrics = endpoint.transpose()?.map(|endpoint| endpoint.url());
    if out.json {
        let data = path.display().to_string();
        say!("{}", json!({ "listen": at.to_string(), "data": data, "bytes": device.len(), "metrics": metrics }))?;
    } else {
        let metrics = metrics.map(|url| format!("; metrics at {url}")).unwrap_or_default();
        say!("serves {} ({}) at {at}{metrics}", path.display(), bytes(device.len()))?;
    }
    std::io::Write::flush(&mut Stdout)?;
    let complaints = Arc::new(Complaints::default());
    loop {
        let incoming = match listener.accept() {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return Ok(()),
            Err(e) => {
                complaints.add(&e);
                varve_rt::sleep(PAUSE);
                continue;
            }
        };
        let (serves, about) = (worker.clone(), complaints.clone());
        // Without a thread the connection is dropped, and who connected tries again.
        if let Err(e) = varve_rt::try_spawn_daemon("connection", move || take(&serves, incoming, &about)) {
            complaints.add(&e);
        }
    }
}

/// Serves who connected, if it is who it should be.
fn take(worker: &varve_wire::Worker, incoming: Incoming, complaints: &Complaints) {
    let from = incoming.from();
    match incoming.establish() {
        Ok(connection) => worker.serve(connection),
        Err(e) => complaints.add(&format_args!("from {from}: {e}")),
    }
}

/// What is said about connections that were not taken: at most once in a while, since anybody can try.
#[derive(Default)]
struct Complaints(Mutex<(Option<Instant>, u64)>);

impl Complaints {
    fn add(&self, why: &dyn std::fmt::Display) {
        let unsaid = {
            let mut state = self.0.lock();
            if state.0.is_some_and(|last| last.elapsed() < QUIET) {
                state.1 += 1;
                return;
            }
            state.0 = Some(now());
            std::mem::take(&mut state.1)
        };
        let more = if unsaid > 0 { format!(" ({unsaid} more before)") } else { String::new() };
        complain(format_args!("varve: a connection was not taken: {why}{more}"));
    }
}

fn status(out: Out, address: &str, a: &KeyArgs) -> Result<(), Failure> {
    let connector = TcpConnector::new(address, keys(a)?).map_err(|e| Failure::Usage(e.to_string()))?;
    let options = SessionOptions { role: Role::Looker, answer: SOON, patience: SOON };
    let session = Session::open(connector, options).map_err(failed)?;
    let reply = session.request(Op::Metrics, &[], Some(SOON)).map_err(failed)?;
    let told = Metrics::decode(reply.body()).ok_or_else(|| failed("the worker answered what is no metrics message"))?;
    let facts = session.facts();
    let named = |flag: u8| metrics::NAMES.iter().find(|(f, _)| *f == flag).map(|(_, name)| *name);
    let numbers = told.0.iter().filter_map(|(flag, _)| Some((*flag, named(*flag)?, told.get(*flag)?)));
    if out.json {
        let mut object: serde_json::Map<_, _> = numbers.map(|(_, name, n)| (name.to_string(), json!(n))).collect();
        object.insert("device".into(), json!(facts.info.name.to_string()));
        object.insert("access".into(), json!(facts.info.access));
        object.insert("merges".into(), json!(facts.jobs));
        say!("{}", serde_json::Value::Object(object))?;
        return Ok(());
    }
    let mut rows = vec![
        ("device".to_string(), facts.info.name.to_string()),
        ("access".to_string(), facts.info.access.clone()),
        ("merges".to_string(), (if facts.jobs { "yes" } else { "no: it serves blocks only" }).into()),
    ];
    rows.extend(numbers.map(|(flag, name, n)| {
        let text = match flag {
            metrics::BOOT => format!("{n:016x}"),
            metrics::UPTIME_NS | metrics::CPU_NS => format!("{:.1} s", n as f64 / 1e9),
            _ if name.contains("bytes") || name.contains("memory") || flag == metrics::DEVICE_LEN => bytes(n),
            _ => n.to_string(),
        };
        (name.trim_end_matches("_ns").replace('_', " "), text)
    }));
    table(&mut Stdout, &rows)?;
    Ok(())
}
