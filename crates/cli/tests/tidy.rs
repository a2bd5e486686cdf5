//! The shape of the workspace: which crate may use which, what may be used from outside, where `unsafe` lives, how
//! long files and functions get. Needs no network. Each list below only shrinks, unless there is a good reason; a
//! failing test names the place and the list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates from the bottom up; each may use those before it.
const LAYERS: &[&str] = &[
    "varve-rt",
    "varve-device",
    "varve-wire",
    "varve-ftl",
    "varve-models",
    "varve-volume",
    "varve",
    "varve-lab",
    "varve-cli",
    "varve-bindings",
    "varve-c",
];

/// What the crates below the command may use from outside, and why it is harmless there: no threads, no blocking, no
/// clocks, no thread locals, no random hashing of its own.
const ALLOWED: &[(&str, &str)] = &[
    (
        "thiserror",
        "derives Display and Error for error enums, where an embedder's build does not go; no code at run time",
    ),
    ("crc32c", "pure arithmetic on bytes"),
    ("serde", "derives; pure"),
    ("serde_json", "pure text"),
    ("toml", "pure text"),
    ("hdrhistogram", "pure counting"),
    ("zstd", "pure compression of bytes in memory or behind a reader; built without its threads"),
    ("lz4_flex", "pure compression of bytes in memory, the variant without unsafe code"),
    ("smallvec", "pure lists"),
    ("libc", "system calls of FileDevice and of the runtime"),
    ("io-uring", "system calls of FileDevice"),
    ("socket2", "options of sockets, which are on OS threads only"),
    ("rustls", "pure work on bytes: the sockets are read and written by `varve_wire`"),
];

/// What the runtime alone may use.
const ALLOWED_RT: &[(&str, &str)] = &[
    ("lock_api", "guards over our raw locks"),
    ("parking_lot_core", "the parking table of OS threads"),
    ("corosensei", "the stacks of simulated threads"),
];

/// Words that no source file above the runtime may have, and what to use instead.
const REFUSED: &[(&str, &str)] = &[
    ("thread_local!", "all simulated threads share one OS thread: use varve_rt::Local"),
    ("static mut", "state belongs in the database value, or in an atomic"),
    ("tracing::", "spans live in thread locals: use the engine's events and statistics"),
];

/// Words that no source file may have.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "dbg!"];

/// Source files that may contain `unsafe`. Tests and benches are free.
const UNSAFE: &[&str] = &[
    "crates/device/src/buf.rs",
    "crates/device/src/device.rs",
    "crates/device/src/file/batch.rs",
    "crates/device/src/file/exec.rs",
    "crates/device/src/file/lock.rs",
    "crates/device/src/file/mod.rs",
    "crates/device/src/file/sys/linux/mod.rs",
    "crates/device/src/file/sys/linux/wear.rs",
    "crates/device/src/file/sys/mod.rs",
    "crates/device/src/file/sys/portable.rs",
    "crates/device/src/file/sys/posix.rs",
    "crates/device/src/file/sys/threads.rs",
    "crates/device/src/io.rs",
    "crates/device/src/words.rs",
    "crates/wire/src/remote.rs",
    "crates/models/src/faulty/mod.rs",
    "crates/models/src/flash/model.rs",
    "crates/models/src/mem/flights.rs",
    "crates/models/src/mem/mod.rs",
    "crates/models/src/model/mod.rs",
    "crates/models/src/model/ticket.rs",
    "crates/rt/src/atomic.rs",
    "crates/rt/src/condvar.rs",
    "crates/rt/src/fork.rs",
    "crates/rt/src/local.rs",
    "crates/rt/src/mutex.rs",
    "crates/rt/src/park.rs",
    "crates/rt/src/rwlock.rs",
    "crates/rt/src/world/mod.rs",
    "crates/rt/src/world/scheduler.rs",
    "crates/rt/src/world/stack.rs",
    "crates/varve/src/btree/fetch.rs",
    "crates/varve/src/buffer/aside.rs",
    "crates/varve/src/buffer/baselines/doublewrite.rs",
    "crates/varve/src/buffer/bytes.rs",
    "crates/varve/src/buffer/direct.rs",
    "crates/varve/src/buffer/frame.rs",
    "crates/varve/src/buffer/guard.rs",
    "crates/varve/src/buffer/load.rs",
    "crates/varve/src/buffer/prefetch.rs",
    "crates/varve/src/buffer/writer.rs",
    "crates/varve/src/lsm/memtable.rs",
    "crates/varve/src/wal/reader.rs",
    "crates/varve/src/wal/tail.rs",
    "crates/varve/src/wal/writer.rs",
    "crates/volume/src/array/flight.rs",
    "crates/volume/src/array/records.rs",
    "crates/volume/src/blocking.rs",
    "crates/volume/src/flash/flight.rs",
    "crates/volume/src/flash/store.rs",
    "crates/volume/src/single.rs",
    "crates/volume/src/store.rs",
    "crates/volume/src/test_store.rs",
    "crates/volume/src/tier/background.rs",
    "crates/volume/src/tier/map.rs",
    "crates/volume/src/tier/recover.rs",
    "crates/volume/src/tier/requests.rs",
    "crates/volume/src/watched.rs",
];

