//! The shop: customers, products, what is in stock, orders; and what its visitors do, drawn from a seed.

use super::{DemoError, Visits};
use crate::ycsb::distribution::{Zipf, scatter};
use hdrhistogram::Histogram;
use std::time::Duration;
use varve::{Db, Keyspace};
use varve_rt::Rng;

/// Orders that a customer has made before, on average, and visits for each customer.
const ORDERS: u32 = 4;
const VISITS: u64 = 2;

/// Customers for each product.
const PER_PRODUCT: u32 = 4;

/// Visits between two reports, each of which reads every order.
const REPORT: u64 = 5_000;

/// How unequal products and customers are (the theta of YCSB's zipfian numbers; assumed).
const THETA: f64 = 0.9;

/// Orders of a customer, at most.
const SLOTS: u32 = 1 << 16;

/// Longest time told apart, ns.
const LONGEST_NS: u64 = 60_000_000_000;

/// Kinds of visits: name, and how many of a thousand.
const KINDS: [(&str, u64); 5] =
    [("look at a product", 570), ("look at one's orders", 280), ("search", 100), ("order", 50), ("report", 0)];
const LOOK: usize = 0;
const ACCOUNT: usize = 1;
const SEARCH: usize = 2;
const ORDER: usize = 3;
const REPORTS: usize = 4;

/// Rows of a search result.
const RESULTS: usize = 20;

pub struct Shop {
    customers: Keyspace,
    products: Keyspace,
    stock: Keyspace,
    orders: Keyspace,
    number_of_customers: u32,
    number_of_products: u32,
    number_of_orders: u64,
}

/// Text of about this many bytes, for rows that look like something.
fn prose(rng: &mut Rng, bytes: usize) -> String {
    const WORDS: [&str; 12] =
        ["oak", "steel", "blue", "small", "round", "light", "table", "chair", "lamp", "shelf", "new", "solid"];
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(WORDS[rng.below(WORDS.len() as u64) as usize]);
        text.push(' ');
    }
    text
}

fn customer_key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Orders of a customer stand together, in their order.
fn order_key(customer: u32, order: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&customer.to_be_bytes());
    key[4..].copy_from_slice(&order.to_be_bytes());
    key
}

impl Shop {
    /// Fills an empty database. `progress` is told how many rows are in.
    pub fn load(db: &Db, customers: u32, progress: &mut dyn FnMut(u64)) -> Result<Shop, DemoError> {
        let mut rng = Rng::from_seed(1);
        let products = (customers / PER_PRODUCT).max(1);
        let mut rows = 0;
        let mut count = |n: u64| {
            rows += n;
            progress(rows);
        };
        let mut load = db.bulk_load("customers")?;
        for n in 0..customers {
            load.push(&customer_key(n), format!("customer {n}; {}", prose(&mut rng, 170)).as_bytes())?;
        }
        let customers_keyspace = load.finish()?;
        count(customers.into());
        let mut load = db.bulk_load("products")?;
        for n in 0..products {
            load.push(&n.to_be_bytes(), format!("product {n}; {}", prose(&mut rng, 350)).as_bytes())?;
        }
        let products_keyspace = load.finish()?;
        count(products.into());
        let mut load = db.bulk_load("stock")?;
        for n in 0..products {
            load.push(&n.to_be_bytes(), &1_000_000u64.to_be_bytes())?;
        }
        let stock = load.finish()?;
        count(products.into());
        let (mut load, mut orders) = (db.bulk_load("orders")?, 0);
        for customer in 0..customers {
            for order in 0..rng.below(2 * u64::from(ORDERS) + 1) as u32 {
                load.push(&order_key(customer, order), prose(&mut rng, 120).as_bytes())?;
                orders += 1;
            }
        }
        count(orders);
        Ok(Shop {
            customers: customers_keyspace,
            products: products_keyspace,
            stock,
            orders: load.finish()?,
            number_of_customers: customers,
            number_of_products: products,
            number_of_orders: orders,
        })
    }

