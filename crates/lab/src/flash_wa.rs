//! Write amplification of the flash model, measured beside theory: one point of a study.
//!
//! Runs the translation layer without contents and without times (tens of millions of page programs per second), so it
//! needs neither devices nor a simulation. The logical space is a share of the *effective* physical space, which is
//! what the formulas speak of. Warm-up is five times the logical space, longer where part of it is written seldom; then
//! come windows of one logical space until two in a row agree within 1 %.
//!
//! Pure: a result is a function of the point.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use varve_models::flash::{Contents, FlashConfig, FlashError, Ftl, FtlStats, GcPolicy, Streams, theory};
use varve_rt::Rng;

/// Which pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// All with the same chance, or with two chances if `hot_data` is given.
    Random,
    /// One after the other, again and again.
    Sequential,
}

/// One point: `[workload.flash-wa]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlashWaPoint {
    /// Spare factor: share of the effective physical pages that is not logical.
    pub sf: f64,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Blocks.
    pub blocks: u32,
    /// How victims are chosen.
    pub policy: GcPolicy,
    /// Candidates of `d-choices`.
    pub d: u32,
    /// Which pages are written.
    pub pattern: Pattern,
    /// Share of the requests that trim a random live page.
    pub trim: f64,
    /// Share of the pages that gets `hot_writes` of the writes; 0: all pages are alike.
    pub hot_data: f64,
    /// Share of the writes that goes to the hot pages.
    pub hot_writes: f64,
    /// Which pages share a block.
    pub streams: Streams,
    /// Hot and cold pages in pools of their own, the space split between them as is best.
    pub separate_pools: bool,
    /// Appends that a page takes in place.
    pub append_slots: u8,
    /// Chance that an update may be an append.
    pub append_eligible: f64,
    /// Collection merges appends into the page; otherwise it copies them as they are.
    pub append_merge: bool,
    /// Free blocks at which collection starts; absent: the least that works.
    pub low_watermark: Option<u32>,
    /// Logical spaces written before anything is measured, at least.
    pub warmup: u32,
    /// Seed of the requests and of random victims.
    pub seed: u64,
}

impl Default for FlashWaPoint {
    fn default() -> FlashWaPoint {
        FlashWaPoint {
            sf: 0.1,
            pages_per_block: 64,
            blocks: 1024,
            policy: GcPolicy::Greedy,
            d: 2,
            pattern: Pattern::Random,
            trim: 0.0,
            hot_data: 0.0,
            hot_writes: 0.0,
            streams: Streams::Mixed,
            separate_pools: false,
            append_slots: 0,
            append_eligible: 1.0,
            append_merge: true,
            low_watermark: None,
            warmup: 5,
            seed: 1,
        }
    }
}

/// What was measured, and what theory says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlashWaResult {
    /// Page programs per page written out of place.
    pub wa: f64,
    /// The same in theory; `None` where there is no formula.
    pub theory: Option<f64>,
    /// Effective over-provisioning: effective physical over logical pages, less one.
    pub effective_op: f64,
    /// Logical pages.
    pub logical: u64,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Mean share of valid pages in victims; 1 - 1/A in a steady state.
    pub victim_valid_share: f64,
    /// Erases per page written; A/b in a steady state.
    pub erases_per_write: f64,
    /// Share of the updates that were appends.
    pub append_share: f64,
    /// Page programs per update (page writes and appends).
    pub programs_per_update: f64,
    /// Append share and programs per update in theory, where appends are on.
    pub append_theory: Option<(f64, f64)>,
    /// Difference of the last two windows, relative.
    pub window_difference: f64,
    /// Windows until two agreed.
    pub windows: u32,
}

impl FlashWaResult {
    /// The figures by name, as an experiment has them.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        let mut m = BTreeMap::new();
        let mut put = |name: &str, value: f64| {
            m.insert(name.to_string(), value);
        };
        put("wa", self.wa);
        if let Some(theory) = self.theory {
            put("theory", theory);
            put("deviation", self.wa / theory - 1.0);
        }
        put("effective_op", self.effective_op);
        put("logical_pages", self.logical as f64);
        put("pages_per_block", f64::from(self.pages_per_block));
        put("victim_valid_share", self.victim_valid_share);
        put("erases_per_write", self.erases_per_write);
        put("append_share", self.append_share);
        put("programs_per_update", self.programs_per_update);
        if let Some((share, programs)) = self.append_theory {
            put("append_share_theory", share);
            put("programs_per_update_theory", programs);
        }
        put("window_difference", self.window_difference);
        put("windows", f64::from(self.windows));
        m
    }
}

