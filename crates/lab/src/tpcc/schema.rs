//! Tables, rows and keys of TPC-C (clause 1.3). Keys are big endian, so that byte order is the order of their columns;
//! key columns are not repeated in the rows. Money is in cents, rates in 1/10000, dates in microseconds (0: null).
//!
//! | keyspace | key | row |
//! |---|---|---|
//! | warehouse | w | [`Warehouse`] |
//! | district | w d | [`District`] |
//! | customer | w d c | [`Customer`] |
//! | customer_by_name | w d last first c | empty |
//! | history | w d date cw cd c payment# | [`History`] |
//! | order | w d o | [`Order`] |
//! | order_by_customer | w d c o | empty |
//! | new_order | w d o | empty |
//! | order_line | w d o line | [`OrderLine`] |
//! | item | i | [`Item`] |
//! | stock | w i | [`Stock`] |
//! | order_line_by_stock (optional) | supply_w i w d o line | empty |
//! | stock_by_item (optional) | i w | empty |
//! | history_by_customer (optional) | cw cd c w d date payment# | empty |
//!
//! The specification gives HISTORY no key; the number of the customer's payment makes ours unique.
//!
//! The optional ones are the indexes that a database keeps for foreign keys where no other index begins with their
//! columns (MySQL's, for one). HISTORY's own key serves its district.

use super::row::{Row, row};
use crate::adapter::Store;
use crate::error::{Error, Result};

row! {
    /// A warehouse (W_*).
    "warehouse" Warehouse {
        /// W_YTD, cents.
        ytd, set_ytd: i64;
        /// W_TAX, 1/10000.
        tax, set_tax: u32;
        /// W_NAME.
        name, set_name: text(10);
        /// W_STREET_1.
        street_1, set_street_1: text(20);
        /// W_STREET_2.
        street_2, set_street_2: text(20);
        /// W_CITY.
        city, set_city: text(20);
        /// W_STATE.
        state, set_state: text(2);
        /// W_ZIP.
        zip, set_zip: text(9);
    }
}

row! {
    /// A district (D_*).
    "district" District {
        /// D_YTD, cents.
        ytd, set_ytd: i64;
        /// D_NEXT_O_ID.
        next_o_id, set_next_o_id: u32;
        /// D_TAX, 1/10000.
        tax, set_tax: u32;
        /// D_NAME.
        name, set_name: text(10);
        /// D_STREET_1.
        street_1, set_street_1: text(20);
        /// D_STREET_2.
        street_2, set_street_2: text(20);
        /// D_CITY.
        city, set_city: text(20);
        /// D_STATE.
        state, set_state: text(2);
        /// D_ZIP.
        zip, set_zip: text(9);
    }
}

row! {
    /// A customer (C_*).
    "customer" Customer {
        /// C_BALANCE, cents.
        balance, set_balance: i64;
        /// C_YTD_PAYMENT, cents.
        ytd_payment, set_ytd_payment: i64;
        /// C_PAYMENT_CNT.
        payment_cnt, set_payment_cnt: u32;
        /// C_DELIVERY_CNT.
        delivery_cnt, set_delivery_cnt: u32;
        /// C_CREDIT_LIM, cents.
        credit_lim, set_credit_lim: i64;
        /// C_DISCOUNT, 1/10000.
        discount, set_discount: u32;
        /// C_SINCE.
        since, set_since: u64;
        /// C_CREDIT: `GC` or `BC`.
        credit, set_credit: text(2);
        /// C_FIRST.
        first, set_first: text(16);
        /// C_MIDDLE.
        middle, set_middle: text(2);
        /// C_LAST.
        last, set_last: text(16);
        /// C_STREET_1.
        street_1, set_street_1: text(20);
        /// C_STREET_2.
        street_2, set_street_2: text(20);
        /// C_CITY.
        city, set_city: text(20);
        /// C_STATE.
        state, set_state: text(2);
        /// C_ZIP.
        zip, set_zip: text(9);
        /// C_PHONE.
        phone, set_phone: text(16);
        /// C_DATA.
        data, set_data: text(500);
    }
}

row! {
    /// A payment (H_*).
    "history" History {
        /// H_AMOUNT, cents.
        amount, set_amount: i64;
        /// H_DATA.
        data, set_data: text(24);
    }
}

row! {
    /// An order (O_*).
    "order" Order {
        /// O_C_ID.
        c_id, set_c_id: u32;
        /// O_ENTRY_D.
        entry_d, set_entry_d: u64;
        /// O_CARRIER_ID; 0 is null.
        carrier_id, set_carrier_id: u8;
        /// O_OL_CNT.
        ol_cnt, set_ol_cnt: u8;
        /// O_ALL_LOCAL: 1 if every line is supplied by the home warehouse.
        all_local, set_all_local: u8;
    }
}

