//! The arguments of the command line.

use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    ops::{Bound, RangeBounds},
    path::PathBuf,
    str::FromStr,
};

use clap::{
    ArgMatches, Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint,
    error::{ContextKind, ContextValue},
};

use delayline_admin::ByteSize;
use delayline_core::{
    codec::{AppKey, Delay, MessageId, Tolerance},
    message::{Handle, HandleError},
};
use delayline_settings::{Layers, Settings};

use crate::{
    Failure, again::Again, app, apply, bench, completions, conformance, decode, demo, dev, doctor, export,
    gateway, guard, install, key, listen, man, parked, plan, probe, recall, recalled, reschedule, retry,
    scheduled, send, serve, status, top, transfer, uninstall, unroutable, unstick,
};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 looked and found a problem, 2 wrong usage or a file that cannot be
read, 3 the broker cannot be reached or refuses, 130 interrupted (docs/exit-codes.md).";

const ENVIRONMENT: &str = "\
Settings come from delayline.toml in the working directory (or --config), the environment
(DELAYLINE_URL, DELAYLINE_SET, …) and flags; the later override the earlier. A password
comes from DELAYLINE_PASSWORD, from DELAYLINE_URL or from a file (password_file), never
from a flag, where every user of the machine could read it.

Examples:
  delayline demo                                see it work on a private broker
  delayline install --url amqp://broker         install the delay infrastructure
  delayline key 90s billing                     the routing key for any client
  delayline send --app billing --delay 90s --body hello
  delayline status";

/// The command line. Each flag that is a setting says the name of its environment variable,
/// and the longest help names those of all settings.
pub(super) fn command() -> clap::Command {
    let variables = delayline_settings::variables();
    Cli::command()
        .after_long_help(format!(
            "{ENVIRONMENT}\n\nEnvironment variables: DELAYLINE_CONFIG, DELAYLINE_LOG, DELAYLINE_POLICIES, {}\n\n\
             {EXIT_CODES}",
            variables.join(", ")
        ))
        .mut_args(|arg| {
            let arg = match arg.get_value_names() {
                Some([name]) if name == "FILE" => arg.value_hint(ValueHint::FilePath),
                _ => arg,
            };
            let variable = format!("DELAYLINE_{}", arg.get_id().as_str().to_ascii_uppercase());
            match arg.get_help().filter(|_| variables.contains(&variable)) {
                Some(help) => {
                    let help = format!("{help} [env: {variable}]");
                    arg.help(help)
                }
                None => arg,
            }
        })
}

/// Delayed delivery for RabbitMQ: one set of exchanges and queues per vhost, any
/// delay from 1 s to 8.5 years.
#[derive(Debug, Parser)]
#[command(name = "delayline", version, after_help = EXIT_CODES)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Broker and settings")]
pub(super) struct Global {
    /// Read settings from this file instead of delayline.toml [env: DELAYLINE_CONFIG]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The broker of this name in the settings file ([brokers.NAME])
    #[arg(long, global = true, value_name = "NAME")]
    broker: Option<String>,
    /// AMQP URL without a password: amqp://USER@HOST:PORT/VHOST, or amqps://
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// URL of the management API, or `none` [default: the same host, port
    /// 15672 or 15671, if AMQP uses a default port]
    #[arg(long, global = true, value_name = "URL")]
    management_url: Option<String>,
    /// Name of the set [default: delay]
    #[arg(long, global = true, value_name = "NAME")]
    set: Option<String>,
    /// User to log in as [default: the URL's, or guest]
    #[arg(long, global = true, value_name = "NAME")]
    username: Option<String>,
    /// File that holds the password
    #[arg(long, global = true, value_name = "FILE")]
    password_file: Option<String>,
    /// File that holds the password of the application's user, for `delayline app`
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    app_password_file: Option<String>,
    /// PEM file of the certificate authorities to trust [default: the system's]
    #[arg(long, global = true, value_name = "FILE")]
    ca_file: Option<String>,
    /// PEM file of a client certificate
    #[arg(long, global = true, value_name = "FILE", requires = "client_key_file")]
    client_cert_file: Option<String>,
    /// PEM file of the client certificate's key
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert_file")]
    client_key_file: Option<String>,
    /// Queue type of the set, `quorum` or `classic` [default: quorum]
    #[arg(long, global = true, value_name = "TYPE")]
    queue_type: Option<String>,
    /// Replicas of each quorum queue [default: the broker's]
    #[arg(long, global = true, value_name = "N")]
    replicas: Option<String>,
    /// Length of a unit of delay in ms, for tests [default: 1000]
    #[arg(long, global = true, value_name = "MS", hide = true)]
    unit_ms: Option<String>,
    /// Print JSON for scripts (docs/json.md)
    #[arg(long, global = true, help_heading = "Output", conflicts_with = "output")]
    json: bool,
    /// How to print
    #[arg(short, long, global = true, value_name = "FORMAT", help_heading = "Output")]
    output: Option<Shape>,
    /// Show every detail and log more; twice for still more
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(super) verbose: u8,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shape {
    /// For people
    Table,
    /// For scripts
    Json,
    /// For people, with every column
    Wide,
}

impl Global {
    /// How to print what was found.
    pub(super) fn shape(&self) -> Shape {
        match self.json {
            true => Shape::Json,
            false => self.output.unwrap_or(Shape::Table),
        }
    }

