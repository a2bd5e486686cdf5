//! What the array is in the middle of, and what a power cut makes of it.
//!
//! Operations take effect when they are given. The journal keeps, for each that had not ended at the latest time seen,
//! how to take it back. Operations of one gate end in the order in which they were given, so those taken back are the
//! last of their gate, and at most one of each gate is torn.
//!
//! Invariants: `now` never goes back; a page has an end in `programs` only while its program is among the `entries`;
//! what is taken back was the last that was done to its block.

use super::nand::{BlockState, Nand};
use super::store::PageBytes;
use super::{Page, Span};
use crate::CutReport;
use std::collections::VecDeque;
use varve_rt::{HashMap, Rng};

/// How to take an operation back.
#[derive(Clone)]
pub(super) enum Undo {
    Program(Page),
    Append(Page, PageBytes),
    Erase { block: u32, before: BlockState, pages: Vec<Option<PageBytes>>, appended: Vec<u8> },
}

#[derive(Clone, Default)]
pub(super) struct Journal {
    /// The latest time seen.
    pub(super) now: u64,
    entries: VecDeque<(Span, Undo)>,
    /// End of the program of each page that is under way.
    programs: HashMap<Page, u64>,
}

impl Journal {
    pub(super) fn push(&mut self, span: Span, undo: Undo) {
        assert!(span.start <= span.end, "an operation ends after it began");
        if span.end <= self.now {
            return;
        }
        if let Undo::Program(page) = undo {
            self.programs.insert(page, span.end);
        }
        self.entries.push_back((span, undo));
    }

    pub(super) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some((span, undo)) = self.entries.front() {
            if span.end > self.now {
                break;
            }
            if let Undo::Program(page) = undo
                && self.programs.get(page).is_some_and(|end| *end <= self.now)
            {
                self.programs.remove(page);
            }
            self.entries.pop_front();
        }
        assert!(!self.entries.is_empty() || self.programs.is_empty(), "what is under way can be taken back");
    }

    pub(super) fn finish_all(&mut self) {
        self.entries.clear();
        self.programs.clear();
    }

    /// When the last operation under way ends.
    pub(super) fn last_end(&self) -> u64 {
        self.entries.iter().map(|(span, _)| span.end).max().unwrap_or(self.now)
    }

    pub(super) fn is_pending(&self, page: Page) -> bool {
        self.programs.get(&page).is_some_and(|end| *end > self.now)
    }
}

/// What a power cut did to the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NandCut {
    /// Programs that had not begun.
    pub undone: u64,
    /// Programs and appends that were interrupted.
    pub torn_pages: u64,
    /// Erases that were interrupted.
    pub torn_blocks: u64,
}

impl From<NandCut> for CutReport {
    fn from(cut: NandCut) -> CutReport {
        let units = cut.undone + cut.torn_pages;
        CutReport { units, lost: cut.undone, reordered: 0, torn_writes: cut.torn_pages }
    }
}

impl Nand {
    /// Cuts the power at `at`, which may lie ahead of the clock: what had ended stays, what had not begun is undone,
    /// what was under way is torn. A torn program leaves a page that cannot be read, a torn append a random part of its
    /// bits (drawn from `seed`), a torn erase a block that must be erased again.
    pub fn power_cut(&mut self, at: u64, seed: u64) -> NandCut {
        let journal = std::mem::take(&mut self.journal);
        let (now, at) = (journal.now, at.max(journal.now));
        let mut rng = Rng::from_seed(seed);
        let mut cut = NandCut::default();
        for (span, undo) in journal.entries.into_iter().rev() {
            if span.end <= at {
                continue;
            }
            let torn = span.start < at;
            match undo {
                Undo::Program(page) => {
                    let number = self.number(page);
                    self.store.0.set(number, None);
                    if torn {
                        cut.torn_pages += 1;
                    } else {
                        let next = u32::from(self.blocks[page.block as usize].next);
                        assert_eq!(next, self.following(page), "the last program of a block is undone first");
                        self.blocks[page.block as usize].next = page.page as u16;
                        cut.undone += 1;
                    }
                }
                Undo::Append(page, old) => {
                    let number = self.number(page);
                    if torn {
                        let new = self.store.0.get(number).expect("an append under way is not undone by a later one");
                        self.store.0.set(number, Some(tear(&old, &new, &mut rng)));
                        cut.torn_pages += 1;
                    } else {
                        self.store.0.set(number, Some(old));
                        self.appended[number as usize] -= 1;
                        cut.undone += 1;
                    }
                }
                Undo::Erase { block, before, pages, appended } => {
                    if torn {
                        cut.torn_blocks += 1;
                        let state = &mut self.blocks[block as usize];
                        state.torn = true;
                        state.next = self.geometry.pages_per_block as u16;
                        continue;
                    }
                    let first = self.number(Page { block, page: 0 });
                    for (i, bytes) in pages.into_iter().enumerate() {
                        self.store.0.set(first + i as u32, bytes);
                    }
                    if !appended.is_empty() {
                        let first = first as usize;
                        self.appended[first..first + appended.len()].copy_from_slice(&appended);
                    }
                    assert_eq!(self.blocks[block as usize].next, 0, "what was programmed since the erase is undone");
                    self.blocks[block as usize] = before;
                }
            }
        }
        self.journal.now = now;
        self.stop_all(now);
        cut
    }

    /// When the power fails that is cut now. With `held`, operations were given that were to be caught half done: at a
    /// random moment of their execution.
    pub(super) fn moment_of_cut(&self, held: bool, rng: &mut Rng) -> u64 {
        let (now, last) = (self.journal.now, self.last_end().max(self.journal.now));
        let at = match rng.below(8) {
            _ if !held => now,
            0 => now,
            1 => last,
            _ => rng.between(now, last),
        };
        assert!((now..=last).contains(&at), "the power fails while something is under way");
        at
    }

    /// Whether an interrupted erase left the block unreadable.
    pub fn is_torn(&self, block: u32) -> bool {
        self.blocks[block as usize].torn
    }
}

/// `old` with a random part of the bits that `new` clears.
fn tear(old: &PageBytes, new: &PageBytes, rng: &mut Rng) -> PageBytes {
    let mut part = |old: &[u8], new: &[u8]| -> Vec<u8> {
        let before = |i: usize| old.get(i).copied().unwrap_or(0xff);
        new.iter().enumerate().map(|(i, n)| n | (before(i) & rng.next_u64() as u8)).collect()
    };
    let data = match (&old.data, &new.data) {
        (Some(old), Some(new)) => Some(part(old, new).into()),
        _ => None,
    };
    PageBytes { data, spare: part(&old.spare, &new.spare).into() }
}
