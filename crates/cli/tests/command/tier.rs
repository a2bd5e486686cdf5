//! A database on a tier as its operator meets it: made, watched, resized, taken apart, and what the loss of the fast
//! device means.

use crate::support::{Scratch, fails, ok};
use std::path::Path;

/// Folders for the slow and the fast device.
struct Place(Scratch);

impl Place {
    fn new(name: &str) -> Place {
        let dir = Scratch::new(name);
        std::fs::create_dir_all(dir.path().join("slow")).unwrap();
        std::fs::create_dir_all(dir.path().join("fast")).unwrap();
        Place(dir)
    }

    fn at(&self, name: &str) -> String {
        self.0.at(name)
    }

    fn fast(&self, size: &str) -> String {
        format!("{}:{size}", self.at("fast"))
    }

    /// A database on a tier with rows, more of them than its cache holds.
    fn database(&self, manager: &str) -> String {
        let db = self.at("db");
        ok(&["create", &db, "--slow", &self.at("slow"), "--fast", &self.fast("4M"), "--manager", manager], "");
        ok(&["load", &db, "--keyspace", "rows", "--cache-mb", "2"], rows());
        // Everything is read, so clean pages leave the pool; then some are changed.
        assert_eq!(ok(&["scan", &db, "rows", "--count", "--cache-mb", "2"], ""), format!("{ROWS}\n"));
        ok(&["load", &db, "--keyspace", "rows", "--cache-mb", "2"], rows());
        db
    }
}

const ROWS: u32 = 20_000;

fn rows() -> Vec<u8> {
    let row = |i| format!("{{\"key\":\"row {:06}\",\"value\":\"{i:0400}\"}}\n", i * 7919 % ROWS);
    (0..ROWS).map(row).collect::<String>().into_bytes()
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(&[&["--json"], args].concat(), "")).expect("one JSON object")
}

/// Every row is there with its value, and nothing is damaged.
fn whole(db: &str) {
    let dump = ok(&["dump", db], "");
    let mut expected: Vec<u32> = vec![0; ROWS as usize];
    (0..ROWS).for_each(|i| expected[(i * 7919 % ROWS) as usize] = i);
    let mut seen = 0;
    for line in dump.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let Some(key) = row["key"].as_str().and_then(|key| key.strip_prefix("row ")) else { continue };
        let at: usize = key.parse().unwrap();
        assert_eq!(row["value"].as_str().unwrap(), format!("{:0400}", expected[at]), "row {at}");
        seen += 1;
    }
    assert_eq!(seen, ROWS);
    assert!(ok(&["check", db], "").contains("no damage found"));
}

