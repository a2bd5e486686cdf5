//! `demo`: a small shop is loaded, used, recorded and replayed; a page shows what came of it.

use crate::args::demo::Demo;
use crate::new_file::NewFile;
use crate::output::{Failure, Out, about, bytes, say};
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use varve_lab::demo::{self, DemoError, DemoOptions, Step};

impl From<DemoError> for Failure {
    fn from(e: DemoError) -> Failure {
        match e {
            DemoError::Db(e) => Failure::Engine(e),
            DemoError::Trace(e) => e.into(),
            DemoError::Io(e) => Failure::Failed(format!("the recording: {e}")),
            DemoError::Invalid(what) => Failure::Usage(what),
        }
    }
}

/// A directory of this process's own, removed with all that is in it, unless it is kept.
struct Place {
    dir: PathBuf,
    keep: bool,
}

impl Place {
    fn new(keep: bool) -> Result<Place, Failure> {
        let dir = std::env::temp_dir().join(format!("varve-demo-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| about(&dir, &e))?;
        Ok(Place { dir, keep })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.keep {
            // What cannot be removed lies among the temporary files.
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

pub fn run(out: Out, a: &Demo) -> Result<(), Failure> {
    // Now, so that nobody waits for a page that cannot be written.
    let mut file = NewFile::replacing(&a.out)?;
    let place = Place::new(a.keep)?;
    let (demo, html) = shown(out, a, &place.dir)?;
    file.write_all(html.as_bytes()).map_err(|e| about(&a.out, &e))?;
    file.finish()?;
    let page = std::fs::canonicalize(&a.out).unwrap_or_else(|_| a.out.clone());
    if out.json {
        let data = a.keep.then(|| place.dir.display().to_string());
        say!("{}", json!({ "page": page.display().to_string(), "data": data, "demo": demo }))?;
        return Ok(());
    }
    let visits: u64 = demo.visits.iter().map(|v| v.count).sum();
    let rows: u64 = demo.rows.iter().map(|(_, rows)| rows).sum();
    say!("loaded   {rows} rows, {} on disk, in {:.1} s", bytes(demo.bytes), demo.load_seconds)?;
    say!("used     {visits} visits in {:.1} s, {:.0} visits/s", demo.seconds, visits as f64 / demo.seconds.max(1e-9))?;
    say!("recorded {} accesses to {} pages", demo.references, demo.pages)?;
    if let Some(tenth) = demo.tenth() {
        say!("{}", demo::verdict(&tenth, demo.page_size))?;
    }
    if a.keep {
        say!("kept     {0}: the database {0}/db, the accesses {0}/accesses", place.dir.display())?;
    }
    say!("page     {}", page.display())?;
    Ok(())
}

/// Runs the demonstration in a directory; also its page.
fn shown(out: Out, a: &Demo, dir: &Path) -> Result<(demo::Demo, String), Failure> {
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    let bar = out.progress("loading", 0);
    let demo = demo::run(dir, DemoOptions { customers: a.customers, jobs }, &mut |step| match step {
        Step::Load(rows) => bar.set_position(rows),
        Step::Visit(visits) => {
            bar.set_message("visits");
            bar.set_position(visits);
        }
        Step::Replay(done, _) => {
            bar.set_message("replayed");
            bar.set_position(done);
        }
    });
    bar.finish_and_clear();
    let demo = demo?;
    let command = format!("varve demo --customers {}", a.customers);
    let html = demo::to_html(&demo, &command);
    Ok((demo, html))
}
