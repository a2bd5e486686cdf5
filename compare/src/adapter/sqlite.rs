//! SQLite: write-ahead log, a table without row ids per keyspace, a connection per thread at work, every statement
//! prepared once per connection.
//!
//! SQLite has one writer at a time and lets the others sleep and retry. A mutex in front of `BEGIN IMMEDIATE` hands
//! the turn over at once instead, which is kinder to it with several threads.
//!
//! Invariant: a statement borrows from the connection beside it; it is dropped first (field order of [`Conn`]).
//!
//! Lock order: `writer`, then `pool` or `names`, neither of which is held while SQLite works.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Statement};
use varve_lab::adapter::{Direction, Durability, KeyRange, Store, StoreStats, TxMode, Txn};
use varve_lab::{Error, Result};
use varve_rt::{Mutex, MutexGuard};

use super::read_only;
use crate::engine::{Description, Engine, Kind, Memory, Push, Settings};

/// Size to which the write-ahead log grows before it is copied into the database, bytes.
const WAL_BYTES: u64 = 64 << 20;
/// Address space for the memory map, bytes.
const MAP_BYTES: u64 = 64 << 30;

/// Cache of one connection, bytes. Where memory is scarce, it is small: what is left goes to the system's page cache,
/// which all connections share (measured on YCSB with 8 threads and 320 MiB in all: 22 k reads/s, 14 k with caches of
/// 32 MiB each, 0.3 k through the memory map).
fn connection_cache(settings: &Settings) -> u64 {
    match settings.memory {
        Memory::Ample => settings.cache_bytes,
        Memory::Scarce { clients } => (settings.cache_bytes / 16 / clients as u64).max(2 << 20),
    }
}

/// A SQLite database.
pub struct SqliteStore {
    path: PathBuf,
    settings: Settings,
    writer: Mutex<()>,
    #[expect(
        clippy::vec_box,
        reason = "taken and given back for each transaction: a pointer moves, not all statements"
    )]
    pool: Mutex<Vec<Box<Conn>>>,
    names: Mutex<Vec<String>>,
}

/// Index of a table.
#[derive(Debug, Clone, Copy)]
pub struct SqliteKeyspace(usize);

struct Control {
    begin_read: Statement<'static>,
    begin_write: Statement<'static>,
    commit: Statement<'static>,
    rollback: Statement<'static>,
}

struct Table {
    get: Statement<'static>,
    put: Statement<'static>,
    delete: Statement<'static>,
    /// By direction, then whether the range has an end.
    scans: [[Statement<'static>; 2]; 2],
}

struct Conn {
    control: Control,
    tables: Vec<Option<Table>>,
    durability: Option<Durability>,
    connection: Box<Connection>,
}

// SAFETY: a connection opened without shared cache may move between threads; the statements beside it are reached
// through the same owner only, so they move with it.
unsafe impl Send for Conn {}

fn wrap(e: rusqlite::Error) -> Error {
    match e.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => Error::Conflict(e.to_string()),
        _ => Error::store(e),
    }
}

fn prepare(connection: &Connection, sql: &str) -> Result<Statement<'static>> {
    let statement = connection.prepare(sql).map_err(wrap)?;
    // SAFETY: the connection lives in a box that `Conn` drops after the statements, and is never moved out of it.
    Ok(unsafe { std::mem::transmute::<Statement<'_>, Statement<'static>>(statement) })
}

impl Conn {
    fn open(path: &Path, settings: &Settings) -> Result<Box<Conn>> {
        let connection = Box::new(Connection::open(path).map_err(wrap)?);
        let wal_pages = WAL_BYTES / settings.page_size as u64;
        let pragmas = format!(
            "PRAGMA page_size={}; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint={wal_pages};
             PRAGMA cache_size=-{}; PRAGMA mmap_size={}; PRAGMA temp_store=MEMORY; PRAGMA busy_timeout=10000;",
            settings.page_size,
            connection_cache(settings) >> 10,
            if settings.scarce() { 0 } else { MAP_BYTES },
        );
        connection.execute_batch(&pragmas).map_err(wrap)?;
        let control = Control {
            begin_read: prepare(&connection, "BEGIN")?,
            begin_write: prepare(&connection, "BEGIN IMMEDIATE")?,
            commit: prepare(&connection, "COMMIT")?,
            rollback: prepare(&connection, "ROLLBACK")?,
        };
        Ok(Box::new(Conn { control, tables: Vec::new(), durability: None, connection }))
    }