/// Windows after which a point that does not settle is given up.
const MOST_WINDOWS: u32 = 60;

/// The pages that live, for trims: a list, and where each page is in it.
struct Live {
    list: Vec<u32>,
    place: Vec<u32>,
}

impl Live {
    fn all(logical: u64) -> Live {
        Live { list: (0..logical as u32).collect(), place: (0..logical as u32).collect() }
    }

    fn take(&mut self, rng: &mut Rng) -> Option<u32> {
        if self.list.is_empty() {
            return None;
        }
        let i = rng.below(self.list.len() as u64) as usize;
        let lpn = self.list.swap_remove(i);
        if let Some(moved) = self.list.get(i) {
            self.place[*moved as usize] = i as u32;
        }
        self.place[lpn as usize] = u32::MAX;
        Some(lpn)
    }

    fn add(&mut self, lpn: u64) {
        let place = &mut self.place[lpn as usize];
        if *place == u32::MAX {
            *place = self.list.len() as u32;
            self.list.push(lpn as u32);
        }
    }
}

/// The drive, or one for each class of pages.
struct Pools {
    ftls: Vec<Ftl>,
    /// First logical page of the second pool.
    border: u64,
    logical: u64,
}

impl Pools {
    fn of(&mut self, lpn: u64) -> (&mut Ftl, u64) {
        let second = self.ftls.len() > 1 && lpn >= self.border;
        let lpn = if second { lpn - self.border } else { lpn };
        (&mut self.ftls[usize::from(second)], lpn)
    }

    fn stats(&self) -> Vec<FtlStats> {
        self.ftls.iter().map(|ftl| ftl.stats()).collect()
    }

    fn effective(&self) -> f64 {
        self.ftls.iter().map(|f| f.capacity().effective).sum()
    }
}

/// Sums of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    writes: f64,
    programs: f64,
    appends: f64,
    erases: f64,
    victims: f64,
    valid: f64,
}

impl Window {
    fn between(before: &[FtlStats], after: &[FtlStats]) -> Window {
        let mut sum = Window::default();
        for (b, a) in before.iter().zip(after) {
            let d = a.since(b);
            sum.writes += d.host_writes as f64;
            sum.programs += (d.host_programs + d.gc_copies + d.wear_copies + d.disturb_copies) as f64;
            sum.appends += d.host_appends as f64;
            sum.erases += d.erases as f64;
            sum.victims += d.victims as f64;
            sum.valid += d.victim_valid as f64;
        }
        sum
    }

    fn wa(&self) -> f64 {
        self.programs / self.writes.max(1.0)
    }

    /// What must be so in a steady state, whoever chooses victims: each valid page of one was copied, and what was
    /// erased was programmed. Blocks that are half collected or half written at the ends of the window are `blocks`.
    fn balances(&self, blocks: f64, pages_per_block: f64) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 0.01 * b + blocks * pages_per_block;
        near(self.valid, self.programs - self.writes) && near(self.erases * pages_per_block, self.programs)
    }

    fn plus(&self, o: &Window) -> Window {
        Window {
            writes: self.writes + o.writes,
            programs: self.programs + o.programs,
            appends: self.appends + o.appends,
            erases: self.erases + o.erases,
            victims: self.victims + o.victims,
            valid: self.valid + o.valid,
        }
    }
}

impl FlashWaPoint {
    fn skewed(&self) -> bool {
        self.hot_data > 0.0
    }

