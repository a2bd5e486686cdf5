//! Write amplification of the flash model against the formulas. Pools of 256 to 1023 blocks agree within 2 %, 1024 and
//! more within 1 %; d-choices and random victims within 3 %.

use varve_models::flash::{Allocation, Contents, FlashConfig, FlashError, Ftl, FtlStats, GcPolicy, Streams, theory};
use varve_rt::Rng;

const BLOCKS: u32 = 1024;

struct Run {
    ftl: Ftl,
    rng: Rng,
}

impl Run {
    fn new(config: &FlashConfig) -> Run {
        let ftl = Ftl::new(config, Contents::Nothing).unwrap();
        let mut run = Run { ftl, rng: Rng::from_seed(7) };
        for lpn in 0..run.logical() {
            run.ftl.write(0, lpn, None).unwrap();
        }
        run
    }

    fn logical(&self) -> u64 {
        self.ftl.capacity().logical
    }

    fn alpha(&self) -> f64 {
        let c = self.ftl.capacity();
        c.effective / c.logical as f64
    }

    /// Makes `share` x the logical space of requests, then gives what `share / 4` more do.
    fn measure(&mut self, spaces: u64, mut request: impl FnMut(&mut Ftl, &mut Rng)) -> FtlStats {
        for _ in 0..spaces * self.logical() {
            request(&mut self.ftl, &mut self.rng);
        }
        let before = self.ftl.stats();
        for _ in 0..2 * self.logical() {
            request(&mut self.ftl, &mut self.rng);
        }
        self.ftl.stats().since(&before)
    }

    fn uniform(&mut self, spaces: u64) -> FtlStats {
        let logical = self.logical();
        self.measure(spaces, |ftl, rng| {
            ftl.write(0, rng.below(logical), None).unwrap();
        })
    }
}

fn config(gc: GcPolicy, sf: f64) -> FlashConfig {
    let mut config = FlashConfig::one_plane(BLOCKS, 64);
    config.ftl.gc = gc;
    config.ftl.spare_factor = sf;
    config
}

#[track_caller]
fn close(what: &str, got: f64, want: f64, tolerance: f64) {
    println!("{what}: measured {got:.4}, theory {want:.4}, {:+.2} %", (got / want - 1.0) * 100.0);
    assert!((got / want - 1.0).abs() <= tolerance, "{what}: measured {got:.4}, theory {want:.4}");
}

fn check(name: &str, config: &FlashConfig, spaces: u64, tolerance: f64, theory: impl Fn(f64) -> f64) {
    let mut run = Run::new(config);
    let stats = run.uniform(spaces);
    let a = stats.write_amplification();
    close(name, a, theory(run.alpha()), tolerance);
    // The two other ways to see the same.
    close("  victims' valid share", stats.victim_share(64), 1.0 - 1.0 / a, 0.01);
    close("  erases per write", stats.erases as f64 / stats.host_writes as f64, a / 64.0, 0.01);
    run.ftl.verify();
}

#[test]
fn fifo_agrees() {
    for sf in [0.05, 0.1, 0.25] {
        check(&format!("fifo {sf}"), &config(GcPolicy::Fifo, sf), 5, 0.01, theory::fifo);
    }
}

#[test]
fn greedy_agrees() {
    for sf in [0.05, 0.1, 0.25] {
        check(&format!("greedy {sf}"), &config(GcPolicy::Greedy, sf), 5, 0.01, |a| theory::greedy(a, 64));
    }
}

#[test]
fn d_choices_agree() {
    for (d, sf) in [(2, 0.1), (10, 0.1), (10, 0.05)] {
        let mut config = config(GcPolicy::DChoices, sf);
        config.ftl.d = d;
        check(&format!("d={d} {sf}"), &config, 5, 0.03, |a| theory::d_choices(a, 64, d));
    }
}

#[test]
fn random_victims_agree() {
    check("random 0.1", &config(GcPolicy::Random, 0.1), 5, 0.03, theory::random);
}

#[test]
fn sequential_overwriting_costs_nothing() {
    for gc in [GcPolicy::Fifo, GcPolicy::Greedy, GcPolicy::CostBenefit] {
        let mut run = Run::new(&config(gc, 0.1));
        let (logical, mut next) = (run.logical(), 0);
        let stats = run.measure(2, |ftl, _| {
            ftl.write(0, next, None).unwrap();
            next = (next + 1) % logical;
        });
        assert_eq!(stats.write_amplification(), 1.0, "{gc:?}");
    }
}

