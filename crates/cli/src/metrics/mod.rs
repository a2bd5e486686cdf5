//! Metrics outside of the process: served over HTTP, fetched from where they are served, and compared over time.

pub mod endpoint;
pub mod interval;
pub mod remote;
pub mod scrape;
pub mod worker;

use crate::closing::Closing;
use crate::output::Failure;
use scrape::Scrape;
use std::fmt;
use std::str::FromStr;

/// Where metrics are served: a host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

impl FromStr for Address {
    type Err = String;

    /// `HOST:PORT`, or that as `http://HOST:PORT` with or without the path.
    fn from_str(text: &str) -> Result<Address, String> {
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let host = rest.strip_suffix('/').unwrap_or(rest);
        let host = host.strip_suffix("/metrics").unwrap_or(host);
        let whole = host.rsplit_once(':').filter(|(name, port)| {
            let named = !name.is_empty() && !name.contains(['/', ' ']);
            let bare = !name.contains(':') || name.starts_with('[') && name.ends_with(']');
            named && bare && port.parse::<u16>().is_ok()
        });
        match whole {
            Some(_) => Ok(Address(host.into())),
            None => Err(format!("{text:?} is no address: give HOST:PORT, as in 127.0.0.1:9184")),
        }
    }
}

impl Address {
    /// `HOST:PORT`.
    pub fn host(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}/metrics", self.0)
    }
}

/// Where metrics come from: a database of this process, or another process.
pub enum Source {
    Own(Box<Closing>),
    Remote(Address),
}

impl Source {
    /// The metrics as text.
    pub fn text(&self) -> Result<String, Failure> {
        match self {
            Source::Own(db) => Ok(db.stats().prometheus()),
            Source::Remote(address) => remote::fetch(address),
        }
    }

    /// The metrics as they are now.
    pub fn scrape(&self) -> Result<Scrape, Failure> {
        let text = self.text()?;
        Scrape::parse(&text).map_err(|e| match self {
            Source::Own(_) => Failure::Failed(format!("the database's metrics cannot be read: {e}")),
            Source::Remote(address) => {
                Failure::Failed(format!("{address} answers, but not with metrics of Varve: {e}"))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for text in ["127.0.0.1:80", "http://127.0.0.1:80", "http://127.0.0.1:80/", "http://127.0.0.1:80/metrics"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), "http://127.0.0.1:80/metrics");
        }
        assert!("localhost:9184".parse::<Address>().is_ok() && "[::1]:9184".parse::<Address>().is_ok());
        for text in
            ["", "9184", ":9184", "localhost", "localhost:", "localhost:x", "a:70000", "::1", "https://a:1", "a/b:1"]
        {
            assert!(text.parse::<Address>().unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