    /// What the flags say about a set on a private broker.
    pub(super) fn set_and_unit(&self) -> (Option<&str>, Option<&str>) {
        (self.set.as_deref(), self.unit_ms.as_deref())
    }

    /// The settings of this process, from all layers.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        for (flag, url) in [("--url", &self.url), ("--management-url", &self.management_url)] {
            if url.as_deref().is_some_and(has_password) {
                return Err(Failure::usage(format!(
                    "{flag} contains a password, which every user of this machine can read in the process \
                     list; leave it out and use DELAYLINE_PASSWORD or a file (--password-file)"
                )));
            }
        }
        let settings = self.layers().build()?;
        settings.check_files()?;
        Ok(settings)
    }

    /// The file, the environment and the flags, before they are read.
    pub(super) fn layers(&self) -> Layers {
        let mut layers = Layers::new().with_file(self.config.as_deref()).with_environment(
            // Names and values that are not UTF-8 are not our settings.
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        );
        let flags = [
            ("broker", &self.broker),
            ("url", &self.url),
            ("management_url", &self.management_url),
            ("set", &self.set),
            ("username", &self.username),
            ("password_file", &self.password_file),
            ("app_password_file", &self.app_password_file),
            ("ca_file", &self.ca_file),
            ("client_cert_file", &self.client_cert_file),
            ("client_key_file", &self.client_key_file),
            ("queue_type", &self.queue_type),
            ("replicas", &self.replicas),
            ("unit_ms", &self.unit_ms),
        ];
        for (key, value) in flags {
            if let Some(value) = value {
                layers = layers.set(key, value);
            }
        }
        layers
    }
}

fn has_password(url: &str) -> bool {
    url::Url::parse(url).is_ok_and(|url| url.password().is_some())
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Install the delay infrastructure into a vhost
    Install(install::Args),
    /// Compare the set on the broker with what it should be
    #[command(after_help = "\
Examples:
  delayline verify
  delayline verify -v                           with every place that differs
  delayline verify --json | jq '.findings'")]
    Verify(Again),
    /// Register applications and see who may do what
    App(app::Args),
    /// Make a vhost what a platform file says
    Apply(apply::Args),
    /// Show how a vhost differs from a platform file
    Diff(apply::DiffArgs),
    /// Find problems and say what to do about them
    Doctor(doctor::Args),
    /// Make stuck queues try again at once
    Unstick(unstick::Args),
    /// Remove the delay infrastructure
    Uninstall(uninstall::Args),
    /// Show what waits where, once
    Status(status::Args),
    /// Watch a set: what waits where, what flows, what is stuck
    Top(top::Args),
    /// Print the set for Terraform or as definitions to import
    Export(export::Args),
    /// Print the routing key for a delay and an application
    Key(key::Args),
    /// Explain a routing key
    Decode(decode::Args),
    /// Check a client in another language against the wire contract
    Conformance(conformance::Args),
    /// Send messages to be delivered later
    Send(Box<send::Args>),
    /// Recall messages that are not due yet
    Recall(recall::Args),
    /// List, replay or discard messages that were recalled
    Recalled(recalled::Args),
    /// Deliver a message at another time
    Reschedule(reschedule::Args),
    /// List what is scheduled for an application that has a journal
    Scheduled(scheduled::Args),
    /// Print an application's messages as they arrive
    Listen(listen::Args),
    /// Run the retry service, a canary and a status page
    Serve(serve::Args),
    /// Measure how late delays are, with test messages
    Probe(probe::Args),
    /// Show retry policies
    Retry(retry::Args),
    /// Take messages of applications written for the delayed-message plugin
    Gateway(gateway::Args),
    /// Keep the delays of NServiceBus or Celery from stalling
    Guard(guard::Args),
    /// Move waiting messages to another set, with what is left of their delay
    Transfer(transfer::Args),
    /// List, replay or discard messages that used up their retries
    Parked(parked::Args),
    /// List, replay or discard messages that could not be delivered
    Unroutable(unroutable::Args),
    /// Measure how much a broker carries, in a throw-away set
    Bench(Box<bench::Args>),
    /// Estimate the load of a workload, and whether a broker can carry it
    Plan(plan::Args),
    /// Start a private broker and watch delayed messages arrive
    Demo(demo::Args),
    /// Run a private broker with applications, to test programs with
    Dev(dev::Args),
    /// Print a script that completes commands and flags in a shell
    Completions(completions::Args),
    /// Print a manual page, or write those of all commands
    Man(man::Args),
    /// Print the version, and that of the wire contract
    #[command(after_help = "\
Examples:
  delayline version
  delayline version --json | jq -r .version")]
    Version,
}

