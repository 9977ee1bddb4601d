//! The command line: parse, call, print. One file per command.

mod again;
mod app;
mod app_programs;
mod app_show;
mod apply;
mod args;
mod bench;
mod change;
mod complete;
mod completions;
mod conformance;
mod decode;
mod demo;
mod dev;
mod doctor;
mod ending;
mod export;
mod failure;
mod findings;
mod foreign;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod guard;
mod install;
mod journal;
mod kept;
mod key;
mod listen;
mod logging;
mod man;
mod output;
#[cfg(test)]
mod pages;
mod parked;
mod plan;
mod policies;
mod probe;
mod programs;
mod recall;
mod recalled;
mod replace;
mod reschedule;
mod retry;
mod scheduled;
mod send;
mod serve;
mod snippets;
mod status;
mod table;
mod text;
mod time;
mod top;
mod transfer;
mod uninstall;
mod unroutable;
mod unstick;
mod verify;
mod version;

#[cfg(any(test, fuzzing))]
pub(crate) use self::{send::read_json_line, time::instant as read_instant};

use std::process::ExitCode;

use clap::FromArgMatches;

use args::{Cli, Command};
use failure::{Code, Failure};
use output::Output;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if complete::answer() {
        return Code::Done.into();
    }
    let typed = args::with_negative_values(std::env::args_os());
    let json = args::wants_json(&typed);
    let parsed = args::command()
        .try_get_matches_from(typed)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)))
        .map_err(args::best_first);
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if json && error.use_stderr() => {
            return Failure::of_usage(&error).report(true, false).into();
        }
        Err(error) => error.exit(),
    };
    // A service reports what it does; a command only what is wrong.
    let louder = u8::from(matches!(cli.command, Command::Serve(_)));
    logging::start(cli.global.verbose.saturating_add(louder));
    let mut output = Output::new(cli.global.shape(), &args::path(&matches));
    output.verbose = cli.global.verbose > 0;
    let ended = match cli.command.again().every() {
        Some(every) => again::run(every, &mut output, |output| run(&cli, output)),
        None => run(&cli, &mut output),
    };
    let code = match ended {
        Ok(code) => code,
        Err(failure) => failure.report(output.json, cli.command.looks()),
    };
    code.into()
}

fn run(cli: &Cli, output: &mut Output) -> Result<Code, Failure> {
    let settings = || cli.global.settings();
    match &cli.command {
        Command::Install(args) => install::run(args, &settings()?, output),
        Command::Verify(_) => verify::run(&settings()?, output),
        Command::App(args) => app::run(args, &settings()?, output),
        Command::Apply(args) => apply::run(args, &settings()?, output),
        Command::Diff(args) => apply::diff(args, &settings()?, output),
        Command::Doctor(args) => doctor::run(args, &settings()?, output),
        Command::Uninstall(args) => uninstall::run(args, &settings()?, output),
        Command::Status(args) => status::status(args, settings()?, output),
        Command::Export(args) => export::run(args, &settings()?, output),
        Command::Key(args) => key::run(args, &settings()?, output),
        Command::Decode(args) => decode::run(args, output),
        Command::Conformance(args) => conformance::run(args, output),
        Command::Send(args) => send::run(args, &settings()?, output),
        Command::Recall(args) => recall::run(args, &settings()?, output),
        Command::Recalled(args) => recalled::run(args, &settings()?, output),
        Command::Reschedule(args) => reschedule::run(args, &settings()?, output),
        Command::Scheduled(args) => scheduled::run(args, &settings()?, output),
        Command::Listen(args) => listen::run(args, &settings()?, output),
        Command::Retry(args) => retry::run(args, &settings()?, output),
        Command::Gateway(args) => gateway::run(args, &settings()?, output),
        Command::Guard(args) => guard::run(args, &settings()?, output),
        Command::Parked(args) => parked::run(args, &settings()?, output),
        Command::Serve(args) => serve::run(args, settings()?, output),
        Command::Probe(args) => probe::run(args, settings()?, output),
        Command::Transfer(args) => transfer::run(args, settings()?, output),
        Command::Unroutable(args) => unroutable::run(args, &settings()?, output),
        Command::Unstick(args) => unstick::run(args, &settings()?, output),
        Command::Top(args) => top::run(args, settings()?, output),
        Command::Bench(args) => bench::run(args, &settings()?, output),
        Command::Plan(args) => plan::run(args, output),
        Command::Demo(args) => demo::run(args, output),
        Command::Dev(args) => dev::run(args, cli.global.set_and_unit(), output),
        Command::Completions(args) => completions::run(args, output),
        Command::Man(args) => man::run(args, output),
        Command::Version => version::run(output),
    }
}
