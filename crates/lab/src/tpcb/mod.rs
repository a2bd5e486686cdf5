//! A mix like that of TPC-B (revision 2.0): account, teller and branch are updated and a row of history is inserted, in
//! one short transaction.
//!
//! A teller is drawn at random, and an account: of the teller's branch in 85 of 100 cases, of another one else. Rows
//! are locked from the least to the most contended (account, teller, branch), as in the profile; so no two transactions
//! wait for each other in a circle. A retried transaction keeps its inputs. What makes it no TPC-B: no terminals, no
//! response time to keep within, no fixed number of branches per transaction and second; and the history has a key.

mod check;
mod load;

use std::sync::Arc;

use varve_rt::Rng;

pub use check::{CheckReport, check};
pub use load::{Loaded, load, loaded};

use crate::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn, bad_option};
use crate::driver::{Client, Draw, Outcome, Workload};
use crate::error::{Error, Result};

/// Names of the transaction types.
pub const KINDS: [&str; 1] = ["transfer"];

/// Tellers of a branch.
pub const TELLERS: u32 = 10;

/// Bytes of a row of branches, tellers and accounts, and of the history.
const ROW: usize = 100;
const HISTORY_ROW: usize = 50;

/// Largest amount of a transfer, in either direction.
const MOST: u64 = 999_999;

/// Size of the database. The specification has 100,000 accounts per branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// Branches.
    pub branches: u32,
    /// Accounts of each.
    pub accounts: u32,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { branches: 1, accounts: 100_000 }
    }
}

impl Scale {
    /// Refuses a scale that cannot be loaded.
    pub fn validate(&self) -> Result<()> {
        let most = 100_000_000;
        if !(1..=most).contains(&self.branches) || !(1..=most).contains(&self.accounts) {
            return bad_option("branches", format!("1 to {most} branches, of 1 to {most} accounts, are possible"));
        }
        Ok(())
    }
}

/// How it is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Durability of the commits.
    pub durability: Durability,
    /// Seed of the inputs.
    pub seed: u64,
}

/// The keyspaces.
struct Tables<S: Store> {
    branches: S::Keyspace,
    tellers: S::Keyspace,
    accounts: S::Keyspace,
    history: S::Keyspace,
}

impl<S: Store> Tables<S> {
    fn open(store: &S) -> Result<Tables<S>> {
        let [branches, tellers, accounts, history] =
            ["tpcb_branch", "tpcb_teller", "tpcb_account", "tpcb_history"].map(|name| store.keyspace(name));
        Ok(Tables { branches: branches?, tellers: tellers?, accounts: accounts?, history: history? })
    }
}

fn branch_key(branch: u32) -> [u8; 4] {
    branch.to_be_bytes()
}

/// Key of the teller, or the account, of this number in a branch.
fn member_key(branch: u32, number: u32) -> [u8; 8] {
    (u64::from(branch) << 32 | u64::from(number)).to_be_bytes()
}

/// Key of a row of history: the thread that wrote it, and how many it wrote before.
fn history_key(thread: u32, n: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&thread.to_be_bytes());
    key[4..].copy_from_slice(&n.to_be_bytes());
    key
}

/// A row with a balance; the rest of it is blank.
fn balance_row(balance: i64) -> [u8; ROW] {
    let mut row = [b' '; ROW];
    row[..8].copy_from_slice(&balance.to_le_bytes());
    row
}

/// The balance of a row, if it is one.
fn balance_of(row: &[u8]) -> Option<i64> {
    (row.len() == ROW).then(|| i64::from_le_bytes(row[..8].try_into().expect("eight bytes")))
}

/// A transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Transfer {
    /// The teller's branch.
    branch: u32,
    teller: u32,
    /// The account's.
    home: u32,
    account: u32,
    amount: i64,
}

impl Transfer {
    fn draw(scale: Scale, rng: &mut Rng) -> Transfer {
        let branches = u64::from(scale.branches);
        let branch = rng.below(branches) as u32;
        let elsewhere = scale.branches > 1 && rng.below(100) >= 85;
        let home = match elsewhere {
            true => (u64::from(branch) + 1 + rng.below(branches - 1)) % branches,
            false => u64::from(branch),
        };
        Transfer {
            branch,
            teller: rng.below(u64::from(TELLERS)) as u32,
            home: home as u32,
            account: rng.below(u64::from(scale.accounts)) as u32,
            amount: rng.below(2 * MOST + 1) as i64 - MOST as i64,
        }
    }

