//! WiredTiger through its C interface: a table per keyspace, a session per thread at work, its cursors kept open.
//!
//! Invariants: a session is used by one thread at a time (it is taken from the pool and given back), its cursors are
//! used with it alone, and nothing of a session is used after [`WtStore`] has closed the connection, which frees all.

mod ffi;

use std::ffi::{CStr, CString, c_int};
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

use varve_lab::adapter::{Direction, Durability, End, KeyRange, Store, StoreStats, TxMode, Txn, transact};
use varve_lab::{Error, Result};
use varve_rt::Mutex;

use super::read_only;
use crate::engine::{Description, Engine, Kind, Push, Settings};

/// A WiredTiger database.
pub struct WtStore {
    /// Null once it is closed.
    connection: *mut ffi::Connection,
    table_config: CString,
    pool: Mutex<Vec<Session>>,
    uris: Mutex<Vec<Arc<CStr>>>,
}

// SAFETY: a connection may be used by any number of threads; sessions are reached through the pool.
unsafe impl Send for WtStore {}
// SAFETY: as above.
unsafe impl Sync for WtStore {}

/// A table: its index among those opened, and its name.
#[derive(Clone)]
pub struct WtKeyspace {
    index: usize,
    uri: Arc<CStr>,
}

/// A session and its cursors, by table.
struct Session {
    raw: *mut ffi::Session,
    cursors: Vec<*mut ffi::Cursor>,
}

// SAFETY: a session and its cursors may move between threads as long as one at a time uses them.
unsafe impl Send for Session {}

fn check(code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the text belongs to the library and stays.
    let text = unsafe { CStr::from_ptr(ffi::wiredtiger_strerror(code)) }.to_string_lossy().into_owned();
    Err(if code == ffi::ROLLBACK { Error::Conflict(text) } else { Error::store(text) })
}

/// Whether there is a row; other codes are errors.
fn found(code: c_int) -> Result<bool> {
    if code == ffi::NOT_FOUND { Ok(false) } else { check(code).map(|()| true) }
}

/// Lends what `get` says.
///
/// # Safety
/// The cursor is open and on a row, and is not moved while the bytes are used.
unsafe fn bytes<'c>(
    cursor: *mut ffi::Cursor,
    get: unsafe extern "C" fn(*mut ffi::Cursor, ...) -> c_int,
) -> Result<&'c [u8]> {
    let mut item = ffi::Item::of(&[]);
    // SAFETY: the formats are `u`, for which the library fills one item.
    check(unsafe { get(cursor, &raw mut item) })?;
    // SAFETY: the library lends `size` bytes until the cursor moves.
    Ok(if item.size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(item.data.cast(), item.size) } })
}

impl Session {
    fn open_cursor(&self, uri: &CStr, config: Option<&CStr>) -> Result<*mut ffi::Cursor> {
        let mut cursor = null_mut();
        let config = config.map_or(null(), CStr::as_ptr);
        // SAFETY: the session is open, the texts end in zero, and the library fills the pointer.
        check(unsafe { ((*self.raw).open_cursor)(self.raw, uri.as_ptr(), null_mut(), config, &raw mut cursor) })?;
        Ok(cursor)
    }

    fn cursor(&mut self, ks: &WtKeyspace) -> Result<*mut ffi::Cursor> {
        if self.cursors.len() <= ks.index {
            self.cursors.resize(ks.index + 1, null_mut());
        }
        if self.cursors[ks.index].is_null() {
            self.cursors[ks.index] = self.open_cursor(&ks.uri, None)?;
        }
        Ok(self.cursors[ks.index])
    }

    /// Calls a function of the session; `config` may be absent.
    fn call(&self, which: fn(&ffi::Session) -> ffi::OfSession, config: Option<&CStr>) -> Result<()> {
        // SAFETY: the session is open; the text ends in zero.
        check(unsafe { which(&*self.raw)(self.raw, config.map_or(null(), CStr::as_ptr)) })
    }

