//! The command line: parse, call, print.

mod again;
mod cmd;
mod complete;
mod flags;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod help;
pub mod program;
#[cfg(test)]
mod schemas;
mod tree;
mod values;

use std::process::ExitCode;

use delayline_term::Code;
use tree::Cli;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if complete::answer() {
        return Code::Done.into();
    }
    match tree::parse::<Cli>(tree::command()) {
        Ok((cli, matches)) => cli.run(&matches),
        Err(code) => code,
    }
}
