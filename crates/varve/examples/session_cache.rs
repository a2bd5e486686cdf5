//! Sessions with a time to live: looked up by name, and found by when they end.
//!
//! Run: `cargo run --release -p varve --example session_cache`

use varve::{Db, Keyspace, Options, Result};

struct Sessions {
    db: Db,
    /// Name to end and contents.
    by_name: Keyspace,
    /// End and name to nothing: what ends first comes first.
    by_end: Keyspace,
}

fn by_end(end: u64, name: &str) -> Vec<u8> {
    [&end.to_be_bytes(), name.as_bytes()].concat()
}

impl Sessions {
    fn open(path: &std::path::Path) -> Result<Sessions> {
        let db = Db::open_or_create(path, Options::default().cache_mb(16))?;
        let (by_name, by_end) = (db.keyspace_or_create("by name")?, db.keyspace_or_create("by end")?);
        Ok(Sessions { db, by_name, by_end })
    }

    fn put(&self, name: &str, contents: &str, end: u64) -> Result<()> {
        self.db.transact(|tx| {
            if let Some(old) = tx.get_for_update(&self.by_name, name)? {
                tx.delete(&self.by_end, by_end(end_of(&old), name))?;
            }
            tx.put(&self.by_name, name, [&end.to_be_bytes(), contents.as_bytes()].concat())?;
            tx.put(&self.by_end, by_end(end, name), "")
        })
    }

    fn get(&self, name: &str, now: u64) -> Result<Option<String>> {
        let found = self.by_name.get(name)?.filter(|session| end_of(session) > now);
        Ok(found.map(|session| String::from_utf8_lossy(&session[8..]).into_owned()))
    }

    /// Removes what has ended; how many sessions there were.
    fn sweep(&self, now: u64) -> Result<usize> {
        let mut swept = 0;
        for row in self.by_end.range(..&(now + 1).to_be_bytes())? {
            let (key, _) = row?;
            let (end, name) = key.split_at(8);
            swept += self.db.transact(|tx| {
                tx.delete(&self.by_end, &key)?;
                // It may have been put again meanwhile.
                let ended = tx.get_for_update(&self.by_name, name)?.is_some_and(|session| session[..8] == *end);
                if ended {
                    tx.delete(&self.by_name, name)?;
                }
                Ok(usize::from(ended))
            })?;
        }
        Ok(swept)
    }
}

fn end_of(session: &[u8]) -> u64 {
    u64::from_be_bytes(session[..8].try_into().expect("a session begins with its end"))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("varve-sessions-{}", std::process::id()));
    let sessions = Sessions::open(&path)?;
    sessions.put("ada", "cart: 3 books", 100)?;
    sessions.put("bob", "cart: empty", 200)?;
    sessions.put("ada", "cart: 4 books", 300)?;
    assert_eq!(sessions.get("bob", 150)?.as_deref(), Some("cart: empty"));
    println!("{} session(s) ended", sessions.sweep(250)?);
    assert_eq!((sessions.get("bob", 150)?, sessions.by_end.len()?), (None, 1));
    println!("ada has {}", sessions.get("ada", 250)?.expect("her session was put again"));
    sessions.db.close()?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
