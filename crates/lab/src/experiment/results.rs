//! Result files: `DIR/NAME.jsonl` begins with a line about the experiment; each further line is a point's result, in
//! the order of the points. While a run goes on, finished points stand in `NAME.partial.jsonl`, in the order they
//! ended, so that a run that was cut short goes on where it was.

use super::document::{Experiment, Request};
use super::{ExperimentError, PointResult};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// First line of a result file: what is needed to repeat the run and to write its report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Name of the experiment.
    pub experiment: String,
    /// The scaled-down set.
    pub quick: bool,
    /// `--set` values.
    pub sets: Vec<(String, String)>,
    /// Commit of the program.
    pub commit: String,
    /// The experiment file.
    pub text: String,
}

impl Header {
    /// Of an experiment.
    pub fn of(e: &Experiment, commit: &str) -> Header {
        Header {
            experiment: e.name.clone(),
            quick: e.request.quick,
            sets: e.request.sets.clone(),
            commit: commit.to_string(),
            text: e.text.clone(),
        }
    }

    /// The request that it records.
    pub fn request(&self) -> Request {
        Request { quick: self.quick, sets: self.sets.clone() }
    }
}

/// A result file, read.
#[derive(Debug)]
pub struct Results {
    /// Its first line.
    pub header: Header,
    /// The points.
    pub points: Vec<PointResult>,
}

fn io_error(path: &Path, source: std::io::Error) -> ExperimentError {
    ExperimentError::Io { path: path.display().to_string(), source }
}

/// Name of an experiment's files without ending.
fn stem(e: &Experiment) -> String {
    if e.request.quick { format!("{}-quick", e.name) } else { e.name.clone() }
}

/// The files of an experiment in a directory.
pub(super) struct Files {
    pub results: PathBuf,
    pub partial: PathBuf,
    pub report: PathBuf,
    pub times: PathBuf,
}

impl Files {
    pub fn of(dir: &Path, e: &Experiment) -> Files {
        let path = |ending: &str| dir.join(format!("{}{ending}", stem(e)));
        Files {
            results: path(".jsonl"),
            partial: path(".partial.jsonl"),
            report: path(".html"),
            times: path(".times.json"),
        }
    }
}

impl Results {
    /// Reads a result file.
    ///
    /// # Errors
    /// It cannot be read, or a line is not one of ours.
    pub fn read(path: &Path) -> Result<Results, ExperimentError> {
        let text = std::fs::read_to_string(path).map_err(|e| io_error(path, e))?;
        let bad = |line: usize, e: serde_json::Error| ExperimentError::Results {
            path: path.display().to_string(),
            line,
            what: e.to_string(),
        };
        let mut lines = text.lines();
        let header = serde_json::from_str(lines.next().unwrap_or("")).map_err(|e| bad(1, e))?;
        let parse = |(n, line)| serde_json::from_str(line).map_err(|e| bad(n + 2, e));
        let points = lines.enumerate().map(parse).collect::<Result<_, _>>()?;
        Ok(Results { header, points })
    }

    /// All result files of a directory, by name.
    ///
    /// # Errors
    /// As for [`Results::read`].
    pub fn all(dir: &Path) -> Result<Vec<(PathBuf, Results)>, ExperimentError> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(|e| io_error(dir, e))? {
            let path = entry.map_err(|e| io_error(dir, e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(".jsonl") && !name.ends_with(".partial.jsonl") {
                found.push(path);
            }
        }
        found.sort();
        found.into_iter().map(|path| Results::read(&path).map(|r| (path, r))).collect()
    }
}

/// Finished points of earlier runs, by configuration: the lines as they stand in the files, and their contents. Lines
/// of another program's commit, and torn ones, do not count.
pub(super) fn finished(files: &Files, commit: &str) -> BTreeMap<String, (String, PointResult)> {
    let mut found = BTreeMap::new();
    for path in [&files.results, &files.partial] {
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            if let Ok(result) = serde_json::from_str::<PointResult>(line)
                && result.commit == commit
                && result.clock == "virtual"
            {
                found.insert(result.config.clone(), (line.to_string(), result));
            }
        }
    }
    found
}

/// The line of a result.
pub(super) fn line(result: &PointResult) -> String {
    serde_json::to_string(result).expect("plain data")
}

/// Adds a line to the partial file.
pub(super) fn append(files: &Files, line: &str) -> Result<(), ExperimentError> {
    let open = OpenOptions::new().create(true).append(true).open(&files.partial);
    open.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).map_err(|e| io_error(&files.partial, e))
}

/// Writes a file whole: beside it first, so that it is there entirely or not at all.
pub(super) fn write(path: &Path, text: &str) -> Result<(), ExperimentError> {
    let beside = path.with_extension("new");
    let all = || {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    all().map_err(|e| io_error(path, e))
}

/// Makes a directory for results.
pub(super) fn make_dir(dir: &Path) -> Result<(), ExperimentError> {
    std::fs::create_dir_all(dir).map_err(|e| io_error(dir, e))
}