    /// Sets what the next commit waits for. Not possible within a transaction.
    fn set_durability(&mut self, durability: Durability) -> Result<()> {
        if self.durability != Some(durability) {
            let level = match durability {
                Durability::Sync => "FULL",
                Durability::Async => "NORMAL",
                Durability::None => "OFF",
            };
            self.connection.execute_batch(&format!("PRAGMA synchronous={level}")).map_err(wrap)?;
            self.durability = Some(durability);
        }
        Ok(())
    }

    fn table(&mut self, ks: &SqliteKeyspace, names: &Mutex<Vec<String>>) -> Result<&mut Table> {
        if self.tables.len() <= ks.0 {
            self.tables.resize_with(ks.0 + 1, || None);
        }
        if self.tables[ks.0].is_none() {
            let name = names.lock()[ks.0].clone();
            let new = |sql: &str| prepare(&self.connection, &sql.replace('@', &format!("\"{name}\"")));
            let table = Table {
                get: new("SELECT v FROM @ WHERE k=?1")?,
                put: new("INSERT INTO @(k,v) VALUES(?1,?2) ON CONFLICT(k) DO UPDATE SET v=excluded.v")?,
                delete: new("DELETE FROM @ WHERE k=?1")?,
                scans: [
                    [
                        new("SELECT k,v FROM @ WHERE k>=?1 ORDER BY k")?,
                        new("SELECT k,v FROM @ WHERE k>=?1 AND k<?2 ORDER BY k")?,
                    ],
                    [
                        new("SELECT k,v FROM @ WHERE k>=?1 ORDER BY k DESC")?,
                        new("SELECT k,v FROM @ WHERE k>=?1 AND k<?2 ORDER BY k DESC")?,
                    ],
                ],
            };
            self.tables[ks.0] = Some(table);
        }
        Ok(self.tables[ks.0].as_mut().expect("prepared above"))
    }
}

impl SqliteStore {
    fn take(&self) -> Result<Box<Conn>> {
        let pooled = self.pool.lock().pop();
        pooled.map_or_else(|| Conn::open(&self.path, &self.settings), Ok)
    }
}

impl Store for SqliteStore {
    type Keyspace = SqliteKeyspace;
    type Txn<'a> = SqliteTxn<'a>;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<SqliteKeyspace> {
        if let Some(found) = self.find_keyspace(name)? {
            return Ok(found);
        }
        let turn = self.writer.lock();
        let conn = self.take()?;
        let sql = format!("CREATE TABLE IF NOT EXISTS \"{name}\"(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID");
        conn.connection.execute_batch(&sql).map_err(wrap)?;
        drop(turn);
        self.pool.lock().push(conn);
        self.find_keyspace(name)?.ok_or_else(|| Error::store(format!("table {name:?} was not created")))
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<SqliteKeyspace>> {
        let conn = self.take()?;
        let sql = "SELECT count(*) FROM sqlite_master WHERE type='table' AND name=?1";
        let there: i64 = conn.connection.query_row(sql, [name], |row| row.get(0)).map_err(wrap)?;
        self.pool.lock().push(conn);
        if there == 0 {
            return Ok(None);
        }
        let mut names = self.names.lock();
        let at = names.iter().position(|n| n == name).unwrap_or_else(|| {
            names.push(name.to_string());
            names.len() - 1
        });
        Ok(Some(SqliteKeyspace(at)))
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<SqliteTxn<'_>> {
        let turn = (mode == TxMode::ReadWrite).then(|| self.writer.lock());
        let mut conn = self.take()?;
        let begun = match turn {
            Some(_) => {
                conn.set_durability(durability).and_then(|()| conn.control.begin_write.execute(()).map_err(wrap))
            }
            None => conn.control.begin_read.execute(()).map_err(wrap),
        };
        if let Err(e) = begun {
            self.pool.lock().push(conn);
            return Err(e);
        }
        Ok(SqliteTxn { store: self, conn: Some(conn), turn })
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// A transaction of a [`SqliteStore`].
pub struct SqliteTxn<'a> {
    store: &'a SqliteStore,
    /// There until the transaction has ended.
    conn: Option<Box<Conn>>,
    /// Held by read-write transactions.
    turn: Option<MutexGuard<'a, ()>>,
}

impl SqliteTxn<'_> {
    fn table(&mut self, ks: &SqliteKeyspace) -> Result<&mut Table> {
        self.conn.as_mut().expect("the transaction is open").table(ks, &self.store.names)
    }

    fn end(&mut self, commit: bool) -> Result<()> {
        let Some(mut conn) = self.conn.take() else { return Ok(()) };
        let control = &mut conn.control;
        let ended = if commit { control.commit.execute(()) } else { control.rollback.execute(()) };
        if ended.is_err() && commit {
            _ = control.rollback.execute(());
        }
        drop(self.turn.take());
        self.store.pool.lock().push(conn);
        ended.map(|_| ()).map_err(|e| match wrap(e) {
            Error::Store(e) if commit => Error::CommitUnknown(e),
            other => other,
        })
    }
}

impl Txn for SqliteTxn<'_> {
    type Keyspace = SqliteKeyspace;

