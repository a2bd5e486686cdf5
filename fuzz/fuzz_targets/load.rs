#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::load(data, cfg!(feature = "canary")));
