//! References per second of replay, one thread, by policy: the OLTP trace at 5,000 pages. `cargo bench -p varve-lab
//! --bench replay`

use std::path::Path;
use varve_lab::replay::{self, References, Shape};
use varve_lab::trace::{ReadOptions, Reader};

fn main() {
    // `cargo test --benches` only wants to know that it builds.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/arc-OLTP.lis.zst");
    let began = varve_rt::now();
    let mut reader = Reader::open(&path, &ReadOptions::default()).expect("the trace is in the repository");
    let refs = References::read(&mut reader, &Shape::default()).expect("a good trace");
    println!("reading: {:.1} million references/s", refs.len() as f64 / began.elapsed().as_secs_f64() / 1e6);
    for policy in replay::policy_names() {
        let least = (0..5)
            .map(|_| {
                let began = varve_rt::now();
                replay::point(&refs, policy, 5000, &replay::policy_options()).expect("a known policy");
                began.elapsed()
            })
            .min()
            .expect("five rounds");
        println!("{policy:<14}{:>8.1} million references/s", refs.len() as f64 / least.as_secs_f64() / 1e6);
    }
}