    /// Refuses what cannot be run; names the key.
    pub fn validate(&self) -> Result<(), (String, String)> {
        let refuse = |key: &str, why: String| Err((key.to_string(), why));
        let share = |x: f64| (0.0..=1.0).contains(&x);
        if !(self.sf > 0.0 && self.sf < 1.0) {
            return refuse("sf", format!("{} is not more than 0 and less than 1", self.sf));
        }
        if !(0.0..0.5).contains(&self.trim) {
            return refuse("trim", format!("{} is not from 0 to less than 0.5: nothing would stay alive", self.trim));
        }
        if self.skewed() && !(self.hot_data < 1.0 && self.hot_writes > 0.0 && self.hot_writes < 1.0) {
            return refuse("hot_writes", "with hot_data, both are more than 0 and less than 1".into());
        }
        if self.separate_pools && !self.skewed() {
            return refuse("separate_pools", "give hot_data and hot_writes with it".into());
        }
        let special = usize::from(self.skewed())
            + usize::from(self.trim > 0.0)
            + usize::from(self.append_slots > 0)
            + usize::from(self.pattern == Pattern::Sequential);
        if special > 1 {
            return refuse("pattern", "one of sequential writes, trim, hot_data and append_slots at a time".into());
        }
        if !share(self.append_eligible) {
            return refuse("append_eligible", format!("{} is not from 0 to 1", self.append_eligible));
        }
        self.pools().map(drop).map_err(|e| ("workload.flash-wa".to_string(), e.to_string()))
    }

    fn config(&self, blocks: u32) -> FlashConfig {
        let mut c = FlashConfig::one_plane(blocks, self.pages_per_block);
        c.nop = self.append_slots.saturating_add(1).max(4);
        let f = &mut c.ftl;
        (f.gc, f.d, f.streams, f.hot_share) = (self.policy, self.d, self.streams, self.hot_data);
        f.hinted_streams = 2;
        (f.spare_factor, f.low_watermark, f.seed) = (self.sf, self.low_watermark, self.seed);
        (f.append_slots, f.merge_appends) = (self.append_slots, self.append_merge && self.append_slots > 0);
        c
    }

    fn pools(&self) -> Result<Pools, FlashError> {
        if !self.separate_pools {
            let ftl = Ftl::new(&self.config(self.blocks), Contents::Nothing)?;
            let logical = ftl.capacity().logical;
            return Ok(Pools { ftls: vec![ftl], border: 0, logical });
        }
        // One block of each pool is the reserve.
        let (b, rho) = (f64::from(self.pages_per_block), 1.0 - self.sf);
        let logical = f64::from(self.blocks.saturating_sub(2)) * b * rho;
        let hot = (logical * self.hot_data).round();
        let (_, alpha) =
            theory::separate_pools(1.0 / rho, theory::hot_cold(self.hot_data, self.hot_writes), |a| self.one(a));
        let hot_blocks = ((alpha * hot / b).round() as u32 + 1).clamp(2, self.blocks.max(4) - 2);
        let part = |blocks: u32, pages: f64| {
            let mut c = self.config(blocks);
            c.ftl.logical_pages = Some(pages as u64);
            Ftl::new(&c, Contents::Nothing)
        };
        let ftls = vec![part(hot_blocks, hot)?, part(self.blocks - hot_blocks, (logical - hot).round())?];
        let logical = ftls.iter().map(|f| f.capacity().logical).sum();
        Ok(Pools { border: ftls[0].capacity().logical, ftls, logical })
    }

    /// Theory of uniform writes under the point's policy.
    fn one(&self, alpha: f64) -> f64 {
        match self.policy {
            GcPolicy::Fifo => theory::fifo(alpha),
            GcPolicy::DChoices => theory::d_choices(alpha, self.pages_per_block, self.d),
            GcPolicy::Random => theory::random(alpha),
            // For uniform writes age tells nothing, and cost-benefit is greedy.
            GcPolicy::Greedy | GcPolicy::CostBenefit => theory::greedy(alpha, self.pages_per_block),
        }
    }

    fn appends(&self, alpha: f64) -> Option<theory::Appends> {
        let on = self.append_slots > 0 && self.policy == GcPolicy::Fifo;
        on.then(|| theory::appends(alpha, self.append_slots.into(), self.append_eligible, self.append_merge))
    }

