//! `delayline unroutable`

use clap::Subcommand;

use delayline_admin::{Kept, Layout, Reason, Selection};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    again::Again,
    kept::{self, Action, DryRun, Limit, Size, deliberate},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline unroutable list
  delayline unroutable show --app billing --count 3
  delayline unroutable replay --app billing
  delayline unroutable discard --reason malformed
  delayline unroutable list --layout nservicebus

With --layout, the messages are those that the guard of another layout keeps
(`delayline guard`), and an app key is the destination of that layout.")]
pub(super) struct Args {
    /// Instead of the set: what the guard of this layout keeps (nservicebus, celery,
    /// celery:PREFIX)
    #[arg(long, global = true, value_name = "LAYOUT")]
    layout: Option<Layout>,
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Show { .. })
    }

    /// Whether to look again and again.
    pub(super) fn again(&self) -> Again {
        match &self.command {
            Command::List(limit) => limit.again,
            _ => Again::default(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count unroutable messages, by app key and reason
    #[command(after_help = "\
Examples:
  delayline unroutable list
  delayline unroutable list --limit 1000000 --json | jq '.groups'

Nothing is removed. Brokers do not record when a message became unroutable, so the times
come from the messages themselves: the last dead-lettering, or else when the message was
due.")]
    List(Limit),
    /// Show single messages: key, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline unroutable show
  delayline unroutable show --reason malformed --count 1
  delayline unroutable show --message-id 4711 --body-bytes 100000 --json")]
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        size: Size,
    },
    /// Send messages on again, once an application is bound for them
    #[command(after_help = "\
Examples:
  delayline unroutable replay --app billing
  delayline unroutable replay --message-id 4711
  delayline unroutable replay --all

Each message is removed only after the broker has confirmed its copy, so none is lost
whatever happens. If the command is killed, messages in flight may arrive twice. Ctrl-C
stops it cleanly; run it again to continue. Malformed messages, and messages for which no
application is bound, stay.")]
    Replay {
        #[command(flatten)]
        which: Which,
        /// Replay every message
        #[arg(long, conflicts_with_all = ["app", "reason", "message_id"])]
        all: bool,
        /// Also send on messages that nobody is bound for, which then come back: the management
        /// API is not asked who is bound
        #[arg(long)]
        unbound: bool,
    },
    /// Discard messages for good
    #[command(
        visible_alias = "purge",
        after_help = "\
Examples:
  delayline unroutable discard --reason malformed --dry-run
  delayline unroutable discard --app gone
  delayline unroutable discard --all"
    )]
    Discard {
        #[command(flatten)]
        which: Which,
        /// Discard every message
        #[arg(long, conflicts_with_all = ["app", "reason", "message_id"])]
        all: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    select: kept::Select,
    /// Only messages with this reason: nobody-bound, malformed, not-passed-on, foreign
    #[arg(long, value_name = "REASON")]
    reason: Option<Reason>,
}

impl Which {
    fn selection(&self) -> Selection {
        Selection { reason: self.reason.map(|reason| reason.to_string()), ..self.select.selection() }
    }

    fn deliberate(&self, all: bool, what: &str) -> Result<Selection, Failure> {
        deliberate(self.selection(), all, &format!("{what} (--app, --reason, --message-id)"))
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let action = match &args.command {
        Command::List(limit) => Action::List(*limit),
        Command::Show { which, size } => Action::Show(which.selection(), *size),
        Command::Replay { which, all, unbound } => {
            Action::Replay(which.deliberate(*all, "replay")?, !unbound)
        }
        Command::Discard { which, all, dry_run } => {
            Action::Discard(which.deliberate(*all, "discard")?, *dry_run)
        }
    };
    let kept = args.layout.clone().map_or(Kept::Unroutable, Kept::Guarded);
    kept::run(&kept, action, settings, output)
}
