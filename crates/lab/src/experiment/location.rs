//! Where pages were, and what that did to them: miss rates and writes of pages on the fast device of a tier and off it,
//! and the miss-rate expansion factors of groups (CAC paper, figures 4 and 6).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use varve::Db;
use varve_volume::{Counted, PageSides};

/// Logical reads on either side from which a page is shown: fewer say nothing of its rates.
const ENOUGH: f64 = 20.0;
/// Physical reads on either side from which a group is.
const READS: f64 = 50.0;

/// What a tier's manager counted during a run, warm-up included.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Location {
    /// By keyspace: logical reads a minute from which pages belong to a group, and the expansion factor of the group.
    pub expansion: BTreeMap<String, Vec<(f64, f64)>>,
    /// Of each page that was read on both sides: miss rate, percent, not on the fast device and on it.
    pub misses: Vec<(f64, f64)>,
    /// Writes per hundred logical reads, not on the fast device and on it.
    pub writes: Vec<(f64, f64)>,
}

/// Three digits are enough for a chart.
fn rounded(v: f64) -> f64 {
    (v * 1e3).round() / 1e3
}

fn sides(page: &PageSides, of: [f64; 2]) -> (f64, f64) {
    let share = |i: usize| rounded(100.0 * of[i] / page.logical[i]);
    (share(1), share(0))
}

impl Location {
    pub(super) fn of(db: &Db) -> crate::Result<Location> {
        let Counted { mut groups, mut pages } = db.tier_counted();
        groups.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        pages.sort_by_key(|p| p.page);
        let names: BTreeMap<_, _> = db.keyspaces()?.into_iter().map(|k| (k.id, k.name)).collect();
        let mut expansion: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for g in groups.iter().filter(|g| g.physical.iter().all(|n| *n >= READS)) {
            let [fast, slow] = [0, 1].map(|i| g.physical[i] / g.logical[i]);
            if let Some(name) = names.get(&g.keyspace) {
                expansion.entry(name.clone()).or_default().push((rounded(g.rate), rounded(fast / slow)));
            }
        }
        let both: Vec<&PageSides> = pages.iter().filter(|p| p.logical.iter().all(|n| *n >= ENOUGH)).collect();
        let (misses, writes) = both.iter().map(|p| (sides(p, p.physical), sides(p, p.writes))).unzip();
        Ok(Location { expansion, misses, writes })
    }

    /// Pages shown, and the shares of them that miss, and are written, more often on the fast device.
    pub(super) fn figures(&self) -> [(&'static str, f64); 3] {
        let higher = |pairs: &[(f64, f64)]| {
            let moved = pairs.iter().filter(|(slow, fast)| slow != fast).count();
            pairs.iter().filter(|(slow, fast)| fast > slow).count() as f64 / moved.max(1) as f64
        };
        [
            ("tier.pages_on_both_sides", self.misses.len() as f64),
            ("tier.misses_higher_share", higher(&self.misses)),
            ("tier.writes_higher_share", higher(&self.writes)),
        ]
    }
}
