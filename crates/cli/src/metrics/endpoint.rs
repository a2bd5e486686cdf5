//! Serving metrics over HTTP, and a database's advice: `GET /metrics`, `GET /advise`, one connection after the other,
//! nothing kept between them.

use super::Address;
use crate::flash_advice;
use crate::output::Failure;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use varve::{Db, metrics};
use varve_rt::JoinHandle;

/// Longest request that is read, bytes.
const MOST: usize = 8192;
/// How long a client may take for its request, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is at a path, with its query: its kind and text; none: nothing.
type Pages = dyn Fn(&str, &str) -> Option<Result<(&'static str, String), Failure>> + Send;

const PLAIN: &str = "text/plain; charset=utf-8";

/// A running endpoint; [`Endpoint::stop`] ends it.
pub struct Endpoint {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Endpoint {
    /// Begins to serve the metrics of `db` at `address`; port 0 takes any that is free.
    pub fn start(address: &Address, db: &Db) -> Result<Endpoint, Failure> {
        let db = db.clone();
        let pages = move |path: &str, query: &str| {
            Some(match path {
                "/metrics" => Ok((metrics::CONTENT_TYPE, db.stats().prometheus())),
                "/advise" => flash_advice::of_running(&db, query).map(|text| (PLAIN, text)),
                "/" => Ok((PLAIN, "Varve. Metrics: /metrics; advice: /advise?flash=PROFILE\n".into())),
                _ => return None,
            })
        };
        Endpoint::serve(address, Box::new(pages))
    }

    /// The same of metrics alone, as text.
    pub fn of(address: &Address, text: impl Fn() -> String + Send + 'static) -> Result<Endpoint, Failure> {
        let pages = move |path: &str, _: &str| {
            Some(match path {
                "/metrics" => Ok((metrics::CONTENT_TYPE, text())),
                "/" => Ok((PLAIN, "Varve. Metrics: /metrics\n".into())),
                _ => return None,
            })
        };
        Endpoint::serve(address, Box::new(pages))
    }

    fn serve(address: &Address, pages: Box<Pages>) -> Result<Endpoint, Failure> {
        let refused = |e: std::io::Error| {
            let help = match e.kind() {
                std::io::ErrorKind::AddrInUse => "another process listens there: choose another port, or 0 for any",
                std::io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: choose a higher one",
                _ => "choose an address of this machine, as in 127.0.0.1:9184",
            };
            Failure::Failed(format!("metrics cannot be served at {address}: {e}; {help}"))
        };
        let listener = TcpListener::bind(&address.0).map_err(refused)?;
        let at = listener.local_addr().map_err(refused)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = varve_rt::spawn("metrics", move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                // A client that went away is not our concern.
                let _ = stream.and_then(|stream| answer(stream, &*pages));
            }
        });
        Ok(Endpoint { at, stop, thread })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.at)
    }

    /// Ends it; returns when nothing refers to the database any more.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        let mut at = self.at;
        if at.ip().is_unspecified() {
            at.set_ip(if at.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
        }
        // The thread that waits for a connection gets this one.
        if TcpStream::connect_timeout(&at, PATIENCE).is_ok() {
            let _ = self.thread.join();
        }
    }
}

/// Reads the request's head; none: it did not come whole in time.
fn head(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let began = varve_rt::now();
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    while !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = stream.read(&mut part)?;
        bytes.extend_from_slice(&part[..n]);
        if n == 0 || bytes.len() > MOST || began.elapsed() > PATIENCE {
            return Ok(None);
        }
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn answer(mut stream: TcpStream, pages: &Pages) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = head(&mut stream)?;
    let mut words = request.as_deref().unwrap_or_default().split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (status, kind, body) = match method {
        "GET" | "HEAD" => match pages(path, query) {
            Some(Ok((kind, text))) => ("200 OK", kind, text),
            Some(Err(e)) => ("400 Bad Request", PLAIN, format!("{e}\n")),
            None => ("404 Not Found", PLAIN, "nothing is here; what there is: /\n".into()),
        },
        "" => ("400 Bad Request", PLAIN, "no whole request came\n".into()),
        _ => ("405 Method Not Allowed", PLAIN, "only GET and HEAD\n".into()),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
    )?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}
