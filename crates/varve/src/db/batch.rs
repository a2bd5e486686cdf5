//! Writes that are made together.

use super::Keyspace;

/// Writes to any keyspaces of a database, put together first and made by [`Db::write`](crate::Db::write): all of them
/// or none.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("varve-doc-batch-{}", std::process::id()));
/// # let db = varve::Db::open_or_create(&dir, varve::Options::default().cache_mb(8))?;
/// let (people, names) = (db.keyspace_or_create("people")?, db.keyspace_or_create("names")?);
/// let mut batch = varve::WriteBatch::new();
/// batch.put(&people, "7", "Ada").put(&names, "Ada", "7").delete(&names, "Augusta");
/// db.write(&batch)?;
/// assert_eq!(names.get("Ada")?.as_deref(), Some(&b"7"[..]));
/// # drop((people, names, batch)); db.close()?; std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), varve::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    /// Keyspace, key, and the new value; none: the key is removed.
    pub(super) writes: Vec<(Keyspace, Vec<u8>, Option<Vec<u8>>)>,
}

impl WriteBatch {
    /// Without a write.
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Adds: set the value of a key. Of several writes of one key the last one counts.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut WriteBatch {
        self.writes.push((keyspace.clone(), key.as_ref().to_vec(), Some(value.as_ref().to_vec())));
        self
    }

    /// Adds: remove a key if it is there.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut WriteBatch {
        self.writes.push((keyspace.clone(), key.as_ref().to_vec(), None));
        self
    }

    /// Number of writes.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there is no write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Forgets all writes, to be filled again.
    pub fn clear(&mut self) {
        self.writes.clear();
    }
}
