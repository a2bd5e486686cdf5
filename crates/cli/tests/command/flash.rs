//! Native flash in an image as its operator meets it: made by a layout, used by every command, found again from the
//! directory; what cannot be is refused with key and value.

use crate::support::{Scratch, fails, ok};
use std::fmt::Write;

const ARRAY: &str = "profile = \"slc-emulator-16\"\n\
    geometry = { channels = 2, chips_per_channel = 2, blocks_per_plane = 24, pages_per_block = 32 }\n";

/// A region by its keys.
fn region(keys: &str) -> String {
    format!("[[region]]\n{keys}\n")
}

fn layout(dir: &Scratch, name: &str, regions: &[&str]) -> String {
    let text = regions.iter().fold(ARRAY.to_string(), |text, keys| text + &region(keys));
    std::fs::write(dir.at(name), text).unwrap();
    dir.at(name)
}

fn good(dir: &Scratch) -> String {
    let hot = "name = \"hot\"\nchips = \"0..2\"\nn = 2\nm = 48\nkeyspaces = [\"stock\"]";
    layout(dir, "good.toml", &[hot, "name = \"rest\"\nchips = \"2..4\""])
}

fn image(dir: &Scratch, name: &str) -> String {
    format!("image:{}", dir.at(name))
}

fn create(dir: &Scratch, db: &str) -> String {
    let db = dir.at(db);
    ok(&["create", &db, "--flash", &image(dir, "chips"), "--layout", &good(dir), "--log-mb", "1"], "");
    db
}

fn rows(keyspace: &str, keys: std::ops::Range<u32>, value: &str) -> String {
    keys.fold(String::new(), |mut text, key| {
        writeln!(text, "{{\"keyspace\":\"{keyspace}\",\"key\":\"{key:05}\",\"value\":\"{value}\"}}").unwrap();
        text
    })
}

#[test]
fn every_command_works_on_an_image() {
    let dir = Scratch::new("flash-life");
    let db = create(&dir, "db");
    let value = "x".repeat(300);
    ok(&["load", &db], rows("stock", 0..2000, &value) + &rows("orders", 0..1000, &value));
    (0..3).for_each(|n| drop(ok(&["put", &db, "stock", "00007", &format!("{}{n}", "x".repeat(299))], "")));
    assert!(ok(&["get", &db, "stock", "00007"], "").ends_with("x2\n"));
    assert_eq!(ok(&["scan", &db, "orders", "--count"], ""), "1000\n");
    let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", &db, "--json"], "")).unwrap();
    assert_eq!((&stat["region.hot.keyspaces"], &stat["region.hot.scheme"]), (&"stock".into(), &"[2x48]".into()));
    assert!(stat["room.hot.used"].as_u64() > Some(150) && stat["room.rest.used"].as_u64() > Some(75), "{stat}");
    assert!(stat["region.hot.all_erases"].as_u64() > Some(0) && stat["region.hot.state"] == "in use", "{stat}");

    let backup = dir.at("backup");
    ok(&["backup", &db, &backup], "");
    ok(&["load", &db], rows("stock", 2000..2500, &value));
    ok(&["compact", &db], "");
    assert!(ok(&["check", &db], "").contains("no damage found"));
    // Onto other flash, and onto a file.
    let (flash, file) = (dir.at("again"), dir.at("file"));
    ok(&["restore", &flash, &backup, "--flash", &image(&dir, "other"), "--layout", &good(&dir), "--log-mb", "1"], "");
    ok(&["restore", &file, &backup, "--log-mb", "1"], "");
    for db in [&flash, &file] {
        assert_eq!(ok(&["scan", db, "stock", "--count"], ""), "2000\n");
        assert!(ok(&["check", db], "").contains("no damage found"));
    }
}

