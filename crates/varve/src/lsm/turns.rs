//! Whose turn it is to merge, of all LSM keyspaces of a database: what keeps writers from having to wait goes first,
//! what only tidies up last; among merges of one class the keyspaces take turns. Nobody waits for ever: after some
//! merges of the first class in a row the next one goes by turns alone.

use super::index::Lsm;
use super::picker::Class;
use std::cmp::Reverse;
use varve_rt::Mutex;
use varve_volume::KeyspaceId;

/// Most merges in a row that keep writers from having to wait (assumed).
const IN_A_ROW: u32 = 7;

#[derive(Default)]
pub(super) struct Turns(Mutex<State>);

#[derive(Clone, Copy, Default)]
struct State {
    /// The keyspace that merged last to keep writers from having to wait.
    urgent: Option<KeyspaceId>,
    /// So many such merges were made one after the other.
    in_a_row: u32,
    /// The keyspace that merged last by turns.
    last: Option<KeyspaceId>,
}

impl State {
    /// Sorts as the turns come.
    fn turn(self, class: Class, keyspace: KeyspaceId) -> (Reverse<Class>, bool, KeyspaceId) {
        let (class, last) = match class {
            _ if self.in_a_row == IN_A_ROW => (Class::Stall, self.last),
            Class::Stall => (class, self.urgent),
            _ => (class, self.last),
        };
        (Reverse(class), last.is_some_and(|last| keyspace <= last), keyspace)
    }

    fn took(&mut self, class: Class, keyspace: KeyspaceId) {
        assert!(self.in_a_row <= IN_A_ROW, "others have their turn");
        *self = match class {
            Class::Stall if self.in_a_row < IN_A_ROW => {
                State { urgent: Some(keyspace), in_a_row: self.in_a_row + 1, ..*self }
            }
            _ => State { in_a_row: 0, last: Some(keyspace), ..*self },
        };
    }
}

impl Turns {
    /// Keyspaces in the order of their turns, with how urgent their next merges are.
    pub fn order(&self, keyspaces: Vec<Lsm>) -> Vec<(Class, Lsm)> {
        let state = *self.0.lock();
        let mut all: Vec<(Class, Lsm)> = keyspaces.into_iter().map(|lsm| (lsm.urgency(), lsm)).collect();
        all.sort_by_key(|(class, lsm)| state.turn(*class, lsm.keyspace()));
        all
    }

    /// A keyspace has merged.
    pub fn took(&self, class: Class, keyspace: KeyspaceId) {
        self.0.lock().took(class, keyspace);
    }
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
        let order = |classes: [Class; 4], state: State| {
            let mut all: Vec<u32> = (0..4).collect();
            all.sort_by_key(|n| state.turn(classes[*n as usize], KeyspaceId(*n)));
            all
        };
        let after = |last, in_a_row| {
            let last = Some(KeyspaceId(last));
            State { urgent: last, in_a_row, last }
        };
        assert_eq!(order([Tidy, Tidy, Shape, Stall], State::default()), [3, 2, 0, 1]);
        assert_eq!(order([Shape; 4], after(1, 0)), [2, 3, 0, 1]);
        assert_eq!(order([Stall, Shape, Stall, Tidy], after(0, IN_A_ROW - 1)), [2, 0, 1, 3]);
        assert_eq!(order([Stall, Shape, Stall, Tidy], after(0, IN_A_ROW)), [1, 2, 3, 0], "others have their turn");
    }

    /// Whatever is urgent meanwhile, who has something to merge waits no longer than all others a few times.
    #[test]
    fn nobody_waits_for_ever() {
        let (mut rng, mut state, mut waited) = (Rng::from_seed(1), State::default(), [0u32; 7]);
        for _ in 0..5000 {
            let class = |n: usize| if n < 2 && !rng.one_in(9) { Class::Stall } else { Class::Shape };
            let classes: Vec<Class> = (0..7).map(class).collect();
            let first = (0..7).min_by_key(|n| state.turn(classes[*n], KeyspaceId(*n as u32))).expect("there are seven");
            waited.iter_mut().for_each(|waited| *waited += 1);
            waited[first] = 0;
            state.took(classes[first], KeyspaceId(first as u32));
            assert!(waited.iter().all(|waited| *waited <= 7 * (IN_A_ROW + 1)), "{waited:?}");
        }
    }
}
