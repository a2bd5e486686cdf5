//! A pool: blocks that share free lists, open blocks and victims. A chip's, or all.
//!
//! Invariants: a block of the pool is in exactly one place: free, open, partial, closed (in `victims`), cached, or bad;
//! `free_blocks` counts the free ones, which are erased; `good` counts all but the bad ones, `bad` those.

use super::NONE;
use super::victims::Victims;
use std::collections::VecDeque;

#[derive(Clone)]
pub(super) struct Pool {
    /// First plane of the pool, and planes of it ("lanes").
    pub(super) first_plane: u32,
    pub(super) lanes: u32,
    /// Blocks that are not bad.
    pub(super) good: u32,
    /// Blocks that are.
    pub(super) bad: u32,
    /// Erased blocks, by lane, in the order of their erases.
    free: Vec<VecDeque<u32>>,
    free_blocks: u32,
    /// Open block of each stream and lane; the cache's stream comes last.
    pub(super) fronts: Vec<u32>,
    /// Of those, not the cache's.
    data_fronts: usize,
    /// Blocks of the cache, open ones included, and the full ones of them, oldest first.
    pub(super) cache_blocks: u32,
    pub(super) cached: VecDeque<u32>,
    /// Lane whose turn it is, by stream.
    turns: Vec<u32>,
    /// Blocks found with room after a power cut, or left with room: used up before a free block is opened.
    pub(super) partial: Vec<u32>,
    pub(super) victims: Victims,
    /// Logical pages.
    pub(super) logical: u64,
    /// Least worn blocks that wait to be moved.
    pub(super) cold: Vec<u32>,
    /// Collections since cold blocks were last looked for.
    pub(super) since_levelled: u32,
}

impl Pool {
    /// `streams`: without the cache's, and with it.
    pub(super) fn new(first_plane: u32, lanes: u32, streams: (u32, u32), logical: u64, victims: Victims) -> Pool {
        Pool {
            first_plane,
            lanes,
            good: 0,
            bad: 0,
            free: vec![VecDeque::new(); lanes as usize],
            free_blocks: 0,
            fronts: vec![NONE; (lanes * streams.1) as usize],
            data_fronts: (lanes * streams.0) as usize,
            cache_blocks: 0,
            cached: VecDeque::new(),
            turns: vec![0; streams.1 as usize],
            partial: Vec::new(),
            victims,
            logical,
            cold: Vec::new(),
            since_levelled: u32::MAX / 2,
        }
    }

    /// Places of open blocks that are not the cache's.
    #[inline]
    pub(super) fn data_fronts(&self) -> usize {
        self.data_fronts
    }

    /// Streams without the cache's, and with it.
    pub(super) fn streams(&self) -> (u32, u32) {
        (self.data_fronts as u32 / self.lanes, self.fronts.len() as u32 / self.lanes)
    }

    /// Erased blocks.
    pub(super) fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    pub(super) fn give(&mut self, lane: u32, block: u32) {
        debug_assert!(!self.is_free(block), "block {block} is freed once");
        self.free[lane as usize].push_back(block);
        self.free_blocks += 1;
        assert!(self.free_blocks <= self.good, "free blocks are good ones");
    }

    /// Takes an erased block, from `lane` if it has one, else from the lane that has most.
    pub(super) fn take(&mut self, lane: u32) -> Option<u32> {
        let own = !self.free[lane as usize].is_empty();
        let from = if own { lane } else { (0..self.lanes).max_by_key(|l| self.free[*l as usize].len())? };
        let block = self.free[from as usize].pop_front()?;
        assert!(self.free_blocks > 0, "free blocks are counted");
        self.free_blocks -= 1;
        Some(block)
    }

    /// Whether a block is among the free ones: looks at all of them.
    fn is_free(&self, block: u32) -> bool {
        self.free.iter().any(|lane| lane.contains(&block))
    }

    /// Every place that a block of the pool can be in, with the blocks there. For checks.
    pub(super) fn places(&self) -> impl Iterator<Item = (&'static str, u32)> + '_ {
        let free = self.free.iter().flatten().map(|b| ("free", *b));
        let open = self.fronts.iter().filter(|b| **b != NONE).map(|b| ("open", *b));
        let partial = self.partial.iter().map(|b| ("partial", *b));
        let closed = self.victims.closed().iter().map(|b| ("closed", *b));
        free.chain(open).chain(partial).chain(closed).chain(self.cached.iter().map(|b| ("cached", *b)))
    }

    /// Takes the erased block for which `wear` is greatest.
    pub(super) fn take_most_worn(&mut self, wear: impl Fn(u32) -> u32) -> Option<u32> {
        let all = self.free.iter().enumerate().flat_map(|(l, f)| f.iter().enumerate().map(move |(i, b)| (l, i, *b)));
        let (lane, i, block) = all.max_by_key(|(_, _, b)| (wear(*b), std::cmp::Reverse(*b)))?;
        let removed = self.free[lane].remove(i);
        assert_eq!(removed, Some(block));
        self.free_blocks -= 1;
        Some(block)
    }

    /// The open block's place for the next page of `stream`; lanes take turns.
    #[inline]
    pub(super) fn turn(&mut self, stream: u32) -> usize {
        if self.lanes == 1 {
            return stream as usize;
        }
        let turn = &mut self.turns[stream as usize];
        let lane = *turn;
        *turn = if lane + 1 == self.lanes { 0 } else { lane + 1 };
        (stream * self.lanes + lane) as usize
    }

    /// The lane of an open block's place.
    pub(super) fn lane(&self, front: usize) -> u32 {
        front as u32 % self.lanes
    }
}