/// Cells that endure few erases: writes wear a region out, which says so and can be read from then on.
#[test]
fn a_worn_region_is_read_only_by_name() {
    let dir = Scratch::new("flash-worn");
    let (db, chips) = (dir.at("db"), image(&dir, "chips"));
    let text = std::fs::read_to_string(small(&dir)).unwrap().replace("[flash]", "[flash]\nendurance = 6");
    std::fs::write(dir.at("small.toml"), text).unwrap();
    let hot = region("name = \"hot\"\nchips = [0]\nn = 2\nm = 48\nkeyspaces = [\"stock\", \"orders\"]");
    let text = format!("profile = {:?}\n{hot}{}", dir.at("small.toml"), region("name = \"rest\"\nchips = [1]"));
    std::fs::write(dir.at("worn.toml"), text).unwrap();
    ok(&["create", &db, "--flash", &chips, "--layout", &dir.at("worn.toml"), "--log-mb", "1"], "");
    ok(&["load", &db], rows("orders", 0..50, "kept") + &rows("other", 0..50, "kept"));
    let values = ["x", "y"].map(|value| value.repeat(900));
    let mut last = None;
    let told = (0..200).find_map(|round: usize| {
        let loaded = crate::support::varve(&["load", &db], rows("stock", 0..1000, &values[round % 2]));
        if loaded.status.success() {
            last = Some(round % 2);
        }
        (!loaded.status.success()).then(|| String::from_utf8_lossy(&loaded.stderr).into_owned())
    });
    let told = told.expect("the region wears out");
    let names = "region \"hot\" of the flash, where the keyspaces stock, orders live, is worn out and read-only";
    assert!(told.contains(names) && told.contains("backup"), "{told}");
    // All of it can be read, and what lives elsewhere be changed.
    assert!(fails(&["put", &db, "orders", "00007", "new"], "", 1).contains(names));
    assert!(fails(&["delete", &db, "stock", "00007"], "", 1).contains(names));
    ok(&["put", &db, "other", "00007", "new"], "");
    assert_eq!(ok(&["get", &db, "orders", "00007"], ""), "kept\n");
    assert_eq!(ok(&["scan", &db, "stock", "--count"], ""), "1000\n");
    assert!(ok(&["check", &db], "").contains("no damage found"));
    let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", &db, "--json"], "")).unwrap();
    assert_eq!(stat["region.hot.state"], "worn out: read-only");
    assert_eq!((&stat["region.rest.state"], last.is_some()), (&"in use".into(), true));
    // And go elsewhere.
    let (backup, file) = (dir.at("backup"), dir.at("file"));
    ok(&["backup", &db, &backup], "");
    ok(&["restore", &file, &backup, "--log-mb", "1"], "");
    ok(&["put", &file, "orders", "00007", "new"], "");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let dir = Scratch::new("flash-apart");
    let db = create(&dir, "db");
    // Another database on the same chips, unless they may be lost.
    let again = dir.at("again");
    let chips = image(&dir, "chips");
    let told = fails(&["create", &again, "--flash", &chips], "", 6);
    assert!(told.contains("chips") && told.contains("already"), "{told}");
    let told =
        fails(&["create", &again, "--flash", &image(&dir, "new"), "--layout", &good(&dir), "--slow", &db], "", 2);
    assert!(told.contains("--slow"), "{told}");
    // An array of another shape.
    let other = layout(&dir, "other.toml", &[]);
    let text = std::fs::read_to_string(&other).unwrap().replace("blocks_per_plane = 24", "blocks_per_plane = 25");
    std::fs::write(&other, text).unwrap();
    let told = fails(&["create", &again, "--flash", &chips, "--layout", &other, "--overwrite"], "", 1);
    assert!(told.contains("blocks_per_plane: 24") && told.contains("blocks_per_plane: 25"), "{told}");
    // The chips of one database under another, a file in their place, chips in a file's place.
    let third = dir.at("third");
    ok(
        &["create", &third, "--flash", &image(&dir, "third.chips"), "--flash-profile", &small(&dir), "--log-mb", "1"],
        "",
    );
    swap(&format!("{db}/flash"), &dir.at("third.chips"));
    let told = fails(&["check", &db], "", 3);
    assert!(told.contains("another shape"), "{told}");
    let plain = dir.at("plain");
    ok(&["create", &plain, "--log-mb", "1"], "");
    swap(&format!("{db}/flash"), &format!("{plain}/data"));
    let told = fails(&["check", &db], "", 3);
    assert!(told.contains("no image of flash"), "{told}");
    swap(&format!("{plain}/flash"), &dir.at("chips"));
    let told = fails(&["check", &plain], "", 3);
    assert!(told.contains("lie on a file or drive"), "{told}");
    std::fs::remove_file(format!("{db}/flash")).unwrap();
    let told = fails(&["check", &db], "", 3);
    assert!(told.contains("`flash` is not"), "{told}");
}

/// A profile of an array of another shape.
fn small(dir: &Scratch) -> String {
    let text = "name = \"small\"\n[flash]\ncell = \"slc\"\n\
        geometry = { channels = 1, chips_per_channel = 2, planes = 1, blocks_per_plane = 32, pages_per_block = 32, \
        page_bytes = 4096, spare_bytes = 128 }\n\
        timing = { read_us = [25.0], program_us = [200.0], erase_us = 1500.0, channel_mb_s = 40.0 }\n\
        ftl = { logical_pages = 1500 }\n";
    std::fs::write(dir.at("small.toml"), text).unwrap();
    dir.at("small.toml")
}

fn swap(link: &str, to: &str) {
    let _ = std::fs::remove_file(link);
    std::os::unix::fs::symlink(to, link).unwrap();
}

