//! The bookkeeping that the torture's transactions keep, and the check that none of them is lost or half there.
//!
//! Keyspace `accounts`: `b` + account = balance; `n` + thread = number of the thread's last transfer; `s` + ... = the
//! same rows as they were when the ledger was last settled. Keyspace `ledger`: thread + number = one transfer with its
//! accounts and amount. A transfer changes two balances, the thread's number and the ledger, in one transaction; so
//!
//! * balances = settled balances + the transfers in the ledger, account by account: nothing is half there;
//! * a thread's transfers are numbered without a gap up to its number: nothing in the middle is lost;
//! * its number is at least the last one acknowledged over the pipe: nothing acknowledged is lost.

use std::collections::BTreeMap;
use varve::{Db, Keyspace, KeyspaceKind, Transaction};

use super::TortureError;

/// Accounts that money moves between.
pub(crate) const ACCOUNTS: u32 = 500;
/// Rows deleted by one transaction when the ledger is settled.
const SETTLE_ROWS: usize = 40;

/// The two keyspaces.
#[derive(Clone)]
pub(crate) struct Ledger {
    accounts: Keyspace,
    ledger: Keyspace,
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) thread: u32,
    pub(crate) number: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) amount: i64,
}

fn key(kind: u8, number: u32) -> [u8; 5] {
    let mut key = [kind; 5];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

fn settled(key: [u8; 5]) -> [u8; 6] {
    let mut settled = [b's'; 6];
    settled[1..].copy_from_slice(&key);
    settled
}

fn entry_key(thread: u32, number: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&thread.to_be_bytes());
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

fn number(bytes: Option<&[u8]>) -> i64 {
    bytes.and_then(|b| b.try_into().ok()).map_or(0, i64::from_le_bytes)
}

impl Transfer {
    /// The ledger's row; `pad` bytes of filler make the log and the tree grow.
    fn encode(&self, pad: usize) -> Vec<u8> {
        let mut row = Vec::with_capacity(20 + pad);
        row.extend_from_slice(&self.from.to_le_bytes());
        row.extend_from_slice(&self.to.to_le_bytes());
        row.extend_from_slice(&self.amount.to_le_bytes());
        row.extend_from_slice(&(pad as u32).to_le_bytes());
        row.resize(20 + pad, filler(self.thread, self.number));
        row
    }

    fn decode(key: &[u8], row: &[u8]) -> Option<Transfer> {
        let thread = u32::from_be_bytes(key.get(..4)?.try_into().ok()?);
        let number = u64::from_be_bytes(key.get(4..)?.try_into().ok()?);
        let from = u32::from_le_bytes(row.get(..4)?.try_into().ok()?);
        let to = u32::from_le_bytes(row.get(4..8)?.try_into().ok()?);
        let amount = i64::from_le_bytes(row.get(8..16)?.try_into().ok()?);
        let pad = u32::from_le_bytes(row.get(16..20)?.try_into().ok()?);
        let whole = row.len() == 20 + pad as usize && row[20..].iter().all(|b| *b == filler(thread, number));
        (whole && from < ACCOUNTS && to < ACCOUNTS).then_some(Transfer { thread, number, from, to, amount })
    }
}

fn filler(thread: u32, number: u64) -> u8 {
    (number as u8).wrapping_mul(31) ^ thread as u8
}

impl Ledger {
    /// Opens the keyspaces, creating them, of that kind, where there are none. LSM keyspaces get the options.
    pub(crate) fn open(db: &Db, kind: KeyspaceKind) -> Result<Ledger, TortureError> {
        let open = |name| {
            let keyspace = db.keyspace_or_create_of(name, kind)?;
            match kind {
                KeyspaceKind::Lsm(options) if keyspace.kind() != kind => keyspace.set_lsm_options(options)?,
                _ => {}
            }
            Ok::<_, varve::Error>(keyspace)
        };
        Ok(Ledger { accounts: open("accounts")?, ledger: open("ledger")? })
    }

    /// The number of the thread's last transfer.
    pub(crate) fn last(&self, thread: u32) -> varve::Result<u64> {
        Ok(number(self.accounts.get(&key(b'n', thread))?.as_deref()) as u64)
    }

    /// Makes one transfer inside `tx`.
    pub(crate) fn transfer(&self, tx: &mut Transaction, t: Transfer, pad: usize) -> varve::Result<()> {
        for (account, change) in [(t.from, -t.amount), (t.to, t.amount)] {
            let key = key(b'b', account);
            let balance = number(tx.get_for_update(&self.accounts, &key)?.as_deref());
            tx.put(&self.accounts, &key, &(balance + change).to_le_bytes())?;
        }
        tx.put(&self.accounts, &key(b'n', t.thread), &t.number.to_le_bytes())?;
        tx.put(&self.ledger, &entry_key(t.thread, t.number), &t.encode(pad))
    }

    /// Checks the whole ledger; `acknowledged` gives each thread's last acknowledged number. Returns the transfers
    /// seen.
    pub(crate) fn verify(&self, db: &Db, acknowledged: &BTreeMap<u32, u64>) -> Result<u64, TortureError> {
        let snapshot = db.snapshot()?;
        let mut rows: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
        for row in snapshot.scan(&self.accounts, ..)? {
            let (key, value) = row?;
            rows.insert(key, number(Some(&value)));
        }
        let at = |key: &[u8]| rows.get(key).copied().unwrap_or(0);
        let mut balances: BTreeMap<u32, i64> = (0..ACCOUNTS).map(|a| (a, at(&settled(key(b'b', a))))).collect();
        let mut numbers: BTreeMap<u32, u64> = BTreeMap::new();
        let mut transfers = 0;
        for row in snapshot.scan(&self.ledger, ..)? {
            let (k, value) = row?;
            let t = Transfer::decode(&k, &value).ok_or_else(|| wrong(format!("ledger row {k:02x?} is damaged")))?;
            let done = at(&settled(key(b'n', t.thread))) as u64;
            if t.number <= done {
                continue; // settled, and not deleted yet
            }
            let next = numbers.entry(t.thread).or_insert(done);
            if t.number != *next + 1 {
                return Err(wrong(format!(
                    "thread {}: transfer {} is missing, {} is there",
                    t.thread,
                    *next + 1,
                    t.number
                )));
            }
            *next = t.number;
            *balances.entry(t.from).or_default() -= t.amount;
            *balances.entry(t.to).or_default() += t.amount;
            transfers += 1;
        }
        for (account, expected) in balances {
            let found = at(&key(b'b', account));
            if found != expected {
                return Err(wrong(format!("account {account}: balance {found}, but the ledger makes it {expected}")));
            }
        }
        let threads = rows.keys().filter(|k| k.len() == 5 && k[0] == b'n');
        for thread in threads.map(|k| u32::from_be_bytes([k[1], k[2], k[3], k[4]])) {
            let (row, done) = (at(&key(b'n', thread)) as u64, at(&settled(key(b'n', thread))) as u64);
            let last = numbers.get(&thread).copied().unwrap_or(done);
            if row != last {
                return Err(wrong(format!("thread {thread}: its row says {row}, its last transfer is {last}")));
            }
        }
        for (thread, acknowledged) in acknowledged {
            let last = at(&key(b'n', *thread)) as u64;
            if last < *acknowledged {
                return Err(wrong(format!(
                    "lost: thread {thread} was acknowledged {acknowledged}, the database has {last}"
                )));
            }
        }
        Ok(transfers)
    }

    /// Takes the present balances as the settled ones and empties the ledger. May be interrupted anywhere.
    pub(crate) fn settle(&self, db: &Db) -> Result<(), TortureError> {
        db.transact(|tx| {
            let mut rows = Vec::new();
            for row in tx.scan(&self.accounts, b"b"..b"o")? {
                rows.push(row?);
            }
            for (key, value) in rows {
                tx.put(&self.accounts, &[b"s", &key[..]].concat(), &value)?;
            }
            Ok(())
        })?;
        loop {
            let deleted = db.transact(|tx| {
                let mut keys = Vec::new();
                for row in tx.scan(&self.ledger, ..)?.take(SETTLE_ROWS) {
                    keys.push(row?.0);
                }
                for key in &keys {
                    tx.delete(&self.ledger, key)?;
                }
                Ok(keys.len())
            })?;
            if deleted < SETTLE_ROWS {
                return Ok(());
            }
        }
    }
}

fn wrong(what: String) -> TortureError {
    TortureError::Wrong(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_survive_encoding_and_damage_is_seen() {
        let t = Transfer { thread: 3, number: 77, from: 1, to: 499, amount: -5 };
        let (key, row) = (entry_key(3, 77), t.encode(100));
        assert_eq!(Transfer::decode(&key, &row), Some(t));
        assert_eq!(Transfer::decode(&key, &row[..119]), None);
        let mut bent = row;
        bent[60] ^= 1;
        assert_eq!(Transfer::decode(&key, &bent), None);
    }
}
