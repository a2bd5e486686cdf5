#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::lsm_list(data, cfg!(feature = "canary")));
