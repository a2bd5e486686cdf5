//! The twelve consistency conditions of clause 3.3.2, and some that the specification takes for granted (rows have
//! the layout of their table, secondary indexes agree with their tables, stock agrees with the orders).
//!
//! Everything is read in one read-only transaction, so the check also holds while transactions run. Nothing is
//! believed: a row that cannot be decoded is a failure of the first condition that needs it, never a panic.
//!
//! Condition 11 is stated in the specification for the initial population ("orders - new orders = 2100"). Deliveries
//! move it by one each, and each delivery raises C_DELIVERY_CNT of one customer of the district; so what is checked is
//! orders - new orders = initially delivered orders + sum(C_DELIVERY_CNT), which is the same when nothing has run.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use super::check_district::DistrictCheck;
use super::check_index::Foreign;
use super::load::{Loaded, loaded};
use super::random::Scale;
use super::row::{Damage, Row};
use super::schema::{History, Item, KeyReader, Stock, Tables, Warehouse, hex, key};
use crate::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};
use crate::error::{Error, Result};

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    /// Consistency condition 1 to 12 of clause 3.3.2.
    Clause(u8),
    /// Rows and keys have the layout of their table, and every row of the scale is there.
    Layout,
    /// customer_by_name, order_by_customer and the indexes for foreign keys agree with their tables.
    Index,
    /// S_YTD and S_ORDER_CNT agree with the order lines since the load.
    Stock,
}

impl Condition {
    /// What the condition states.
    pub fn statement(&self) -> &'static str {
        match self {
            Condition::Clause(1) => "W_YTD = sum(D_YTD)",
            Condition::Clause(2) => "D_NEXT_O_ID - 1 = max(O_ID) = max(NO_O_ID)",
            Condition::Clause(3) => "max(NO_O_ID) - min(NO_O_ID) + 1 = rows in NEW-ORDER of the district",
            Condition::Clause(4) => "sum(O_OL_CNT) = rows in ORDER-LINE of the district",
            Condition::Clause(5) => "O_CARRIER_ID is null exactly if the order has a row in NEW-ORDER",
            Condition::Clause(6) => "O_OL_CNT = rows in ORDER-LINE of the order",
            Condition::Clause(7) => "OL_DELIVERY_D is null exactly if O_CARRIER_ID is null",
            Condition::Clause(8) => "W_YTD = sum(H_AMOUNT)",
            Condition::Clause(9) => "D_YTD = sum(H_AMOUNT)",
            Condition::Clause(10) => "C_BALANCE = sum(delivered OL_AMOUNT) - sum(H_AMOUNT)",
            Condition::Clause(11) => "rows in ORDER - rows in NEW-ORDER = initially delivered + sum(C_DELIVERY_CNT)",
            Condition::Clause(12) => "C_BALANCE + C_YTD_PAYMENT = sum(delivered OL_AMOUNT)",
            Condition::Clause(_) => "no such condition",
            Condition::Layout => "every row of the scale is there and has the layout of its table",
            Condition::Index => "the secondary indexes agree with their tables",
            Condition::Stock => "S_YTD and S_ORDER_CNT agree with the order lines",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Clause(n) => write!(f, "consistency condition {n}"),
            Condition::Layout => write!(f, "layout"),
            Condition::Index => write!(f, "secondary index"),
            Condition::Stock => write!(f, "stock totals"),
        }
    }
}

/// A condition that does not hold somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The condition.
    pub condition: Condition,
    /// The row concerned, such as `district 3/7`.
    pub row: String,
    /// The values that do not fit.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fails ({}): {}: {}", self.condition, self.condition.statement(), self.row, self.detail)
    }
}

/// Failures kept of each condition; the rest is only counted.
const KEPT: u64 = 10;
/// Stock rows beyond which the stock totals are not compared: they are summed in memory.
const MAX_STOCK_TOTALS: u64 = 50_000_000;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Rows read, by table.
    pub rows: BTreeMap<&'static str, u64>,
    /// Failures, at most ten of each condition.
    pub failures: Vec<Failure>,
    /// Number of failures by condition.
    pub counts: BTreeMap<Condition, u64>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

impl CheckReport {
    /// Whether everything holds.
    pub fn consistent(&self) -> bool {
        self.counts.is_empty()
    }

