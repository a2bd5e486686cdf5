//! A program that depends on `varve` and turns no feature on. Says in a line what came of each thing that it tries with
//! what its caller left in a folder; its caller is `tests/embedder.rs`.

use std::path::Path;
use varve::*;

/// All the rest: rows in both kinds of keyspaces survive closing and opening, a backup, and its restoration.
fn works(dir: &Path) -> Result<()> {
    let rows = |db: &Db| -> Result<()> {
        for name in ["accounts", "events"] {
            let keyspace = db.keyspace(name)?;
            assert_eq!(keyspace.iter()?.count(), 1000, "{name}");
            assert_eq!(keyspace.get("row 7")?.as_deref(), Some(&[7; 100][..]), "{name}");
        }
        Ok(())
    };
    let own = dir.join("own");
    let db = Db::create(&own, &Layout::default(), Options::default())?;
    let accounts = db.create_keyspace("accounts")?;
    let options = LsmOptions { compression: Compression::Lz4, ..LsmOptions::default() };
    let events = db.create_keyspace_of("events", KeyspaceKind::Lsm(options))?;
    db.transact(|tx| {
        for i in 0..1000u32 {
            let (key, value) = (format!("row {i}"), [i as u8; 100]);
            tx.put(&accounts, &key, value)?;
            tx.put(&events, &key, value)?;
        }
        Ok(())
    })?;
    events.compact(None, ..)?;
    drop((accounts, events));
    db.close()?;
    let db = Db::open(&own, Options::default())?;
    rows(&db)?;
    let mut backup = Vec::new();
    db.backup(&mut backup, BackupOptions::default())?;
    db.close()?;
    std::fs::write(dir.join("own.backup"), &backup).expect("room for a file");
    restore(dir.join("restored"), &mut [&mut &backup[..]], &RestoreOptions::default())?;
    let db = Db::open(dir.join("restored"), Options::default())?;
    rows(&db)?;
    db.close()
}

fn main() {
    let dir = std::env::args().nth(1).expect("a folder");
    let dir = Path::new(&dir);
    let say = |what: &str, came: Result<()>| match came {
        Ok(()) => println!("{what}: done"),
        Err(e) => println!("{what}: {:?}: {e}", e.kind()),
    };
    say("all the rest", works(dir));
    say("open zstd", Db::open(dir.join("zstd"), Options::default()).map(drop));
    say("salvage zstd", salvage(dir.join("zstd"), &mut |_| Ok(())).map(drop));
    say("open remote", Db::open(dir.join("remote"), Options::default()).map(drop));
    let backup = std::fs::read(dir.join("zstd.backup")).expect("a backup");
    say("restore zstd", restore(dir.join("r"), &mut [&mut &backup[..]], &RestoreOptions::default()).map(drop));
    let db = Db::open(dir.join("own"), Options::default()).expect("it is sound");
    let options = LsmOptions { compression: Compression::Zstd, ..LsmOptions::default() };
    say("create zstd", db.create_keyspace_of("z", KeyspaceKind::Lsm(options)).map(drop));
    say("set zstd", db.keyspace("events").and_then(|events| events.set_lsm_options(options)));
    let layout = Layout { remote: Some("127.0.0.1:1".into()), ..Layout::default() };
    say("create remote", Db::create(dir.join("far"), &layout, Options::default()).map(drop));
    assert!(!dir.join("far/remote").exists(), "nothing is named that cannot be opened");
}