const FILE_LINES: usize = 600;
const FN_LINES: usize = 100;

/// Files that are longer than they should be, with the length they must not pass.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions that are longer than they should be, as `file::name`, with the length they must not pass.
const LONG_FNS: &[(&str, usize)] = &[];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Every file below a folder whose name ends so, by path from the root.
fn files(below: &str, extension: &str) -> BTreeMap<String, String> {
    let root = root();
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.join(below)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).expect("a directory").map(|e| e.expect("an entry").path()) {
            if entry.is_dir() {
                if entry.file_name().is_some_and(|n| n != "target") {
                    dirs.push(entry);
                }
            } else if entry.extension().is_some_and(|e| e == extension) {
                let name = entry.strip_prefix(&root).expect("below the root").to_string_lossy().replace('\\', "/");
                found.insert(name, std::fs::read_to_string(&entry).expect("utf-8 text"));
            }
        }
    }
    found
}

/// Every Rust file of the workspace's crates but this one.
fn sources() -> BTreeMap<String, String> {
    let mut found = files("crates", "rs");
    found.remove("crates/cli/tests/tidy.rs").expect("this file");
    assert!(found.len() > 20, "found only {} source files", found.len());
    found
}

/// The lines of a file without comments and the insides of string literals, numbered from 1.
fn code(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    text.lines().enumerate().map(|(i, line)| {
        let mut out = String::new();
        let mut chars = line.chars().peekable();
        let mut quoted = false;
        while let Some(c) = chars.next() {
            match c {
                '\\' if quoted => drop(chars.next()),
                '"' => quoted = !quoted,
                '/' if !quoted && chars.peek() == Some(&'/') => break,
                _ if quoted => {}
                _ => out.push(c),
            }
        }
        (i + 1, out)
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let ident = |c: char| c.is_alphanumeric() || c == '_';
        !line[..at].ends_with(ident) && !line[at + word.len()..].starts_with(ident)
    })
}

fn is_test_code(file: &str) -> bool {
    let own = file.rsplit('/').next().is_some_and(|name| name.starts_with("tests") || name.ends_with("_tests.rs"));
    own || file.contains("/tests/") || file.contains("/benches/") || file.contains("/examples/")
}

#[track_caller]
fn none(problems: Vec<String>, advice: &str) {
    let mut text = String::new();
    problems.iter().for_each(|p| writeln!(text, "  {p}").expect("a string"));
    assert!(problems.is_empty(), "{} problem(s); {advice}\n{text}", problems.len());
}

struct Dependency {
    user: String,
    used: String,
    dev: bool,
}

fn dependencies() -> Vec<Dependency> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let text = |v: &serde_json::Value| v.as_str().expect("a name").to_string();
    let mut all = Vec::new();
    for package in json["packages"].as_array().expect("packages") {
        for d in package["dependencies"].as_array().expect("dependencies") {
            all.push(Dependency { user: text(&package["name"]), used: text(&d["name"]), dev: d["kind"] == "dev" });
        }
    }
    all
}

#[test]
fn crates_use_only_lower_ones() {
    let level = |name: &str| LAYERS.iter().position(|l| *l == name);
    let problems = dependencies().into_iter().filter_map(|d| {
        let user = level(&d.user).unwrap_or_else(|| panic!("crate {} has no place in LAYERS", d.user));
        // A crate's own tests may turn on a feature of it.
        let own = d.dev && d.user == d.used;
        let bad = !own && level(&d.used).is_some_and(|used| used >= user);
        bad.then(|| format!("{} uses {}", d.user, d.used))
    });
    none(problems.collect(), "imports point down: rt < device < ftl < models < volume < varve < lab < cli");
}

#[test]
fn outside_crates_are_on_the_list() {
    let problems = dependencies().into_iter().filter_map(|d| {
        let ours = LAYERS.contains(&d.used.as_str());
        let listed = |list: &[(&str, &str)]| list.iter().any(|(name, _)| *name == d.used);
        let ok =
            ours || d.dev || d.user == "varve-cli" || listed(ALLOWED) || d.user == "varve-rt" && listed(ALLOWED_RT);
        (!ok).then(|| format!("{} uses {}", d.user, d.used))
    });
    none(problems.collect(), "crates below the command use only what is on ALLOWED, with its reason");
}

