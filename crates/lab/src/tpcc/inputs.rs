//! What the terminals type in: the inputs of clauses 2.4.1, 2.5.1, 2.6.1, 2.7.1 and 2.8.1, the mix of clause 5.2.3 and
//! the keying and think times of clause 5.2.5.7.

use std::time::Duration;

use varve_rt::Rng;

use super::Options;
use super::random::{NuRandC, Scale, last_name, nurand};
use crate::adapter::bad_option;
use crate::driver::Draw;
use crate::error::Result;

/// Names of the transaction types.
pub const KINDS: [&str; 5] = ["new_order", "payment", "order_status", "delivery", "stock_level"];
/// Index of the New-Order transaction in [`KINDS`].
pub const NEW_ORDER: usize = 0;
const PAYMENT: usize = 1;
const ORDER_STATUS: usize = 2;
const DELIVERY: usize = 3;
const STOCK_LEVEL: usize = 4;

/// Keying times in seconds.
const KEYING: [u64; 5] = [18, 3, 2, 2, 2];
/// Mean think times in seconds.
const THINK: [f64; 5] = [12.0, 12.0, 10.0, 5.0, 5.0];

/// How transaction types are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Independently, with these weights in the order of [`KINDS`].
    Weighted([u32; 5]),
    /// From a shuffled deck of ten, ten, one, one and one cards (clause 5.2.4.2).
    Deck,
}

impl Default for Mix {
    fn default() -> Self {
        Mix::Weighted([45, 43, 4, 4, 4])
    }
}

impl Mix {
    /// Refuses weights that add up to nothing.
    pub fn validate(&self) -> Result<()> {
        match self {
            Mix::Weighted(w) if w.iter().map(|w| u64::from(*w)).sum::<u64>() == 0 => {
                bad_option("mix", "all weights are zero; at least one must not be")
            }
            _ => Ok(()),
        }
    }
}

/// A customer, by number or by last name.
#[derive(Debug, Clone)]
pub enum Who {
    /// C_ID.
    Id(u32),
    /// C_LAST.
    LastName(String),
}

/// A line of a new order.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// OL_I_ID; one past the last item if the order is to be rolled back.
    pub item: u32,
    /// OL_SUPPLY_W_ID.
    pub supply_w: u32,
    /// OL_QUANTITY.
    pub quantity: u8,
}

/// The inputs of one transaction.
#[derive(Debug, Clone)]
pub enum Input {
    /// Clause 2.4.1.
    NewOrder {
        /// District.
        d: u8,
        /// Customer.
        c: u32,
        /// Lines, 5 to 15.
        lines: Vec<Line>,
    },
    /// Clause 2.5.1.
    Payment {
        /// District in which it is booked.
        d: u8,
        /// Warehouse of the customer.
        c_w: u32,
        /// District of the customer.
        c_d: u8,
        /// The customer.
        who: Who,
        /// Amount, cents.
        amount: i64,
    },
    /// Clause 2.6.1.
    OrderStatus {
        /// District.
        d: u8,
        /// The customer.
        who: Who,
    },
    /// Clause 2.7.1.
    Delivery {
        /// Carrier, 1 to 10.
        carrier: u8,
    },
    /// Clause 2.8.1.
    StockLevel {
        /// District of the terminal.
        d: u8,
        /// Threshold, 10 to 20.
        threshold: u32,
    },
}

/// Draws the inputs of one terminal.
pub struct Inputs {
    scale: Scale,
    c_run: NuRandC,
    mix: Mix,
    think_times: bool,
    thread: usize,
    threads: usize,
    deck: Vec<u8>,
    rng: Rng,
    /// Home warehouse of the transaction drawn last.
    pub w: u32,
}

impl Inputs {
    /// Inputs of terminal `place.0` of `place.1`.
    pub fn new(scale: Scale, c_run: NuRandC, options: &Options, place: (usize, usize), rng: Rng) -> Inputs {
        let (mix, think_times) = (options.mix, options.think_times);
        let (thread, threads) = (place.0, place.1.max(1));
        Inputs { scale, c_run, mix, think_times, thread, threads, deck: Vec::new(), rng, w: 1 }
    }

