//! The conditions that concern one district: 2 to 7 and 9 to 12, and its part of the secondary indexes.
//!
//! Orders, new orders and order lines of a district are all ordered by order number, so one pass over each suffices;
//! what is kept in memory is a few words per order and per customer of the district.

use std::ops::ControlFlow;

use super::check::Condition::{self, Clause};
use super::check::{Cents, Checker, decode};
use super::check_index::Expected;
use super::schema::{Customer, District, Key, KeyReader, Order, OrderLine, hex, key};
use super::transactions::order_key;
use crate::adapter::{Direction, KeyRange, Store, Txn};
use crate::error::Result;

struct OrderSeen {
    o: u32,
    c: u32,
    delivered: bool,
    ol_cnt: u32,
    lines: u32,
    new: bool,
}

/// The check of one district.
pub(super) struct DistrictCheck {
    w: u32,
    d: u8,
    orders: Vec<OrderSeen>,
    /// Smallest and largest NO_O_ID, and their number.
    new_orders: Option<(u32, u32, u64)>,
    lines: u64,
    /// Sum of the delivered order lines by customer.
    delivered: Vec<i64>,
    deliveries: u64,
}

impl DistrictCheck {
    pub fn new(w: u32, d: u8) -> DistrictCheck {
        DistrictCheck { w, d, orders: Vec::new(), new_orders: None, lines: 0, delivered: Vec::new(), deliveries: 0 }
    }

    fn name(&self) -> String {
        format!("district {}/{}", self.w, self.d)
    }

    /// Runs the check; returns D_YTD if there is a row to read it from.
    pub fn run<S: Store>(mut self, all: &mut Checker<'_, S>) -> Result<Option<i64>> {
        self.delivered = vec![0; all.scale.customers as usize];
        self.read_orders(all)?;
        self.read_new_orders(all)?;
        self.read_lines(all)?;
        self.customers(all)?;
        self.order_index(all)?;
        self.compare_orders(all);
        let at = key::district(self.w, self.d);
        let row = all.tx.get(&all.tables.district, &at, |v| v.map(decode::<District>))?;
        match row {
            None => all.report.fail(Clause(1), self.name(), "there is no such row".into()),
            Some(Err(damage)) => all.report.fail(Clause(1), self.name(), damage.to_string()),
            Some(Ok(row)) => {
                self.compare_district(all, &row);
                return Ok(Some(row.ytd()));
            }
        }
        Ok(None)
    }

    /// Walks the rows of one keyspace that belong to the district.
    fn walk<S: Store>(&self, tx: &mut S::Txn<'_>, ks: &S::Keyspace, mut each: impl FnMut(&[u8], &[u8])) -> Result<()> {
        let prefix = key::district(self.w, self.d);
        tx.scan(ks, KeyRange::new(&prefix, &prefix.after()), Direction::Forward, |k, v| {
            each(k, v);
            ControlFlow::Continue(())
        })
    }

    fn read_orders<S: Store>(&mut self, all: &mut Checker<'_, S>) -> Result<()> {
        let report = &mut all.report;
        let mut orders = Vec::new();
        self.walk::<S>(&mut all.tx, &all.tables.order, |k, v| {
            report.count("order");
            match (order_key(k), decode::<Order>(v)) {
                (None, _) => report.fail(Clause(2), format!("order {}", hex(k)), "the key has another length".into()),
                (Some((w, d, o)), Err(damage)) => {
                    report.fail(Clause(2), format!("order {w}/{d}/{o}"), damage.to_string());
                }
                (Some((_, _, o)), Ok(row)) => orders.push(OrderSeen {
                    o,
                    c: row.c_id(),
                    delivered: row.carrier_id() != 0,
                    ol_cnt: u32::from(row.ol_cnt()),
                    lines: 0,
                    new: false,
                }),
            }
        })?;
        self.orders = orders;
        Ok(())
    }