    fn get<R>(&mut self, ks: &SqliteKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let mut rows = self.table(ks)?.get.query((key,)).map_err(wrap)?;
        match rows.next().map_err(wrap)? {
            Some(row) => Ok(f(Some(row.get_ref(0).map_err(wrap)?.as_blob().map_err(Error::store)?))),
            None => Ok(f(None)),
        }
    }

    fn put(&mut self, ks: &SqliteKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        if self.turn.is_none() {
            return Err(read_only());
        }
        self.table(ks)?.put.execute((key, value)).map_err(wrap)?;
        Ok(())
    }

    fn delete(&mut self, ks: &SqliteKeyspace, key: &[u8]) -> Result<()> {
        if self.turn.is_none() {
            return Err(read_only());
        }
        self.table(ks)?.delete.execute((key,)).map_err(wrap)?;
        Ok(())
    }

    fn scan(
        &mut self,
        ks: &SqliteKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let [open, ended] = &mut self.table(ks)?.scans[usize::from(direction == Direction::Reverse)];
        let mut rows = match range.to {
            None => open.query((range.from,)),
            Some(to) => ended.query((range.from, to)),
        }
        .map_err(wrap)?;
        while let Some(row) = rows.next().map_err(wrap)? {
            let key = row.get_ref(0).map_err(wrap)?.as_blob().map_err(Error::store)?;
            let value = row.get_ref(1).map_err(wrap)?.as_blob().map_err(Error::store)?;
            if each(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit(mut self) -> Result<()> {
        self.end(true)
    }

    fn rollback(mut self) {
        _ = self.end(false);
    }
}

impl Drop for SqliteTxn<'_> {
    fn drop(&mut self) {
        _ = self.end(false);
    }
}

impl Engine for SqliteStore {
    const NAME: &'static str = "sqlite";

    const KIND: Kind = Kind::BTree;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let path = dir.join("data.sqlite");
        let pool = Mutex::new(vec![Conn::open(&path, settings)?]);
        Ok(SqliteStore { path, settings: *settings, writer: Mutex::new(()), pool, names: Mutex::new(Vec::new()) })
    }

    fn describe(settings: &Settings) -> Description {
        Description {
            version: rusqlite::version().to_string(),
            setup: format!(
                "bundled; WAL copied back at {} MiB, cache of {} MiB per connection{}, pages of {} bytes, WITHOUT ROWID \
                 tables, statements prepared once",
                WAL_BYTES >> 20,
                connection_cache(settings) >> 20,
                if settings.scarce() { "" } else { " and memory map" },
                settings.page_size
            ),
            durable: "synchronous=FULL: flushes the log at each commit",
            not_synced: "synchronous=OFF: log written to the system, not flushed",
            isolation: "serializable, one writer at a time",
            bulk: "journal_mode=OFF, one transaction with synchronous=FULL, then WAL again",
        }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<SqliteKeyspace> {
        let ks = self.keyspace(name)?;
        let turn = self.writer.lock();
        // The way of journaling changes while there is one connection alone.
        self.pool.lock().clear();
        let mut conn = Conn::open(&self.path, &self.settings)?;
        conn.connection.execute_batch("PRAGMA journal_mode=OFF; PRAGMA synchronous=FULL; BEGIN").map_err(wrap)?;
        let mut insert = prepare(&conn.connection, &format!("INSERT INTO \"{name}\"(k,v) VALUES(?1,?2)"))?;
        rows(&mut |key, value| insert.execute((key, value)).map(drop).map_err(wrap))?;
        drop(insert);
        conn.connection.execute_batch("COMMIT; PRAGMA journal_mode=WAL").map_err(wrap)?;
        conn.durability = None;
        self.pool.lock().push(conn);
        drop(turn);
        Ok(ks)
    }
}