    /// Draws a transaction type and its inputs.
    pub fn draw(&mut self) -> (Draw, Input) {
        let kind = self.kind();
        self.w = self.home();
        let input = match kind {
            NEW_ORDER => self.new_order(),
            PAYMENT => self.payment(),
            ORDER_STATUS => Input::OrderStatus { d: self.district(), who: self.who() },
            DELIVERY => Input::Delivery { carrier: self.rng.between(1, 10) as u8 },
            STOCK_LEVEL => {
                let d = (self.thread / self.scale.warehouses as usize % self.scale.districts as usize) as u8 + 1;
                Input::StockLevel { d, threshold: self.rng.between(10, 20) as u32 }
            }
            _ => unreachable!("five transaction types"),
        };
        let (keying, think) = if self.think_times { self.times(kind) } else { Default::default() };
        (Draw { kind, keying, think }, input)
    }

    /// Districts per warehouse.
    pub fn districts(&self) -> u8 {
        self.scale.districts
    }

    fn kind(&mut self) -> usize {
        match self.mix {
            Mix::Weighted(weights) => {
                let mut point = self.rng.below(weights.iter().map(|w| u64::from(*w)).sum());
                for (kind, weight) in weights.iter().enumerate() {
                    match point.checked_sub(u64::from(*weight)) {
                        Some(rest) => point = rest,
                        None => return kind,
                    }
                }
                unreachable!("the point lies below the sum")
            }
            Mix::Deck => {
                if self.deck.is_empty() {
                    for (kind, cards) in [10, 10, 1, 1, 1].into_iter().enumerate() {
                        self.deck.extend(std::iter::repeat_n(kind as u8, cards));
                    }
                    self.rng.shuffle(&mut self.deck);
                }
                self.deck.pop().expect("just filled") as usize
            }
        }
    }

    /// A terminal belongs to one warehouse; with fewer terminals than warehouses each has several and takes one of
    /// them at random.
    fn home(&mut self) -> u32 {
        let warehouses = self.scale.warehouses as usize;
        let first = self.thread % warehouses;
        let own = (warehouses - first).div_ceil(self.threads).max(1);
        let which = if self.threads >= warehouses { 0 } else { self.rng.below(own as u64) as usize };
        (first + which * self.threads) as u32 + 1
    }

    fn other_warehouse(&mut self) -> u32 {
        match self.scale.warehouses {
            1 => 1,
            n => {
                let w = self.rng.between(1, u64::from(n) - 1) as u32;
                if w >= self.w { w + 1 } else { w }
            }
        }
    }

    fn district(&mut self) -> u8 {
        self.rng.between(1, u64::from(self.scale.districts)) as u8
    }

    fn customer(&mut self) -> u32 {
        nurand(&mut self.rng, 1023, self.c_run.customer, 1, u64::from(self.scale.customers)) as u32
    }

    fn who(&mut self) -> Who {
        if self.rng.below(100) < 60 {
            Who::LastName(last_name(nurand(&mut self.rng, 255, self.c_run.last, 0, self.scale.max_last_name())))
        } else {
            Who::Id(self.customer())
        }
    }

    fn new_order(&mut self) -> Input {
        let (d, c) = (self.district(), self.customer());
        let count = self.rng.between(5, 15);
        let rolled_back = self.rng.below(100) == 0;
        let lines = (1..=count).map(|n| self.line(rolled_back && n == count)).collect();
        Input::NewOrder { d, c, lines }
    }

    fn line(&mut self, unused_item: bool) -> Line {
        let items = u64::from(self.scale.items);
        let item = nurand(&mut self.rng, 8191, self.c_run.item, 1, items) as u32;
        let supply_w = if self.rng.below(100) == 0 { self.other_warehouse() } else { self.w };
        let item = if unused_item { self.scale.items + 1 } else { item };
        Line { item, supply_w, quantity: self.rng.between(1, 10) as u8 }
    }

    fn payment(&mut self) -> Input {
        let d = self.district();
        let remote = self.rng.below(100) < 15;
        let (c_w, c_d) = if remote { (self.other_warehouse(), self.district()) } else { (self.w, d) };
        let who = self.who();
        Input::Payment { d, c_w, c_d, who, amount: self.rng.between(100, 500_000) as i64 }
    }

    fn times(&mut self, kind: usize) -> (Duration, Duration) {
        // Negative exponential, cut at ten times the mean (clause 5.2.5.4).
        let think = (-(1.0 - self.rng.f64()).ln() * THINK[kind]).min(10.0 * THINK[kind]);
        (Duration::from_secs(KEYING[kind]), Duration::from_secs_f64(think))
    }
}
