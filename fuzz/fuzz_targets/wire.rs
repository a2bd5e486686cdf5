#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::wire(data, cfg!(feature = "canary")));
