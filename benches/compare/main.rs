//! Compares ways to delay messages with RabbitMQ: the same workload, client and
//! broker, in one run. `scripts/compare` runs it on every broker at hand.

#[allow(unused_imports, dead_code, reason = "its tests are those of tests/compare")]
mod suite;

fn main() -> std::process::ExitCode {
    suite::args::main()
}
