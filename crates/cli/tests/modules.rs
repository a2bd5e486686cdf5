//! The order of modules in each crate: `lib.rs` states it, from below, and a module imports only from those before
//! it. So there are no circles, and whoever reads a crate from the bottom up meets nothing that was not there before.
//! Where a seam is, there is a wall too: a module that must not reach past it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each crate's directory, and the file that states the order.
const CRATES: &[(&str, &str)] = &[
    ("rt", "lib.rs"),
    ("device", "lib.rs"),
    ("wire", "lib.rs"),
    ("ftl", "lib.rs"),
    ("models", "lib.rs"),
    ("volume", "lib.rs"),
    ("varve", "lib.rs"),
    ("lab", "lib.rs"),
    ("cli", "main.rs"),
];

/// Imports against the order (crate, module, what it imports) that are still there. The list only shrinks.
const KNOTS: &[(&str, &str, &str)] = &[];

/// Walls (crate, module, what it does not import though that lies below it): between them is a seam.
const WALLS: &[(&str, &str, &str)] = &[
    // Transactions know no kind of index: `index` has an arm for each.
    ("varve", "txn", "btree"),
];

/// What stands before the list of modules.
const STATEMENT: &str = "Modules, from below:";

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the crates")
}

/// Source text without comments and the insides of strings.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '/' if chars.peek() == Some(&'/') => {
                chars.by_ref().find(|c| *c == '\n');
                out.push('\n');
            }
            '"' => {
                while let Some(inner) = chars.next() {
                    match inner {
                        '\\' => drop(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                out.push_str("\"\"");
            }
            c => out.push(c),
        }
    }
    out
}

/// The paths of a `use` tree: `a::{b, c::{d, e}}` gives `a::b`, `a::c::d`, `a::c::e`.
fn paths(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((before, inside)) = tree.split_once('{') else { return vec![tree.to_string()] };
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    let (mut depth, mut parts, mut part) = (0, Vec::new(), String::new());
    for c in inside.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| paths(part)).map(|path| format!("{before}{path}")).collect()
}

/// What follows each `keyword` in the code, up to its semicolon.
fn statements<'c>(code: &'c str, keyword: &'c str) -> impl Iterator<Item = &'c str> {
    code.match_indices(keyword).filter_map(|(at, _)| {
        let starts = code[..at].chars().next_back().is_none_or(char::is_whitespace);
        starts.then(|| code[at + keyword.len()..].split(';').next()).flatten()
    })
}

/// Every path in the code that begins with `crate` or `super`, by segments: in imports and elsewhere.
fn mentioned(code: &str) -> Vec<Vec<String>> {
    let mut found: Vec<String> = statements(code, "use ").flat_map(paths).collect();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            if !code[..at].ends_with(path) {
                found.push(code[at..].chars().take_while(|c| path(*c)).collect());
            }
        }
    }
    let segments = |path: &String| -> Vec<String> {
        let path = path.split(" as ").next().expect("a path");
        path.split("::").map(|segment| segment.trim().to_string()).filter(|s| !s.is_empty()).collect()
    };
    found.iter().map(segments).collect()
}

/// The first name after the crate's root that a path in the file `place` (from `src`) means, if it goes through the
/// root.
fn from_root<'p>(path: &'p [String], place: &Path) -> Option<&'p str> {
    let levels = place.components().count() - usize::from(place.ends_with("mod.rs"));
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    let at = match path.first()?.as_str() {
        "crate" => 1,
        "super" if supers == levels => supers,
        _ => return None,
    };
    path.get(at).map(String::as_str)
}

struct Crate {
    /// Modules from below.
    order: Vec<String>,
    /// Who imports whom, with a file that does.
    imports: BTreeMap<(String, String), String>,
    /// Modules that there are.
    modules: BTreeSet<String>,
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().and_then(|name| name.to_str()).expect("a name").to_string();
        match entry.is_dir() {
            // Tests may look at everything.
            _ if name.starts_with("tests") => {}
            true => found.extend(rust_files(&entry)),
            false if name.ends_with(".rs") => found.push(entry),
            false => {}
        }
    }
    found
}