    fn get<R>(&mut self, ks: &WtKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let (cursor, item) = (self.cursor(ks)?, ffi::Item::of(key));
        // SAFETY: the cursor is open; the key outlives the search; the value is used before the cursor moves.
        unsafe {
            ((*cursor).set_key)(cursor, &raw const item);
            let there = found(((*cursor).search)(cursor))?;
            Ok(f(if there { Some(bytes(cursor, (*cursor).get_value)?) } else { None }))
        }
    }

    fn put(&mut self, ks: &WtKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        let cursor = self.cursor(ks)?;
        insert(cursor, key, value)
    }

    /// Gives up the place of the table's cursor, for reads without a transaction.
    fn reset(&mut self, ks: &WtKeyspace) -> Result<()> {
        let cursor = self.cursor(ks)?;
        // SAFETY: the cursor is open.
        check(unsafe { ((*cursor).reset)(cursor) })
    }

    fn scan(
        &mut self,
        ks: &WtKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let cursor = self.cursor(ks)?;
        // SAFETY: the cursor is open; bytes it lends are used before it moves.
        unsafe {
            let mut there = place(cursor, range, direction)?;
            while there {
                let key = bytes(cursor, (*cursor).get_key)?;
                if !range.contains(key) || each(key, bytes(cursor, (*cursor).get_value)?).is_break() {
                    break;
                }
                there = step(cursor, direction)?;
            }
        }
        Ok(())
    }
}

fn insert(cursor: *mut ffi::Cursor, key: &[u8], value: &[u8]) -> Result<()> {
    let (key, value) = (ffi::Item::of(key), ffi::Item::of(value));
    // SAFETY: the cursor is open; key and value outlive the call.
    unsafe {
        ((*cursor).set_key)(cursor, &raw const key);
        ((*cursor).set_value)(cursor, &raw const value);
        check(((*cursor).insert)(cursor))
    }
}

/// Moves one row on.
///
/// # Safety
/// The cursor is open.
unsafe fn step(cursor: *mut ffi::Cursor, direction: Direction) -> Result<bool> {
    // SAFETY: as the caller says.
    found(unsafe {
        match direction {
            Direction::Forward => ((*cursor).next)(cursor),
            Direction::Reverse => ((*cursor).prev)(cursor),
        }
    })
}

/// Goes to the first row of a range in its direction; whether there is one at that side.
///
/// # Safety
/// The cursor is open.
unsafe fn place(cursor: *mut ffi::Cursor, range: KeyRange<'_>, direction: Direction) -> Result<bool> {
    let start = match direction {
        Direction::Forward => (!range.from.is_empty()).then_some(range.from),
        Direction::Reverse => range.to,
    };
    // SAFETY: as the caller says; the key outlives the search.
    unsafe {
        let Some(start) = start else {
            check(((*cursor).reset)(cursor))?;
            return step(cursor, direction);
        };
        let (item, mut side) = (ffi::Item::of(start), 0);
        ((*cursor).set_key)(cursor, &raw const item);
        if !found(((*cursor).search_near)(cursor, &raw mut side))? {
            return Ok(false);
        }
        let past = if direction == Direction::Forward { side < 0 } else { side >= 0 };
        if past { step(cursor, direction) } else { Ok(true) }
    }
}

impl WtStore {
    fn take(&self) -> Result<Session> {
        if let Some(session) = self.pool.lock().pop() {
            return Ok(session);
        }
        let mut raw = null_mut();
        // SAFETY: the connection is open, the text ends in zero, and the library fills the pointer.
        check(unsafe {
            let config = c"isolation=snapshot".as_ptr();
            ((*self.connection).open_session)(self.connection, null_mut(), config, &raw mut raw)
        })?;
        Ok(Session { raw, cursors: Vec::new() })
    }

    /// Runs `f` with a session that nobody else uses.
    fn with<R>(&self, f: impl FnOnce(&mut Session) -> Result<R>) -> Result<R> {
        let mut session = self.take()?;
        let result = f(&mut session);
        self.pool.lock().push(session);
        result
    }

    fn handle(&self, name: &str) -> Result<WtKeyspace> {
        let uri = CString::new(format!("table:{name}")).map_err(Error::store)?;
        let mut uris = self.uris.lock();
        let index = uris.iter().position(|known| **known == *uri).unwrap_or_else(|| {
            uris.push(uri.into());
            uris.len() - 1
        });
        Ok(WtKeyspace { index, uri: uris[index].clone() })
    }

