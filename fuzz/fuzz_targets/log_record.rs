#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| varve_fuzz::log_record(data, cfg!(feature = "canary")));