/// The code without a module of tests at its end; one in a file of its own may be declared before what imports.
fn shipped(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod tests {").next().expect("the file")
}

fn order(root: &str) -> Vec<String> {
    let lines = root.lines().map(|line| line.trim_start_matches("//!").trim());
    let stated: Vec<&str> =
        lines.skip_while(|line| !line.contains(STATEMENT)).take_while(|line| !line.is_empty()).collect();
    let stated = stated.join(" ");
    stated.split('`').skip(1).step_by(2).flat_map(str::split_whitespace).map(str::to_string).collect()
}

fn read(name: &str, root: &str) -> Crate {
    let src = crates().join(name).join("src");
    let text = std::fs::read_to_string(src.join(root)).expect("the crate's root");
    let bare = code(&text);
    let modules: BTreeSet<String> =
        statements(&bare, "mod ").map(str::trim).filter(|m| !m.contains('{')).map(str::to_string).collect();
    // What the root shows of its modules is theirs.
    let mut shown = BTreeMap::new();
    for path in statements(&bare, "use ").flat_map(paths) {
        let path = path.trim_start_matches("crate::");
        let (module, name) = (path.split("::").next().expect("a name"), path.rsplit("::").next().expect("a name"));
        if modules.contains(module) {
            shown.insert(name.to_string(), module.to_string());
        }
    }
    let mut imports = BTreeMap::new();
    for file in rust_files(&src) {
        let place = file.strip_prefix(&src).expect("below src");
        if place == Path::new(root) {
            continue;
        }
        let first = place.components().next().expect("a name").as_os_str().to_string_lossy();
        let importer = first.trim_end_matches(".rs").to_string();
        let text = code(&std::fs::read_to_string(&file).expect("utf-8 text"));
        for path in mentioned(shipped(&text)) {
            let Some(name) = from_root(&path, place) else { continue };
            let target = if modules.contains(name) { Some(name) } else { shown.get(name).map(String::as_str) };
            if let Some(target) = target.filter(|target| *target != importer) {
                imports.insert((importer.clone(), target.to_string()), place.display().to_string());
            }
        }
    }
    Crate { order: order(&text), imports, modules }
}

#[test]
fn modules_import_only_from_below() {
    let mut problems = Vec::new();
    let mut knots: BTreeSet<_> = KNOTS.iter().map(|(c, m, t)| [c.to_string(), m.to_string(), t.to_string()]).collect();
    let mut imports = 0;
    for (name, root) in CRATES {
        let found = read(name, root);
        let stated: BTreeSet<String> = found.order.iter().cloned().collect();
        if stated != found.modules || stated.len() != found.order.len() {
            let differ: Vec<_> = stated.symmetric_difference(&found.modules).collect();
            problems.push(format!("crates/{name}/src/{root}: \"{STATEMENT}\" must list each module once: {differ:?}"));
            continue;
        }
        for (_, importer, target) in WALLS.iter().filter(|(of, ..)| of == name) {
            assert!(stated.contains(*importer) && stated.contains(*target), "{importer} and {target} are modules");
            if let Some(place) = found.imports.get(&(importer.to_string(), target.to_string())) {
                problems.push(format!("crates/{name}/src/{place}: {importer} imports {target}, past the seam"));
            }
        }
        let level = |module: &str| found.order.iter().position(|m| m == module).expect("listed");
        for ((importer, target), place) in &found.imports {
            imports += 1;
            let against = level(target) > level(importer);
            if against && !knots.remove(&[name.to_string(), importer.clone(), target.clone()]) {
                problems.push(format!("crates/{name}/src/{place}: {importer} imports {target}, which lies above it"));
            }
        }
    }
    problems.extend(knots.iter().map(|knot| format!("{knot:?} is gone: take it off KNOTS")));
    assert!(imports > 150, "only {imports} imports between modules were seen");
    println!("{imports} imports between modules, {} against the order", KNOTS.len());
    assert!(problems.is_empty(), "imports point down:\n  {}", problems.join("\n  "));
}

/// A check that cannot fail shows nothing: the parts of it, on text made up.
#[test]
fn the_parts_see_what_they_should() {
    assert_eq!(paths("a::{b, c::{d, self}, e as f}"), ["a::b", "a::c::d", "a::c::self", "a::e as f"]);
    assert!(code("use a; // use b;\nlet s = \"use c; \\\" use d;\";").matches("use").count() == 1);
    let declared = "#[cfg(test)]\nmod tests;\nuse crate::x;\n#[cfg(test)]\nmod tests {\n    use crate::y;\n}\n";
    assert!(shipped(declared).contains("x;") && !shipped(declared).contains("y;"));
    let mentioned = mentioned("use super::{x, y::Z}; fn f() { crate::w::g() }");
    let places = |place: &str| -> Vec<String> {
        mentioned.iter().filter_map(|path| from_root(path, Path::new(place))).map(str::to_string).collect()
    };
    assert_eq!(places("m.rs"), ["x", "y", "w"]);
    assert_eq!(places("m/mod.rs"), ["x", "y", "w"]);
    assert_eq!(places("m/n.rs"), ["w"]);
    assert_eq!(order("//! A crate.\n//! Modules, from below: `a b` ·\n//! `c`.\n//!\n//! More `d`."), ["a", "b", "c"]);
}