    /// What the formulas say; `None` where there is none.
    fn theory(&self, pools: &Pools) -> Option<f64> {
        let alpha = pools.effective() / pools.logical as f64;
        if self.pattern == Pattern::Sequential {
            return Some(1.0);
        }
        if self.append_slots > 0 {
            return self.appends(alpha).map(|a| a.amplification);
        }
        if self.skewed() {
            let classes = theory::hot_cold(self.hot_data, self.hot_writes);
            if self.separate_pools {
                let of = |f: &Ftl| self.one(f.capacity().effective / f.capacity().logical as f64);
                return Some(classes.iter().zip(&pools.ftls).map(|(c, f)| c.writes * of(f)).sum());
            }
            let known = self.policy == GcPolicy::Fifo && self.streams == Streams::Mixed;
            return known.then(|| theory::fifo_mixed(alpha, &classes));
        }
        (self.policy != GcPolicy::CostBenefit).then(|| self.one(alpha / theory::live_share(self.trim)))
    }

    /// Logical spaces until every page has been written `warmup` times on average.
    fn warmup_spaces(&self) -> f64 {
        if self.trim > 0.0 {
            // The share that lives approaches its mean as exp(-(1-q) spaces): twice the time leaves 1/20,000.
            return 2.0 * f64::from(self.warmup) / (1.0 - self.trim);
        }
        let coldest = if self.skewed() {
            theory::hot_cold(self.hot_data, self.hot_writes).iter().map(|c| c.writes / c.data).fold(1.0, f64::min)
        } else {
            1.0
        };
        f64::from(self.warmup) / coldest
    }

    /// Runs the point.
    pub fn run(&self) -> Result<FlashWaResult, FlashError> {
        let mut pools = self.pools()?;
        let theory = self.theory(&pools);
        let logical = pools.logical;
        for lpn in 0..logical {
            let (ftl, lpn) = pools.of(lpn);
            ftl.write_hinted(0, lpn, None, self.hint(lpn, logical))?;
        }
        let mut rng = Rng::from_seed(self.seed ^ 0x5eed);
        let mut live = (self.trim > 0.0).then(|| Live::all(logical));
        let mut next = 0;
        self.requests((self.warmup_spaces() * logical as f64) as u64, &mut pools, &mut rng, &mut live, &mut next)?;
        // About one logical space of pages written out of place.
        let window = logical * (1 + u64::from(self.append_slots));
        let (mut windows, mut before) = (0, pools.stats());
        let mut last: Option<Window> = None;
        let (window, difference) = loop {
            self.requests(window, &mut pools, &mut rng, &mut live, &mut next)?;
            let after = pools.stats();
            let this = Window::between(&before, &after);
            windows += 1;
            before = after;
            if let Some(last) = last.replace(this) {
                let difference = (this.wa() / last.wa() - 1.0).abs();
                if difference <= 0.01 || windows >= MOST_WINDOWS {
                    break (this.plus(&last), difference);
                }
            }
        };
        // With appends a block may be erased that was not full.
        let plain = self.append_slots == 0 && difference <= 0.01;
        assert!(!plain || window.balances(64.0, f64::from(self.pages_per_block)), "{window:?} of {self:?}");
        let alpha = pools.effective() / logical as f64;
        let updates = window.writes + window.appends;
        Ok(FlashWaResult {
            wa: window.wa(),
            theory,
            effective_op: alpha - 1.0,
            logical,
            pages_per_block: self.pages_per_block,
            victim_valid_share: window.valid / (window.victims.max(1.0) * f64::from(self.pages_per_block)),
            erases_per_write: window.erases / window.writes.max(1.0),
            append_share: window.appends / updates.max(1.0),
            programs_per_update: window.programs / updates.max(1.0),
            append_theory: self.appends(alpha).map(|a| (a.share, a.per_update)),
            window_difference: difference,
            windows,
        })
    }

