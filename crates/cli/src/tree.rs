//! The tree of commands, which is assembled here from what each of them takes.

use std::{any::TypeId, ffi::OsString, process::ExitCode, time::Duration};

use clap::{
    ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint,
    error::{ContextKind, ContextValue, ErrorKind},
};
use jiff::Timestamp;

use delayline_core::codec::{Delay, Tolerance};

use crate::{
    again, again::Again, cmd::app, cmd::completions, cmd::demo, cmd::dev, cmd::doctor, cmd::gateway,
    cmd::guard, cmd::held, cmd::key, cmd::listen, cmd::man, cmd::schedule, cmd::scheduled, cmd::send,
    cmd::serve, cmd::set::apply, cmd::set::export, cmd::set::install, cmd::set::uninstall, cmd::set::verify,
    cmd::status, cmd::transfer, cmd::unstick, cmd::version, flags::Global, help,
};
use delayline_term::{Code, Failure, Output, output::aside};

/// The command line.
pub(crate) fn command() -> clap::Command {
    help::with_tree(prepared(Cli::command()))
}

/// A command line whose flags name their environment variables if they are settings, whose
/// numbers and times may be typed with a minus, and whose help shows what each command has of
/// its own.
pub fn prepared(command: clap::Command) -> clap::Command {
    let variables = delayline_settings::variables();
    let command = command.mut_args(|arg| {
        let arg = match arg.get_value_names() {
            Some([name]) if name == "FILE" => arg.value_hint(ValueHint::FilePath),
            _ => arg,
        };
        let arg = if arg.is_global_set() { arg.hide(true) } else { arg };
        let variable = format!("DELAYLINE_{}", arg.get_id().as_str().to_ascii_uppercase());
        match arg.get_help().filter(|_| variables.contains(&variable)) {
            Some(help) => {
                let help = format!("{help} [env: {variable}]");
                arg.help(help)
            }
            None => arg,
        }
    });
    help::brief(with_negative_values(command))
}

/// Passes negative numbers and times on to the parser of their argument, which refuses them with
/// a better error than clap.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let times = [
        TypeId::of::<Delay>(),
        TypeId::of::<Duration>(),
        TypeId::of::<Timestamp>(),
        TypeId::of::<Tolerance>(),
    ];
    command.mut_subcommands(with_negative_values).mut_args(|arg| {
        if !arg.get_action().takes_values() {
            return arg;
        }
        let kind = arg.get_value_parser().type_id();
        // A flag may follow where the value may be missing.
        let optional = arg.get_num_args().is_some_and(|values| values.min_values() == 0);
        let hyphens =
            arg.is_allow_hyphen_values_set() || (!optional && times.iter().any(|time| kind == *time));
        arg.allow_negative_numbers(true).allow_hyphen_values(hyphens)
    })
}

/// Reads the arguments of this process. The error is the exit code, once help or the fault is
/// printed.
pub fn parse<C: FromArgMatches>(command: clap::Command) -> Result<(C, ArgMatches), ExitCode> {
    let typed: Vec<_> = std::env::args_os().collect();
    let json = wants_json(&typed);
    let mut tree = command.clone();
    let matches = command.try_get_matches_from(&typed).map_err(|error| match error.kind() {
        ErrorKind::UnknownArgument => unknown(&mut tree, &typed, &error.to_string()).unwrap_or(error),
        _ => error,
    });
    matches.and_then(|matches| Ok((C::from_arg_matches(&matches)?, matches))).map_err(|error| {
        let error = best_first(error);
        if !error.use_stderr() {
            error.exit();
        }
        if json {
            return Failure::of_usage(&error).report(true, false).into();
        }
        // It quotes what was typed, or pasted.
        aside(error.render().ansi().to_string().trim_end());
        Code::Usage.into()
    })
}

/// The first flag that its command does not have: a positional argument that may begin with a minus
/// takes it for its value, and another word would be blamed.
fn unknown(tree: &mut clap::Command, typed: &[OsString], said: &str) -> Option<clap::Error> {
    tree.build();
    let words = || typed.iter().skip(1).take_while(|word| *word != "--").filter_map(|word| word.to_str());
    let command = words().fold(&*tree, |command, word| command.find_subcommand(word).unwrap_or(command));
    let known = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    let mut flags = words().filter_map(|word| word.strip_prefix("--")?.split('=').next());
    let wrong = flags.find(|flag| !known(flag) && *flag != "help")?;
    let better = format!("unexpected argument '--{wrong}' found");
    (!said.contains(&better)).then(|| command.clone().error(ErrorKind::UnknownArgument, better))
}

