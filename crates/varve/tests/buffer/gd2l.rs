//! GD2L against a model over plain vectors that follows the paper's rules and ours for what it leaves open: every
//! placement, every H, every victim. `POLICY_SEED=n` runs one seed alone.

use crate::gd2l_model::Model;
use varve::buffer::policy::{self, Ask, ClassCosts, Gd2lOptions, Load, MAX_CLASSES, PolicyOptions, Slot, Unlink};
use varve_rt::Rng;
use varve_volume::{CostClass, PageId, WriteWhy};

/// What classes of pages cost: as in the paper, alike, more of them.
fn costs(rng: &mut Rng) -> ClassCosts {
    let few = [[70.0, 1.0], [3.0, 2.0], [1.0, 1.0]];
    match rng.below(6) {
        0 => [70.0, 20.0, 1.0].into(),
        1 => ClassCosts::new((0..MAX_CLASSES).map(|class| (1 << (MAX_CLASSES - class)) as f64)),
        2 => [5.0].into(),
        n => few[n as usize - 3].into(),
    }
}

fn run(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let slots = [1, 2, 3, 7, 40][rng.below(5) as usize];
    let gd2l = Gd2lOptions {
        cost: costs(&mut rng),
        invalidated_at_midpoint: rng.below(2) == 0,
        stay_part: [0, 1, 4][rng.below(3) as usize],
        ..Gd2lOptions::default()
    };
    let mut policy = (policy::find("gd2l").unwrap().make)(slots, &PolicyOptions { gd2l, ..PolicyOptions::default() });
    let mut model = Model::new(slots, gd2l);
    let mut present: Vec<Slot> = Vec::new();
    let mut empty: Vec<Slot> = (0..slots as Slot).collect();
    for now in 0..2000 {
        let class = rng.below(gd2l.cost.len() as u64) as u8;
        match rng.below(10) {
            0..3 if !empty.is_empty() => {
                let slot = empty.swap_remove(rng.below(empty.len() as u64) as usize);
                let how = if rng.below(3) == 0 { Load::Prefetch } else { Load::Demand };
                policy.load(slot, PageId(now), how, CostClass(class), now);
                match how {
                    Load::Demand => model.front(slot, class.into()),
                    Load::Prefetch => model.middle(slot, class.into()),
                }
                model.dirty[slot as usize] = false;
                present.push(slot);
            }
            3.. if !present.is_empty() => {
                let at = rng.below(present.len() as u64) as usize;
                let slot = present[at];
                let why =
                    [WriteWhy::Replacement, WriteWhy::Recoverability, WriteWhy::Checkpoint][rng.below(3) as usize];
                match rng.below(8) {
                    0 | 1 => {
                        model.hit(slot);
                        policy.hit(slot, now);
                    }
                    2 => {
                        model.dirty[slot as usize] = true;
                        policy.dirtied(slot, now);
                    }
                    3 => {
                        model.dirty[slot as usize] = false;
                        policy.cleaned(slot, why, now);
                    }
                    4 | 5 => {
                        let wrote = (rng.below(2) == 0).then_some(why);
                        model.change(slot, class.into(), wrote);
                        policy.class_changed(slot, CostClass(class), wrote, now);
                    }
                    6 => {
                        let refused = rng.below(slots as u64) as Slot;
                        let wanted = model.order().into_iter().find(|s| *s != refused);
                        assert_eq!(policy.victim(Ask::any(), &mut |s| s != refused), wanted, "step {now}: victim");
                        if let Some(slot) = wanted {
                            policy.unlink(slot, Unlink::Evicted);
                            model.unlink(slot, Unlink::Evicted);
                            present.retain(|s| *s != slot);
                            empty.push(slot);
                        }
                    }
                    _ => {
                        policy.unlink(slot, Unlink::Discarded);
                        model.unlink(slot, Unlink::Discarded);
                        present.swap_remove(at);
                        empty.push(slot);
                    }
                }
            }
            _ => {}
        }
        policy.check();
        let mut order = Vec::new();
        policy.coldest(usize::MAX, &mut |slot| {
            order.push(slot);
            true
        });
        assert_eq!(order, model.order(), "step {now}: order");
    }
}

#[test]
fn gd2l_follows_the_rules() {
    let seeds = match std::env::var("POLICY_SEED") {
        Ok(seed) => vec![seed.parse().expect("POLICY_SEED is a number")],
        Err(_) => (0..80).collect(),
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("POLICY_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// The dear class stays longer: with equal use, the cheap page leaves first until it was passed over often enough.
#[test]
fn a_dear_page_outlives_cheap_ones() {
    let gd2l = Gd2lOptions { cost: [5.0, 1.0].into(), ..Gd2lOptions::default() };
    let mut policy = (policy::find("gd2l").unwrap().make)(4, &PolicyOptions { gd2l, ..PolicyOptions::default() });
    policy.load(0, PageId(0), Load::Demand, CostClass(0), 0);
    (1..4).for_each(|s| policy.load(s, PageId(s as u64), Load::Demand, CostClass(1), 0));
    let mut lived = 0;
    loop {
        let slot = policy.victim(Ask::any(), &mut |_| true).unwrap();
        policy.unlink(slot, Unlink::Evicted);
        if slot == 0 {
            break;
        }
        lived += 1;
        policy.load(slot, PageId(10 + lived), Load::Demand, CostClass(1), 0);
    }
    // L rises by 1 with each three evictions, and reaches the page's H of 5 after four such rounds; ties leave from the
    // fast list.
    assert_eq!(lived, 15);
}

/// A page that leaves although colder ones stay (it was written and then used, say, or the colder ones are being
/// written) must not age those: they would all look older than any cheap page that is loaded from then on.
#[test]
fn a_page_that_leaves_before_its_turn_ages_nobody() {
    let mut policy = (policy::find("gd2l").unwrap().make)(4, &PolicyOptions::default());
    policy.load(0, PageId(0), Load::Demand, CostClass(0), 0);
    policy.load(1, PageId(1), Load::Demand, CostClass(0), 1);
    policy.load(2, PageId(2), Load::Demand, CostClass(1), 2);
    assert_eq!(policy.victim(Ask::any(), &mut |slot| slot == 1), Some(1));
    policy.unlink(1, Unlink::Evicted);
    policy.load(3, PageId(3), Load::Demand, CostClass(1), 3);
    let mut order = Vec::new();
    policy.coldest(usize::MAX, &mut |slot| {
        order.push(slot);
        true
    });
    assert_eq!(order, [2, 3, 0], "the dear page still outlives the cheap ones");
}