impl Command {
    /// Whether to look again and again.
    pub(super) fn again(&self) -> Again {
        match self {
            Self::Verify(again) => *again,
            Self::Status(args) => args.again,
            Self::Doctor(args) => args.again,
            Self::App(args) => args.again(),
            Self::Gateway(args) => args.again(),
            Self::Parked(args) => args.again(),
            Self::Recalled(args) => args.again(),
            Self::Unroutable(args) => args.again(),
            _ => Again::default(),
        }
    }

    /// Whether the command only reports how things are.
    pub(super) fn looks(&self) -> bool {
        match self {
            Self::Verify(_) | Self::Diff(_) | Self::Status(_) | Self::Doctor(_) | Self::Top(_) => true,
            Self::App(args) => args.looks(),
            Self::Gateway(args) => args.looks(),
            Self::Parked(args) => args.looks(),
            Self::Recalled(args) => args.looks(),
            Self::Unroutable(args) => args.looks(),
            Self::Recall(args) => args.looks(),
            Self::Scheduled(_) => true,
            _ => false,
        }
    }
}

/// Reads an app key.
pub(super) fn app(text: &str) -> Result<AppKey, String> {
    parsed(text)
}

/// Reads a delay.
pub(super) fn delay(text: &str) -> Result<Delay, String> {
    parsed(text)
}

/// Reads an id.
pub(super) fn id(text: &str) -> Result<MessageId, String> {
    parsed(text)
}

/// Reads a handle.
pub(super) fn handle(text: &str) -> Result<Handle, String> {
    match text.parse() {
        Err(HandleError::RoutingKey(_)) if !text.contains(".~.") => Err(format!(
            "`{}` is not a handle. A handle is the whole routing key that the message was published with, its id \
             included; `delayline scheduled list --app KEY --id ID` finds it in a journal",
            text.escape_debug()
        )),
        handle => handle.map_err(|error| error.to_string()),
    }
}

/// Reads a number of bytes.
pub(super) fn bytes(text: &str) -> Result<ByteSize, String> {
    parsed(text)
}

/// Reads a tolerance.
pub(super) fn tolerance(text: &str) -> Result<Tolerance, String> {
    parsed(text)
}

/// Reads anything that says itself what is wrong with a text.
pub(super) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Reads a whole number within a range.
pub(super) fn whole<T: TryFrom<u64>>(
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
    move |text| {
        let number = text.parse().ok().filter(|number| (from, to).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let from = match from {
                Bound::Included(from) | Bound::Excluded(from) => from,
                Bound::Unbounded => 0,
            };
            match to {
                Bound::Included(to) | Bound::Excluded(to) => {
                    format!("use a whole number from {from} to {to}")
                }
                Bound::Unbounded => {
                    // As many as fit the type.
                    let digits = text.trim_start_matches('+');
                    let large = !digits.is_empty()
                        && digits.bytes().all(|byte| byte.is_ascii_digit())
                        && digits.parse::<u64>().map_or(true, |number| number >= from);
                    format!("use a {}whole number, {from} or more", if large { "smaller " } else { "" })
                }
            }
        })
    }
}

/// Joins a flag and a value that begins with a minus and a digit: `--delay -5s` becomes
/// `--delay=-5s`. None of our flags is a digit, so it can only be a value, and the flag's own
/// parser gives a better error than clap does.
pub(super) fn with_negative_values(typed: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let negative = |value: &OsStr| {
        let bytes = value.as_encoded_bytes();
        bytes.len() > 1 && bytes[0] == b'-' && (bytes[1].is_ascii_digit() || bytes[1] == b'.')
    };
    let mut arguments: Vec<OsString> = Vec::new();
    let mut only_values = false;
    for argument in typed {
        match arguments.last_mut().filter(|_| !only_values) {
            Some(flag) if negative(&argument) && takes_a_value(flag) => {
                flag.push("=");
                flag.push(argument);
            }
            _ => {
                only_values |= argument == "--";
                arguments.push(argument);
            }
        }
    }
    arguments
}

/// Names what is most like a word that was mistyped before what is less so.
pub(super) fn best_first(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) {
        let similar = similar.iter().rev().cloned().collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
    }
    error
}

/// Whether JSON is wanted, as far as that can be told of arguments that may be wrong.
pub(super) fn wants_json(typed: &[OsString]) -> bool {
    let ours: Vec<_> = typed.iter().take_while(|argument| *argument != "--").collect();
    let spelled = |argument: &&OsString| {
        ["--json", "-ojson", "-o=json", "--output=json"].iter().any(|it| argument == it)
    };
    let apart = |two: &[&OsString]| (two[0] == "-o" || two[0] == "--output") && two[1] == "json";
    ours.iter().any(spelled) || ours.windows(2).any(apart)
}

/// The words of the command that was given: `app`, `list`.
pub(super) fn path(matches: &ArgMatches) -> Vec<&str> {
    std::iter::successors(matches.subcommand(), |(_, nested)| nested.subcommand())
        .map(|(name, _)| name)
        .collect()
}

/// Whether it is a long flag without a value.
fn takes_a_value(argument: &OsStr) -> bool {
    let bytes = argument.as_encoded_bytes();
    bytes.len() > 2 && bytes.starts_with(b"--") && !bytes.contains(&b'=')
}

#[cfg(test)]
mod tests;