/// Delayed delivery for RabbitMQ: any delay from 1 s to 8.5 years, without a plugin
#[derive(Debug, Parser)]
#[command(name = "delayline", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install a set into a vhost
    Install(install::Args),
    /// Compare a set with its definition
    Verify(verify::Args),
    /// Remove a set
    Uninstall(uninstall::Args),
    /// Change a vhost to match a platform file
    Apply(apply::Args),
    /// Show how a vhost differs from a platform file
    Diff(apply::DiffArgs),
    /// Print a set as definitions or for Terraform
    Export(export::Args),
    /// Register applications, and show what they may do
    App(app::Args),
    /// Accept messages of applications written for the delayed-message plugin
    Gateway(gateway::Args),
    /// Send messages again and again: cron with time zones
    Schedule(schedule::Args),
    /// Send messages to be delivered later
    Send(Box<send::Args>),
    /// Print an application's messages as they arrive
    Listen(listen::Args),
    /// List, recall and reschedule messages that are not due yet
    Scheduled(scheduled::Args),
    /// List, replay and discard unroutable, parked and recalled messages
    Held(held::Args),
    /// Show waiting messages, level by level
    Status(status::Args),
    /// Find problems, and show what to do about them
    Doctor(doctor::Args),
    /// Make stuck queues try again at once
    Unstick(unstick::Args),
    /// Run the retry service, gateways, a canary and a status page
    Serve(serve::Args),
    /// Move waiting messages to another set
    Transfer(transfer::Args),
    /// Keep the levels of NServiceBus or Celery from stalling
    Guard(guard::Args),
    /// Run a private broker with applications, for tests
    Dev(dev::Args),
    /// Start a private broker, and show delayed messages arrive
    Demo(demo::Args),
    /// Encode and decode routing keys
    Key(key::Args),
    /// Print a script that completes commands in a shell
    Completions(completions::Args),
    /// Print the version of the program and of the wire contract
    Version(version::Args),
    /// Print a manual page, or write the pages of all commands
    #[command(hide = true)]
    Man(man::Args),
    /// Show help for a command, or for the settings
    #[command(hide = true)]
    Help(help::Args),
}

impl Cli {
    /// Runs the command of this command line.
    pub(crate) fn run(&self, matches: &ArgMatches) -> ExitCode {
        // A service logs its work; a command only problems.
        let louder = u8::from(matches!(&self.command, Command::Serve(args) if args.runs()));
        self.global.run(&path(matches), louder, self.command.looks(), |output| {
            match self.command.again().every() {
                Some(every) => again::run(every, output, |output| self.once(output)),
                None => self.once(output),
            }
        })
    }

    fn once(&self, output: &mut Output) -> Result<Code, Failure> {
        let settings = || self.global.settings();
        match &self.command {
            Command::Install(args) => install::run(args, &settings()?, output),
            Command::Verify(_) => verify::run(&settings()?, output),
            Command::Uninstall(args) => uninstall::run(args, &settings()?, output),
            Command::Apply(args) => apply::run(args, &settings()?, output),
            Command::Diff(args) => apply::diff(args, &settings()?, output),
            Command::Export(args) => export::run(args, &settings()?, output),
            Command::App(args) => app::run(args, &settings()?, output),
            Command::Gateway(args) => gateway::run(args, &settings()?, output),
            Command::Send(args) => send::run(args, &settings()?, output),
            Command::Listen(args) => listen::run(args, &settings()?, output),
            Command::Schedule(args) => schedule::run(args, &settings()?, output),
            Command::Scheduled(args) => scheduled::run(args, &settings()?, output),
            Command::Held(args) => held::run(args, &settings()?, output),
            Command::Status(args) => status::run(args, settings()?, output),
            Command::Doctor(args) => doctor::run(args, settings, output),
            Command::Unstick(args) => unstick::run(args, &settings()?, output),
            Command::Serve(args) => serve::run(args, settings()?, output),
            Command::Transfer(args) => transfer::run(args, settings()?, output),
            Command::Guard(args) => guard::run(args, &settings()?, output),
            Command::Dev(args) => dev::run(args, self.global.set_and_unit(), output),
            Command::Demo(args) => demo::run(args, output),
            Command::Key(args) => key::run(args, settings, output),
            Command::Completions(args) => completions::run(args, output),
            Command::Version(_) => version::run(output),
            Command::Man(args) => man::run(args, command(), output),
            Command::Help(args) => help::run(args, command(), output),
        }
    }
}

impl Command {
    /// Whether to look again and again.
    fn again(&self) -> Again {
        match self {
            Self::Verify(args) => args.again,
            Self::Status(args) => args.again(),
            Self::Doctor(args) => args.again,
            Self::App(args) => args.again(),
            Self::Gateway(args) => args.again(),
            Self::Held(args) => args.again(),
            _ => Again::default(),
        }
    }

    /// Whether the command only reports how things are.
    fn looks(&self) -> bool {
        match self {
            Self::Verify(_) | Self::Diff(_) | Self::Status(_) | Self::Doctor(_) => true,
            Self::App(args) => args.looks(),
            Self::Gateway(args) => args.looks(),
            Self::Held(args) => args.looks(),
            Self::Schedule(args) => args.looks(),
            Self::Scheduled(args) => args.looks(),
            _ => false,
        }
    }
}

/// Lists the most similar words to a mistyped word first.
fn best_first(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) {
        let similar = similar.iter().rev().cloned().collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
    }
    error
}

/// Whether JSON is wanted, as far as arguments that may be wrong show it.
fn wants_json(typed: &[OsString]) -> bool {
    let ours: Vec<_> = typed.iter().take_while(|argument| *argument != "--").collect();
    let spelled = |argument: &&OsString| {
        ["--json", "-ojson", "-o=json", "--output=json"].iter().any(|it| argument == it)
    };
    let apart = |two: &[&OsString]| (two[0] == "-o" || two[0] == "--output") && two[1] == "json";
    ours.iter().any(spelled) || ours.windows(2).any(apart)
}

/// The words of the command that was given: `app`, `list`.
pub(crate) fn path(matches: &ArgMatches) -> Vec<&str> {
    std::iter::successors(matches.subcommand(), |(_, nested)| nested.subcommand())
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod pages;
#[cfg(test)]
mod tests;
