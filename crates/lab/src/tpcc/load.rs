//! The initial population of clause 4.3, in parallel by warehouse.
//!
//! The rows are a function of the seed and the warehouse alone, whatever the number of threads. What was loaded is
//! written down in the keyspace `tpcc_meta`: `loading` before the first row, `loaded` after the last, so that a load
//! that was cut short is seen and simply repeated over itself. Batches are committed without waiting for the medium;
//! the last commit waits, and with it everything before it.

use std::sync::Arc;

use varve_rt::Rng;
use varve_rt::atomic::{AtomicU32, Ordering};

use super::random::{NuRandC, Scale, a_string, item_data, last_name, letters, n_string, nurand, zip};
use super::row::Row;
use super::schema::{Customer, District, History, Item, Order, OrderLine, Stock, Tables, Warehouse, key};
use crate::adapter::{Durability, End, Store, TxMode, Txn, transact};
use crate::batch::Batch;
use crate::error::{Error, Result};

/// What the loader writes down about the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Loaded {
    /// Layout of rows and keys; this build reads and writes 1.
    pub version: u32,
    /// Size of the database.
    pub scale: Scale,
    /// Constants of NURand used while loading.
    pub c_load: NuRandC,
    /// Seed of the random values.
    pub seed: u64,
    /// Date of every initial row, microseconds since 1970.
    pub date: u64,
}

/// Layout that this build reads and writes.
pub const VERSION: u32 = 1;

/// How far a load has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Rows written, index entries not counted.
    pub rows: u64,
    /// Rows there will be, order lines estimated at ten per order.
    pub total: u64,
}

/// Reads what the loader wrote down: `None` if the store holds no completely loaded TPC-C data.
pub fn loaded<S: Store>(store: &S) -> Result<Option<Loaded>> {
    match store.find_keyspace("tpcc_meta")? {
        Some(meta) => read_meta(store, &meta, b"loaded"),
        None => Ok(None),
    }
}

fn read_meta<S: Store>(store: &S, meta: &S::Keyspace, name: &[u8]) -> Result<Option<Loaded>> {
    let bytes = transact(store, TxMode::ReadOnly, Durability::Sync, |tx| {
        Ok((tx.get(meta, name, |v| v.map(<[u8]>::to_vec))?, End::Commit))
    })?;
    let Some(bytes) = bytes else { return Ok(None) };
    let note: Loaded = serde_json::from_slice(&bytes).map_err(|e| Error::Row {
        table: "tpcc_meta",
        key: String::from_utf8_lossy(name).into_owned(),
        why: e.to_string(),
    })?;
    if note.version != VERSION {
        let why = format!("its TPC-C data has layout {}, this build knows {VERSION}", note.version);
        return Err(Error::NotLoaded(why));
    }
    note.scale.validate()?;
    Ok(Some(note))
}

fn write_meta<S: Store>(store: &S, meta: &S::Keyspace, name: &[u8], note: &Loaded, how: Durability) -> Result<()> {
    let bytes = serde_json::to_vec(note).expect("plain data");
    transact(store, TxMode::ReadWrite, how, |tx| Ok((tx.put(meta, name, &bytes)?, End::Commit)))
}