row! {
    /// A line of an order (OL_*).
    "order_line" OrderLine {
        /// OL_I_ID.
        i_id, set_i_id: u32;
        /// OL_SUPPLY_W_ID.
        supply_w_id, set_supply_w_id: u32;
        /// OL_DELIVERY_D; 0 is null.
        delivery_d, set_delivery_d: u64;
        /// OL_AMOUNT, cents.
        amount, set_amount: i64;
        /// OL_QUANTITY.
        quantity, set_quantity: u8;
        /// OL_DIST_INFO.
        dist_info, set_dist_info: text(24);
    }
}

row! {
    /// An item (I_*).
    "item" Item {
        /// I_IM_ID.
        im_id, set_im_id: u32;
        /// I_PRICE, cents.
        price, set_price: u32;
        /// I_NAME.
        name, set_name: text(24);
        /// I_DATA.
        data, set_data: text(50);
    }
}

row! {
    /// Stock of an item in a warehouse (S_*).
    "stock" Stock {
        /// S_QUANTITY.
        quantity, set_quantity: u32;
        /// S_YTD.
        ytd, set_ytd: u32;
        /// S_ORDER_CNT.
        order_cnt, set_order_cnt: u32;
        /// S_REMOTE_CNT.
        remote_cnt, set_remote_cnt: u32;
        /// S_DATA.
        data, set_data: text(50);
        /// S_DIST_01 to S_DIST_10, 24 bytes each.
        dists, set_dists: text(240);
    }
}

impl Stock {
    /// S_DIST_xx of district `d` (1 to 10).
    pub fn dist(&self, d: u8) -> &[u8] {
        let at = Stock::LEN - 240 + (d.max(1) as usize - 1) % 10 * 24;
        &self.as_bytes()[at..at + 24]
    }
}

/// A short key, built in place.
#[derive(Clone, Copy)]
pub struct Key {
    len: u8,
    bytes: [u8; 63],
}

impl Default for Key {
    fn default() -> Self {
        Key { len: 0, bytes: [0; 63] }
    }
}

impl Key {
    /// Appends bytes.
    pub fn bytes(mut self, part: &[u8]) -> Key {
        let at = self.len as usize;
        self.bytes[at..at + part.len()].copy_from_slice(part);
        self.len += part.len() as u8;
        self
    }

    /// Appends one byte.
    pub fn u8(self, part: u8) -> Key {
        self.bytes(&[part])
    }

    /// Appends a big-endian number.
    pub fn u32(self, part: u32) -> Key {
        self.bytes(&part.to_be_bytes())
    }

    /// Appends a big-endian number.
    pub fn u64(self, part: u64) -> Key {
        self.bytes(&part.to_be_bytes())
    }

    /// Appends text padded with zeros to `width`, so that shorter text sorts first.
    pub fn text(self, part: &[u8], width: usize) -> Key {
        let mut padded = [0; 32];
        let n = part.len().min(width);
        padded[..n].copy_from_slice(&part[..n]);
        self.bytes(&padded[..width])
    }