    fn read_new_orders<S: Store>(&mut self, all: &mut Checker<'_, S>) -> Result<()> {
        let report = &mut all.report;
        let mut orders = std::mem::take(&mut self.orders);
        let mut seen: Option<(u32, u32, u64)> = None;
        self.walk::<S>(&mut all.tx, &all.tables.new_order, |k, v| {
            report.count("new_order");
            let Some((w, d, o)) = order_key(k) else {
                return report.fail(Clause(3), format!("new_order {}", hex(k)), "the key has another length".into());
            };
            let name = || format!("new_order {w}/{d}/{o}");
            if !v.is_empty() {
                report.fail(Clause(2), name(), format!("{} bytes long, 0 expected", v.len()));
            }
            seen = Some(seen.map_or((o, o, 1), |(min, _, n)| (min, o, n + 1)));
            match orders.binary_search_by_key(&o, |order| order.o) {
                Ok(i) => orders[i].new = true,
                Err(_) => report.fail(Clause(5), name(), "there is no readable order of this number".into()),
            }
        })?;
        (self.orders, self.new_orders) = (orders, seen);
        Ok(())
    }

    fn read_lines<S: Store>(&mut self, all: &mut Checker<'_, S>) -> Result<()> {
        let (report, totals, foreign) = (&mut all.report, &mut all.totals, &mut all.foreign);
        let first_run_order = all.scale.customers;
        let mut orders = std::mem::take(&mut self.orders);
        let mut delivered = std::mem::take(&mut self.delivered);
        let (mut at, mut lines) = (0, 0);
        self.walk::<S>(&mut all.tx, &all.tables.order_line, |k, v| {
            report.count("order_line");
            lines += 1;
            let Some((w, d, o, line)) = line_key(k) else {
                return report.fail(Clause(4), format!("order_line {}", hex(k)), "the key has another length".into());
            };
            let name = || format!("order_line {w}/{d}/{o}/{line}");
            while at < orders.len() && orders[at].o < o {
                at += 1;
            }
            let Some(order) = orders.get_mut(at).filter(|order| order.o == o) else {
                return report.fail(Clause(6), name(), "there is no readable order of this number".into());
            };
            order.lines += 1;
            let row: OrderLine = match decode(v) {
                Ok(row) => row,
                Err(damage) => return report.fail(Clause(7), name(), damage.to_string()),
            };
            if let Some(foreign) = foreign {
                foreign.line(&row, (w, d, o, line));
            }
            if (row.delivery_d() != 0) != order.delivered {
                let is = |null: bool| if null { "null" } else { "not null" };
                let detail =
                    format!("OL_DELIVERY_D is {}, O_CARRIER_ID is {}", is(row.delivery_d() == 0), is(!order.delivered));
                report.fail(Clause(7), name(), detail);
            }
            if row.delivery_d() != 0
                && let Some(sum) = delivered.get_mut((order.c as usize).wrapping_sub(1))
            {
                *sum = sum.wrapping_add(row.amount());
            }
            if o > first_run_order
                && let Some(at) = totals.stock(row.supply_w_id(), row.i_id())
            {
                let (quantity, orders) = &mut totals.taken[at];
                *quantity = quantity.wrapping_add(u32::from(row.quantity()));
                *orders += 1;
            }
        })?;
        (self.orders, self.delivered, self.lines) = (orders, delivered, lines);
        Ok(())
    }

    /// Conditions 10 and 12, the sum of C_DELIVERY_CNT, and the index by name.
    fn customers<S: Store>(&mut self, all: &mut Checker<'_, S>) -> Result<()> {
        let (report, totals, delivered) = (&mut all.report, &all.totals, &self.delivered);
        let (w, d) = (self.w, self.d);
        let (mut expected, mut deliveries) = (1, 0u64);
        let mut by_name: Vec<Key> = Vec::new();
        self.walk::<S>(&mut all.tx, &all.tables.customer, |k, v| {
            report.count("customer");
            let c = expected;
            expected += 1;
            let name = || format!("customer {w}/{d}/{c}");
            if k != &key::customer(w, d, c)[..] {
                return report.fail(Clause(10), name(), format!("the key found is {}", hex(k)));
            }
            let row: Customer = match decode(v) {
                Ok(row) => row,
                Err(damage) => return report.fail(Clause(10), name(), damage.to_string()),
            };
            let sum = delivered.get(c as usize - 1).copied().unwrap_or(0);
            let owed = sum.wrapping_sub(totals.paid(w, d, c));
            let balance = ("C_BALANCE", Cents(row.balance()));
            report.expect(Clause(10), name, balance, ("delivered less paid", Cents(owed)));
            let turnover = Cents(row.balance().wrapping_add(row.ytd_payment()));
            let both = ("C_BALANCE + C_YTD_PAYMENT", turnover);
            report.expect(Clause(12), name, both, ("sum(delivered OL_AMOUNT)", Cents(sum)));
            if !matches!(row.credit(), b"GC" | b"BC") {
                report.fail(Condition::Layout, name(), "C_CREDIT is neither GC nor BC".into());
            }
            deliveries += u64::from(row.delivery_cnt());
            by_name.push(key::customer_by_name(w, d, row.last(), row.first(), c));
        })?;
        let customers = ("the scale", all.scale.customers);
        report.expect(Clause(10), || self.name(), ("rows in CUSTOMER", expected - 1), customers);
        self.deliveries = deliveries;
        by_name.sort_by(|a, b| a[..].cmp(&b[..]));
        self.index(all, "customer_by_name", by_name, |t| &t.customer_by_name)
    }

