//! Back-pressure: how long a writer waits for each byte, so that merges keep up.
//!
//! The *debt* is the work that merges have before them, in seconds of the device: bytes to be read and written by the
//! rates at which the device does it beside everything else. Below a *start* nobody waits. From there to the *limit*
//! the rate at which writers are let in falls smoothly, from what they want to what merges can sustain, and a little
//! below it at the limit: so the debt settles between the two, and there is no sudden stop. Pure.

use std::time::Duration;

/// Where the pressure begins and ends, in seconds of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    /// Debt up to which nobody waits.
    pub start: f64,
    /// Debt that is not passed.
    pub limit: f64,
}

/// What is known of the work and of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Bytes that merges have to read and write until every level is within its limit.
    pub debt_bytes: f64,
    /// Bytes that merges read and write per second, while they work.
    pub merge_rate: f64,
    /// Bytes that merges read and write for each byte that users write (write amplification, and reads with it).
    pub per_byte: f64,
}

impl Load {
    /// The debt in seconds of the device.
    pub(crate) fn seconds(&self) -> f64 {
        if self.merge_rate > 0.0 { self.debt_bytes / self.merge_rate } else { 0.0 }
    }

    /// Bytes per second of users that merges can keep up with.
    pub(crate) fn sustained(&self) -> f64 {
        self.merge_rate / self.per_byte.max(1.0)
    }
}

impl Limits {
    /// How far the debt is from the start (0) to the limit (1); more than that past it.
    pub(crate) fn pressure(&self, load: &Load) -> f64 {
        assert!(self.start < self.limit, "pressure begins before it ends");
        ((load.seconds() - self.start) / (self.limit - self.start)).max(0.0)
    }

    /// Seconds until the limit is reached if users go on at this rate (bytes per second); none: it is not.
    pub(crate) fn time_left(&self, load: &Load, rate: f64) -> Option<f64> {
        let grows = if load.merge_rate > 0.0 { rate * load.per_byte / load.merge_rate - 1.0 } else { 0.0 };
        let left = (self.limit - load.seconds()).max(0.0);
        (grows > 0.0).then(|| left / grows)
    }
}

/// How long a writer waits for each byte that it writes. It is continuous in the pressure: nothing at 0, the time in
/// which merges make up for a byte at .7, twice that at 1, and without bound beyond.
pub(crate) fn delay(pressure: f64, load: &Load) -> Duration {
    if pressure <= 0.0 || load.sustained() <= 0.0 {
        return Duration::ZERO;
    }
    // Twice the pressure's square: 1 at .707.
    let factor = 2.0 * pressure * pressure * pressure.max(1.0);
    Duration::from_secs_f64((factor / load.sustained()).min(1.0))
}

/// An average that forgets: of rates that are measured again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Average {
    value: f64,
    weight: f64,
}

impl Average {
    /// Takes in what `seconds` of work came to, in units per second; half of what was known before is forgotten after
    /// `half_life` seconds of work.
    pub(crate) fn add(&mut self, rate: f64, seconds: f64, half_life: f64) {
        assert!(rate >= 0.0 && seconds >= 0.0 && half_life > 0.0, "rates of work that was done");
        let kept = self.weight * 0.5f64.powf(seconds / half_life);
        let weight = kept + seconds;
        if weight > 0.0 {
            self.value = (self.value * kept + rate * seconds) / weight;
        }
        self.weight = weight;
    }

    /// The average; none before there was any work.
    pub(crate) fn get(&self) -> Option<f64> {
        (self.weight > 0.0).then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { start: 1.0, limit: 5.0 };

    #[test]
    fn the_delay_rises_smoothly_with_the_debt() {
        let delay = |seconds: f64| {
            let load = Load { debt_bytes: seconds * 100e6, merge_rate: 100e6, per_byte: 20.0 };
            super::delay(LIMITS.pressure(&load), &load).as_secs_f64()
        };
        assert_eq!((delay(0.0), delay(1.0)), (0.0, 0.0));
        let delays: Vec<f64> = (0..=700).map(|n| delay(f64::from(n) / 100.0)).collect();
        assert!(delays.windows(2).all(|two| two[0] <= two[1]), "it never falls");
        // A byte of 20 takes 200 ns of the device: no step of a hundredth of a second changes it by more than a
        // twentieth of that.
        assert!(delays.windows(2).all(|two| two[1] - two[0] < 200e-9 / 20.0), "it has no step");
        assert!((delay(5.0) - 400e-9).abs() < 2e-9 && delay(7.0) > 900e-9);
    }

    /// Users write as fast as they are let, merges work all the time.
    fn settled(wanted: f64, limits: &Limits) -> (f64, f64, f64) {
        let (mut load, step) = (Load { debt_bytes: 0.0, merge_rate: 100e6, per_byte: 20.0 }, 0.01);
        let (mut most, mut slowest) = (0f64, f64::MAX);
        let (mut written, mut seconds) = (0.0, 0.0);
        for n in 0..20_000 {
            let own = 1.0 / wanted;
            let rate = 1.0 / (own + delay(limits.pressure(&load), &load).as_secs_f64());
            load.debt_bytes = (load.debt_bytes + (rate * load.per_byte - load.merge_rate) * step).max(0.0);
            most = most.max(load.seconds());
            if n > 2000 {
                (written, seconds) = (written + rate * step, seconds + step);
                slowest = slowest.min(rate);
            }
        }
        (written / seconds, slowest, most)
    }

    #[test]
    fn the_debt_settles_below_its_limit_and_writers_never_stop() {
        let sustained = 5e6;
        for factor in [0.5, 1.2, 3.0, 100.0] {
            let (mean, slowest, most) = settled(factor * sustained, &LIMITS);
            println!("{factor} times what can be sustained: {mean:.0} B/s, slowest {slowest:.0}, debt {most:.2} s");
            assert!(most < LIMITS.limit, "{factor}: {most}");
            let expected = factor.min(1.0) * sustained;
            assert!((mean / expected - 1.0).abs() < 0.02 && slowest > 0.9 * expected, "{factor}: {mean} {slowest}");
        }
    }

    #[test]
    fn the_time_that_is_left_is_known() {
        let load = Load { debt_bytes: 300e6, merge_rate: 100e6, per_byte: 20.0 };
        // 10 MB/s bring 2 s of work a second: the debt of 3 s grows by 1 a second.
        let left = LIMITS.time_left(&load, 10e6).expect("it grows");
        assert!((left - 2.0).abs() < 1e-9 && LIMITS.time_left(&load, 5e6).is_none());
        assert_eq!(delay(LIMITS.pressure(&Load::default()), &Load::default()), Duration::ZERO, "nothing is known yet");
    }

    #[test]
    fn an_average_follows_what_is_measured() {
        let mut average = Average::default();
        assert_eq!(average.get(), None);
        average.add(100.0, 1.0, 10.0);
        assert_eq!(average.get(), Some(100.0));
        (0..200).for_each(|_| average.add(50.0, 1.0, 10.0));
        assert!((average.get().expect("measured") - 50.0).abs() < 0.1);
    }
}