/// Loads the initial population with `threads` threads. `progress` is called on the calling thread, a few times per
/// warehouse. A load that was cut short is repeated with the seed it had.
///
/// Errors: the scale is not possible, the store already holds data of another scale, or the store failed.
pub fn load<S: Store>(
    store: &Arc<S>,
    scale: Scale,
    seed: u64,
    threads: usize,
    mut progress: impl FnMut(LoadProgress),
) -> Result<Loaded> {
    scale.validate()?;
    let tables = Arc::new(Tables::<S>::open(store, scale.foreign_keys)?);
    let note = match read_meta(&**store, &tables.meta, b"loading")? {
        Some(earlier) if earlier.scale == scale => earlier,
        Some(earlier) => {
            return Err(Error::NotLoaded(format!("it holds TPC-C data of {:?}, not of {scale:?}", earlier.scale)));
        }
        None => {
            let c_load = NuRandC::for_load(&mut Rng::from_seed(seed));
            Loaded { version: VERSION, scale, c_load, seed, date: super::date_now() }
        }
    };
    write_meta(&**store, &tables.meta, b"loading", &note, Durability::None)?;

    let per_district = u64::from(scale.customers) * (1 + 1 + 1 + 10) + u64::from(scale.undelivered()) + 1;
    let per_warehouse = u64::from(scale.districts) * per_district + u64::from(scale.items) + 1;
    let total = u64::from(scale.items) + u64::from(scale.warehouses) * per_warehouse;
    let next = Arc::new(AtomicU32::new(0));
    let (send, receive) = varve_rt::channel::unbounded::<u64>();
    let mut workers = Vec::new();
    for i in 0..threads.clamp(1, scale.warehouses as usize + 1) {
        let (store, tables, next, send) = (store.clone(), tables.clone(), next.clone(), send.clone());
        workers.push(varve_rt::spawn(format!("tpcc-load-{i}"), move || -> Result<()> {
            loop {
                let w = next.fetch_add(1, Ordering::Relaxed);
                if w > scale.warehouses {
                    return Ok(());
                }
                let mut report = |rows| _ = send.send(rows);
                let rng = Rng::from_seed(note.seed ^ (u64::from(w) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut loader = Loader { batch: Batch::new(&*store, &mut report), tables: &tables, note: &note, rng };
                // Number 0 stands for the items, which belong to no warehouse.
                if w == 0 {
                    loader.items()?
                } else {
                    loader.warehouse(w)?
                }
                loader.batch.flush()?;
            }
        }));
    }
    drop(send);
    let mut rows = 0;
    while let Ok(more) = receive.recv() {
        rows += more;
        progress(LoadProgress { rows, total: total.max(rows) });
    }
    for worker in workers {
        let name = worker.name().to_string();
        worker.join().map_err(|_| Error::WorkerPanicked(name))??;
    }
    write_meta(&**store, &tables.meta, b"loaded", &note, Durability::Sync)?;
    Ok(note)
}

struct Loader<'a, S: Store> {
    batch: Batch<'a, S>,
    tables: &'a Tables<S>,
    note: &'a Loaded,
    rng: Rng,
}

impl<S: Store> Loader<'_, S> {
    fn items(&mut self) -> Result<()> {
        for i in 1..=self.note.scale.items {
            let rng = &mut self.rng;
            let mut row = Item::blank();
            row.set_im_id(rng.between(1, 10_000) as u32);
            row.set_name(&a_string(rng, 14, 24));
            row.set_price(rng.between(100, 10_000) as u32);
            row.set_data(&item_data(rng));
            self.batch.put(&self.tables.item, &key::item(i), row.as_bytes())?;
        }
        Ok(())
    }

    fn warehouse(&mut self, w: u32) -> Result<()> {
        let scale = self.note.scale;
        let rng = &mut self.rng;
        let mut row = Warehouse::blank();
        // 300,000.00 at full scale: the sum of the districts', which is the sum of the first payments.
        row.set_ytd(i64::from(scale.districts) * i64::from(scale.customers) * 1000);
        row.set_tax(rng.below(2001) as u32);
        row.set_name(&a_string(rng, 6, 10));
        row.set_street_1(&a_string(rng, 10, 20));
        row.set_street_2(&a_string(rng, 10, 20));
        row.set_city(&a_string(rng, 10, 20));
        row.set_state(&a_string(rng, 2, 2));
        row.set_zip(&zip(rng));
        self.batch.put(&self.tables.warehouse, &key::warehouse(w), row.as_bytes())?;
        self.stock(w)?;
        for d in 1..=scale.districts {
            self.district(w, d)?;
            self.customers(w, d)?;
            self.orders(w, d)?;
        }
        Ok(())
    }

    fn stock(&mut self, w: u32) -> Result<()> {
        for i in 1..=self.note.scale.items {
            let rng = &mut self.rng;
            let mut dists = [0; 240];
            letters(rng, &mut dists);
            let mut row = Stock::blank();
            row.set_quantity(rng.between(10, 100) as u32);
            row.set_data(&item_data(rng));
            row.set_dists(&dists);
            self.batch.put(&self.tables.stock, &key::stock(w, i), row.as_bytes())?;
            if let Some(foreign) = &self.tables.foreign {
                self.batch.put(&foreign.stock_by_item, &key::stock_by_item(i, w), &[])?;
            }
        }
        Ok(())
    }

    fn district(&mut self, w: u32, d: u8) -> Result<()> {
        let rng = &mut self.rng;
        let mut row = District::blank();
        row.set_ytd(i64::from(self.note.scale.customers) * 1000);
        row.set_next_o_id(self.note.scale.customers + 1);
        row.set_tax(rng.below(2001) as u32);
        row.set_name(&a_string(rng, 6, 10));
        row.set_street_1(&a_string(rng, 10, 20));
        row.set_street_2(&a_string(rng, 10, 20));
        row.set_city(&a_string(rng, 10, 20));
        row.set_state(&a_string(rng, 2, 2));
        row.set_zip(&zip(rng));
        self.batch.put(&self.tables.district, &key::district(w, d), row.as_bytes())
    }

    fn customers(&mut self, w: u32, d: u8) -> Result<()> {
        let mut by_name = Vec::new();
        for c in 1..=self.note.scale.customers {
            let row = self.customer(c);
            by_name.push(key::customer_by_name(w, d, row.last(), row.first(), c));
            self.batch.put(&self.tables.customer, &key::customer(w, d, c), row.as_bytes())?;
        }
        by_name.sort_by(|a, b| a[..].cmp(&b[..]));
        for key in by_name {
            self.batch.put(&self.tables.customer_by_name, &key, &[])?;
        }
        for c in 1..=self.note.scale.customers {
            let mut row = History::blank();
            row.set_amount(1000);
            row.set_data(&a_string(&mut self.rng, 12, 24));
            let date = self.note.date;
            self.batch.put(&self.tables.history, &key::history(w, d, date, (w, d, c), 1), row.as_bytes())?;
            if let Some(foreign) = &self.tables.foreign {
                let key = key::history_by_customer(w, d, date, (w, d, c), 1);
                self.batch.put(&foreign.history_by_customer, &key, &[])?;
            }
        }
        Ok(())
    }

    fn customer(&mut self, c: u32) -> Customer {
        let names = self.note.scale.max_last_name();
        let rng = &mut self.rng;
        let name = match c {
            1..=1000 => u64::from(c) - 1,
            _ => nurand(rng, 255, self.note.c_load.last, 0, names),
        };
        let mut row = Customer::blank();
        row.set_balance(-1000);
        row.set_ytd_payment(1000);
        row.set_payment_cnt(1);
        row.set_credit_lim(5_000_000);
        row.set_discount(rng.below(5001) as u32);
        row.set_since(self.note.date);
        row.set_credit(if rng.below(10) == 0 { b"BC" } else { b"GC" });
        row.set_first(&a_string(rng, 8, 16));
        row.set_middle(b"OE");
        row.set_last(last_name(name).as_bytes());
        row.set_street_1(&a_string(rng, 10, 20));
        row.set_street_2(&a_string(rng, 10, 20));
        row.set_city(&a_string(rng, 10, 20));
        row.set_state(&a_string(rng, 2, 2));
        row.set_zip(&zip(rng));
        row.set_phone(&n_string(rng, 16));
        row.set_data(&a_string(rng, 300, 500));
        row
    }

    fn orders(&mut self, w: u32, d: u8) -> Result<()> {
        let scale = self.note.scale;
        let mut customers: Vec<u32> = (1..=scale.customers).collect();
        self.rng.shuffle(&mut customers);
        let first_new = scale.customers - scale.undelivered() + 1;
        let mut counts = Vec::new();
        for (o, c) in (1..).zip(&customers) {
            let mut row = Order::blank();
            row.set_c_id(*c);
            row.set_entry_d(self.note.date);
            row.set_carrier_id(if o < first_new { self.rng.between(1, 10) as u8 } else { 0 });
            row.set_ol_cnt(self.rng.between(5, 15) as u8);
            row.set_all_local(1);
            counts.push(row.ol_cnt());
            self.batch.put(&self.tables.order, &key::order(w, d, o), row.as_bytes())?;
        }
        let mut by_customer: Vec<(u32, u32)> = customers.iter().copied().zip(1..).collect();
        by_customer.sort_unstable();
        for (c, o) in by_customer {
            self.batch.put(&self.tables.order_by_customer, &key::order_by_customer(w, d, c, o), &[])?;
        }
        for o in first_new..=scale.customers {
            self.batch.put(&self.tables.new_order, &key::order(w, d, o), &[])?;
        }
        for (o, count) in (1..).zip(counts) {
            for line in 1..=count {
                let row = self.order_line(w, o < first_new);
                self.batch.put(&self.tables.order_line, &key::order_line(w, d, o, line), row.as_bytes())?;
                if let Some(foreign) = &self.tables.foreign {
                    let key = key::order_line_by_stock(row.supply_w_id(), row.i_id(), (w, d, o, line));
                    self.batch.put(&foreign.order_line_by_stock, &key, &[])?;
                }
            }
        }
        Ok(())
    }

    fn order_line(&mut self, w: u32, delivered: bool) -> OrderLine {
        let mut info = [0; 24];
        letters(&mut self.rng, &mut info);
        let mut row = OrderLine::blank();
        row.set_i_id(self.rng.between(1, u64::from(self.note.scale.items)) as u32);
        row.set_supply_w_id(w);
        row.set_quantity(5);
        row.set_dist_info(&info);
        if delivered {
            row.set_delivery_d(self.note.date);
        } else {
            row.set_amount(self.rng.between(1, 999_999) as i64);
        }
        row
    }
}
