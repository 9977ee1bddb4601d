//! `delayline parked`

use clap::Subcommand;
use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline::{
    codec::{AppKey, Delay},
    topology::Topology,
};
use delayline_admin::{self as admin, ParkedMessage, ParkedReport, ParkedSelection, holding::Sifted};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    ending::on_signal,
    kept::{Cut, age, changed, escaped, follow, sample, shown, total},
    output::{aside, counted},
    table::table,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline parked list
  delayline parked show --app billing --count 3
  delayline parked replay --app billing --reason timeout
  delayline parked discard --older-than 30d")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        matches!(self.command, Command::List { .. } | Command::Show { .. })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count parked messages, by application and reason
    #[command(after_help = "\
Examples:
  delayline parked list
  delayline parked list --limit 1000000 --json | jq '.groups'

Nothing is removed.")]
    List {
        /// Examine the first N messages
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = args::whole::<u64>(0..))]
        limit: u64,
    },
    /// Show single messages: key, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline parked show
  delayline parked show --app billing --reason expired --count 1
  delayline parked show --message-id 4711 --json")]
    Show {
        #[command(flatten)]
        which: Which,
        /// Show at most N messages
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = args::whole::<usize>(0..))]
        count: usize,
        /// Show the first N bytes of each body
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = args::whole::<usize>(0..))]
        body_bytes: usize,
    },
    /// Send messages to their applications again, with all their attempts ahead of them
    #[command(after_help = "\
Examples:
  delayline parked replay --app billing
  delayline parked replay --message-id 4711
  delayline parked replay --all

Each message is removed only after the broker has confirmed its copy, so none is lost
whatever happens. If the command is killed, messages in flight may arrive twice. Ctrl-C
stops it cleanly; run it again to continue.")]
    Replay {
        #[command(flatten)]
        which: Which,
        /// Replay every message
        #[arg(long, conflicts_with_all = ["app", "reason", "message_id", "older_than"])]
        all: bool,
    },
    /// Discard messages for good
    #[command(after_help = "\
Examples:
  delayline parked discard --app billing --reason expired
  delayline parked discard --older-than 30d
  delayline parked discard --all")]
    Discard {
        #[command(flatten)]
        which: Which,
        /// Discard every message
        #[arg(long, conflicts_with_all = ["app", "reason", "message_id", "older_than"])]
        all: bool,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Which {
    /// Only messages of this application
    #[arg(long, value_name = "KEY", value_parser = args::app)]
    app: Option<AppKey>,
    /// Only messages parked for this reason (attempts, age, expired, gave-up, unreadable), or
    /// whose last failure was this (rejected, …)
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only messages with this id
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,
    /// Only messages that have been here longer than this
    #[arg(long, value_name = "AGE", value_parser = args::delay)]
    older_than: Option<Delay>,
}

impl Which {
    fn selection(&self) -> ParkedSelection {
        let Self { app, reason, message_id, older_than } = self.clone();
        let before = older_than.map(|age| {
            let age = jiff::SignedDuration::from_secs(age.seconds().into());
            Timestamp::now().saturating_sub(age).unwrap_or(Timestamp::MIN)
        });
        ParkedSelection { app, reason, message_id, before }
    }

    /// The selection of a command that changes something: everything only if `all` says so.
    fn deliberate(&self, all: bool, what: &str) -> Result<ParkedSelection, Failure> {
        let selection = self.selection();
        if selection.is_everything() && !all {
            return Err(Failure::usage(format!(
                "say what to {what} (--app, --reason, --message-id, --older-than), or --all for everything"
            )));
        }
        Ok(selection)
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::List { limit } => {
            let bar = output.progress(Some(0), "looking");
            let report = admin::parked(settings, &topology, *limit, |at| follow(&bar, at));
            bar.finish_and_clear();
            list(&report?, output)
        }
        Command::Show { which, count, body_bytes } => {
            let mut messages = Vec::new();
            let (selection, size) = (which.selection(), (*count, *body_bytes));
            let sifted = admin::parked_messages(settings, &topology, &selection, size, |message| {
                messages.push(message);
            })?;
            show(&messages, &sifted, output)
        }
        Command::Replay { which, all } => {
            let selection = which.deliberate(*all, "replay")?;
            let stop = on_signal()?;
            let bar = output.progress(Some(0), "replaying");
            let sifted = admin::replay_parked(settings, &topology, &selection, &stop, |at| follow(&bar, at));
            bar.finish_and_clear();
            let sifted = sifted?;
            changed(&sifted, "sent on", sifted.sent, output)
        }
        Command::Discard { which, all } => {
            let selection = which.deliberate(*all, "discard")?;
            let stop = on_signal()?;
            let bar = output.progress(Some(0), "discarding");
            let sifted = admin::discard_parked(settings, &topology, &selection, &stop, |at| follow(&bar, at));
            bar.finish_and_clear();
            let sifted = sifted?;
            changed(&sifted, "discarded", sifted.discarded, output)
        }
    }
}

fn list(report: &ParkedReport, output: &mut Output) -> Result<Code, Failure> {
    let cut = Cut::new(report.withheld, report.failure.as_ref());
    let code = cut.code();
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let now = Timestamp::now();
    let age = |time: Option<Timestamp>| time.map_or_else(|| "?".into(), |time| age(now, time));
    if report.waiting == 0 {
        output.line("nothing is parked")?;
        return Ok(code);
    }
    let rows = report.groups.iter().map(|group| {
        vec![
            group.cause.app.clone().unwrap_or_else(|| "-".into()),
            escaped(&group.cause.reason),
            escaped(group.cause.failure.as_deref().unwrap_or("-")),
            group.group.count.to_string(),
            group.group.unreadable.to_string(),
            age(group.group.oldest),
            age(group.group.newest),
        ]
    });
    let header =
        ["app key", "parked because of", "last failure", ">messages", ">unreadable", ">oldest", ">newest"];
    output.line(table(&header, rows))?;
    if let Some(other) = &report.other {
        output.line(format!("and {} of other kinds", counted(other.count, "message")))?;
    }
    output.line(total(report.waiting, report.examined, cut, "parked"))?;
    if let Some(failure) = &report.failure {
        aside(format!("{} {failure}", "ended early:".red().bold()));
    }
    Ok(code)
}

fn show(messages: &[ParkedMessage], sifted: &Sifted, output: &mut Output) -> Result<Code, Failure> {
    for message in messages {
        if output.json {
            output.json(message)?;
            continue;
        }
        let failure = message.cause.failure.as_deref().unwrap_or("not noted");
        let head = format!("parked because of `{}`, last failure `{failure}`", message.cause.reason);
        output.line(format!("{} {}", "●".yellow(), escaped(&head).bold()))?;
        sample(&message.sample, output)?;
    }
    shown(!messages.is_empty(), sifted, output)
}