    fn end(&mut self) -> Result<()> {
        let connection = std::mem::replace(&mut self.connection, null_mut());
        if connection.is_null() {
            return Ok(());
        }
        self.pool.lock().clear();
        // SAFETY: it is open, and by `&mut self` nobody uses any of its sessions.
        check(unsafe { ((*connection).close)(connection, null()) })
    }
}

impl Drop for WtStore {
    fn drop(&mut self) {
        _ = self.end();
    }
}

impl Store for WtStore {
    type Keyspace = WtKeyspace;
    type Txn<'a> = WtTxn<'a>;

    fn name(&self) -> &str {
        Self::NAME
    }

    fn keyspace(&self, name: &str) -> Result<WtKeyspace> {
        let ks = self.handle(name)?;
        self.with(|session| {
            let config = self.table_config.as_ptr();
            // SAFETY: the session is open; the texts end in zero.
            check(unsafe { ((*session.raw).create)(session.raw, ks.uri.as_ptr(), config) })
        })?;
        Ok(ks)
    }

    fn find_keyspace(&self, name: &str) -> Result<Option<WtKeyspace>> {
        let ks = self.handle(name)?;
        let there = self.with(|session| {
            let cursor = session.open_cursor(c"metadata:", None)?;
            let text = ks.uri.as_ptr();
            // SAFETY: the cursor is open; its keys are texts, and this one outlives the search.
            unsafe {
                ((*cursor).set_key)(cursor, text);
                let there = found(((*cursor).search)(cursor))?;
                check(((*cursor).close)(cursor))?;
                Ok(there)
            }
        })?;
        Ok(there.then_some(ks))
    }

    fn begin(&self, mode: TxMode, durability: Durability) -> Result<WtTxn<'_>> {
        let session = self.take()?;
        session.call(|s| s.begin_transaction, None)?;
        let (writes, sync) = (mode == TxMode::ReadWrite, durability == Durability::Sync);
        Ok(WtTxn { store: self, session: Some(session), writes, sync })
    }

    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    fn get_one<R>(&self, ks: &WtKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.with(|session| {
            let value = session.get(ks, key, f)?;
            session.reset(ks)?;
            Ok(value)
        })
    }

    fn put_one(&self, ks: &WtKeyspace, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        if durability == Durability::Sync {
            return transact(self, TxMode::ReadWrite, durability, |tx| Ok((tx.put(ks, key, value)?, End::Commit)));
        }
        self.with(|session| session.put(ks, key, value))
    }
}

/// A transaction of a [`WtStore`].
pub struct WtTxn<'a> {
    store: &'a WtStore,
    /// There until the transaction has ended.
    session: Option<Session>,
    writes: bool,
    sync: bool,
}

impl WtTxn<'_> {
    fn session(&mut self) -> &mut Session {
        self.session.as_mut().expect("the transaction is open")
    }

    fn end(&mut self, commit: bool) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        let ended = match commit {
            true => session.call(|s| s.commit_transaction, (self.writes && self.sync).then_some(c"sync=on")),
            false => session.call(|s| s.rollback_transaction, None),
        };
        self.store.pool.lock().push(session);
        ended
    }
}

impl Txn for WtTxn<'_> {
    type Keyspace = WtKeyspace;

    fn get<R>(&mut self, ks: &WtKeyspace, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.session().get(ks, key, f)
    }

    fn put(&mut self, ks: &WtKeyspace, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.writes {
            return Err(read_only());
        }
        self.session().put(ks, key, value)
    }

    fn delete(&mut self, ks: &WtKeyspace, key: &[u8]) -> Result<()> {
        if !self.writes {
            return Err(read_only());
        }
        let (cursor, item) = (self.session().cursor(ks)?, ffi::Item::of(key));
        // SAFETY: the cursor is open; the key outlives the call.
        found(unsafe {
            ((*cursor).set_key)(cursor, &raw const item);
            ((*cursor).remove)(cursor)
        })
        .map(drop)
    }

    fn scan(
        &mut self,
        ks: &WtKeyspace,
        range: KeyRange<'_>,
        direction: Direction,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        if range.is_empty() { Ok(()) } else { self.session().scan(ks, range, direction, each) }
    }

    fn commit(mut self) -> Result<()> {
        self.end(true).map_err(|e| match e {
            Error::Store(e) => Error::CommitUnknown(e),
            other => other,
        })
    }

    fn rollback(mut self) {
        _ = self.end(false);
    }
}