/// Lines of `cargo tree -p varve -e normal --prefix none | sort -u`: what an embedder's build compiles. The number only
/// shrinks; 25 is what must never be passed.
const EMBEDDED: usize = 17;

#[test]
fn an_embedder_compiles_few_packages() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .args(["tree", "-p", "varve", "-e", "normal", "--prefix", "none", "--offline", "--locked"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let packages: BTreeSet<String> = String::from_utf8_lossy(&out.stdout).lines().map(str::to_string).collect();
    assert!(packages.len() > 5, "cargo tells of {packages:?}");
    assert!(
        packages.len() <= EMBEDDED,
        "{} lines, {EMBEDDED} before: put what is new behind a feature\n{packages:#?}",
        packages.len()
    );
}

#[test]
fn no_hidden_state_outside_the_runtime() {
    let mut problems = Vec::new();
    for (file, text) in sources() {
        if file.starts_with("crates/rt/") {
            continue;
        }
        for (n, line) in code(&text) {
            for (word, instead) in REFUSED {
                if line.contains(word) {
                    problems.push(format!("{file}:{n}: {word}: {instead}"));
                }
            }
        }
    }
    none(problems, "simulated threads would share it");
}

#[test]
fn nothing_unfinished() {
    let mut problems = Vec::new();
    for (file, text) in sources() {
        for (n, line) in code(&text) {
            problems.extend(
                UNFINISHED
                    .iter()
                    .filter(|w| has_word(&line, w.trim_end_matches('!')) && line.contains(**w))
                    .map(|w| format!("{file}:{n}: {w}")),
            );
        }
    }
    none(problems, "finish it or take it out");
}

/// Files whose public error enums `docs/errors.md` explains.
const ERRORS: &[&str] = &[
    "crates/varve/src/error.rs",
    "crates/volume/src/array/curve.rs",
    "crates/volume/src/array/planner.rs",
    "crates/volume/src/error.rs",
    "crates/device/src/error.rs",
    "crates/device/src/flash/error.rs",
    "crates/lab/src/error.rs",
];

/// The variants of a file's public enums that are errors.
fn error_variants(text: &str) -> impl Iterator<Item = &str> {
    let enums = text.split("\npub enum ").zip(text.split("\npub enum ").skip(1));
    let errors = enums.filter(move |(before, this)| {
        let name = this.split(' ').next().expect("a name");
        let attributes = before.rsplit("\n\n").next().expect("what stands before it");
        attributes.contains("thiserror::Error") || text.contains(&format!("impl std::error::Error for {name} "))
    });
    errors.flat_map(|(_, this)| {
        let lines = this.lines().take_while(|line| *line != "}");
        let variants = lines.filter_map(|line| line.strip_prefix("    "));
        let variants = variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
        variants.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().expect("a name"))
    })
}

#[test]
fn every_error_is_explained() {
    let page = std::fs::read_to_string(root().join("docs/errors.md")).expect("the page");
    let sources = sources();
    let mut problems = Vec::new();
    for file in ERRORS {
        let mut variants = 0;
        for name in error_variants(&sources[*file]) {
            variants += 1;
            if !page.contains(&format!("`{name}`")) && !DAMAGES.contains(&name) {
                problems.push(format!("{file}: {name}"));
            }
        }
        assert!(variants > 3, "{file}: {variants} errors found");
    }
    none(problems, "explain the error in docs/errors.md");
}

/// Places of damage, which the message of `Corrupt` names; the page tells of them together.
const DAMAGES: &[&str] = &["Log", "Superblock"];

#[test]
fn unsafe_stays_where_it_is() {
    let mut problems = Vec::new();
    let mut used = BTreeSet::new();
    for (file, text) in sources() {
        if is_test_code(&file) {
            continue;
        }
        let allowed = UNSAFE.iter().find(|a| file == **a);
        for (n, line) in code(&text) {
            if has_word(&line, "unsafe") && !line.contains("unsafe_") {
                match allowed {
                    Some(a) => drop(used.insert(*a)),
                    None => problems.push(format!("{file}:{n}: {}", line.trim())),
                }
            }
        }
    }
    none(problems, "keep unsafe in few modules, or extend UNSAFE with a reason in the commit");
    let idle = UNSAFE.iter().filter(|a| !used.contains(**a));
    none(idle.map(ToString::to_string).collect(), "these files have no unsafe any more: take them off UNSAFE");
}

