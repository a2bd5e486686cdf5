//! Who connected and is not known yet: so many at most, and none of them keeps others out for long.
//!
//! When there is no room, whoever comes takes the place of the one who has waited longest among those who come from
//! where most come from. So who fills all places loses them to others, and who needs a moment for a handshake keeps its
//! place while somebody else holds more.
//!
//! Lock order: `state` is a leaf.

use std::collections::VecDeque;
use std::net::IpAddr;
use varve_rt::{HashMap, Mutex};

/// Where somebody comes from: an address, of version 6 the network, which gives out as many addresses as are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin(IpAddr);

impl Origin {
    fn of(from: IpAddr) -> Origin {
        Origin(match from.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
            address => address,
        })
    }
}

/// The places. `T` is what it takes to send somebody away.
pub(crate) struct Handshakes<T> {
    most: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    next: u64,
    /// In the order in which they came.
    waiting: VecDeque<Waiting<T>>,
}

struct Waiting<T> {
    number: u64,
    origin: Origin,
    end: T,
}

impl<T> Handshakes<T> {
    /// With so many places.
    pub(crate) fn new(most: usize) -> Handshakes<T> {
        assert!(most > 0, "somebody may come");
        Handshakes { most, state: Mutex::new(State { next: 0, waiting: VecDeque::new() }) }
    }

    /// Somebody comes: its number, and who has to go for it.
    pub(crate) fn come(&self, from: IpAddr, end: T) -> (u64, Option<T>) {
        let mut state = self.state.lock();
        let goes = if state.waiting.len() < self.most { None } else { state.longest_of_most() };
        let (number, origin) = (state.next, Origin::of(from));
        state.next += 1;
        state.waiting.push_back(Waiting { number, origin, end });
        assert!(state.waiting.len() <= self.most, "there is a place for each");
        (number, goes)
    }

    /// Somebody is known now, or gone; whether it still had its place.
    pub(crate) fn go(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        let at = state.waiting.iter().position(|waiting| waiting.number == number);
        at.is_some_and(|at| state.waiting.remove(at).is_some())
    }
}

impl<T> State<T> {
    /// Takes the place of who waits longest among those of the origin that has most.
    fn longest_of_most(&mut self) -> Option<T> {
        let mut held: HashMap<Origin, usize> = HashMap::default();
        self.waiting.iter().for_each(|waiting| *held.entry(waiting.origin).or_default() += 1);
        let most = held.values().max()?;
        let at = self.waiting.iter().position(|waiting| held[&waiting.origin] == *most)?;
        self.waiting.remove(at).map(|waiting| waiting.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_holds_most_places_makes_room() {
        let all = Handshakes::new(4);
        let (few, many) = (address("10.0.0.1"), address("10.0.0.2"));
        let slow = all.come(few, "slow").0;
        for who in ["a", "b", "c"] {
            assert_eq!(all.come(many, who).1, None);
        }
        // The one who came first stays, whoever comes.
        assert_eq!(all.come(many, "d").1, Some("a"));
        assert_eq!(all.come(few, "e").1, Some("b"));
        assert_eq!(all.come(address("10.0.0.3"), "f").1, Some("slow"), "two each: who has waited longest");
        assert!(!all.go(slow), "its place is another's");
        assert_eq!(all.come(many, "g").1, Some("c"));
    }

    #[test]
    fn places_that_are_left_are_free() {
        let all = Handshakes::new(2);
        let from = address("::1");
        let (one, _) = all.come(from, 1);
        all.come(from, 2);
        assert!(all.go(one) && !all.go(one));
        assert_eq!(all.come(from, 3).1, None);
        assert_eq!(all.come(from, 4).1, Some(2));
    }

    #[test]
    fn a_network_is_one_origin() {
        let same = |a, b| Origin::of(address(a)) == Origin::of(address(b));
        assert!(same("2001:db8::1", "2001:db8::ffff:1") && !same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1") && !same("10.0.0.1", "10.0.0.2"));
    }
}