#[test]
fn layouts_that_cannot_be_name_key_and_value() {
    let dir = Scratch::new("flash-layouts");
    let (db, chips) = (dir.at("db"), image(&dir, "chips"));
    for (what, regions, told) in [
        (
            "a shared chip",
            &["chips = \"0..3\"", "chips = \"2..4\""][..],
            &["regions.1.chips = 2", "region 0 has it"][..],
        ),
        ("a chip that is not there", &["chips = \"0..5\""], &["regions.0.chips = 4", "chips 0 to 3"]),
        ("no place for others", &["keyspaces = [\"a\"]"], &["regions.keyspaces", "\"a\"", "no region names"]),
        (
            "a keyspace of two",
            &["chips = \"0..2\"\nkeyspaces = [\"a\"]", "chips = [2]\nkeyspaces = [\"a\"]", "chips = [3]"],
            &["regions.1.keyspaces = \"a\"", "region 0 has it"],
        ),
        ("m no multiple of 3", &["n = 2\nm = 50"], &["regions.0.m = 50", "multiple of 3"]),
        ("more than a quarter", &["n = 3\nm = 600"], &["regions.0.m = 600", "a quarter of a page, 1024 bytes"]),
        ("more than nop - 1", &["n = 4\nm = 48"], &["regions.0.n = 4", "at most 3"]),
        ("m without n", &["m = 48"], &["regions.0.m = 48 does nothing", "give n too"]),
        ("d of another policy", &["gc = \"greedy\"\nd = 3"], &["regions.0.d = 3 does nothing", "d-choices"]),
        ("two sizes", &["pages = 100\nspare_factor = 0.5"], &["regions.0.spare_factor = 0.5 does nothing", "pages"]),
        ("appends in TLC", &["mode = \"tlc\"\nn = 1\nm = 48"], &["regions.0.n = 1", "TLC mode"]),
        ("no room for collection", &["spare_factor = 0.001"], &["spare_factor = 0.001", "leave more spare blocks"]),
        ("too many pages", &["pages = 100000"], &["logical_pages = 100000", "leave more spare blocks"]),
        ("a spare factor that is none", &["spare_factor = 1.5"], &["spare_factor = 1.5"]),
        ("an unknown key", &["chip = \"0..4\""], &["line 4: chip: unknown field `chip`"]),
        ("chips of another type", &["chips = [-1]"], &["line 4: chips", "0..8, 12"]),
        ("chips that are none", &["chips = \"0-4\""], &["chips = \"0-4\""]),
    ] {
        let layout = layout(&dir, "l.toml", regions);
        let said = fails(&["create", &db, "--flash", &chips, "--layout", &layout, "--log-mb", "1"], "", 2);
        assert!(told.iter().all(|part| said.contains(part)), "{what}: {said}");
        assert!(!std::path::Path::new(&dir.at("chips")).exists(), "{what}: an image is left");
        assert!(!std::path::Path::new(&format!("{db}/flash")).exists(), "{what}: a link is left");
    }
    let said = fails(&["create", &db, "--flash", &dir.at("chips")], "", 2);
    assert!(said.contains("image:PATH"), "{said}");
    let said = fails(&["create", &db, "--flash", &chips, "--flash-profile", "disk-15k"], "", 2);
    assert!(said.contains("disk-15k") && said.contains("[flash]"), "{said}");
    let said = fails(&["create", &db, "--flash", &chips], "", 2);
    assert!(said.contains("--flash-profile"), "{said}");
}

/// Damage of the whole image: said as damage, and what was not cut off can be had.
#[test]
fn a_cut_image_is_damage() {
    let dir = Scratch::new("flash-cut");
    let (db, chips) = (create(&dir, "db"), dir.at("chips"));
    ok(&["load", &db], rows("stock", 0..3000, &"x".repeat(300)));
    let whole = std::fs::read(&chips).unwrap();
    for len in [0, 10, 70_000, whole.len() / 8, whole.len() - 5000] {
        std::fs::write(&chips, &whole[..len]).unwrap();
        for args in [&["check", &db][..], &["get", &db, "stock", "00007"], &["put", &db, "stock", "00007", "y"]] {
            let said = fails(args, "", 3);
            let (cut, back) = (format!("was cut to {len} "), "put it back whole");
            assert!(said.contains(&cut) && said.contains(back) && said.contains("restore a backup"), "{said}");
        }
        // A new database on it is refused the same, and says what to do.
        let said = fails(&["create", &dir.at("new"), "--flash", &image(&dir, "chips"), "--log-mb", "1"], "", 3);
        assert!(said.contains("remove it"), "{said}");
    }
    // As the message says.
    let mut half = whole.clone();
    half[whole.len() / 2..].fill(0);
    std::fs::write(&chips, half).unwrap();
    let found = crate::support::varve(&["salvage", &db], "");
    let (found, said) = (String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    assert!(found.lines().count() > 500, "{said}");
    std::fs::write(&chips, &whole).unwrap();
    assert!(ok(&["check", &db], "").contains("no damage found"));
    let mut head = std::fs::read(&chips).unwrap();
    head[30] ^= 1;
    std::fs::write(&chips, head).unwrap();
    assert!(fails(&["get", &db, "stock", "00007"], "", 3).contains("its head is not what was written"));
    std::fs::write(&chips, vec![0; whole.len()]).unwrap();
    assert!(fails(&["get", &db, "stock", "00007"], "", 3).contains("was overwritten"));
}
