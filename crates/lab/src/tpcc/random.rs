//! Random values of clauses 2.1.6 (NURand) and 4.3 (names and strings).

use varve_rt::Rng;

use crate::adapter::bad_option;
use crate::error::Result;

/// The constants C of NURand, one per use. C-Load for last names is fixed when the data is loaded; the run must use
/// another that lies within the distances clause 2.1.6.1 allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NuRandC {
    /// For C_LAST, 0 to 255.
    pub last: u64,
    /// For C_ID, 0 to 1023.
    pub customer: u64,
    /// For OL_I_ID, 0 to 8191.
    pub item: u64,
}

impl NuRandC {
    /// Constants for loading.
    pub fn for_load(rng: &mut Rng) -> NuRandC {
        NuRandC { last: rng.below(256), customer: rng.below(1024), item: rng.below(8192) }
    }

    /// Constants for a run over data that was loaded with `load`: |C-Run - C-Load| for last names lies in 65 to 119
    /// and is neither 96 nor 112.
    pub fn for_run(load: &NuRandC, rng: &mut Rng) -> NuRandC {
        let allowed = |c: u64| Self::distance_allowed(c.abs_diff(load.last));
        let choices: Vec<u64> = (0..256).filter(|c| allowed(*c)).collect();
        assert!(!choices.is_empty(), "every C-Load has a C-Run");
        let last = choices[rng.below(choices.len() as u64) as usize];
        NuRandC { last, customer: rng.below(1024), item: rng.below(8192) }
    }

    /// The rule of clause 2.1.6.1.
    pub fn distance_allowed(delta: u64) -> bool {
        (65..=119).contains(&delta) && delta != 96 && delta != 112
    }
}

/// NURand(A, x, y) of clause 2.1.6.
pub fn nurand(rng: &mut Rng, a: u64, c: u64, x: u64, y: u64) -> u64 {
    ((rng.between(0, a) | rng.between(x, y)) + c) % (y - x + 1) + x
}

const SYLLABLES: [&str; 10] = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// The last name of number `n`, 0 to 999 (clause 4.3.2.3).
pub fn last_name(n: u64) -> String {
    let digit = |d: u64| SYLLABLES[(n / d % 10) as usize];
    [digit(100), digit(10), digit(1)].concat()
}

/// Fills `out` with letters and digits.
pub fn letters(rng: &mut Rng, out: &mut [u8]) {
    const SET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789ab";
    for chunk in out.chunks_mut(10) {
        let mut word = rng.next_u64();
        for byte in chunk {
            *byte = SET[(word & 63) as usize];
            word >>= 6;
        }
    }
}

/// A random a-string of `min` to `max` characters.
pub fn a_string(rng: &mut Rng, min: u64, max: u64) -> Vec<u8> {
    let mut text = vec![0; rng.between(min, max) as usize];
    letters(rng, &mut text);
    text
}

/// A random n-string of `len` digits.
pub fn n_string(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| b'0' + rng.below(10) as u8).collect()
}

/// A random zip code: four digits and `11111`.
pub fn zip(rng: &mut Rng) -> Vec<u8> {
    let mut zip = n_string(rng, 4);
    zip.extend_from_slice(b"11111");
    zip
}

/// I_DATA and S_DATA: 26 to 50 characters, in one of ten of which ORIGINAL stands somewhere.
pub fn item_data(rng: &mut Rng) -> Vec<u8> {
    let mut data = a_string(rng, 26, 50);
    if rng.below(10) == 0 {
        let at = rng.below(data.len() as u64 - 7) as usize;
        data[at..at + 8].copy_from_slice(b"ORIGINAL");
    }
    data
}

/// How large the database is, and which indexes it has. The defaults are the specification's; smaller values serve
/// tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// Warehouses.
    pub warehouses: u32,
    /// Districts per warehouse, at most 10.
    pub districts: u8,
    /// Customers per district, and initial orders per district.
    pub customers: u32,
    /// Items.
    pub items: u32,
    /// Whether there are the indexes for foreign keys that `schema` names.
    #[serde(default)]
    pub foreign_keys: bool,
}

impl Scale {
    /// The specification's scale with this many warehouses.
    pub fn of(warehouses: u32) -> Scale {
        Scale { warehouses, districts: 10, customers: 3000, items: 100_000, foreign_keys: false }
    }

    /// A scale for tests: 2 districts, 30 customers, 100 items.
    pub fn tiny(warehouses: u32) -> Scale {
        Scale { warehouses, districts: 2, customers: 30, items: 100, foreign_keys: false }
    }

    /// Refuses a scale that cannot be loaded.
    pub fn validate(&self) -> Result<()> {
        if self.warehouses == 0 || self.warehouses == u32::MAX {
            return bad_option("warehouses", format!("{} given, 1 to {} possible", self.warehouses, u32::MAX - 1));
        }
        if !(1..=10).contains(&self.districts) {
            return bad_option("districts", format!("{} given, 1 to 10 possible", self.districts));
        }
        if !(1..=100_000).contains(&self.customers) {
            return bad_option("customers", format!("{} given, 1 to 100000 possible", self.customers));
        }
        if !(1..=10_000_000).contains(&self.items) {
            return bad_option("items", format!("{} given, 1 to 10000000 possible", self.items));
        }
        Ok(())
    }

    /// Initial orders per district that are not yet delivered: 900 of 3000.
    pub fn undelivered(&self) -> u32 {
        self.customers * 3 / 10
    }

    /// The largest number of a last name that occurs.
    pub fn max_last_name(&self) -> u64 {
        u64::from(self.customers).min(1000) - 1
    }
}
