//! Streams that the host names: pages of one share blocks, and each has a pool of the spare blocks of its own.
//!
//! The spare blocks are divided as the root of data times writes: with A near 1 + c / spare, that is where the sum of
//! what collection moves is least (Desnoyers, "Analytic modeling of SSD write performance", 2012; Stoica and Ailamaki,
//! VLDB 2013). Data and writes of a stream are measured, the writes over about one logical space. The stream that has
//! most blocks above its share gives one up: the one of its blocks with the fewest valid pages.
//!
//! Invariant: `valid` of a stream counts the mapped pages whose stream it is.

use super::{Ftl, NONE};
use varve_device::flash::FlashArray;

/// What is known of the streams.
#[derive(Clone)]
pub(super) struct Hints {
    /// Of each logical page.
    of: Vec<u8>,
    valid: Vec<u64>,
    /// Writes, halved now and then.
    writes: Vec<f64>,
    since: u64,
}

impl Hints {
    pub(super) fn new(streams: u8, logical: u64) -> Hints {
        assert!(streams >= 2, "streams are told apart");
        let n = usize::from(streams);
        Hints { of: vec![0; logical as usize], valid: vec![0; n], writes: vec![0.0; n], since: 0 }
    }

    pub(super) fn stream(&self, lpn: u64) -> u32 {
        self.of[lpn as usize].into()
    }

    /// A page is written; `mapped`: it was there before.
    fn write(&mut self, lpn: u64, stream: u8, mapped: bool) {
        if mapped {
            self.trim(lpn);
        }
        assert!(usize::from(stream) < self.valid.len(), "a stream that there is");
        self.of[lpn as usize] = stream;
        self.valid[usize::from(stream)] += 1;
        self.writes[usize::from(stream)] += 1.0;
        self.since += 1;
        if self.since as usize >= self.of.len() {
            self.since = 0;
            self.writes.iter_mut().for_each(|writes| *writes /= 2.0);
        }
    }

    fn trim(&mut self, lpn: u64) {
        let valid = &mut self.valid[usize::from(self.of[lpn as usize])];
        assert!(*valid > 0, "a stream counts its pages");
        *valid -= 1;
    }

    /// The stream that has most blocks above its share, of those that can give one up; `closed`: full blocks of each.
    fn over(&self, closed: &[u32], slots: u32, can: impl Fn(usize) -> bool) -> Option<usize> {
        assert_eq!(closed.len(), self.valid.len(), "each stream has blocks, or none");
        let data: Vec<f64> = self.valid.iter().map(|valid| *valid as f64 / f64::from(slots)).collect();
        let spare = f64::from(closed.iter().sum::<u32>()) - data.iter().sum::<f64>();
        let roots: Vec<f64> = data.iter().zip(&self.writes).map(|(data, writes)| (data * writes).sqrt()).collect();
        let all: f64 = roots.iter().sum();
        let above = |i: &usize| f64::from(closed[*i]) - data[*i] - spare * roots[*i] / all.max(1e-9);
        (0..closed.len()).filter(|i| can(*i)).max_by(|a, b| above(a).total_cmp(&above(b)))
    }
}

impl<A: FlashArray> Ftl<A> {
    /// The stream that a host's number means, where hosts name streams; the last one takes those beyond it.
    pub(super) fn hinted(&self, stream: u8) -> Option<u32> {
        let hints = self.hints.as_ref()?;
        Some(u32::from(stream).min(hints.valid.len() as u32 - 1))
    }

    /// A page was written in a stream; `mapped`: it was there before.
    pub(super) fn note_hint(&mut self, lpn: u64, stream: u32, mapped: bool) {
        if let Some(hints) = &mut self.hints {
            hints.write(lpn, stream as u8, mapped);
        }
    }

    /// A mapped page is forgotten.
    pub(super) fn unhint(&mut self, lpn: u64) {
        if let Some(hints) = &mut self.hints {
            hints.trim(lpn);
        }
    }

    /// After a recovery nobody knows the streams: all pages are of the first until they are written again.
    pub(super) fn forget_hints(&mut self) {
        let Some(hints) = &mut self.hints else { return };
        *hints = Hints::new(hints.valid.len() as u8, self.logical);
        hints.valid[0] = self.map.iter().filter(|ppn| **ppn != NONE).count() as u64;
    }

    /// The block that is to be collected, where the host names streams; none: whatever the policy says.
    pub(super) fn pick_hinted(&self, pool: usize) -> Option<u32> {
        let hints = self.hints.as_ref()?;
        let mut closed = vec![0; hints.valid.len()];
        let mut best: Vec<Option<(u32, u32)>> = vec![None; hints.valid.len()];
        for block in self.pools[pool].victims.closed() {
            let b = &self.blocks[*block as usize];
            let (stream, found) = (usize::from(b.stream), (b.valid, *block));
            assert!(b.valid <= self.slots, "a block has no more valid pages than it has");
            closed[stream] += 1;
            best[stream] = Some(best[stream].map_or(found, |best: (u32, u32)| best.min(found)));
        }
        let gains = |i: usize| best[i].is_some_and(|(valid, _)| valid < self.slots);
        let stream = hints.over(&closed, self.slots, gains)?;
        best[stream].map(|(_, block)| block)
    }
}
