//! The sparse store against a plain array: writes, zeroing, truncation, clones that part ways, a backing file.

use varve_models::Sparse;
use varve_rt::Rng;

const LEN: usize = 600 << 10;

struct Pair {
    store: Sparse,
    model: Vec<u8>,
}

impl Pair {
    fn step(&mut self, rng: &mut Rng) {
        let at = rng.below(LEN as u64) as usize;
        let len = 1 + rng.below((LEN - at).min(100_000) as u64) as usize;
        match rng.below(8) {
            0 => {
                self.store.zero(at as u64, len as u64);
                self.model[at..at + len].fill(0);
            }
            1 if rng.one_in(20) => {
                self.store.truncate(at as u64);
                self.model[at..].fill(0);
            }
            2 => {
                let mut back = vec![9; len];
                self.store.read(at as u64, &mut back);
                assert_eq!(back, self.model[at..at + len]);
            }
            _ => {
                let len = if rng.one_in(2) { len } else { len.min(5000) };
                let mut data = vec![0; len];
                rng.fill_bytes(&mut data);
                self.store.write(at as u64, &data);
                self.model[at..at + len].copy_from_slice(&data);
            }
        }
    }

    fn check(&self, what: &str) {
        let mut back = vec![9; LEN];
        self.store.read(0, &mut back);
        assert!(back == self.model, "{what}");
    }
}

/// Clones that go on writing, each beside its own array. `memory`: with a backing file of that limit.
fn clones_part_ways(seed: u64, memory: Option<u64>) {
    let rng = &mut Rng::from_seed(seed);
    let new = || match memory {
        Some(memory) => Sparse::backed(&std::env::temp_dir(), memory).unwrap(),
        None => Sparse::new(),
    };
    let mut pairs = vec![Pair { store: new(), model: vec![0; LEN] }];
    for _ in 0..400 {
        let i = rng.below(pairs.len() as u64) as usize;
        pairs[i].step(rng);
        if rng.one_in(25) {
            let mut store = pairs[i].store.clone();
            if let Some(memory) = memory
                && rng.one_in(2)
            {
                store.back(&std::env::temp_dir(), memory).unwrap();
            }
            let model = pairs[i].model.clone();
            pairs.push(Pair { store, model });
        }
        if pairs.len() > 5 {
            pairs.swap_remove(rng.below(6) as usize);
        }
    }
    for (i, pair) in pairs.iter().enumerate() {
        pair.check(&format!("seed {seed}, clone {i}"));
    }
}

#[test]
fn clones_agree_with_arrays() {
    (0..20).for_each(|seed| clones_part_ways(seed, None));
}

#[test]
fn a_backing_file_changes_nothing_but_the_memory() {
    (100..120).for_each(|seed| clones_part_ways(seed, Some(64 << 10)));
    let mut store = Sparse::backed(&std::env::temp_dir(), 64 << 10).unwrap();
    store.write(0, &vec![7; 1 << 20]);
    assert_eq!((store.in_memory(), store.resident()), (64 << 10, 1 << 20));
}

#[test]
fn what_is_not_written_takes_no_memory() {
    let mut store = Sparse::new();
    store.write(1 << 45, &[1; 4096]);
    store.write(1 << 46, &[0; 4096]);
    assert_eq!(store.resident(), 16 << 10);
    let (copy, mut back) = (store.clone(), [0; 8]);
    store.zero(0, u64::MAX);
    assert_eq!(store.resident(), 0);
    copy.read((1 << 45) + 4090, &mut back);
    assert_eq!(back, [1, 1, 1, 1, 1, 1, 0, 0]);
    assert!(copy.is_hole(0, 1 << 20) && !copy.is_hole(1 << 45, 1));
}
