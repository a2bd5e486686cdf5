#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::near_message(data, cfg!(feature = "canary")));
