//! Lists of pages in little memory: pages that are set aside, or freed, together mostly lie together.

use std::collections::VecDeque;
use varve_volume::PageId;

/// Pages in the order in which they were added, kept as runs of neighbours.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs {
    /// First page and number of pages of each.
    runs: VecDeque<(u64, u64)>,
    pages: usize,
}

impl Runs {
    /// Adds a page at the end.
    pub(crate) fn push(&mut self, id: PageId) {
        self.pages += 1;
        match self.runs.back_mut() {
            Some((first, n)) if *first + *n == id.0 => *n += 1,
            _ => self.runs.push_back((id.0, 1)),
        }
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages
    }

    /// The pages.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PageId> + '_ {
        self.runs.iter().flat_map(|&(first, n)| first..first + n).map(PageId)
    }

    /// The pages from the `n`-th on.
    pub(crate) fn iter_from(&self, n: usize) -> impl Iterator<Item = PageId> + '_ {
        let (mut at, mut skipped) = (0, 0);
        while let Some((_, run)) = self.runs.get(at).filter(|(_, run)| skipped + *run <= n as u64) {
            (at, skipped) = (at + 1, skipped + run);
        }
        let rest = (n as u64 - skipped) as usize;
        self.runs.range(at..).flat_map(|&(first, n)| first..first + n).skip(rest).map(PageId)
    }

    /// Takes the first `n` pages out.
    pub(crate) fn take_first(&mut self, n: usize) -> Vec<PageId> {
        let mut ids = Vec::with_capacity(n.min(self.pages));
        while ids.len() < n
            && let Some((first, run)) = self.runs.front_mut()
        {
            let taken = (*run).min((n - ids.len()) as u64);
            ids.extend((*first..*first + taken).map(PageId));
            (*first, *run) = (*first + taken, *run - taken);
            if *run == 0 {
                self.runs.pop_front();
            }
        }
        self.pages -= ids.len();
        assert!(self.runs.is_empty() == (self.pages == 0), "the runs have as many pages as are counted");
        ids
    }

    /// Bytes of memory that the list takes.
    pub(crate) fn memory(&self) -> usize {
        self.runs.len() * size_of::<(u64, u64)>()
    }
}

impl FromIterator<PageId> for Runs {
    fn from_iter<I: IntoIterator<Item = PageId>>(ids: I) -> Runs {
        let mut runs = Runs::default();
        ids.into_iter().for_each(|id| runs.push(id));
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_its_order() {
        let mut rng = varve_rt::Rng::from_seed(3);
        let (mut runs, mut list, mut next) = (Runs::default(), VecDeque::new(), 0);
        for _ in 0..500 {
            for _ in 0..rng.below(9) {
                next = if rng.below(4) == 0 { rng.below(100) } else { next + 1 };
                runs.push(PageId(next));
                list.push_back(PageId(next));
            }
            let n = rng.below(8) as usize;
            let taken: Vec<_> = list.drain(..n.min(list.len())).collect();
            assert_eq!(runs.take_first(n), taken);
            assert!(runs.len() == list.len() && runs.iter().eq(list.iter().copied()));
            assert_eq!(runs, list.iter().copied().collect());
            let from = rng.below(list.len() as u64 + 1) as usize;
            assert!(runs.iter_from(from).eq(list.iter().skip(from).copied()));
        }
        let neighbours: Runs = (10..100_000).map(PageId).collect();
        assert_eq!((neighbours.len(), neighbours.memory()), (99_990, 16));
    }
}
