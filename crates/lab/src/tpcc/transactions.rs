//! The five transactions (clauses 2.4 to 2.8) and their read-only variants.
//!
//! Lock order within a transaction: customer, stock, district, warehouse; order, order lines, customer in Delivery.
//! Two Deliveries in one district would both read the head of the new orders and both want to remove it; each
//! therefore first asks for the (never used) order number 0 of the district for update, and they queue there.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::inputs::{Input, Inputs, Line, Who};
use super::row::Row;
use super::schema::{Customer, District, History, Item, Key, Order, OrderLine, Stock, Tables, Warehouse};
use super::schema::{KeyReader, damaged, hex, key};
use super::{Options, date_now};
use crate::adapter::{Direction, Durability, KeyRange, Store, TxMode, Txn};
use crate::driver::{Client, Draw, Outcome};
use crate::error::{Error, Result};

/// Reads a row that may be absent.
fn find<R: Row, X: Txn>(tx: &mut X, ks: &X::Keyspace, key: &[u8]) -> Result<Option<R>> {
    tx.get(ks, key, |v| v.map(R::decode).transpose())?.map_err(|d| damaged(key, d))
}

/// Reads a row that must exist.
fn read<R: Row, X: Txn>(tx: &mut X, ks: &X::Keyspace, key: &[u8]) -> Result<R> {
    find(tx, ks, key)?.ok_or_else(|| missing::<R>(key))
}

/// Reads a row that must exist and will be written.
fn read_to_write<R: Row, X: Txn>(tx: &mut X, ks: &X::Keyspace, key: &[u8]) -> Result<R> {
    let row = tx.get_for_update(ks, key, |v| v.map(R::decode).transpose())?.map_err(|d| damaged(key, d))?;
    row.ok_or_else(|| missing::<R>(key))
}

fn missing<R: Row>(key: &[u8]) -> Error {
    Error::Missing { table: R::TABLE, key: hex(key) }
}