    fn requests(
        &self,
        count: u64,
        pools: &mut Pools,
        rng: &mut Rng,
        live: &mut Option<Live>,
        next: &mut u64,
    ) -> Result<(), FlashError> {
        let logical = pools.logical;
        let hot = if pools.ftls.len() > 1 { pools.border } else { (self.hot_data * logical as f64).ceil() as u64 };
        for _ in 0..count {
            if let Some(live) = live
                && rng.f64() < self.trim
            {
                if let Some(lpn) = live.take(rng) {
                    let (ftl, lpn) = pools.of(lpn.into());
                    ftl.trim(lpn, 1)?;
                }
                continue;
            }
            let lpn = match self.pattern {
                Pattern::Sequential => {
                    *next = (*next + 1) % logical;
                    *next
                }
                Pattern::Random if !self.skewed() => rng.below(logical),
                Pattern::Random if rng.f64() < self.hot_writes => rng.below(hot),
                Pattern::Random => hot + rng.below(logical - hot),
            };
            if let Some(live) = live {
                live.add(lpn);
            }
            let hint = self.hint(lpn, logical);
            let (ftl, lpn) = pools.of(lpn);
            if self.append_slots > 0
                && rng.f64() < self.append_eligible
                && ftl.append(0, lpn, (0, &[]), (0, &[])).is_ok()
            {
                continue;
            }
            ftl.write_hinted(0, lpn, None, hint)?;
        }
        Ok(())
    }

