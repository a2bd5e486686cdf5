//! [`rng`] is the only source of randomness of the layers above: inside a simulation it is a function of the
//! simulation's seed and of the calling thread, on an OS thread it is seeded by the system.

use crate::random::{Rng, splitmix};
use crate::world;
use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};

thread_local! {
    /// The state of the calling OS thread's sequence of seeds; 0 = not seeded yet.
    static OS_SEED: Cell<u64> = const { Cell::new(0) };
}

/// A fresh generator, forked from the calling thread's own sequence. In a simulation it is a function of the seed,
/// the thread and the number of earlier calls. Keep it and draw from it: making one costs more than a draw.
pub fn rng() -> Rng {
    if let Some(seed) = world::next_seed() {
        return Rng::from_seed(seed);
    }
    OS_SEED.with(|cell| {
        let mut state = cell.get();
        if state == 0 {
            state = std::collections::hash_map::RandomState::new().build_hasher().finish() | 1;
        }
        let seed = splitmix(&mut state);
        cell.set(state);
        Rng::from_seed(seed)
    })
}