    /// Rows by keyspace, as loaded.
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        let (customers, products) = (self.number_of_customers.into(), self.number_of_products.into());
        vec![("customers", customers), ("products", products), ("stock", products), ("orders", self.number_of_orders)]
    }

    /// Visits that are to be made.
    pub fn planned(&self) -> u64 {
        VISITS * u64::from(self.number_of_customers)
    }

    /// Lets visitors in, for at most so long. `progress` is told how many have been there.
    pub fn visits(&self, db: &Db, longest: Duration, progress: &mut dyn FnMut(u64)) -> Result<Vec<Visits>, DemoError> {
        let draw_of = |n: u32| Zipf::new(n.into(), THETA).map_err(|e| DemoError::Invalid(e.to_string()));
        let (customers, products) = (draw_of(self.number_of_customers)?, draw_of(self.number_of_products)?);
        let mut rng = Rng::from_seed(2);
        let begun = varve_rt::now();
        let mut took = KINDS.map(|_| Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).expect("bounds are valid"));
        for n in 1..=self.planned() {
            let kind = if n.is_multiple_of(REPORT) { REPORTS } else { kind(rng.below(1000)) };
            // Popular ones are scattered, not neighbours.
            let scattered = |zipf: &Zipf, of: u32, rng: &mut Rng| (scatter(zipf.draw(rng)) % u64::from(of)) as u32;
            let customer = scattered(&customers, self.number_of_customers, &mut rng);
            let basket: Vec<u32> =
                (0..1 + rng.below(3)).map(|_| scattered(&products, self.number_of_products, &mut rng)).collect();
            let start = varve_rt::now();
            self.visit(db, kind, customer, &basket)?;
            took[kind].saturating_record((start.elapsed().as_nanos() as u64).max(1));
            if n.is_multiple_of(500) {
                progress(n);
                if begun.elapsed() > longest {
                    break;
                }
            }
        }
        let named = KINDS.iter().zip(&took).filter(|(_, took)| !took.is_empty());
        Ok(named.map(|((kind, _), took)| visits_of(kind, took)).collect())
    }

    fn visit(&self, db: &Db, kind: usize, customer: u32, basket: &[u32]) -> Result<(), DemoError> {
        match kind {
            LOOK => {
                for product in basket {
                    self.products.get(product.to_be_bytes())?;
                    self.stock.get(product.to_be_bytes())?;
                }
            }
            ACCOUNT => {
                self.customers.get(customer_key(customer))?;
                self.orders.prefix(customer_key(customer))?.try_for_each(|row| row.map(drop))?;
            }
            SEARCH => {
                let from = basket[0].to_be_bytes();
                self.products.range(&from[..]..)?.take(RESULTS).try_for_each(|row| row.map(drop))?;
            }
            ORDER => self.order(db, customer, basket)?,
            _ => self.orders.iter()?.try_for_each(|row| row.map(drop))?,
        }
        Ok(())
    }

    /// Takes what is in the basket from the stock and writes the order, durably.
    fn order(&self, db: &Db, customer: u32, basket: &[u32]) -> Result<(), DemoError> {
        Ok(db.transact(|tx| {
            tx.get(&self.customers, customer_key(customer))?;
            for product in basket {
                let left = tx.get_for_update(&self.stock, product.to_be_bytes())?.unwrap_or_default();
                let left = left.try_into().map_or(0, u64::from_be_bytes);
                tx.put(&self.stock, product.to_be_bytes(), left.saturating_sub(1).to_be_bytes())?;
            }
            let all = order_key(customer, 0)..order_key(customer, SLOTS);
            let last = tx.scan_rev(&self.orders, &all.start[..]..&all.end[..])?.next().transpose()?;
            let last = last.and_then(|(key, _)| Some(u32::from_be_bytes(key.get(4..)?.try_into().ok()?)));
            let next = last.map_or(0, |last| (last + 1).min(SLOTS - 1));
            tx.put(&self.orders, order_key(customer, next), format!("products {basket:?}"))
        })?)
    }
}

/// The kind of visit for a number below 1000.
fn kind(mut draw: u64) -> usize {
    for (kind, (_, share)) in KINDS.iter().enumerate() {
        if draw < *share {
            return kind;
        }
        draw -= share;
    }
    LOOK
}

fn visits_of(kind: &'static str, took: &Histogram<u64>) -> Visits {
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |share: f64| ms(took.value_at_quantile(share));
    let shares = (1..100).map(|percent| f64::from(percent) / 100.0).chain([0.995, 0.999, 1.0]);
    Visits {
        kind,
        count: took.len(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        distribution: shares.map(|share| (at(share), share)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_drawn_by_their_shares() {
        let mut drawn = [0; KINDS.len()];
        (0..1000).for_each(|n| drawn[kind(n)] += 1);
        assert_eq!(drawn.map(|n| n as u64), KINDS.map(|(_, share)| share));
    }
}
