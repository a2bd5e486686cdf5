//! Fetching metrics from a process that serves them.

use super::Address;
use crate::output::Failure;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read, bytes.
const MOST: u64 = 16 << 20;

/// How long advice may take.
const THINKING: Duration = Duration::from_secs(120);

/// The metrics at `address`, as text.
pub fn fetch(address: &Address) -> Result<String, Failure> {
    let (status, body) = get(address, "/metrics", PATIENCE)?;
    match status.as_str() {
        "200" => Ok(body),
        _ => Err(Failure::Failed(format!("{address}: no metrics there, it answers with status {status}"))),
    }
}

/// The advice for the database that is served at `address`; `query`: what is asked.
pub fn advice(address: &Address, query: &str) -> Result<String, Failure> {
    let (status, body) = get(address, &format!("/advise?{query}"), THINKING)?;
    match status.as_str() {
        "200" => Ok(body),
        "400" => Err(Failure::Failed(body.trim_end().to_string())),
        _ => Err(Failure::Failed(format!("{address}: no advice there, it answers with status {status}"))),
    }
}

/// Status and body of what is at a path.
fn get(address: &Address, path: &str, patience: Duration) -> Result<(String, String), Failure> {
    let failed = |what: String| Failure::Failed(format!("{address}: {what}"));
    let mut stream = connect(address)?;
    let mut answer = String::new();
    let mut exchange = |stream: &mut TcpStream| -> std::io::Result<()> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // HTTP/1.0: the answer comes in one piece and ends with the connection.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: text/plain\r\n\r\n", address.0)?;
        stream.take(MOST).read_to_string(&mut answer).map(drop)
    };
    exchange(&mut stream).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => failed(format!("no answer within {} s", patience.as_secs())),
        _ => failed(format!("the answer cannot be read: {e}")),
    })?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| failed("what answers does not speak HTTP".into()))?;
    let status = head.lines().next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    Ok((status.to_string(), body.to_string()))
}

fn connect(address: &Address) -> Result<TcpStream, Failure> {
    let resolved = address.0.to_socket_addrs();
    let places = resolved.map_err(|e| Failure::Failed(format!("{address}: {e}: look at the name of the host")))?;
    let mut last = None;
    for place in places {
        match TcpStream::connect_timeout(&place, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = Some(e),
        }
    }
    let why = last.map_or_else(|| "the host has no address".into(), |e| e.to_string());
    Err(Failure::Failed(format!(
        "no process serves metrics at {address} ({why}); `varve bench --metrics HOST:PORT` does, and programs that render `Stats::prometheus`"
    )))
}
