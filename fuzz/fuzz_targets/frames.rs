#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| delayline::fuzzing::run("frames", bytes));
