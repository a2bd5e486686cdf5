//! Whose turn it is to merge, of all LSM keyspaces of a database: what keeps writers from having to wait goes first,
//! what only tidies up last; among merges of one class the keyspaces take turns.

use super::index::Lsm;
use super::picker::Class;
use std::cmp::Reverse;
use varve_rt::Mutex;
use varve_volume::KeyspaceId;

/// The keyspace that merged last.
#[derive(Default)]
pub(super) struct Turns(Mutex<Option<KeyspaceId>>);

impl Turns {
    /// A keyspace has merged.
    pub fn took(&self, keyspace: KeyspaceId) {
        *self.0.lock() = Some(keyspace);
    }

    /// Puts keyspaces into the order of their turns.
    pub fn order(&self, keyspaces: &mut [Lsm]) {
        let last = *self.0.lock();
        keyspaces.sort_by_cached_key(|lsm| turn(lsm.urgency(), lsm.keyspace(), last));
    }
}

/// Sorts as the turns come.
fn turn(class: Class, keyspace: KeyspaceId, last: Option<KeyspaceId>) -> (Reverse<Class>, bool, KeyspaceId) {
    (Reverse(class), last.is_some_and(|last| keyspace <= last), keyspace)
}

impl Lsm {
    /// How urgent its next merge is, if it has one. Who asked for a merge waits for it as levels do that are too large.
    fn urgency(&self) -> Class {
        let version = self.0.view().segments.version();
        match self.0.shape().urgency(&version) {
            Some(class) => class,
            None if self.0.asked.is_empty() => Class::Tidy,
            None => Class::Shape,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_rt::Rng;

    #[test]
    fn what_prevents_a_stall_goes_before_tidying_and_others_take_turns() {
        use Class::{Shape, Stall, Tidy};
        let order = |classes: [Class; 4], last| {
            let mut all: Vec<u32> = (0..4).collect();
            all.sort_by_key(|n| turn(classes[*n as usize], KeyspaceId(*n), last));
            all
        };
        assert_eq!(order([Tidy, Tidy, Shape, Stall], None), [3, 2, 0, 1]);
        assert_eq!(order([Shape; 4], Some(KeyspaceId(1))), [2, 3, 0, 1]);
        assert_eq!(order([Stall, Shape, Stall, Tidy], Some(KeyspaceId(0))), [2, 0, 1, 3]);
    }

    /// Of keyspaces that always have something of one class to do none waits longer than a round.
    #[test]
    fn nobody_of_a_class_is_left_behind() {
        let (mut rng, mut last) = (Rng::from_seed(1), None);
        let mut waited = [0u32; 7];
        for _ in 0..2000 {
            // What tidies up comes and goes beside them, and is never first.
            let class = |n: usize| if n < 5 || rng.one_in(2) { Class::Shape } else { Class::Tidy };
            let classes: Vec<Class> = (0..7).map(class).collect();
            let first = (0..7).min_by_key(|n| turn(classes[*n], KeyspaceId(*n as u32), last)).expect("there are seven");
            assert_eq!(classes[first], Class::Shape);
            waited.iter_mut().take(5).for_each(|waited| *waited += 1);
            waited[first] = 0;
            last = Some(KeyspaceId(first as u32));
            assert!(waited.iter().all(|waited| *waited < 7), "{waited:?}");
        }
    }
}
