//! The `delayline` command; see `delayline --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    delayline_cli::main()
}
