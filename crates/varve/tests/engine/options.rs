//! The table of options: what the manual says is what text can set.

use varve::{Db, Layout, NEAR_OPTIONS, OPTIONS, Options, POOL_OPTIONS, TIER_OPTIONS};

/// The page is made from the tables: `UPDATE=1 cargo test -p varve --test engine options` writes it.
#[test]
fn the_manual_lists_every_option() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, Options::manual()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page == Options::manual(), "docs/options.md is not what the tables say: run this test with UPDATE=1");
}

#[test]
fn every_option_is_set_by_text_and_reads_back() {
    for setting in OPTIONS.settings {
        let mut options = Options::default();
        let text = setting.value(&Options::default());
        options.set(setting.name, &text).unwrap();
        assert_eq!(options, Options::default(), "{}", setting.name);
    }
    let mut options = Options::default();
    let names = |part: &str, names: Vec<&str>| names.iter().map(|name| format!("{part}.{name}")).collect::<Vec<_>>();
    let pool = names("pool", POOL_OPTIONS.settings.iter().map(|s| s.name).collect());
    let tier = names("tier", TIER_OPTIONS.settings.iter().map(|s| s.name).collect());
    let near = names("near", NEAR_OPTIONS.settings.iter().map(|s| s.name).collect());
    for name in pool.iter().chain(&tier).chain(&near) {
        let error = options.set(name, "not a value").unwrap_err().to_string();
        assert!(error.contains("is not accepted: give "), "{name}: {error}");
    }
    assert_eq!(options, Options::default(), "what is refused changes nothing");
    for (name, value) in [("cache", "64M"), ("async_delay", "1.5s"), ("lock_timeout", "none"), ("trim", "true")] {
        options.set(name, value).unwrap();
        assert_eq!(OPTIONS.find(name).unwrap().value(&options), value);
    }
    options.set("tier.manager", "lru2").unwrap();
    assert_eq!(options.tier.manager, "lru2");
    for (name, value) in [("near.host.threshold", "0.5"), ("near.worker.large", "4K"), ("near.worker.first", "linear")]
    {
        options.set(name, value).unwrap();
    }
    let (host, worker) = (&options.near.host, &options.near.worker);
    assert_eq!((host.threshold, worker.threshold, worker.large_bytes), (0.5, 0.7, 4096));
    assert_eq!((host.first.name(), worker.first.name()), ("pipeline", "linear"));
}

#[test]
fn errors_say_what_there_is() {
    let mut options = Options::default();
    for (name, value, says) in [
        ("cash", "1G", "there are: cache, read_only"),
        ("pool", "lru-c", "pool.NAME"),
        ("pool.victims", "spf", "there are: preset, replacement, victim"),
        ("log_max", "1K", "from 1M"),
        ("cache", "99999999T", "K, M, G or T"),
        ("recovery_bound", "0s", "a time with us, ms, s or min"),
        ("durability", "perhaps", "sync, async, none"),
        ("tier.zone", "2", "from 0.001 to 1"),
        ("near", "copro", "near.NAME"),
        ("near.host.threshold", "1.01", "give a share from 0 to 1"),
        ("near.host.threshold", "-0.1", "give a share from 0 to 1"),
        ("near.worker.hysteresis", "NaN", "give a share from 0 to 1"),
        ("near.worker.cpu", "2", "give a weight from 0 to 1"),
        ("near.worker.first", "fast", "give pipeline, linear"),
        ("near.host.window", "-1", "pairs from 0 to"),
        ("near.both.cpu", "1", "there are: host.cpu, host.memory"),
    ] {
        let error = options.set(name, value).unwrap_err().to_string();
        assert!(error.contains(says), "{name} = {value}: {error}");
    }
}

/// Fields that were set past the table are held to its ranges as well.
#[test]
fn a_database_is_not_opened_with_what_no_text_could_set() {
    let dir = std::env::temp_dir().join(format!("varve-options-{}", std::process::id()));
    let mut options = Options { recovery_bound: std::time::Duration::ZERO, ..Options::default() };
    let refused = |options: &Options| {
        Db::create(&dir, &Layout::default(), options.clone()).map(drop).expect_err("refused").to_string()
    };
    assert!(refused(&options).contains("recovery_bound"));
    options = Options::default();
    options.pool.scan_depth = Some(0);
    assert!(refused(&options).contains("scan_depth"));
    options = Options::default();
    options.tier.dirty_ceiling = f64::NAN;
    assert!(refused(&options).contains("dirty_ceiling"));
    options = Options::default();
    options.near.host.threshold = 1.5;
    assert!(refused(&options).contains("host.threshold"));
    options = Options::default();
    options.pool.replacement = Some("best".into());
    assert!(refused(&options).contains("lru-midpoint"));
    assert!(!dir.exists(), "nothing is made");
}
