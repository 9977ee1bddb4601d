#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| delayline_cli::fuzzing::run("schedules", bytes));