    fn order_index<S: Store>(&mut self, all: &mut Checker<'_, S>) -> Result<()> {
        let entry = |order: &OrderSeen| key::order_by_customer(self.w, self.d, order.c, order.o);
        let mut expected: Vec<Key> = self.orders.iter().map(entry).collect();
        expected.sort_by(|a, b| a[..].cmp(&b[..]));
        self.index(all, "order_by_customer", expected, |t| &t.order_by_customer)
    }

    /// Compares an index with the keys its table implies.
    fn index<S: Store>(
        &self,
        all: &mut Checker<'_, S>,
        name: &'static str,
        expected: Vec<Key>,
        ks: impl FnOnce(&super::schema::Tables<S>) -> &S::Keyspace,
    ) -> Result<()> {
        let report = &mut all.report;
        let mut expected = Expected::new(name, expected.into_iter());
        self.walk::<S>(&mut all.tx, ks(all.tables), |k, v| expected.found(report, k, v))?;
        expected.end(report);
        Ok(())
    }

    /// Conditions 5 and 6.
    fn compare_orders<S: Store>(&self, all: &mut Checker<'_, S>) {
        let report = &mut all.report;
        for order in &self.orders {
            let name = || format!("order {}/{}/{}", self.w, self.d, order.o);
            if order.new == order.delivered {
                let detail = match order.new {
                    true => "O_CARRIER_ID is not null and there is a row in NEW-ORDER",
                    false => "O_CARRIER_ID is null and there is no row in NEW-ORDER",
                };
                report.fail(Clause(5), name(), detail.into());
            }
            report.expect(Clause(6), name, ("O_OL_CNT", order.ol_cnt), ("rows in ORDER-LINE", order.lines));
        }
    }

    /// Conditions 2, 3, 4, 9 and 11.
    fn compare_district<S: Store>(&self, all: &mut Checker<'_, S>, row: &District) {
        let (report, scale) = (&mut all.report, all.scale);
        report.count("district");
        let name = || self.name();
        let next = ("D_NEXT_O_ID - 1", i64::from(row.next_o_id()) - 1);
        let max = self.orders.last().map_or(0, |order| i64::from(order.o));
        report.expect(Clause(2), name, next, ("max(O_ID)", max));
        let mut new_rows = 0;
        if let Some((min, max, count)) = self.new_orders {
            new_rows = count;
            report.expect(Clause(2), name, next, ("max(NO_O_ID)", i64::from(max)));
            let span = u64::from(max - min) + 1;
            report.expect(Clause(3), name, ("max - min + 1", span), ("rows in NEW-ORDER", count));
        }
        let ordered = self.orders.iter().map(|order| u64::from(order.ol_cnt)).sum::<u64>();
        report.expect(Clause(4), name, ("sum(O_OL_CNT)", ordered), ("rows in ORDER-LINE", self.lines));
        let booked = all.totals.booked(self.w, self.d);
        report.expect(Clause(9), name, ("D_YTD", Cents(row.ytd())), ("sum(H_AMOUNT)", Cents(booked)));
        let delivered = self.orders.len() as i64 - new_rows as i64;
        let initially = i64::from(scale.customers - scale.undelivered());
        let told = initially + self.deliveries as i64;
        let right = ("initially delivered + sum(C_DELIVERY_CNT)", told);
        report.expect(Clause(11), name, ("rows in ORDER - rows in NEW-ORDER", delivered), right);
    }
}

fn line_key(key: &[u8]) -> Option<(u32, u8, u32, u8)> {
    let mut reader = KeyReader(key);
    let parts = (reader.u32()?, reader.u8()?, reader.u32()?, reader.u8()?);
    reader.end().map(|()| parts)
}
