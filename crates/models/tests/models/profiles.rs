//! Device profiles: those that come with the program, and what bad ones are told.

use varve_device::*;
use varve_models::*;

#[test]
fn all_profiles_load_survive_writing_and_build() {
    for name in Profile::names() {
        let profile = Profile::load(name).unwrap();
        assert_eq!(profile.name, name);
        assert!(!profile.source.is_empty() && !profile.title.is_empty(), "{name} states its source");
        assert_eq!(Profile::parse(&profile.to_toml(), "again").unwrap(), profile);
        let share = (64 << 20) as f64 / profile.capacity() as f64;
        let small = if profile.flash.is_some() { profile.scaled(share.min(1.0)) } else { profile.clone() };
        let dev = small.build(1, 1 << 20).unwrap();
        assert_eq!(dev.len(), 1 << 20);
        let too_long = profile.build(1, profile.capacity() + 4096).err().unwrap();
        assert!(matches!(too_long, ProfileError::TooLong { .. }), "{too_long}");
    }
}

#[test]
fn a_flash_drive_holds_the_contents_it_is_built_with() {
    let profile = Profile::load("nand-slc-1gbit").unwrap();
    let mut contents = Sparse::new();
    contents.write(3 << 20, &[7; 5000]);
    let how = Build { len: 8 << 20, contents, ..Build::default() };
    let dev = profile.build_model(how).unwrap();
    let mut back = [0; 8192];
    read_at(&*dev, 3 << 20, &mut back).unwrap();
    assert!(back[..5000] == [7; 5000] && back[5000..] == [0; 3192]);
    write_at(&*dev, 0, &[9; 2048], false).unwrap();
    let (copy, mut first) = (dev.contents(), [0; 2048]);
    copy.read(0, &mut first);
    assert_eq!(first, [9; 2048]);
    assert!(dev.model_stats().busy > std::time::Duration::ZERO);
}

#[test]
fn flash_sections_are_checked_too() {
    let text = Profile::load("nand-slc-1gbit").unwrap().to_toml();
    let line = |what: &str| 1 + text.lines().position(|l| l.contains(what)).unwrap();
    let spare = text.replace("spare_bytes = 64", "spare_bytes = 8");
    refused(&spare, line("spare_bytes"), &["spare_bytes", "at least 16"]);
    refused(&text.replace("nop = 4", "nap = 4"), line("nop = 4"), &["nap", "expected one of"]);
    let without: String = text.lines().filter(|l| !l.contains("logical_pages")).map(|l| format!("{l}\n")).collect();
    assert!(Profile::parse(&without, "bad.toml").unwrap_err().to_string().contains("logical_pages"));
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

/// Random writes of two thousand pages; how much the drive wrote for each of them.
fn amplification(dev: &dyn Modelled) -> f64 {
    let mut rng = varve_rt::Rng::from_seed(5);
    for _ in 0..2000 {
        write_at(dev, rng.below(dev.len() / 4096) * 4096, &[3; 4096], false).unwrap();
    }
    let details = dev.model_stats().details;
    details.iter().find(|(name, _)| *name == "write_amplification").expect("a flash drive tells").1
}

/// A drive that was used keeps its mapping in copies: they collect garbage from their first write on, and equally.
/// Built anew from the bytes alone, the drive would be fresh.
#[test]
fn copies_of_an_aged_drive_keep_its_mapping() {
    let amplifications = varve_rt::sim::run(varve_rt::sim::Config::default(), || {
        let profile = Profile::load("nand-slc-1gbit").unwrap().scaled(0.1);
        let len = profile.capacity() / 65536 * 65536;
        let build = |how: Build| amplification(&*profile.build_model(Build { len, ..how }).unwrap());
        let fresh = build(Build::default());
        let drive = profile.drive(&Build { len, aged: 1.5, ..Build::default() }).unwrap();
        let copies = [(); 2].map(|()| build(Build { drive: drive.clone(), ..Build::default() }));
        let alone = build(Build { aged: 1.5, ..Build::default() });
        let used = profile.build_model(Build { len, drive, ..Build::default() }).unwrap();
        write_at(&*used, 8192, &[9; 4096], false).unwrap();
        let mapped = build(Build { drive: used.drive(), ..Build::default() });
        let again = profile.build_model(Build { len, drive: used.drive(), ..Build::default() }).unwrap();
        let mut back = [0; 4096];
        read_at(&*again, 8192, &mut back).unwrap();
        assert_eq!(back, [9; 4096], "bytes come along");
        (fresh, copies, alone, mapped)
    })
    .unwrap();
    let (fresh, copies, alone, mapped) = amplifications;
    assert!(fresh < 1.01, "a fresh drive has nothing to collect: {fresh}");
    assert!(copies[0] == copies[1] && copies[0] == alone, "copies are equal: {copies:?} {alone}");
    assert!(copies[0] > fresh + 0.3 && mapped > fresh + 0.3, "an aged one has: {copies:?} {mapped}");
}
