//! Arguments of `lab replay`, and of everything that reads traces.

use clap::Args;
use std::path::PathBuf;
use varve::{History, PolicyOptions};
use varve_lab::replay::{self, Objects, Shape};
use varve_lab::trace::{CsvColumns, Format, ReadOptions};

/// How a trace is read.
#[derive(Debug, Args, Clone)]
pub struct Input {
    /// Trace file, plain or zstd-compressed.
    pub trace: PathBuf,
    /// Its format, if the content does not tell: varve, lis, vscsi1, vscsi2, mqsim, disksim, csv, oracle-general, ids.
    #[arg(long)]
    pub format: Option<Format>,
    /// Columns of a csv trace, counted from 1, such as id=5,time=2,op=3,delimiter=tab; by default those that the first
    /// line names, or time, id.
    #[arg(long, value_name = "COLUMNS")]
    pub csv: Option<CsvColumns>,
    /// Of a block trace: each request's start, or the pages it covers.
    #[arg(long, default_value = "pages", value_name = "starts|pages")]
    pub objects: Objects,
    /// Bytes of a page of a block trace.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(512..=1 << 30))]
    pub trace_page_size: u32,
    /// Sector where page 0 begins; by default 63 for vscsi, else 0.
    #[arg(long, value_name = "SECTOR")]
    pub start_sector: Option<u64>,
}

impl Input {
    /// For the reader.
    pub fn read_options(&self) -> ReadOptions {
        ReadOptions { format: self.format, csv: self.csv.clone().unwrap_or_default() }
    }

    /// For cutting requests into pages.
    pub fn shape(&self) -> Shape {
        Shape { objects: self.objects, page_size: self.trace_page_size, start_sector: self.start_sector }
    }
}

/// A cache size: pages, or a share of the trace's distinct pages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    Pages(usize),
    Percent(f64),
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(s: &str) -> Result<Size, String> {
        let wrong = || format!("{s:?}: give pages, such as 1000, or a share of the trace's pages, such as 5%");
        match s.strip_suffix('%') {
            Some(share) => match share.parse::<f64>() {
                Ok(p) if p > 0.0 && p <= 1000.0 => Ok(Size::Percent(p)),
                _ => Err(wrong()),
            },
            None => s.parse().ok().filter(|n| *n > 0).map(Size::Pages).ok_or_else(wrong),
        }
    }
}

/// `lab replay`
#[derive(Debug, Args)]
pub struct Replay {
    #[command(flatten)]
    pub input: Input,
    /// Policies.
    #[arg(long, value_delimiter = ',', default_value = "lru,fifo,clock,sieve,s3-fifo,2q,arc,lirs,lru-2,belady")]
    pub policy: Vec<String>,
    /// Cache sizes: pages, or shares of the trace's pages with %.
    #[arg(long, value_delimiter = ',', default_value = "1%,2%,5%,10%,20%,40%")]
    pub sizes: Vec<Size>,
    /// Write the curve to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Points at once; 0 is one per core.
    #[arg(long, default_value_t = 0)]
    pub jobs: usize,
    /// lru-2: pages remembered after they left: full, resident (none), or how many per page of cache.
    #[arg(long, default_value = "full", value_parser = history)]
    pub lru2_history: History,
    /// lru-2: references after a page's last one that count as one with it.
    #[arg(long, default_value_t = 0)]
    pub lru2_correlated: u64,
    /// lirs: entries of the stack per page of cache, or unbounded.
    #[arg(long, default_value = "2", value_parser = stack)]
    pub lirs_stack: Stack,
    /// lirs: share of the cache for HIR pages, percent.
    #[arg(long, default_value_t = 1.0)]
    pub lirs_hir: f64,
    /// Seed of `random`.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Bound of the LIRS stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stack(pub Option<f64>);

fn history(s: &str) -> Result<History, String> {
    match (s, s.parse::<f64>()) {
        ("full", _) => Ok(History::Full),
        ("resident", _) => Ok(History::Resident),
        (_, Ok(n)) if n > 0.0 && n < 1e6 => Ok(History::PerSlot(n)),
        _ => Err("choose full, resident, or a number of pages per page of cache".into()),
    }
}

fn stack(s: &str) -> Result<Stack, String> {
    match (s, s.parse::<f64>()) {
        ("unbounded", _) => Ok(Stack(None)),
        (_, Ok(n)) if (1.0..1e6).contains(&n) => Ok(Stack(Some(n))),
        _ => Err("choose unbounded, or a number from 1".into()),
    }
}

impl Replay {
    /// Options of the policies.
    pub fn policy_options(&self) -> PolicyOptions {
        let mut options = replay::policy_options();
        options.lru2.history = self.lru2_history;
        options.lru2.correlated = self.lru2_correlated;
        options.lirs.stack = self.lirs_stack.0;
        options.lirs.hir_percent = self.lirs_hir.clamp(0.0, 100.0);
        options.seed = self.seed;
        options
    }
}
