//! `delayline-bench`: measures the capacity of a set on a broker ([`measure`]), estimates that without
//! one ([`capacity`]), compares sets with other ways to delay messages ([`compare`]), and fills one.

pub mod bare;
pub mod capacity;
mod cmd;
pub mod compare;
mod fill;
pub mod measure;
#[cfg(test)]
mod schemas;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use cmd::{conformance, plan, probe, run};
use delayline_cli::program::{Code, Failure, Global, Output, parse, prepared};

/// Measures RabbitMQ brokers and clients for delayline.
#[derive(Debug, Parser)]
#[command(name = "delayline-bench", version)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how much a broker carries, in a throw-away set
    Run(Box<run::Args>),
    /// Estimate the load of a workload, and whether a broker can carry it
    Plan(plan::Args),
    /// Measure how late delays are, with test messages
    Probe(probe::Args),
    /// Check a client in another language against the wire contract
    Conformance(conformance::Args),
    /// Compare layouts that delay messages, on private brokers
    Compare(compare::Args),
    /// Measure a private broker with very many waiting messages
    Fill(Box<fill::Args>),
}

impl Command {
    /// The name of the schema of what it prints as JSON, without the program's.
    fn name(&self) -> &'static str {
        match self {
            Self::Run(_) => "run",
            Self::Plan(_) => "plan",
            Self::Probe(_) => "probe",
            Self::Conformance(_) => "conformance",
            Self::Compare(_) => "compare",
            Self::Fill(_) => "fill",
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let (cli, _): (Cli, _) = match parse(prepared(Cli::command())) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    cli.global.run(&["bench", cli.command.name()], 0, false, |output| execute(&cli, output))
}

fn execute(cli: &Cli, output: &mut Output) -> Result<Code, Failure> {
    match &cli.command {
        Command::Run(args) => run::run(args, &cli.global.settings()?, output),
        Command::Plan(args) => plan::run(args, cli.global.shortcuts(), output),
        Command::Probe(args) => probe::run(args, cli.global.settings()?, output),
        Command::Conformance(args) => conformance::run(args, output),
        Command::Compare(args) => compare::run(args, output),
        Command::Fill(args) => fill::run(args, output),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_command_in_the_help_and_the_pages_can_be_parsed() {
        let command = prepared(Cli::command());
        command.clone().debug_assert();
        let help = command.get_subcommands().map(|command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Examples:"), "{} has no examples", command.get_name());
            help
        });
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let pages = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
        let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        let texts: Vec<String> = help.chain(pages.map(|page| fs::read_to_string(page).unwrap())).collect();
        let lines = texts.iter().flat_map(|text| text.lines());
        let lines = lines.filter_map(|line| line.strip_prefix("$ ").or(line.strip_prefix("  ")));
        let mut found = 0;
        for line in lines.filter(|line| line.starts_with("delayline-bench ")) {
            // Two spaces separate an example from its description.
            let typed = line.split(['#', '|', '>']).next().and_then(|line| line.split("  ").next()).unwrap();
            let parsed = command.clone().try_get_matches_from(typed.split_whitespace());
            parsed.unwrap_or_else(|error| panic!("{typed}: {error}"));
            found += 1;
        }
        assert!(found > 15, "only {found} commands");
    }
}