    pub(super) fn fail(&mut self, condition: Condition, row: String, detail: String) {
        let count = self.counts.entry(condition).or_default();
        *count += 1;
        if *count <= KEPT {
            self.failures.push(Failure { condition, row, detail });
        }
    }

    pub(super) fn expect<T: PartialEq + fmt::Display>(
        &mut self,
        condition: Condition,
        row: impl FnOnce() -> String,
        (left_name, left): (&str, T),
        (right_name, right): (&str, T),
    ) {
        if left != right {
            self.fail(condition, row(), format!("{left_name} is {left}, {right_name} is {right}"));
        }
    }

    pub(super) fn count(&mut self, table: &'static str) {
        *self.rows.entry(table).or_default() += 1;
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        for (condition, n) in self.counts.iter().filter(|(_, n)| **n > KEPT) {
            writeln!(f, "{condition}: {} more failures", n - KEPT)?;
        }
        let rows: u64 = self.rows.values().sum();
        match self.consistent() {
            true => writeln!(f, "consistent: all 12 conditions hold over {rows} rows"),
            false => writeln!(f, "NOT consistent: {} failures in {rows} rows", self.counts.values().sum::<u64>()),
        }
    }
}

/// Cents as an amount of money.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(super) struct Cents(pub i64);

impl fmt::Display for Cents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let cents = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:02}", cents / 100, cents % 100)
    }
}

/// Sums over payments and order lines that are compared with rows elsewhere. Sums wrap: a row altered by hand may hold
/// any number, and a wrapped sum fails its condition as well as any other wrong one.
pub(super) struct Totals {
    scale: Scale,
    paid_by_customer: Vec<i64>,
    booked_in_district: Vec<i64>,
    /// Quantity and number of the order lines since the load, by warehouse and item; empty if not compared.
    pub taken: Vec<(u32, u32)>,
}

impl Totals {
    fn district(&self, w: u32, d: u8) -> Option<usize> {
        let inside = (1..=self.scale.warehouses).contains(&w) && (1..=self.scale.districts).contains(&d);
        inside.then(|| (w as usize - 1) * self.scale.districts as usize + d as usize - 1)
    }

    fn customer(&self, w: u32, d: u8, c: u32) -> Option<usize> {
        let district = self.district(w, d)?;
        (1..=self.scale.customers).contains(&c).then(|| district * self.scale.customers as usize + c as usize - 1)
    }

    pub fn stock(&self, w: u32, i: u32) -> Option<usize> {
        let inside = (1..=self.scale.warehouses).contains(&w) && (1..=self.scale.items).contains(&i);
        let at = (w as usize).wrapping_sub(1).wrapping_mul(self.scale.items as usize).wrapping_add(i as usize);
        inside.then(|| at - 1).filter(|at| *at < self.taken.len())
    }

    pub fn paid(&self, w: u32, d: u8, c: u32) -> i64 {
        self.customer(w, d, c).map_or(0, |i| self.paid_by_customer[i])
    }

    pub fn booked(&self, w: u32, d: u8) -> i64 {
        self.district(w, d).map_or(0, |i| self.booked_in_district[i])
    }
}

/// Checks the data of `store`. `progress` is told the warehouses done and their number.
///
/// Errors: there is no loaded data, or the store failed. Inconsistent data is not an error but a report that says so.
pub fn check<S: Store>(store: &S, mut progress: impl FnMut(u32, u32)) -> Result<CheckReport> {
    let note: Loaded = loaded(store)?.ok_or_else(|| Error::NotLoaded("it holds no complete TPC-C data".into()))?;
    let tables = Tables::<S>::open(store, note.scale.foreign_keys)?;
    let scale = note.scale;
    let districts = scale.warehouses as usize * scale.districts as usize;
    let stocks = u64::from(scale.warehouses) * u64::from(scale.items);
    let mut report = CheckReport::default();
    if stocks > MAX_STOCK_TOTALS {
        report.notes.push(format!("stock totals of {stocks} rows are not compared: more than {MAX_STOCK_TOTALS}"));
    }
    let foreign = (scale.foreign_keys && stocks <= MAX_STOCK_TOTALS / 3).then(Foreign::default);
    if scale.foreign_keys && foreign.is_none() {
        report
            .notes
            .push(format!("indexes for foreign keys are not compared: more than {} stocks", MAX_STOCK_TOTALS / 3));
    }
    let totals = Totals {
        scale,
        paid_by_customer: vec![0; districts * scale.customers as usize],
        booked_in_district: vec![0; districts],
        taken: if stocks <= MAX_STOCK_TOTALS { vec![(0, 0); stocks as usize] } else { Vec::new() },
    };
    let tx = store.begin(TxMode::ReadOnly, Durability::None)?;
    let mut checker = Checker::<S> { tx, tables: &tables, scale, totals, foreign, report };
    checker.items()?;
    checker.history()?;
    for w in 1..=scale.warehouses {
        checker.warehouse(w)?;
        progress(w, scale.warehouses);
    }
    checker.stock()?;
    checker.strays()?;
    checker.foreign_keys()?;
    checker.tx.commit()?;
    Ok(checker.report)
}

