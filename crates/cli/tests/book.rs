//! The book of `docs/`: every page is in its table of contents, every link leads somewhere, and what pages tell a
//! reader to type works. Where mdbook is installed, the book is built.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::Scratch;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The pages below a folder, by path from the root.
fn pages(folder: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("a folder").map(|e| e.expect("an entry")) {
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.insert(path, std::fs::read_to_string(entry.path()).expect("text"));
            }
        }
    }
    found
}

/// The lines of a page outside of fenced blocks.
fn outside(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Where the links of a page lead. A link's text may be broken over lines.
fn links(text: &str) -> Vec<String> {
    let mut prose = String::new();
    for line in outside(text) {
        // What stands in backquotes is no link.
        let plain = line.split('`').step_by(2);
        plain.for_each(|part| prose.push_str(part));
        prose.push('\n');
    }
    let after = prose.split("](").skip(1);
    after.filter_map(|rest| rest.split_once(')')).map(|(to, _)| to.to_string()).collect()
}

/// The anchor of a heading, as GitHub and mdbook make it.
fn anchor(heading: &str) -> String {
    let mut found = String::new();
    for c in heading.trim().to_lowercase().chars() {
        match c {
            ' ' => found.push('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => found.push(c),
            _ => {}
        }
    }
    found
}

fn anchors(text: &str) -> BTreeSet<String> {
    outside(text)
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')))
        .map(anchor)
        .collect()
}

fn is_in(path: &Path, folder: &str) -> bool {
    let whole = |path: &Path| path.canonicalize().expect("it exists");
    whole(path).starts_with(whole(&root().join(folder)))
}

/// What a link of a page does not find.
fn broken(page: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, part) = link.split_once('#').map_or((link, None), |(file, part)| (file, Some(part)));
    let path = root().join(page).parent().expect("a folder").join(file);
    let target = match file {
        "" => text.to_string(),
        _ if !path.exists() => return Some("no such file".to_string()),
        _ if page.starts_with("docs") && !is_in(&path, "docs") => {
            return Some("the built book does not have it".into());
        }
        _ => std::fs::read_to_string(&path).unwrap_or_default(),
    };
    part.filter(|part| !anchors(&target).contains(*part)).map(|part| format!("no heading for #{part}"))
}

fn none(problems: &[String]) {
    let mut text = String::new();
    problems.iter().for_each(|p| writeln!(text, "  {p}").expect("a string"));
    assert!(problems.is_empty(), "{} problem(s)\n{text}", problems.len());
}

#[test]
fn every_page_is_in_the_summary() {
    let mut pages = pages("docs");
    let summary = pages.remove(Path::new("docs/SUMMARY.md")).expect("the table of contents");
    let listed = links(&summary);
    let once: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let there: BTreeSet<String> =
        pages.keys().map(|page| page.strip_prefix("docs").expect("below docs").display().to_string()).collect();
    let missing =
        there.iter().filter(|page| !once.contains(page)).map(|page| format!("{page}: not in docs/SUMMARY.md"));
    let gone = once.iter().filter(|page| !there.contains(**page)).map(|page| format!("{page}: listed, but not there"));
    none(&missing.chain(gone).collect::<Vec<_>>());
    assert!(there.len() > 40, "found only {} pages", there.len());
}

#[test]
fn every_link_leads_somewhere() {
    let mut all = pages("docs");
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "bindings/c/README.md",
        "bindings/python/README.md",
        "traces/README.md",
    ] {
        all.insert(page.into(), std::fs::read_to_string(root().join(page)).expect(page));
    }
    let (mut looked_at, mut problems) = (0, Vec::new());
    for (page, text) in &all {
        for link in links(text) {
            looked_at += 1;
            problems.extend(broken(page, text, &link).map(|why| format!("{}: {link}: {why}", page.display())));
        }
    }
    none(&problems);
    assert!(looked_at > 200, "found only {looked_at} links");
}

