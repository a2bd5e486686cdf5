//! Replay: page references of a trace through the pure replacement policies, for miss ratios by cache size.
//!
//! Pages count one each whatever their size, reads and writes both count, every miss is admitted, the cache starts
//! empty. The policies are the engine's own. Before the run pages are numbered densely, so that a reference costs two
//! array accesses and the policy.

mod belady;
mod chart;
mod references;

pub use chart::to_html;
pub use references::{Objects, References, Shape};

use belady::Belady;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use varve::PolicyOptions;
use varve::buffer::policy::{self, Ask, Load, Replacement, Slot, Unlink};
use varve_rt::atomic::{AtomicUsize, Ordering};
use varve_rt::channel;
use varve_volume::{CostClass, PageId};

/// Misses of one policy at one cache size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Policy.
    pub policy: String,
    /// Cache size, pages.
    pub size: usize,
    /// References.
    pub references: u64,
    /// Misses.
    pub misses: u64,
    /// Misses over references.
    pub miss_ratio: f64,
}

/// Names of the policies that replay knows: the engine's and `belady`.
pub fn policy_names() -> Vec<&'static str> {
    policy::REGISTRY.iter().map(|p| p.name).chain(["belady"]).collect()
}

/// Options of the policies as the literature's simulations have them: `lru-2` remembers every page.
pub fn policy_options() -> PolicyOptions {
    let lru2 = policy::Lru2Options { history: policy::History::Full, ..policy::Lru2Options::default() };
    PolicyOptions { lru2, ..PolicyOptions::default() }
}

/// Replays through one policy at one size. None for a name that is no policy's.
pub fn point(refs: &References, name: &str, size: usize, options: &PolicyOptions) -> Option<Point> {
    assert!(size > 0, "a cache of no pages");
    // A cache that holds every page misses each once, whatever the policy; one page more need not be modelled.
    let slots = size.min(refs.pages() + 1);
    let misses = match (name, policy::find(name)) {
        ("belady", _) => misses(refs, &mut Belady::new(slots, refs), slots),
        (_, Some(entry)) => misses(refs, &mut *(entry.make)(slots, options), slots),
        _ => return None,
    };
    let references = refs.len();
    let miss_ratio = if references == 0 { 0.0 } else { misses as f64 / references as f64 };
    Some(Point { policy: name.to_string(), size, references, misses, miss_ratio })
}

const ABSENT: Slot = Slot::MAX;

/// Runs all references through `policy` with a cache of `slots` pages.
fn misses(refs: &References, policy: &mut (impl Replacement + ?Sized), slots: usize) -> u64 {
    let mut slot_of = vec![ABSENT; refs.pages()];
    let mut page_of = vec![0u32; slots];
    let mut free: Vec<Slot> = (0..slots as Slot).rev().collect();
    let mut misses = 0;
    for (i, step) in refs.steps().iter().enumerate() {
        let page = step.page();
        let at = slot_of[page as usize];
        if step.is_discard() {
            if at != ABSENT {
                policy.unlink(at, Unlink::Discarded);
                slot_of[page as usize] = ABSENT;
                free.push(at);
            }
            continue;
        }
        let now = refs.time(i);
        if at != ABSENT {
            policy.hit(at, now);
            continue;
        }
        misses += 1;
        let id = PageId(page.into());
        let slot = free.pop().unwrap_or_else(|| {
            let ask = Ask { incoming: Some(id), ..Ask::any() };
            let victim = policy.victim(ask, &mut |_| true).expect("a full cache has a victim");
            policy.unlink(victim, Unlink::Evicted);
            slot_of[page_of[victim as usize] as usize] = ABSENT;
            victim
        });
        (slot_of[page as usize], page_of[slot as usize]) = (slot, page);
        policy.load(slot, id, Load::Demand, CostClass(0), now);
    }
    misses
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Policies, by name.
    pub policies: Vec<String>,
    /// Cache sizes, pages.
    pub sizes: Vec<usize>,
    /// Options of the policies.
    pub options: PolicyOptions,
    /// Points at once.
    pub jobs: usize,
}

impl Plan {
    /// Says what is wrong with the plan, if anything is.
    pub fn validate(&self) -> Result<(), String> {
        let known = policy_names();
        if let Some(unknown) = self.policies.iter().find(|p| !known.contains(&p.as_str())) {
            return Err(format!("no policy {unknown:?}; there are: {}", known.join(", ")));
        }
        if self.policies.is_empty() || self.sizes.is_empty() {
            return Err("nothing to run: give at least one policy and one size".into());
        }
        if self.sizes.iter().any(|s| *s == 0 || *s >= 1 << 31) {
            return Err("cache sizes are from 1 to 2^31 - 1 pages".into());
        }
        Ok(())
    }
}

/// Runs every policy at every size, in parallel; the points in the plan's order, policy by policy. `each` is told of
/// every point as it is done. Errors: what [`Plan::validate`] says.
pub fn run(refs: &Arc<References>, plan: &Plan, mut each: impl FnMut(&Point)) -> Result<Vec<Point>, String> {
    plan.validate()?;
    let todo: Vec<(String, usize)> =
        plan.policies.iter().flat_map(|p| plan.sizes.iter().map(move |s| (p.clone(), *s))).collect();
    let todo = Arc::new(todo);
    let next = Arc::new(AtomicUsize::new(0));
    let (done, points) = channel::unbounded();
    let threads: Vec<_> = (0..plan.jobs.clamp(1, todo.len()))
        .map(|i| {
            let (refs, todo, next, done, options) =
                (refs.clone(), todo.clone(), next.clone(), done.clone(), plan.options);
            varve_rt::spawn(format!("replay-{i}"), move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((policy, size)) = todo.get(at) else { return };
                    let point = point(&refs, policy, *size, &options).expect("the plan was validated");
                    let _ = done.send((at, point));
                }
            })
        })
        .collect();
    drop(done);
    let mut results = vec![None; todo.len()];
    while let Ok((at, point)) = points.recv() {
        each(&point);
        results[at] = Some(point);
    }
    for thread in threads {
        thread.join().map_err(|panicked| format!("a replay failed: {panicked}"))?;
    }
    Ok(results.into_iter().flatten().collect())
}