impl Drop for WtTxn<'_> {
    fn drop(&mut self) {
        _ = self.end(false);
    }
}

/// Size of a leaf on the medium, bytes: the library's own, or a small one for single rows of much data.
fn leaf_bytes(settings: &Settings) -> usize {
    if settings.scarce() { settings.page_size } else { 32 << 10 }
}

/// The cache, bytes. Where memory is scarce, three quarters: it goes beyond its size while it writes, and was killed at
/// 320 MiB with a cache of 256; with less it is faster too, since the page cache has the rest.
fn cache_bytes(settings: &Settings) -> u64 {
    if settings.scarce() { settings.cache_bytes / 4 * 3 } else { settings.cache_bytes }
}

impl Engine for WtStore {
    const NAME: &'static str = "wiredtiger";
    const KIND: Kind = Kind::BTree;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let config = format!(
            "create,cache_size={}MB,session_max=256,log=(enabled=true,file_max=128MB),\
             transaction_sync=(enabled=false,method=fsync),checkpoint=(wait=60,log_size=1GB),\
             eviction=(threads_min=1,threads_max=4)",
            cache_bytes(settings) >> 20
        );
        let table = format!("key_format=u,value_format=u,leaf_page_max={}", leaf_bytes(settings));
        let random = if settings.scarce() { ",access_pattern_hint=random" } else { "" };
        let text = |text: String| CString::new(text).map_err(Error::store);
        let (config, table_config) = (text(config)?, text(table + random)?);
        let home = text(dir.to_string_lossy().into_owned())?;
        let mut connection = null_mut();
        // SAFETY: the texts end in zero, and the library fills the pointer.
        check(unsafe { ffi::wiredtiger_open(home.as_ptr(), null_mut(), config.as_ptr(), &raw mut connection) })?;
        Ok(WtStore { connection, table_config, pool: Mutex::new(Vec::new()), uris: Mutex::new(Vec::new()) })
    }

    fn close(mut self) -> Result<()> {
        self.end()
    }

    fn describe(settings: &Settings) -> Description {
        let (mut major, mut minor, mut patch) = (0, 0, 0);
        // SAFETY: the library fills the numbers.
        unsafe { ffi::wiredtiger_version(&raw mut major, &raw mut minor, &raw mut patch) };
        Description {
            version: format!("{major}.{minor}.{patch} (the system's library)"),
            setup: format!(
                "cache of {} MiB, leaves of {} bytes, up to 4 eviction threads, checkpoints every minute or 1 GiB of log, \
                 no compression",
                cache_bytes(settings) >> 20,
                leaf_bytes(settings)
            ),
            durable: "commit with sync=on, method=fsync: flushes the log, shared by concurrent commits",
            not_synced: "log in memory, written when its buffer is full",
            isolation: "snapshot",
            bulk: "a bulk cursor, then a checkpoint",
        }
    }

    fn bulk_load(&self, name: &str, rows: impl FnOnce(&mut Push<'_>) -> Result<()>) -> Result<WtKeyspace> {
        let ks = self.keyspace(name)?;
        self.with(|session| {
            let cursor = session.open_cursor(&ks.uri, Some(c"bulk"))?;
            rows(&mut |key, value| insert(cursor, key, value))?;
            // SAFETY: the cursor is open, and not used after this.
            check(unsafe { ((*cursor).close)(cursor) })?;
            session.call(|s| s.checkpoint, None)
        })?;
        Ok(ks)
    }

    fn scan_from(&self, ks: &WtKeyspace, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<()> {
        self.with(|session| {
            session.scan(ks, KeyRange::starting_at(from), Direction::Forward, each)?;
            session.reset(ks)
        })
    }
}
