//! Device profiles: those that come with the program, and what bad ones are told.

use varve_device::*;

#[test]
fn all_profiles_load_survive_writing_and_build() {
    for name in Profile::names() {
        let profile = Profile::load(name).unwrap();
        assert_eq!(profile.name, name);
        assert!(!profile.source.is_empty() && !profile.title.is_empty(), "{name} states its source");
        assert_eq!(Profile::parse(&profile.to_toml(), "again").unwrap(), profile);
        let dev = profile.build(1, 1 << 20).unwrap();
        assert_eq!(dev.len(), 1 << 20);
        let too_long = profile.build(1, profile.capacity() + 4096).err().unwrap();
        assert!(matches!(too_long, ProfileError::TooLong { .. }), "{too_long}");
    }
}

const GOOD: &str = "name = \"x\"\n[fixed]\nread_random_ms = 1.0\nread_sequential_ms = 1.0\nwrite_random_ms = 1.0\nwrite_sequential_ms = 1.0\n";

#[track_caller]
fn refused(text: &str, line: usize, words: &[&str]) {
    let error = Profile::parse(text, "bad.toml").unwrap_err();
    let said = error.to_string();
    let ProfileError::Invalid { file, line: at, .. } = error else { panic!("{said}") };
    assert!(file == "bad.toml" && at == line, "{said}");
    words.iter().for_each(|w| assert!(said.contains(w), "{said:?} lacks {w:?}"));
}

#[test]
fn bad_files_are_told_file_line_key_and_what_is_accepted() {
    assert!(Profile::parse(GOOD, "good").is_ok());
    refused(
        &GOOD.replace("write_random_ms", "write_rnd_ms"),
        5,
        &["write_rnd_ms", "expected one of", "write_random_ms"],
    );
    refused(&GOOD.replace("write_random_ms = 1.0\n", ""), 2, &["missing field", "write_random_ms"]);
    refused(&GOOD.replace("read_random_ms = 1.0", "read_random_ms = \"fast\""), 3, &["read_random_ms", "expected f64"]);
    refused(&GOOD.replace("read_random_ms = 1.0", "read_random_ms = -1.0"), 3, &["read_random_ms", "between"]);
    refused(&format!("{GOOD}servers = 0\n"), 7, &["servers", "between 1"]);
    refused("name = \"x\"\n", 1, &["exactly one", "[disk]", "[fixed]"]);
    refused("name = \"x\"\nblock = 1000\n", 2, &["block", "power of two"]);
    refused("name = \n", 1, &["name"]);
    let disk = Profile::load("disk-15k").unwrap().to_toml();
    refused(&disk.replace("\"sptf\"", "\"best\""), line_with(&disk, "sptf"), &["scheduling", "elevator"]);
}

fn line_with(text: &str, what: &str) -> usize {
    1 + text.lines().position(|l| l.contains(what)).unwrap()
}

#[test]
fn names_and_paths() {
    let unknown = Profile::load("disk-99k").unwrap_err().to_string();
    assert!(unknown.contains("disk-15k") && unknown.contains("disk-7k2"), "{unknown}");
    let missing = Profile::load("no/such.toml").unwrap_err().to_string();
    assert!(missing.contains("no/such.toml"), "{missing}");
    let path = std::env::temp_dir().join(format!("varve-profile-{}.toml", std::process::id()));
    std::fs::write(&path, GOOD).unwrap();
    assert_eq!(Profile::load(path.to_str().unwrap()).unwrap().name, "x");
    std::fs::remove_file(&path).unwrap();
}
