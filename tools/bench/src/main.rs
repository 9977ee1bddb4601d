//! The `delayline-bench` command; see `delayline-bench --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    delayline_bench::main()
}