/// The state of a check: the transaction, what was summed, what was found.
pub(super) struct Checker<'a, S: Store + 'a> {
    pub tx: S::Txn<'a>,
    pub tables: &'a Tables<S>,
    pub scale: Scale,
    pub totals: Totals,
    /// What the indexes for foreign keys should hold, if they are compared.
    pub foreign: Option<Foreign>,
    pub report: CheckReport,
}

/// Decodes a row and looks at its contents.
pub(super) fn decode<R: Row>(value: &[u8]) -> std::result::Result<R, Damage> {
    R::decode(value).and_then(|row| row.validate().map(|()| row))
}

impl<S: Store> Checker<'_, S> {
    fn items(&mut self) -> Result<()> {
        let (report, mut expected) = (&mut self.report, 1);
        self.tx.scan(&self.tables.item, KeyRange::ALL, Direction::Forward, |k, v| {
            report.count("item");
            if k != &key::item(expected)[..] {
                report.fail(Condition::Layout, format!("item {expected}"), format!("the key found is {}", hex(k)));
            }
            if let Err(damage) = decode::<Item>(v) {
                report.fail(Condition::Layout, format!("item {expected}"), damage.to_string());
            }
            expected += 1;
            ControlFlow::Continue(())
        })?;
        let found = expected - 1;
        report.expect(Condition::Layout, || "item".into(), ("rows", found), ("the scale", self.scale.items));
        Ok(())
    }

    fn history(&mut self) -> Result<()> {
        let (report, totals, foreign) = (&mut self.report, &mut self.totals, &mut self.foreign);
        self.tx.scan(&self.tables.history, KeyRange::ALL, Direction::Forward, |k, v| {
            report.count("history");
            let row = || format!("history {}", hex(k));
            let places = history_key(k).and_then(|(w, d, customer)| {
                Some((totals.district(w, d)?, totals.customer(customer.0, customer.1, customer.2)?))
            });
            match (places, decode::<History>(v)) {
                (None, _) => report.fail(Condition::Clause(8), row(), "the key is not of this scale".into()),
                (_, Err(damage)) => report.fail(Condition::Clause(8), row(), damage.to_string()),
                (Some((district, customer)), Ok(history)) => {
                    let (booked, paid) = (&mut totals.booked_in_district, &mut totals.paid_by_customer);
                    booked[district] = booked[district].wrapping_add(history.amount());
                    paid[customer] = paid[customer].wrapping_add(history.amount());
                    if let Some(foreign) = foreign {
                        foreign.payment(k);
                    }
                }
            }
            ControlFlow::Continue(())
        })
    }

    /// Conditions 1 and 8, and all that concern a district.
    fn warehouse(&mut self, w: u32) -> Result<()> {
        let name = || format!("warehouse {w}");
        let found = self.tx.get(&self.tables.warehouse, &key::warehouse(w), |v| v.map(decode::<Warehouse>))?;
        let mut districts_ytd = Some(0i64);
        let mut booked = 0i64;
        for d in 1..=self.scale.districts {
            let ytd = DistrictCheck::new(w, d).run(self)?;
            districts_ytd = districts_ytd.zip(ytd).map(|(sum, ytd)| sum.wrapping_add(ytd));
            booked = booked.wrapping_add(self.totals.booked(w, d));
        }
        let report = &mut self.report;
        match found {
            None => report.fail(Condition::Clause(1), name(), "there is no such row".into()),
            Some(Err(damage)) => report.fail(Condition::Clause(1), name(), damage.to_string()),
            Some(Ok(row)) => {
                report.count("warehouse");
                let ytd = ("W_YTD", Cents(row.ytd()));
                if let Some(sum) = districts_ytd {
                    report.expect(Condition::Clause(1), name, ytd, ("sum(D_YTD)", Cents(sum)));
                }
                report.expect(Condition::Clause(8), name, ytd, ("sum(H_AMOUNT)", Cents(booked)));
            }
        }
        Ok(())
    }

    fn stock(&mut self) -> Result<()> {
        let items = u64::from(self.scale.items);
        let (report, totals, mut n) = (&mut self.report, &self.totals, 0u64);
        self.tx.scan(&self.tables.stock, KeyRange::ALL, Direction::Forward, |k, v| {
            report.count("stock");
            let (w, i) = ((n / items) as u32 + 1, (n % items) as u32 + 1);
            n += 1;
            let name = || format!("stock {w}/{i}");
            if k != &key::stock(w, i)[..] {
                report.fail(Condition::Layout, name(), format!("the key found is {}", hex(k)));
            }
            match decode::<Stock>(v) {
                Err(damage) => report.fail(Condition::Layout, name(), damage.to_string()),
                Ok(row) => {
                    if let Some(at) = totals.stock(w, i) {
                        let (quantity, orders) = totals.taken[at];
                        report.expect(Condition::Stock, name, ("S_YTD", row.ytd()), ("sum(OL_QUANTITY)", quantity));
                        report.expect(Condition::Stock, name, ("S_ORDER_CNT", row.order_cnt()), ("lines", orders));
                    }
                }
            }
            ControlFlow::Continue(())
        })?;
        let all = u64::from(self.scale.warehouses) * items;
        report.expect(Condition::Layout, || "stock".into(), ("rows", n), ("the scale", all));
        Ok(())
    }

    /// Rows outside every district of the scale.
    fn strays(&mut self) -> Result<()> {
        let t = self.tables;
        let tables = [
            ("customer", &t.customer, Condition::Clause(10)),
            ("customer_by_name", &t.customer_by_name, Condition::Index),
            ("order", &t.order, Condition::Clause(4)),
            ("order_by_customer", &t.order_by_customer, Condition::Index),
            ("new_order", &t.new_order, Condition::Clause(3)),
            ("order_line", &t.order_line, Condition::Clause(4)),
            ("district", &t.district, Condition::Clause(1)),
        ];
        for (table, ks, condition) in tables {
            let mut from = Vec::new();
            for w in 1..=self.scale.warehouses {
                self.no_rows(table, ks, condition, &from, Some(&key::district(w, 1)))?;
                from = key::district(w, self.scale.districts).after().to_vec();
            }
            self.no_rows(table, ks, condition, &from, None)?;
        }
        let past = key::warehouse(self.scale.warehouses).after();
        self.no_rows("warehouse", &t.warehouse, Condition::Clause(1), &[], Some(&key::warehouse(1)))?;
        self.no_rows("warehouse", &t.warehouse, Condition::Clause(1), &past, None)
    }

    fn no_rows(
        &mut self,
        table: &str,
        ks: &S::Keyspace,
        condition: Condition,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<()> {
        let report = &mut self.report;
        self.tx.scan(ks, KeyRange { from, to }, Direction::Forward, |k, _| {
            report.fail(condition, format!("{table} {}", hex(k)), "the key is not of this scale".into());
            ControlFlow::Continue(())
        })
    }
}

/// Warehouse and district in which a payment is booked, and its customer.
fn history_key(key: &[u8]) -> Option<(u32, u8, (u32, u8, u32))> {
    let mut reader = KeyReader(key);
    let (w, d, _date) = (reader.u32()?, reader.u8()?, reader.u64()?);
    let customer = (reader.u32()?, reader.u8()?, reader.u32()?);
    reader.u32()?;
    reader.end().map(|()| (w, d, customer))
}