/// The looking itself: what it must see and what it must not.
#[test]
fn the_checks_can_fail() {
    let page = "# One\n[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n# Two\n```\n[of two\nlines](#one)\n";
    assert_eq!(links(page), ["b.md", "#one"]);
    assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), ["one"]);
    let of_readme = |link| broken(Path::new("README.md"), page, link);
    assert!(of_readme("#one").is_none() && of_readme("docs/wal.md#appending").is_none());
    assert!(of_readme("#two").is_some() && of_readme("docs/wal.md#no").is_some() && of_readme("docs/no.md").is_some());
    let of_book = |link| broken(Path::new("docs/wal.md"), page, link);
    assert!(of_book("papers/../lsm.md").is_none() && of_book("../README.md").is_some());
    assert_eq!(anchor("`varve probe`: what a drive's worth"), "varve-probe-what-a-drives-worth");
    let typed = "```sh\none\n```\n\n```text\n1\n```\n```text\nno\n```\n```sh\ntwo\n```\n";
    assert_eq!(commands(typed), [("one\n".to_string(), Some("1\n".to_string())), ("two\n".to_string(), None)]);
}

/// What a page says to type (blocks marked `sh`), each with what the page says comes out (the block `text` right
/// after it).
fn commands(text: &str) -> Vec<(String, Option<String>)> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    let (mut rest, mut answers) = (text, false);
    while let Some((between, block)) = rest.split_once("```") {
        let (kind, block) = block.split_once('\n').expect("a block has lines");
        let (body, after) = block.split_once("```").expect("a block ends");
        match kind {
            "sh" => found.push((body.to_string(), None)),
            "text" if answers && between.trim().is_empty() => {
                found.last_mut().expect("a block before").1 = Some(body.to_string());
            }
            _ => {}
        }
        (answers, rest) = (kind == "sh", after);
    }
    found
}

/// Types a page's commands in one directory, in their order.
fn typed(page: &str) {
    let text = std::fs::read_to_string(root().join("docs").join(page)).expect(page);
    typed_text(page, &text);
}

fn typed_text(page: &str, text: &str) {
    let place = Scratch::new(page);
    let varve = Path::new(env!("CARGO_BIN_EXE_varve")).parent().expect("a folder");
    let path = format!("{}:{}", varve.display(), std::env::var("PATH").unwrap_or_default());
    let blocks = commands(text);
    assert!(!blocks.is_empty(), "{page} has nothing to type");
    for (block, expected) in blocks {
        let script = format!("set -euo pipefail\n{block}");
        let mut bash = Command::new("bash");
        let out = bash.args(["-c", &script]).current_dir(place.path()).env("PATH", &path).output().expect("bash runs");
        let said = String::from_utf8_lossy(&out.stdout);
        let complaint = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{page}:\n{block}\n{}\n{said}\n{complaint}", out.status);
        assert_eq!(said, expected.unwrap_or_default(), "{page}:\n{block}\n{complaint}");
    }
}

#[test]
fn the_first_database_comes_out_as_written() {
    typed("getting-started.md");
}

#[test]
fn the_shell_of_the_front_page_comes_out_as_written() {
    let text = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let (_, after) = text.split_once("## Ten lines of shell\n").expect("the section is there");
    let (section, _) = after.split_once("\n## ").expect("another follows");
    typed_text("README.md", section);
}

#[test]
fn what_operators_type_works() {
    typed("operate.md");
}

#[test]
fn a_tier_is_made_as_written() {
    typed("tier-guide.md");
}

#[test]
fn a_drive_is_measured_as_written() {
    typed("measure.md");
}

#[test]
fn the_book_is_built() {
    let mdbook = std::env::var_os("MDBOOK").unwrap_or_else(|| "mdbook".into());
    if !Command::new(&mdbook).arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("mdbook is not installed: the book was not built");
        return;
    }
    let place = Scratch::new("book");
    let out = Command::new(&mdbook).arg("build").arg(root().join("docs")).arg("-d").arg(place.path()).output();
    let out = out.expect("mdbook runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
    for page in ["index.html", "getting-started.html", "papers/index.html"] {
        assert!(place.path().join(page).exists(), "{page} was not built\n{said}");
    }
    let index = std::fs::read_dir(place.path()).expect("the book").map(|e| e.expect("an entry").file_name());
    let index = index.filter(|name| name.to_string_lossy().starts_with("searchindex")).count();
    assert!(index > 0, "no index to search");
}