/// First or last key with a prefix, and what `take` makes of it.
fn edge<X: Txn, T>(
    tx: &mut X,
    ks: &X::Keyspace,
    prefix: Key,
    direction: Direction,
    mut take: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Option<T>> {
    let mut found = None;
    tx.scan(ks, KeyRange::new(&prefix, &prefix.after()), direction, |k, _| {
        found = take(k);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// The last four bytes of a key as a number.
fn trailing_u32(key: &[u8]) -> Option<u32> {
    key.last_chunk::<4>().map(|b| u32::from_be_bytes(*b))
}

/// A terminal: draws transactions and runs them.
pub struct Terminal<S: Store> {
    tables: Arc<Tables<S>>,
    inputs: Inputs,
    input: Input,
    read_only: bool,
    durability: Durability,
    ids: Vec<u32>,
    lines: Vec<(Key, OrderLine)>,
    /// Stands for the screen: what the terminal would display of the last transaction, as a number.
    displayed: i64,
}

impl<S: Store> Terminal<S> {
    pub(super) fn new(tables: Arc<Tables<S>>, inputs: Inputs, options: &Options) -> Terminal<S> {
        Terminal {
            tables,
            inputs,
            input: Input::Delivery { carrier: 1 },
            read_only: options.read_only,
            durability: options.durability,
            ids: Vec::new(),
            lines: Vec::new(),
            displayed: 0,
        }
    }

    /// The number shown by the last transaction: total of an order, balance of a customer, districts delivered, items
    /// short.
    pub fn displayed(&self) -> i64 {
        self.displayed
    }

    /// Number of the customer named by `who`: of those with the last name, sorted by first name, the middle one.
    fn customer(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, who: &Who) -> Result<u32> {
        let last = match who {
            Who::Id(c) => return Ok(*c),
            Who::LastName(last) => last.as_bytes(),
        };
        let prefix = key::last_name(w, d, last);
        let ids = &mut self.ids;
        ids.clear();
        tx.scan(&self.tables.customer_by_name, KeyRange::new(&prefix, &prefix.after()), Direction::Forward, |k, _| {
            ids.extend(trailing_u32(k));
            ControlFlow::Continue(())
        })?;
        let middle = ids.len().div_ceil(2).checked_sub(1);
        let missing = || Error::Missing { table: "customer_by_name", key: hex(&prefix) };
        middle.map(|i| ids[i]).ok_or_else(missing)
    }

    fn new_order(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, c: u32, lines: &[Line]) -> Result<Outcome> {
        let t = self.tables.clone();
        let customer: Customer = read(tx, &t.customer, &key::customer(w, d, c))?;
        self.lines.clear();
        let mut total = 0;
        for line in lines {
            let Some(item) = find::<Item, _>(tx, &t.item, &key::item(line.item))? else {
                return Ok(Outcome::RolledBack);
            };
            let row = self.order_line(tx, w, d, line, &item)?;
            total += row.amount();
            self.lines.push((Key::default(), row));
        }
        let mut district: District = self.for_update(tx, &t.district, &key::district(w, d))?;
        let o = district.next_o_id();
        if !self.read_only {
            district.set_next_o_id(o + 1);
            tx.put(&t.district, &key::district(w, d), district.as_bytes())?;
            let mut order = Order::blank();
            order.set_c_id(c);
            order.set_entry_d(date_now());
            order.set_ol_cnt(lines.len() as u8);
            order.set_all_local(u8::from(lines.iter().all(|l| l.supply_w == w)));
            tx.put(&t.order, &key::order(w, d, o), order.as_bytes())?;
            tx.put(&t.order_by_customer, &key::order_by_customer(w, d, c, o), &[])?;
            tx.put(&t.new_order, &key::order(w, d, o), &[])?;
            for (n, (_, row)) in (1..).zip(&self.lines) {
                tx.put(&t.order_line, &key::order_line(w, d, o, n), row.as_bytes())?;
                if let Some(foreign) = &t.foreign {
                    let at = key::order_line_by_stock(row.supply_w_id(), row.i_id(), (w, d, o, n));
                    tx.put(&foreign.order_line_by_stock, &at, &[])?;
                }
            }
        }
        let warehouse: Warehouse = read(tx, &t.warehouse, &key::warehouse(w))?;
        let tax = 10_000 + i64::from(warehouse.tax()) + i64::from(district.tax());
        self.displayed = total * (10_000 - i64::from(customer.discount())) / 10_000 * tax / 10_000;
        Ok(Outcome::Committed)
    }

    /// Takes the goods of one line out of the stock and prices them.
    fn order_line(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, line: &Line, item: &Item) -> Result<OrderLine> {
        let at = key::stock(line.supply_w, line.item);
        let ks = self.tables.stock.clone();
        let mut stock: Stock = self.for_update(tx, &ks, &at)?;
        if !self.read_only {
            let wanted = u32::from(line.quantity);
            let left = stock.quantity();
            stock.set_quantity(if left >= wanted + 10 { left - wanted } else { left + 91 - wanted });
            stock.set_ytd(stock.ytd() + wanted);
            stock.set_order_cnt(stock.order_cnt() + 1);
            stock.set_remote_cnt(stock.remote_cnt() + u32::from(line.supply_w != w));
            tx.put(&ks, &at, stock.as_bytes())?;
        }
        let mut row = OrderLine::blank();
        row.set_i_id(line.item);
        row.set_supply_w_id(line.supply_w);
        row.set_quantity(line.quantity);
        row.set_amount(i64::from(line.quantity) * i64::from(item.price()));
        row.set_dist_info(stock.dist(d));
        Ok(row)
    }

    /// Reads a row that the full variant writes.
    fn for_update<R: Row>(&self, tx: &mut S::Txn<'_>, ks: &S::Keyspace, key: &[u8]) -> Result<R> {
        if self.read_only { read(tx, ks, key) } else { read_to_write(tx, ks, key) }
    }

    fn payment(
        &mut self,
        tx: &mut S::Txn<'_>,
        (w, d): (u32, u8),
        (c_w, c_d): (u32, u8),
        who: &Who,
        amount: i64,
    ) -> Result<Outcome> {
        let t = self.tables.clone();
        let c = self.customer(tx, c_w, c_d, who)?;
        let at = key::customer(c_w, c_d, c);
        let mut customer: Customer = self.for_update(tx, &t.customer, &at)?;
        if !self.read_only {
            customer.set_balance(customer.balance() - amount);
            customer.set_ytd_payment(customer.ytd_payment() + amount);
            customer.set_payment_cnt(customer.payment_cnt() + 1);
            if customer.credit() == b"BC" {
                let note = format!("{c} {c_d} {c_w} {d} {w} {}.{:02} | ", amount / 100, amount % 100);
                let data = [note.as_bytes(), customer.data()].concat();
                customer.set_data(&data);
            }
            tx.put(&t.customer, &at, customer.as_bytes())?;
        }
        let mut district: District = self.for_update(tx, &t.district, &key::district(w, d))?;
        let mut warehouse: Warehouse = self.for_update(tx, &t.warehouse, &key::warehouse(w))?;
        if !self.read_only {
            district.set_ytd(district.ytd() + amount);
            tx.put(&t.district, &key::district(w, d), district.as_bytes())?;
            warehouse.set_ytd(warehouse.ytd() + amount);
            tx.put(&t.warehouse, &key::warehouse(w), warehouse.as_bytes())?;
            let mut history = History::blank();
            history.set_amount(amount);
            history.set_data(&[warehouse.name(), b"    ", district.name()].concat());
            let (date, n) = (date_now(), customer.payment_cnt());
            tx.put(&t.history, &key::history(w, d, date, (c_w, c_d, c), n), history.as_bytes())?;
            if let Some(foreign) = &t.foreign {
                let at = key::history_by_customer(w, d, date, (c_w, c_d, c), n);
                tx.put(&foreign.history_by_customer, &at, &[])?;
            }
        }
        self.displayed = customer.balance();
        Ok(Outcome::Committed)
    }

    fn order_status(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, who: &Who) -> Result<Outcome> {
        let t = self.tables.clone();
        let c = self.customer(tx, w, d, who)?;
        let customer: Customer = read(tx, &t.customer, &key::customer(w, d, c))?;
        self.displayed = customer.balance();
        let last = edge(tx, &t.order_by_customer, key::customer(w, d, c), Direction::Reverse, trailing_u32)?;
        let Some(o) = last else { return Ok(Outcome::Committed) };
        let order: Order = read(tx, &t.order, &key::order(w, d, o))?;
        self.read_lines(tx, w, d, o)?;
        self.displayed += i64::from(order.carrier_id()) + self.lines.len() as i64;
        Ok(Outcome::Committed)
    }

    /// Reads the lines of an order into `self.lines`.
    fn read_lines(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, o: u32) -> Result<()> {
        let prefix = key::order(w, d, o);
        let lines = &mut self.lines;
        lines.clear();
        let mut damage = None;
        tx.scan(&self.tables.order_line, KeyRange::new(&prefix, &prefix.after()), Direction::Forward, |k, v| {
            match OrderLine::decode(v) {
                Ok(row) if k.len() <= 63 => lines.push((Key::default().bytes(k), row)),
                Ok(_) => {}
                Err(why) => damage = Some(damaged(k, why)),
            }
            if damage.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        damage.map_or(Ok(()), Err)
    }

    fn delivery(&mut self, tx: &mut S::Txn<'_>, w: u32, carrier: u8, districts: u8) -> Result<Outcome> {
        self.displayed = 0;
        for d in 1..=districts {
            self.displayed += i64::from(self.deliver_oldest(tx, w, d, carrier)?);
        }
        Ok(Outcome::Committed)
    }

    /// Delivers the oldest new order of a district; false if there is none.
    fn deliver_oldest(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, carrier: u8) -> Result<bool> {
        let t = self.tables.clone();
        if !self.read_only {
            tx.get_for_update(&t.new_order, &key::order(w, d, 0), |_| ())?;
        }
        let oldest = edge(tx, &t.new_order, key::district(w, d), Direction::Forward, trailing_u32)?;
        let Some(o) = oldest else { return Ok(false) };
        let at = key::order(w, d, o);
        let mut order: Order = self.for_update(tx, &t.order, &at)?;
        self.read_lines(tx, w, d, o)?;
        let amount: i64 = self.lines.iter().map(|(_, row)| row.amount()).sum();
        let customer_at = key::customer(w, d, order.c_id());
        if self.read_only {
            read::<Customer, _>(tx, &t.customer, &customer_at)?;
            return Ok(true);
        }
        tx.delete(&t.new_order, &at)?;
        order.set_carrier_id(carrier);
        tx.put(&t.order, &at, order.as_bytes())?;
        let date = date_now();
        for (key, row) in &mut self.lines {
            row.set_delivery_d(date);
            tx.put(&t.order_line, key, row.as_bytes())?;
        }
        let mut customer: Customer = read_to_write(tx, &t.customer, &customer_at)?;
        customer.set_balance(customer.balance() + amount);
        customer.set_delivery_cnt(customer.delivery_cnt() + 1);
        tx.put(&t.customer, &customer_at, customer.as_bytes())?;
        Ok(true)
    }

    fn stock_level(&mut self, tx: &mut S::Txn<'_>, w: u32, d: u8, threshold: u32) -> Result<Outcome> {
        let t = self.tables.clone();
        let district: District = read(tx, &t.district, &key::district(w, d))?;
        let next = district.next_o_id();
        let (from, to) = (key::order(w, d, next.saturating_sub(20)), key::order(w, d, next));
        let items = &mut self.ids;
        items.clear();
        let mut damage = None;
        tx.scan(&t.order_line, KeyRange::new(&from, &to), Direction::Forward, |k, v| match OrderLine::decode(v) {
            Ok(row) => {
                items.push(row.i_id());
                ControlFlow::Continue(())
            }
            Err(why) => {
                damage = Some(damaged(k, why));
                ControlFlow::Break(())
            }
        })?;
        if let Some(damage) = damage {
            return Err(damage);
        }
        items.sort_unstable();
        items.dedup();
        self.displayed = 0;
        for i in &self.ids {
            let stock: Stock = read(tx, &t.stock, &key::stock(w, *i))?;
            self.displayed += i64::from(stock.quantity() < threshold);
        }
        Ok(Outcome::Committed)
    }
}

impl<S: Store> Client<S> for Terminal<S> {
    fn draw(&mut self) -> Draw {
        let (draw, input) = self.inputs.draw();
        self.input = input;
        draw
    }

    fn attempt(&mut self, store: &S) -> Result<Outcome> {
        let w = self.inputs.w;
        let reads = self.read_only || matches!(self.input, Input::OrderStatus { .. } | Input::StockLevel { .. });
        let mut tx = store.begin(if reads { TxMode::ReadOnly } else { TxMode::ReadWrite }, self.durability)?;
        // Taken out and put back, so that the inputs can be lent while the terminal is changed.
        let input = std::mem::replace(&mut self.input, Input::Delivery { carrier: 1 });
        let outcome = match &input {
            Input::NewOrder { d, c, lines } => self.new_order(&mut tx, w, *d, *c, lines),
            Input::Payment { d, c_w, c_d, who, amount } => self.payment(&mut tx, (w, *d), (*c_w, *c_d), who, *amount),
            Input::OrderStatus { d, who } => self.order_status(&mut tx, w, *d, who),
            Input::Delivery { carrier } => self.delivery(&mut tx, w, *carrier, self.inputs.districts()),
            Input::StockLevel { d, threshold } => self.stock_level(&mut tx, w, *d, *threshold),
        };
        self.input = input;
        match outcome? {
            Outcome::Committed => tx.commit()?,
            Outcome::RolledBack => {
                tx.rollback();
                return Ok(Outcome::RolledBack);
            }
        }
        Ok(Outcome::Committed)
    }
}

/// The columns of an order's key.
pub(super) fn order_key(key: &[u8]) -> Option<(u32, u8, u32)> {
    let mut reader = KeyReader(key);
    let parts = (reader.u32()?, reader.u8()?, reader.u32()?);
    reader.end().map(|()| parts)
}