    /// The first key after every key that begins with this one. All our keys begin with a number that is not all
    /// ones, so there always is one.
    pub fn after(mut self) -> Key {
        while self.len > 0 && self.bytes[self.len as usize - 1] == 0xff {
            self.len -= 1;
        }
        assert!(self.len > 0, "a key of all ones has no successor");
        self.bytes[self.len as usize - 1] += 1;
        self
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// Key constructors, one per keyspace, and the prefixes that are scanned.
pub mod key {
    use super::Key;

    /// warehouse; also the prefix of everything in it.
    pub fn warehouse(w: u32) -> Key {
        Key::default().u32(w)
    }
    /// district; also the prefix of everything in it.
    pub fn district(w: u32, d: u8) -> Key {
        warehouse(w).u8(d)
    }
    /// customer; also the prefix of its orders in order_by_customer.
    pub fn customer(w: u32, d: u8, c: u32) -> Key {
        district(w, d).u32(c)
    }
    /// Prefix of the customers of one last name.
    pub fn last_name(w: u32, d: u8, last: &[u8]) -> Key {
        district(w, d).text(last, 16)
    }
    /// customer_by_name.
    pub fn customer_by_name(w: u32, d: u8, last: &[u8], first: &[u8], c: u32) -> Key {
        last_name(w, d, last).text(first, 16).u32(c)
    }
    /// order and new_order; also the prefix of the order's lines.
    pub fn order(w: u32, d: u8, o: u32) -> Key {
        district(w, d).u32(o)
    }
    /// order_by_customer.
    pub fn order_by_customer(w: u32, d: u8, c: u32, o: u32) -> Key {
        customer(w, d, c).u32(o)
    }
    /// order_line.
    pub fn order_line(w: u32, d: u8, o: u32, line: u8) -> Key {
        order(w, d, o).u8(line)
    }
    /// item.
    pub fn item(i: u32) -> Key {
        Key::default().u32(i)
    }
    /// stock.
    pub fn stock(w: u32, i: u32) -> Key {
        warehouse(w).u32(i)
    }
    /// history: payment number `n` of a customer, booked in district `d` of warehouse `w`.
    pub fn history(w: u32, d: u8, date: u64, customer: (u32, u8, u32), n: u32) -> Key {
        district(w, d).u64(date).u32(customer.0).u8(customer.1).u32(customer.2).u32(n)
    }
    /// order_line_by_stock: the line of an order `(w, d, o, line)` that warehouse `supply_w` supplies.
    pub fn order_line_by_stock(supply_w: u32, i: u32, (w, d, o, line): (u32, u8, u32, u8)) -> Key {
        stock(supply_w, i).bytes(&order_line(w, d, o, line))
    }
    /// stock_by_item.
    pub fn stock_by_item(i: u32, w: u32) -> Key {
        item(i).u32(w)
    }
    /// history_by_customer, of the arguments of [`history`].
    pub fn history_by_customer(w: u32, d: u8, date: u64, (c_w, c_d, c): (u32, u8, u32), n: u32) -> Key {
        customer(c_w, c_d, c).bytes(&district(w, d)).u64(date).u32(n)
    }
}

/// Reads the columns of a key from the front.
pub struct KeyReader<'a>(pub &'a [u8]);

impl KeyReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    /// Next column, one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }

    /// Next column, four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// Next column, eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// Succeeds if nothing is left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The keyspaces of one store.
pub struct Tables<S: Store> {
    /// warehouse
    pub warehouse: S::Keyspace,
    /// district
    pub district: S::Keyspace,
    /// customer
    pub customer: S::Keyspace,
    /// customer_by_name, a secondary index
    pub customer_by_name: S::Keyspace,
    /// history
    pub history: S::Keyspace,
    /// order
    pub order: S::Keyspace,
    /// order_by_customer, a secondary index
    pub order_by_customer: S::Keyspace,
    /// new_order
    pub new_order: S::Keyspace,
    /// order_line
    pub order_line: S::Keyspace,
    /// item
    pub item: S::Keyspace,
    /// stock
    pub stock: S::Keyspace,
    /// What the loader wrote down about the load.
    pub meta: S::Keyspace,
    /// Indexes for foreign keys, if the scale has them.
    pub foreign: Option<ForeignKeys<S>>,
}

/// The keyspaces of the indexes for foreign keys.
pub struct ForeignKeys<S: Store> {
    /// order_line_by_stock
    pub order_line_by_stock: S::Keyspace,
    /// stock_by_item
    pub stock_by_item: S::Keyspace,
    /// history_by_customer
    pub history_by_customer: S::Keyspace,
}

impl<S: Store> ForeignKeys<S> {
    fn open(store: &S) -> Result<ForeignKeys<S>> {
        Ok(ForeignKeys {
            order_line_by_stock: store.keyspace("order_line_by_stock")?,
            stock_by_item: store.keyspace("stock_by_item")?,
            history_by_customer: store.keyspace("history_by_customer")?,
        })
    }
}

impl<S: Store> Tables<S> {
    /// Opens (or creates) the keyspaces, those for foreign keys only if they are wanted.
    pub fn open(store: &S, foreign_keys: bool) -> Result<Tables<S>> {
        Ok(Tables {
            warehouse: store.keyspace("warehouse")?,
            district: store.keyspace("district")?,
            customer: store.keyspace("customer")?,
            customer_by_name: store.keyspace("customer_by_name")?,
            history: store.keyspace("history")?,
            order: store.keyspace("order")?,
            order_by_customer: store.keyspace("order_by_customer")?,
            new_order: store.keyspace("new_order")?,
            order_line: store.keyspace("order_line")?,
            item: store.keyspace("item")?,
            stock: store.keyspace("stock")?,
            meta: store.keyspace("tpcc_meta")?,
            foreign: if foreign_keys { Some(ForeignKeys::open(store)?) } else { None },
        })
    }
}

/// Readable form of a key: the bytes in hexadecimal.
pub fn hex(key: &[u8]) -> String {
    key.iter().map(|b| format!("{b:02x}")).collect()
}

/// An error for a stored row that cannot be decoded.
pub(crate) fn damaged(key: &[u8], damage: super::row::Damage) -> Error {
    Error::Row { table: damage.table, key: hex(key), why: damage.why }
}