#[test]
fn random_victims_never_run_dry() {
    let mut config = FlashConfig::one_plane(128, 32);
    config.ftl.gc = GcPolicy::Random;
    config.ftl.spare_factor = 0.05;
    for streams in [Streams::Mixed, Streams::HostGc, Streams::HotRange] {
        config.ftl.streams = streams;
        let mut run = Run::new(&config);
        run.uniform(100);
        run.ftl.verify();
    }
    config.geometry.channels = 2;
    config.geometry.planes = 2;
    for allocation in [Allocation::Global, Allocation::PerChip] {
        config.ftl.allocation = allocation;
        let mut run = Run::new(&config);
        run.uniform(30);
        run.ftl.verify();
    }
}

#[test]
fn pools_of_chips_agree_when_they_are_large_enough() {
    let mut config = config(GcPolicy::Greedy, 0.1);
    config.geometry.blocks_per_plane = 512;
    config.geometry.channels = 2;
    config.ftl.allocation = Allocation::PerChip;
    check("greedy, two chips", &config, 5, 0.02, |a| theory::greedy(a, 64));
}

#[test]
fn trimming_is_spare_space() {
    for gc in [GcPolicy::Fifo, GcPolicy::Greedy] {
        let mut run = Run::new(&config(gc, 0.1));
        let (logical, q) = (run.logical(), 0.2);
        // Pages that live, in any order, and where each of them is in that list.
        let mut live: Vec<u32> = (0..logical as u32).collect();
        let mut place: Vec<u32> = (0..logical as u32).collect();
        let stats = run.measure(8, |ftl, rng| {
            if rng.f64() < q && !live.is_empty() {
                let i = rng.below(live.len() as u64) as usize;
                let lpn = live.swap_remove(i);
                if let Some(moved) = live.get(i) {
                    place[*moved as usize] = i as u32;
                }
                place[lpn as usize] = u32::MAX;
                ftl.trim(lpn.into(), 1).unwrap();
            } else {
                let lpn = rng.below(logical);
                ftl.write(0, lpn, None).unwrap();
                if place[lpn as usize] == u32::MAX {
                    place[lpn as usize] = live.len() as u32;
                    live.push(lpn as u32);
                }
            }
        });
        let alpha = run.alpha() / theory::live_share(q);
        let want = if gc == GcPolicy::Fifo { theory::fifo(alpha) } else { theory::greedy(alpha, 64) };
        close(&format!("{gc:?} with trims"), stats.write_amplification(), want, 0.01);
    }
}

#[test]
fn a_configuration_that_cannot_work_is_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut FlashConfig), field: &str, words: &str| {
        let mut c = config(GcPolicy::Greedy, 0.1);
        change(&mut c);
        let error = Ftl::new(&c, Contents::Nothing).err().unwrap_or_else(|| panic!("{field} was accepted"));
        assert!(matches!(&error, FlashError::Config { field: f, .. } if f == field), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let all = u64::from(BLOCKS) * 64;
    refused(&|c| c.ftl.logical_pages = Some(all), "ftl.logical_pages", "from 1 to 65471 logical pages");
    refused(&|c| c.ftl.logical_pages = Some(all - 64), "ftl.logical_pages", "leave more spare blocks");
    refused(&|c| c.ftl.spare_factor = 0.0, "ftl.spare_factor", "more than 0");
    refused(&|c| c.ftl.spare_factor = 1e-6, "ftl.spare_factor", "leave more spare blocks");
    refused(&|c| c.ftl.low_watermark = Some(0), "ftl.low_watermark", "at least 1");
    refused(&|c| c.ftl.high_watermark = Some(1), "ftl.high_watermark", "more than the low watermark");
    refused(&|c| c.ftl.d = 0, "ftl.d", "at least 1");
    refused(&|c| c.geometry.blocks_per_plane = 1, "ftl.spare_factor", "kept free");
    refused(&|c| c.timing.read_us.clear(), "timing.read_us", "one for each page type");
    refused(&|c| c.ftl.append_slots = 4, "ftl.append_slots", "nop - 1 = 3");
    let mut most = config(GcPolicy::Random, 0.1);
    most.ftl.logical_pages = Some(all - 65);
    assert!(Ftl::new(&most, Contents::Nothing).is_ok());
}