    /// What a host says of a page that knows which ones are hot.
    fn hint(&self, lpn: u64, logical: u64) -> u8 {
        u8::from(lpn as f64 >= (self.hot_data * logical as f64).ceil())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(point: &FlashWaPoint, want: f64, tolerance: f64) -> FlashWaResult {
        let r = point.run().expect("runs");
        println!("{:?} {:?} hot {}: {:.4}, expected {want:.4}", point.policy, point.streams, point.hot_data, r.wa);
        assert!((r.wa / want - 1.0).abs() <= tolerance, "{point:?}: {r:?}, expected {want}");
        r
    }

    #[test]
    fn skew_costs_more_on_one_frontier_and_less_with_an_eye_for_age() {
        let skew = |hot_data, hot_writes, policy, streams| FlashWaPoint {
            hot_data,
            hot_writes,
            policy,
            streams,
            ..FlashWaPoint::default()
        };
        for (data, writes, fifo, greedy, apart, benefit, pools) in
            [(0.2, 0.8, 5.54, 5.20, 4.81, 3.41, 3.34), (0.1, 0.9, 6.17, 5.91, 4.75, 2.25, 2.20)]
        {
            let r = close(&skew(data, writes, GcPolicy::Fifo, Streams::Mixed), fifo, 0.01);
            assert!((r.wa / r.theory.expect("a formula") - 1.0).abs() < 0.01, "{r:?}");
            close(&skew(data, writes, GcPolicy::Greedy, Streams::Mixed), greedy, 0.03);
            close(&skew(data, writes, GcPolicy::Greedy, Streams::HotRange), apart, 0.03);
            close(&skew(data, writes, GcPolicy::CostBenefit, Streams::HotRange), benefit, 0.03);
            let split = FlashWaPoint { separate_pools: true, ..skew(data, writes, GcPolicy::Greedy, Streams::Mixed) };
            let r = close(&split, pools, 0.03);
            assert!((r.wa / r.theory.expect("a formula") - 1.0).abs() < 0.02, "{r:?}");
        }
    }

    /// Two keyspaces, a fifth of the data with four fifths of the writes: what a host that names streams gains.
    #[test]
    fn hinted_streams_have_spare_space_of_their_own() {
        let point =
            FlashWaPoint { hot_data: 0.2, hot_writes: 0.8, streams: Streams::Hinted, ..FlashWaPoint::default() };
        let r = close(&point, 3.4, 0.06);
        assert!((3.2..=3.6).contains(&r.wa), "{r:?}");
        // Alike pages in two streams: nothing is gained, and little lost.
        let alike = FlashWaPoint { hot_data: 0.5, hot_writes: 0.5, ..point };
        close(&alike, theory::greedy(1.0 / 0.9, 64), 0.03);
        assert!(FlashWaPoint { policy: GcPolicy::Fifo, ..alike }.validate().unwrap_err().1.contains("greedy"));
    }

    #[test]
    fn appends_in_place_agree_with_theory() {
        for (sf, slots, eligible, merge, wa, programs, share) in [
            (0.1, 1, 1.0, true, 3.908, 1.137, 0.709),
            (0.1, 2, 1.0, true, 3.330, 0.580, 0.826),
            (0.1, 2, 1.0, false, 4.996, 1.665, 0.667),
            (0.1, 2, 0.75, true, 4.947, 1.376, 0.722),
            (0.1, 2, 0.75, false, 5.104, 2.207, 0.568),
            (0.2, 2, 1.0, true, 1.888, 0.447, 0.763),
        ] {
            let point = FlashWaPoint {
                sf,
                policy: GcPolicy::Fifo,
                append_slots: slots,
                append_eligible: eligible,
                append_merge: merge,
                warmup: 15,
                ..FlashWaPoint::default()
            };
            let r = close(&point, wa, 0.01);
            assert!((r.programs_per_update / programs - 1.0).abs() < 0.015, "{r:?}, expected {programs}");
            assert!((r.append_share - share).abs() < 0.005, "{r:?}, expected {share}");
        }
    }

    #[test]
    fn sequential_overwriting_is_free_and_trims_are_spare_space() {
        let sequential = FlashWaPoint { pattern: Pattern::Sequential, ..FlashWaPoint::default() };
        assert_eq!(close(&sequential, 1.0, 0.0).theory, Some(1.0));
        let trims = FlashWaPoint { trim: 0.25, sf: 0.05, ..FlashWaPoint::default() };
        let r = trims.run().expect("runs");
        assert!((r.wa / r.theory.expect("a formula") - 1.0).abs() < 0.01, "{r:?}");
    }

    #[test]
    fn the_experiment_can_be_asked_for_any_point() {
        let (name, file, text) = crate::experiment::find("flash-wa").expect("comes with the program");
        let ask = |sets: &[(&str, &str)], quick| {
            let sets = sets.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            crate::experiment::read(&name, &file, &text, crate::experiment::Request { quick, sets })
        };
        let whole = ask(&[], false).expect("reads");
        let greedy = |p: &&crate::experiment::Point| p.axes[0].1 == "greedy-b";
        assert_eq!(whole.points.iter().filter(greedy).count(), 24);
        let has = |e: &crate::experiment::Experiment, id: &str| e.checks.iter().any(|c| c.id == id);
        for id in ["wa.fifo.sf010", "wa.greedy.sf010", "wa.greedy.b256.sf005", "wa.random.sf050", "wa.seq"] {
            assert!(has(&whole, id), "{id}");
        }
        for sets in [&[("sf", "0.15"), ("pages_per_block", "128")], &[("pages_per_block", "128"), ("sf", "0.15")]] {
            let one = ask(sets, false).expect("reads");
            assert!(has(&one, "wa.fifo.sf015") && has(&one, "wa.greedy.b128.sf015") && one.points.len() < 40);
            let point = |p: &crate::experiment::Point| p.spec.workload.flash_wa.clone().expect("a point");
            assert!(one.points.iter().map(point).all(|p| (p.sf, p.pages_per_block) == (0.15, 128)));
        }
        let only_sf = ask(&[("sf", "0.15")], false).expect("reads");
        assert!(has(&only_sf, "wa.greedy.b32.sf015"));
        assert!(ask(&[], true).expect("reads").points.len() < whole.points.len() / 2);
        assert!(ask(&[("sf", "1.5")], false).expect_err("refused").to_string().contains("less than 1"));
    }

    #[test]
    fn nonsense_is_refused_by_key() {
        let key = |p: FlashWaPoint| p.validate().expect_err("refused").0;
        let d = FlashWaPoint::default;
        assert!(d().validate().is_ok());
        assert_eq!(key(FlashWaPoint { sf: 1.0, ..d() }), "sf");
        assert_eq!(key(FlashWaPoint { trim: 0.5, ..d() }), "trim");
        assert_eq!(key(FlashWaPoint { hot_data: 0.2, ..d() }), "hot_writes");
        assert_eq!(key(FlashWaPoint { separate_pools: true, ..d() }), "separate_pools");
        assert_eq!(key(FlashWaPoint { trim: 0.1, append_slots: 1, ..d() }), "pattern");
        assert_eq!(key(FlashWaPoint { blocks: 1, ..d() }), "workload.flash-wa");
        assert_eq!(key(FlashWaPoint { append_eligible: 2.0, ..d() }), "append_eligible");
    }
}
