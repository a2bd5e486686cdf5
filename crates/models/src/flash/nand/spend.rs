//! The time that operations take: the unit's gate, the die's sensing, the channel's bus, in that order.

use super::Nand;
use crate::flash::timing::Work;
use crate::flash::{Page, Span};

impl Nand {
    pub(super) fn gate(&self, block: u32) -> usize {
        (if self.multi_plane { self.geometry.plane_of(block) } else { self.geometry.chip_of(block) }) as usize
    }

    pub(super) fn bus(&self, block: u32) -> usize {
        self.geometry.channel_of(self.geometry.chip_of(block)) as usize
    }

    /// When a read that its unit begins at `start` is sensed: in its turn among the reads of the die.
    pub(super) fn sensed(&mut self, block: u32, start: u64, takes: u64) -> u64 {
        let g = &self.geometry;
        let (chip, channels) = (g.chip_of(block), g.channels);
        let die = (chip / channels / self.units_per_die) * channels + g.channel_of(chip);
        assert!(self.dies.is_empty() || (die as usize) < self.dies.len(), "a chip is on a die");
        match self.dies.get_mut(die as usize) {
            Some(die) => die.reserve(self.journal.now, start, takes).end,
            None => start + takes,
        }
    }

    /// When the operation on `block` really ends that was promised to end at `promised`: later, if it was suspended.
    pub(in crate::flash) fn settles(&self, block: u32, promised: u64) -> u64 {
        self.gates[self.gate(block)].settles(promised)
    }

    /// A read for the host (`ahead`) may suspend what the array is doing, unless that is the program of the very page.
    pub(super) fn spend_read(&mut self, at: u64, page: Page, bytes: usize, ahead: bool) -> Span {
        self.counts.reads += 1;
        let state = &mut self.blocks[page.block as usize];
        state.reads = state.reads.saturating_add(1);
        if !self.timed() {
            return Span::default();
        }
        self.counts.bus_bytes += bytes as u64;
        let takes = self.table.command + self.read_time(page);
        let (gate, bus) = (self.gate(page.block), self.bus(page.block));
        let suspend = self.table.suspend.filter(|_| ahead && !self.journal.is_pending(page));
        let Some(suspend) = suspend else {
            let start = self.gates[gate].enter(at);
            let sensed = self.sensed(page.block, start, takes);
            let moved = self.buses[bus].reserve(self.journal.now, sensed, self.table.transfer(bytes));
            self.leave(gate, start, moved.end, Work::Read);
            return Span { start, end: moved.end };
        };
        let turn = self.gates[gate].enter_ahead(self.journal.now, at, &suspend);
        match turn.suspended {
            Some(Work::Program) => self.counts.suspended_programs += 1,
            Some(Work::Erase) => self.counts.suspended_erases += 1,
            Some(Work::Read) | None => {}
        }
        let sensed = self.sensed(page.block, turn.start, takes);
        let moved = self.buses[bus].reserve(self.journal.now, sensed, self.table.transfer(bytes));
        self.gates[gate].leave_ahead(turn, moved.end);
        Span { start: turn.start, end: moved.end }
    }

    pub(super) fn leave(&mut self, gate: usize, start: u64, end: u64, work: Work) {
        self.gates[gate].leave(start, end);
        if self.table.suspend.is_some() {
            self.gates[gate].remember(self.journal.now, Span { start, end }, work);
        }
    }

    pub(super) fn spend_program(&mut self, at: u64, page: Page, bytes: usize) -> Span {
        self.counts.programs += 1;
        self.counts.slc_programs += u64::from(self.is_slc(page.block));
        self.spend_array(at, page, bytes)
    }

    pub(super) fn spend_array(&mut self, at: u64, page: Page, bytes: usize) -> Span {
        if !self.timed() {
            return Span::default();
        }
        self.counts.bus_bytes += bytes as u64;
        let (gate, bus) = (self.gate(page.block), self.bus(page.block));
        let start = self.gates[gate].enter(at);
        let moved = self.buses[bus].reserve(self.journal.now, start, self.table.transfer(bytes));
        assert!(at <= start && start <= moved.start, "the array takes what the bus brings");
        let end = moved.end + self.program_time(page);
        self.leave(gate, start, end, Work::Program);
        Span { start: moved.end, end }
    }
}
