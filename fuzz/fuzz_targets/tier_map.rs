#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::tier_map(data, cfg!(feature = "canary")));
