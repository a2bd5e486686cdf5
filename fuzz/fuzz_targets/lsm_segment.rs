#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::lsm_segment(data, cfg!(feature = "canary")));
