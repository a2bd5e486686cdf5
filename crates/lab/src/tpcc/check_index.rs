//! Whether secondary indexes agree with their tables; those for foreign keys as a whole, since their order is not that
//! of districts.

use std::iter::Peekable;
use std::ops::ControlFlow;

use super::check::{CheckReport, Checker, Condition};
use super::schema::{Key, OrderLine, hex, key};
use crate::adapter::{Direction, KeyRange, Store, Txn};
use crate::error::Result;

/// The keys that an index should hold, ascending, to be compared with those found, one by one.
pub(super) struct Expected<I: Iterator<Item = Key>> {
    name: &'static str,
    keys: Peekable<I>,
}

impl<I: Iterator<Item = Key>> Expected<I> {
    pub fn new(name: &'static str, keys: I) -> Expected<I> {
        Expected { name, keys: keys.peekable() }
    }

    fn fail(&self, report: &mut CheckReport, key: &[u8], why: &str) {
        report.fail(Condition::Index, format!("{} {}", self.name, hex(key)), why.into());
    }

    /// The next entry that the index holds.
    pub fn found(&mut self, report: &mut CheckReport, key: &[u8], value: &[u8]) {
        while let Some(missing) = self.keys.next_if(|e| e[..] < *key) {
            self.fail(report, &missing, "the entry is missing");
        }
        if self.keys.next_if(|e| e[..] == *key).is_none() {
            self.fail(report, key, "the entry has no row in the table");
        }
        if !value.is_empty() {
            self.fail(report, key, "the entry has a value, none expected");
        }
    }

    /// The index holds nothing more.
    pub fn end(mut self, report: &mut CheckReport) {
        while let Some(missing) = self.keys.next() {
            self.fail(report, &missing, "the entry is missing");
        }
    }
}

/// What the rows read so far imply of the indexes for foreign keys.
#[derive(Default)]
pub(super) struct Foreign {
    lines: Vec<[u8; 18]>,
    payments: Vec<[u8; 26]>,
}

impl Foreign {
    /// A line of an order `(w, d, o, line)`.
    pub fn line(&mut self, row: &OrderLine, at: (u32, u8, u32, u8)) {
        let key = key::order_line_by_stock(row.supply_w_id(), row.i_id(), at);
        self.lines.push(key[..].try_into().expect("its columns have 18 bytes"));
    }

    /// A row of HISTORY of this key, which has been found to be one.
    pub fn payment(&mut self, key: &[u8]) {
        let (booked, rest) = key.split_at(13);
        let (customer, n) = rest.split_at(9);
        self.payments.push([customer, booked, n].concat().try_into().expect("a key of HISTORY has 26 bytes"));
    }
}

impl<S: Store> Checker<'_, S> {
    /// The indexes for foreign keys, after all tables have been read.
    pub(super) fn foreign_keys(&mut self) -> Result<()> {
        let Some((mut expected, tables)) = self.foreign.take().zip(self.tables.foreign.as_ref()) else { return Ok(()) };
        expected.lines.sort_unstable();
        expected.payments.sort_unstable();
        let lines = expected.lines.iter().map(|k| Key::default().bytes(k));
        self.whole_index("order_line_by_stock", &tables.order_line_by_stock, lines)?;
        let payments = expected.payments.iter().map(|k| Key::default().bytes(k));
        self.whole_index("history_by_customer", &tables.history_by_customer, payments)?;
        let (items, warehouses) = (self.scale.items, self.scale.warehouses);
        let stocks = (1..=items).flat_map(|i| (1..=warehouses).map(move |w| key::stock_by_item(i, w)));
        self.whole_index("stock_by_item", &tables.stock_by_item, stocks)
    }

    fn whole_index(&mut self, name: &'static str, ks: &S::Keyspace, keys: impl Iterator<Item = Key>) -> Result<()> {
        let (report, mut expected) = (&mut self.report, Expected::new(name, keys));
        self.tx.scan(ks, KeyRange::ALL, Direction::Forward, |k, v| {
            expected.found(report, k, v);
            ControlFlow::Continue(())
        })?;
        expected.end(&mut self.report);
        Ok(())
    }
}