/// Checks measured sizes against a limit and a list of exceptions that only shrink.
fn ratchet(sizes: impl Iterator<Item = (String, usize)>, limit: usize, exceptions: &[(&str, usize)], list: &str) {
    let mut problems = Vec::new();
    let mut left: BTreeMap<&str, usize> = exceptions.iter().copied().collect();
    for (name, size) in sizes {
        let allowed = left.remove(name.as_str());
        match allowed {
            Some(n) if size > n => problems.push(format!("{name}: {size} lines, grown past {n}")),
            Some(_) if size <= limit => problems.push(format!("{name}: short enough now, take it off {list}")),
            None if size > limit => problems.push(format!("{name}: {size} lines")),
            _ => {}
        }
    }
    problems.extend(left.keys().map(|n| format!("{n}: gone, take it off {list}")));
    none(problems, &format!("the limit is {limit} lines; {list} holds the exceptions and only shrinks"));
}

#[test]
fn files_fit_in_a_head() {
    ratchet(sources().into_iter().map(|(f, t)| (f, t.lines().count())), FILE_LINES, LONG_FILES, "LONG_FILES");
}

/// Length of each function: from its `fn` line to the closing brace at the same indentation (formatted code).
fn functions(file: &str, text: &str) -> Vec<(String, usize)> {
    let lines: Vec<String> = code(text).map(|(_, l)| l).collect();
    let indent = |l: &str| l.len() - l.trim_start().len();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(at) = line.find("fn ") else { continue };
        let before = line[..at].trim();
        let words = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "extern", "async", "default"];
        if !before.split_whitespace().all(|w| words.contains(&w)) {
            continue;
        }
        let name: String = line[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let end = lines[start..].iter().position(|l| l.trim_end() == format!("{}}}", " ".repeat(indent(line))));
        let one_line = line.trim_end().ends_with(['}', ';']);
        if let (Some(end), false) = (end, one_line) {
            found.push((format!("{file}::{name}"), end + 1));
        }
    }
    found
}

#[test]
fn functions_fit_on_a_screen() {
    // Of several functions of one name in a file, the longest counts.
    let mut longest: BTreeMap<String, usize> = BTreeMap::new();
    for (file, text) in sources() {
        for (name, size) in functions(&file, &text) {
            let entry = longest.entry(name).or_default();
            *entry = size.max(*entry);
        }
    }
    assert!(longest.len() > 300, "found only {} functions", longest.len());
    ratchet(longest.into_iter(), FN_LINES, LONG_FNS, "LONG_FNS");
}

/// A file's code without the tests at its end.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(code, _)| code)
}

/// Assertions per function that each crate has at least. Raised when there are more; never lowered, but where code
/// moves to a crate of its own with its assertions (`ftl`, out of `models`).
const ASSERTIONS: &[(&str, f64)] =
    &[("device", 0.208), ("ftl", 0.475), ("models", 0.186), ("rt", 0.052), ("varve", 0.221), ("volume", 0.243)];

#[test]
fn boundaries_have_assertions() {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (file, text) in sources() {
        let Some(crate_) = file.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")).map(|(c, _)| c)
        else {
            continue;
        };
        if is_test_code(&file) {
            continue;
        }
        let count = counts.entry(crate_.to_string()).or_default();
        for (_, line) in code(without_tests(&text)) {
            let before = line.split_once("fn ").map(|(before, _)| before.trim());
            let words = ["pub", "pub(crate)", "pub(super)", "const", "unsafe"];
            count.0 += usize::from(before.is_some_and(|b| b.split_whitespace().all(|w| words.contains(&w))));
            count.1 +=
                ["assert!(", "assert_eq!(", "assert_ne!("].iter().map(|a| line.matches(a).count()).sum::<usize>();
        }
    }
    let mut problems = Vec::new();
    for (name, least) in ASSERTIONS {
        let (functions, assertions) = counts[*name];
        let share = assertions as f64 / functions as f64;
        println!("{name}: {assertions} assertions in {functions} functions, {share:.3}");
        if share < *least {
            problems.push(format!("{name}: {share:.3} assertions per function, {least} before"));
        }
    }
    none(problems, "state the rules of what is new as assertions (ARCHITECTURE.md)");
}

/// Types of fields that several threads change.
const SHARED: &[&str] = &["Mutex<", "RwLock<", "Atomic", "Condvar", "Event"];

