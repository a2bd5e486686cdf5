//! The header that is checked in is the one that the sources give. `UPDATE=1 cargo test -p varve-c --test header`
//! writes it.

use cbindgen::{Builder, Config, Language, SortKey, Style};
use std::path::Path;

/// What the header says before its declarations.
const HEAD: &str = r#"/* Varve for programs in C: an embeddable transactional store. Made by cbindgen from bindings/c/src; do not edit.
 *
 * Calls. A function that can fail returns a varve_code, VARVE_OK (0) when it did what it says, and takes as its last
 * argument the address of a varve_error * for the text, or null. Results are put where pointers point to; these places
 * are written without being read, so they need not be set before. A null pointer where something must be is
 * VARVE_INVALID, not a crash. A key that is not there is no failure.
 *
 * Keys and values are pointer and length, may have zero bytes, and are only lent for the call. Names, paths and options
 * are C strings in UTF-8.
 *
 * Ownership. What a function puts into a pointer to a handle belongs to the caller, who frees it exactly once with the
 * function named so (varve_db_free, varve_tx_free, ..), in any order: a handle keeps alive what it needs. Freeing null
 * does nothing. To use a handle after it was freed, or to free it twice, is undefined, as with free().
 * varve_close() is no free: after it handles are still there, and calls get VARVE_CLOSED.
 *
 * Threads. Databases, keyspaces and snapshots may be used by any number of threads at once; transactions, iterators,
 * batches and options by one at a time. A handle must not be freed while another thread uses it.
 *
 * Fork. A child process gets VARVE_FORKED from every handle of its parent, and may free them. Where a database was open
 * in the parent, the child can open none either, until it calls exec: fork first, or close first.
 */"#;

fn header() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = Config {
        language: Language::C,
        header: Some(HEAD.into()),
        include_guard: Some("VARVE_H".into()),
        cpp_compat: true,
        usize_is_size_t: true,
        line_length: 120,
        style: Style::Both,
        documentation_style: cbindgen::DocumentationStyle::C99,
        ..Config::default()
    };
    config.function.sort_by = Some(SortKey::None);
    config.no_includes = true;
    config.sys_includes = ["stdbool.h", "stddef.h", "stdint.h"].map(String::from).to_vec();
    // A file at a time, from below, so that no expansion of macros and no metadata is needed.
    let order = ["memory", "error", "options", "db", "keyspace", "snapshot", "tx", "iter", "batch"];
    let builder =
        order.iter().fold(Builder::new(), |builder, name| builder.with_src(here.join(format!("src/{name}.rs"))));
    let mut text = Vec::new();
    builder.with_config(config).generate().expect("sources that cbindgen reads").write(&mut text);
    String::from_utf8(text).expect("text")
}

#[test]
fn the_header_is_up_to_date() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/varve.h");
    let (made, there) = (header(), std::fs::read_to_string(&place).unwrap_or_default());
    if made != there && std::env::var_os("UPDATE").is_some() {
        std::fs::write(&place, made).expect("a place to write");
        return;
    }
    let differ = made.lines().zip(there.lines()).find(|(a, b)| a != b);
    assert!(
        made == there,
        "{} is stale: run UPDATE=1 cargo test -p varve-c --test header; {differ:?}",
        place.display()
    );
}

#[test]
fn every_exported_function_is_in_the_header() {
    let text = header();
    let (mut count, here) = (0, Path::new(env!("CARGO_MANIFEST_DIR")));
    for file in std::fs::read_dir(here.join("src")).expect("sources") {
        let source = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        let lines: Vec<&str> = source.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[0] == "#[unsafe(no_mangle)]") {
            let name = pair[1].split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function").0;
            assert!(text.contains(&format!("{name}(")), "{name} is not in the header");
            count += 1;
        }
    }
    assert!(count > 50, "found only {count} functions");
}