#[test]
fn a_tier_is_made_watched_resized_taken_away_and_made_again() {
    let place = Place::new("life");
    let db = place.database("cac");
    let (home, slots_file) =
        (Path::new(&place.at("slow")).join("db.data"), Path::new(&place.at("fast")).join("db.fast"));
    assert!(home.exists() && std::fs::metadata(&slots_file).unwrap().len() == 4 << 20);
    let stat = json(&["tier", "stat", &db]);
    let slots = stat["tier.slots"].as_u64().unwrap();
    assert!((400..=512).contains(&slots), "{stat}");
    assert!(stat["tier.occupied"].as_u64().unwrap() > slots / 2, "{stat}");
    assert!(stat["tier.written"].as_u64().unwrap() > 1 << 20 && stat["tier.state"] == "in use", "{stat}");
    assert!(stat["settings"]["manager"] == "cac" && stat["tier.life_used"] != serde_json::Value::Null, "{stat}");
    assert!(
        stat["device.fast.under_way"].as_f64().unwrap() > 0.0 && stat["device.data.reads"].as_u64().is_some(),
        "{stat}"
    );
    assert!(ok(&["stat", &db], "").contains("tier.bytes_per_day"));
    whole(&db);

    for (size, more) in [("8M", true), ("2M", false)] {
        let told = json(&["tier", "resize", &db, size]);
        let (before, after) = (told["slots_before"].as_u64().unwrap(), told["slots"].as_u64().unwrap());
        assert!(if more { after > before * 3 / 2 } else { after < before / 2 }, "{told}");
        assert_eq!(json(&["tier", "stat", &db])["tier.slots"], after);
        whole(&db);
    }
    assert_eq!(std::fs::metadata(&slots_file).unwrap().len(), 2 << 20);
    assert!(fails(&["tier", "resize", &db, "4K"], "", 1).contains("too few"));
    assert!(fails(&["tier", "resize", &db, "plenty"], "", 2).contains("is no size"));
    assert!(fails(&["tier", "resize", &db, "1000"], "", 2).contains("multiples of 4096"));

    ok(&["put", &db, "other", "key", "value"], "");
    assert_eq!(json(&["tier", "flush", &db])["newer"], 0);
    assert_eq!(json(&["tier", "stat", &db])["tier.newer"], 0);
    assert!(fails(&["tier", "attach", &db, &place.fast("4M")], "", 6).contains("has a tier"));
    assert_eq!(json(&["tier", "detach", &db])["removed"], true);
    assert!(!slots_file.exists());
    whole(&db);
    for command in ["stat", "flush", "detach"] {
        assert!(fails(&["tier", command, &db], "", 1).contains("has no tier"));
    }
    assert!(fails(&["get", &db, "other", "key", "--manager", "dw"], "", 2).contains("has no tier"));

    // What does not work leaves nothing in the way.
    assert!(fails(&["tier", "attach", &db, &place.at("fast")], "", 2).contains(":SIZE"));
    assert!(fails(&["tier", "attach", &db, &place.at("nowhere/file:4M")], "", 1).contains("nowhere"));
    let told = json(&["tier", "attach", &db, &place.fast("4M"), "--manager", "lru2"]);
    assert!((400..=512).contains(&told["slots"].as_u64().unwrap()), "{told}");
    // (What only reads opens for reading alone, and leaves the tier as it is.)
    ok(&["load", &db, "--keyspace", "rows", "--cache-mb", "2"], rows());
    let stat = json(&["tier", "stat", &db]);
    assert!(stat["tier.manager"] == "lru2" && stat["tier.occupied"].as_u64().unwrap() > 100, "{stat}");
    whole(&db);
}

#[test]
fn the_loss_of_newest_versions_is_named_and_refused() {
    let place = Place::new("lost");
    let db = place.database("cac");
    let newer = json(&["tier", "stat", &db])["tier.newer"].as_u64().unwrap();
    assert!(newer > 0);
    let (there, away) = (Path::new(&place.at("fast")).join("db.fast"), place.at("away"));
    std::fs::rename(&there, &away).unwrap();
    for args in [
        &["scan", &db, "rows"][..],
        &["stat", &db],
        &["tier", "detach", &db, "--without-tier"],
        &["check", &db, "--without-tier"],
    ] {
        let told = fails(args, "", 1);
        assert!(told.contains(&format!("newest version of {newer} pages")) && told.contains("backup"), "{told}");
    }
    std::fs::rename(&away, &there).unwrap();
    whole(&db);
    // After a flush there is nothing to lose.
    assert_eq!(json(&["tier", "flush", &db])["newer"], 0);
    std::fs::remove_file(&there).unwrap();
    assert!(fails(&["scan", &db, "rows"], "", 1).contains("nothing is lost"));
    ok(&["put", &db, "other", "key", "value", "--without-tier"], "");
    whole(&db);
}

/// Damage, with the ways out that there are: `--without-tier` is one only while nothing is newer there.
#[test]
fn an_overwritten_fast_device_is_damage() {
    let place = Place::new("wrecked");
    let db = place.database("cac");
    let fast = Path::new(&place.at("fast")).join("db.fast");
    let (whole_one, wreck) = (std::fs::read(&fast).unwrap(), |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[..8192].fill(0x55);
        std::fs::write(&fast, bytes).unwrap();
    });
    wreck(&whole_one);
    for command in ["info", "check"] {
        let told = fails(&[command, &db], "", 3);
        let words = ["overwritten", "newest version of", "backup", "salvage"];
        assert!(words.iter().all(|word| told.contains(word)) && !told.contains("--without-tier"), "{told}");
    }
    assert!(!fails(&["salvage", &db, "--out", &place.at("rows")], "", 3).is_empty());
    for length in [0, 4096, whole_one.len() / 2] {
        std::fs::write(&fast, &whole_one[..length]).unwrap();
        let told = fails(&["check", &db], "", 3);
        assert!(told.contains("cut") && told.contains("newest version of"), "{length} bytes are left: {told}");
    }
    std::fs::write(&fast, whole_one).unwrap();
    ok(&["tier", "flush", &db], "");
    wreck(&std::fs::read(&fast).unwrap());
    assert!(fails(&["info", &db], "", 3).contains("--without-tier"));
    ok(&["put", &db, "other", "key", "value", "--without-tier"], "");
    whole(&db);
}