    fn encode(&self) -> [u8; HISTORY_ROW] {
        let mut row = [b' '; HISTORY_ROW];
        let numbers = [self.branch, self.teller, self.home, self.account];
        for (bytes, number) in row.chunks_exact_mut(4).zip(numbers) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        row[16..24].copy_from_slice(&self.amount.to_le_bytes());
        row
    }

    fn decode(row: &[u8]) -> Option<Transfer> {
        if row.len() != HISTORY_ROW {
            return None;
        }
        let four = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes"));
        let amount = i64::from_le_bytes(row[16..24].try_into().expect("eight bytes"));
        Some(Transfer { branch: four(0), teller: four(4), home: four(8), account: four(12), amount })
    }
}

/// The workload over loaded data.
pub struct Tpcb<S: Store> {
    tables: Arc<Tables<S>>,
    scale: Scale,
    options: Options,
}

impl<S: Store> Tpcb<S> {
    /// Prepares a run over the data the store holds.
    ///
    /// Errors: there is no completely loaded data, or the store failed.
    pub fn new(store: &S, options: Options) -> Result<Tpcb<S>> {
        let loaded = loaded(store)?.ok_or_else(|| Error::NotLoaded("it holds no complete TPC-B data".into()))?;
        Ok(Tpcb { tables: Arc::new(Tables::open(store)?), scale: loaded.scale, options })
    }
}

impl<S: Store> Workload<S> for Tpcb<S> {
    type Client = Terminal<S>;

    fn name(&self) -> &str {
        "tpcb"
    }

    fn kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn client(&self, store: &Arc<S>, thread: usize, _threads: usize) -> Result<Terminal<S>> {
        let tables = self.tables.clone();
        let next = next_of(&**store, &tables.history, thread as u32)?;
        let rng = Rng::from_seed(self.options.seed ^ (thread as u64 + 1).wrapping_mul(0x9e6c_63d0_976a_5527));
        let (scale, durability) = (self.scale, self.options.durability);
        Ok(Terminal { tables, scale, durability, thread: thread as u32, next, rng, drawn: Transfer::default() })
    }
}

/// The number that a thread's next row of history gets: earlier runs may have left some.
fn next_of<S: Store>(store: &S, history: &S::Keyspace, thread: u32) -> Result<u64> {
    let (from, to) = (history_key(thread, 0), history_key(thread, u64::MAX));
    let mut tx = store.begin(TxMode::ReadOnly, Durability::None)?;
    let mut next = 0;
    tx.scan(history, KeyRange::new(&from, &to), Direction::Reverse, |key, _| {
        next = key.last_chunk().map_or(0, |n| u64::from_be_bytes(*n) + 1);
        std::ops::ControlFlow::Break(())
    })?;
    tx.commit()?;
    Ok(next)
}

/// One thread's transfers.
pub struct Terminal<S: Store> {
    tables: Arc<Tables<S>>,
    scale: Scale,
    durability: Durability,
    thread: u32,
    /// Number of the next row of history.
    next: u64,
    rng: Rng,
    drawn: Transfer,
}

/// Adds to the balance of a row.
fn add<T: Txn>(tx: &mut T, table: (&'static str, &T::Keyspace), key: &[u8], amount: i64) -> Result<()> {
    let (name, keyspace) = table;
    let of = || key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let balance = tx.get_for_update(keyspace, key, |row| row.map(balance_of))?;
    let balance = balance.ok_or_else(|| Error::Missing { table: name, key: of() })?;
    let wrong = || Error::Row { table: name, key: of(), why: "it has no balance".into() };
    tx.put(keyspace, key, &balance_row(balance.ok_or_else(wrong)?.wrapping_add(amount)))
}

impl<S: Store> Client<S> for Terminal<S> {
    fn draw(&mut self) -> Draw {
        self.drawn = Transfer::draw(self.scale, &mut self.rng);
        Draw { kind: 0, keying: Default::default(), think: Default::default() }
    }

    fn attempt(&mut self, store: &S) -> Result<Outcome> {
        let (tables, drawn) = (&self.tables, &self.drawn);
        let mut tx = store.begin(TxMode::ReadWrite, self.durability)?;
        let account = member_key(drawn.home, drawn.account);
        add(&mut tx, ("tpcb_account", &tables.accounts), &account, drawn.amount)?;
        tx.put(&tables.history, &history_key(self.thread, self.next), &drawn.encode())?;
        let teller = member_key(drawn.branch, drawn.teller);
        add(&mut tx, ("tpcb_teller", &tables.tellers), &teller, drawn.amount)?;
        add(&mut tx, ("tpcb_branch", &tables.branches), &branch_key(drawn.branch), drawn.amount)?;
        tx.commit()?;
        self.next += 1;
        Ok(Outcome::Committed)
    }
}