#[test]
fn stateful_files_state_their_rules() {
    let mut problems = Vec::new();
    for (file, text) in sources() {
        let engine =
            ["crates/rt/", "crates/device/", "crates/ftl/", "crates/models/", "crates/volume/", "crates/varve/"];
        if is_test_code(&file) || !engine.iter().any(|part| file.starts_with(part)) {
            continue;
        }
        let shared = code(without_tests(&text)).any(|(_, line)| {
            let field = line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
            let field = field.trim_start_matches("pub ").split_once(": ").filter(|_| line.trim_end().ends_with(','));
            let name = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit());
            field.is_some_and(|(n, of)| name(n) && !of.contains("::new") && SHARED.iter().any(|s| of.starts_with(s)))
        });
        let states = text.lines().take_while(|l| l.starts_with("//!")).any(|l| l.contains("Invariant"));
        if shared && !states {
            problems.push(file);
        }
    }
    none(problems, "say at the head of the file which rules its state keeps: \"Invariant: ...\"");
}

const LINE_WIDTH: usize = 120;

/// Lines of code that are longer (text in quotes, which is not broken). The number only shrinks.
const LONG_LINES: usize = 93;

#[test]
fn lines_fit_on_a_page() {
    let (mut comments, mut others) = (Vec::new(), 0);
    for (file, text) in sources() {
        for (n, line) in text.lines().enumerate().filter(|(_, line)| line.chars().count() > LINE_WIDTH) {
            match line.trim().starts_with("//") {
                true => comments.push(format!("{file}:{}", n + 1)),
                false => others += 1,
            }
        }
    }
    println!("{others} lines of code with more than {LINE_WIDTH} columns");
    none(comments, "comments have at most 120 columns");
    assert!(others <= LONG_LINES, "{others} lines of code have more than {LINE_WIDTH} columns, {LONG_LINES} before");
}

/// The lines of a page of documentation that are prose: no table, no code, no line without a blank (an address).
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence && !line.starts_with("    ") && !line.trim_start().starts_with('|')
    })
}

#[test]
fn prose_fits_on_a_page() {
    let mut pages = files("docs", "md");
    pages.extend(
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"]
            .map(|name| (name.to_string(), std::fs::read_to_string(root().join(name)).expect("utf-8 text"))),
    );
    let mut problems = Vec::new();
    for (page, text) in &pages {
        let long = prose(text).filter(|(_, line)| line.chars().count() > LINE_WIDTH);
        problems.extend(long.map(|(n, _)| format!("{page}:{}", n + 1)));
    }
    none(problems, "prose has at most 120 columns");
}

#[test]
fn functions_are_short() {
    let mut sizes = Vec::new();
    for (file, text) in sources() {
        if !is_test_code(&file) {
            sizes.extend(functions(&file, without_tests(&text)).into_iter().map(|(_, size)| size));
        }
    }
    sizes.sort_unstable();
    let (half, most) = (sizes[sizes.len() / 2], sizes[sizes.len() * 9 / 10]);
    println!("{} functions of several lines: p50 {half}, p90 {most} lines", sizes.len());
    assert!(half <= P50 && most <= P90, "p50 {half} lines, p90 {most}; {P50} and {P90} before");
}

const P50: usize = 6;
const P90: usize = 23;

#[test]
fn failures_have_a_reason() {
    let mut problems = Vec::new();
    for (file, text) in sources() {
        if !is_test_code(&file) {
            let bare = |line: &str| line.contains(".unwrap()");
            let lines = code(without_tests(&text)).filter(|(_, line)| bare(line));
            problems.extend(lines.map(|(n, line)| format!("{file}:{n}: {}", line.trim())));
        }
    }
    none(problems, "use `expect` and say why it cannot fail, or return an error");
}

/// The measuring itself: what it must see and what it must not.
#[test]
fn the_checks_can_fail() {
    assert_eq!(without_tests("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n"), "fn a() {}\n");
    assert!(is_test_code("crates/lab/src/sim/model_tests.rs") && !is_test_code("crates/varve/src/db/mod.rs"));
    let text = "fn long(\n    a: u8,\n) {\n    // unsafe\n    let s = \"todo!\";\n    unsafe { x() }\n}\n";
    assert_eq!(functions("f.rs", text), vec![("f.rs::long".to_string(), 7)]);
    let lines: Vec<_> = code(text).filter(|(_, l)| has_word(l, "unsafe")).map(|(n, _)| n).collect();
    assert_eq!(lines, [6]);
    assert!(!code(text).any(|(_, l)| l.contains("todo!")));
    assert!(!has_word("deny(unsafe_code)", "unsafe"));
    let page = "prose\n```\ncode\n```\n| table |\nmore";
    assert_eq!(prose(page).map(|(n, _)| n).collect::<Vec<_>>(), [0, 5]);
}