#[test]
fn a_lost_device_of_a_manager_that_writes_home_is_replaced() {
    for manager in ["dw", "cw"] {
        let place = Place::new(manager);
        let db = place.database(manager);
        let stat = json(&["tier", "stat", &db]);
        assert!(stat["tier.manager"] == manager && stat["tier.occupied"].as_u64().unwrap() > 0, "{stat}");
        assert_eq!(stat["tier.newer"], 0);
        std::fs::remove_file(Path::new(&place.at("fast")).join("db.fast")).unwrap();
        assert!(fails(&["scan", &db, "rows"], "", 1).contains("nothing is lost"));
        // To look at it changes nothing.
        ok(&["check", &db, "--without-tier"], "");
        assert!(fails(&["tier", "attach", &db, &place.fast("4M")], "", 6).contains("--without-tier"));
        ok(&["tier", "detach", &db, "--without-tier"], "");
        whole(&db);
        ok(&["tier", "attach", &db, &place.fast("4M"), "--manager", manager], "");
        whole(&db);
    }
}

#[test]
fn settings_stay_with_the_database_and_can_be_changed() {
    let place = Place::new("settings");
    let (db, fast) = (place.at("db"), place.at("ssd:1"));
    let file = format!("{fast}:4M");
    let settings = ["--manager", "lc", "--zone", "0.05", "--map-recovery", "log", "--dirty-ceiling", "0.5"];
    let more = ["--daily-budget", "1G", "--alpha", "keyspace", "--tier-costs", "9,8,0.2,0.1"];
    ok(&[&["create", &db, "--fast", &file][..], &settings, &more].concat(), "");
    assert!(Path::new(&fast).exists(), "a path with a colon");
    let kept = json(&["tier", "stat", &db])["settings"].clone();
    assert!(kept["manager"] == "lc" && kept["zone"] == 0.05 && kept["map_recovery"] == "log", "{kept}");
    assert!(kept["dirty_ceiling"] == 0.5 && kept["daily_budget"] == 1 << 30 && kept["alpha"] == "keyspace", "{kept}");
    assert!(kept["costs_ms"]["write_fast"] == 0.1, "{kept}");
    assert_eq!(json(&["stat", &db, "--manager", "cc"])["tier.manager"], "cc");
    assert_eq!(json(&["stat", &db])["tier.manager"], "lc");
    ok(&["tier", "set", &db, "--manager", "dw", "--daily-budget", "none"], "");
    let kept = json(&["tier", "stat", &db])["settings"].clone();
    assert!(kept["manager"] == "dw" && kept["daily_budget"] == 0 && kept["zone"] == 0.05, "{kept}");
    assert!(fails(&["tier", "set", &db], "", 2).contains("say what to set"));
    assert!(fails(&["tier", "set", &db, "--manager", "best"], "", 2).contains("cac"));
    assert!(fails(&["tier", "set", &db, "--zone", "2"], "", 2).contains("share"));
    assert!(fails(&["tier", "set", &db, "--dirty-ceiling", "0.01"], "", 2).contains("0.05"));
    assert!(fails(&["tier", "stat", &place.at("nothing")], "", 4).contains("no database"));
    std::fs::write(Path::new(&db).join("tier.json"), "{}").unwrap();
    assert!(fails(&["stat", &db], "", 1).contains("tier set"));
}

#[test]
fn what_holds_something_is_not_overwritten_unasked() {
    let place = Place::new("used");
    let (db, used) = (place.at("db"), place.at("used"));
    std::fs::write(&used, vec![7; 4 << 20]).unwrap();
    for device in ["--slow", "--fast"] {
        assert!(fails(&["create", &db, device, &used], "", 1).contains("--overwrite"));
    }
    assert!(fails(&["create", &db, "--manager", "dw"], "", 2).contains("--fast"));
    assert!(fails(&["create", &db, "--fast", &place.fast("8K")], "", 1).contains("too few"));
    assert!(!Path::new(&place.at("fast")).join("db.fast").exists(), "nothing is left of what failed");
    ok(&["create", &db, "--fast", &used, "--overwrite"], "");
    assert_eq!(json(&["tier", "stat", &db])["tier.state"], "in use");
    assert!(fails(&["create", &place.at("second"), "--fast", &used], "", 1).contains("--overwrite"));
}
