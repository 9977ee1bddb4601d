//! `delayline parked`

use clap::Subcommand;

use delayline_admin::{Kept, Selection};
use delayline_core::codec::Delay;
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    again::Again,
    args,
    kept::{self, Action, DryRun, Limit, Size, deliberate},
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
    /// Count parked messages, by application and reason
    #[command(after_help = "\
Examples:
  delayline parked list
  delayline parked list --limit 1000000 --json | jq '.groups'

Nothing is removed.")]
    List(Limit),
    /// Show single messages: key, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline parked show
  delayline parked show --app billing --reason expired --count 1
  delayline parked show --message-id 4711 --json")]
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        size: Size,
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
    #[command(
        visible_alias = "purge",
        after_help = "\
Examples:
  delayline parked discard --app billing --reason expired --dry-run
  delayline parked discard --older-than 30d
  delayline parked discard --all"
    )]
    Discard {
        #[command(flatten)]
        which: Which,
        /// Discard every message
        #[arg(long, conflicts_with_all = ["app", "reason", "message_id", "older_than"])]
        all: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    select: kept::Select,
    /// Only messages parked for this reason (attempts, age, expired, gave-up, unreadable), or
    /// whose last failure was this (rejected, …)
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only messages that have been here longer than this
    #[arg(long, value_name = "AGE", value_parser = args::delay)]
    older_than: Option<Delay>,
}

impl Which {
    fn selection(&self) -> Selection {
        let before = self.older_than.map(kept::ago);
        Selection { reason: self.reason.clone(), before, ..self.select.selection() }
    }

    fn deliberate(&self, all: bool, what: &str) -> Result<Selection, Failure> {
        let how = format!("{what} (--app, --reason, --message-id, --older-than)");
        deliberate(self.selection(), all, &how)
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let action = match &args.command {
        Command::List(limit) => Action::List(*limit),
        Command::Show { which, size } => Action::Show(which.selection(), *size),
        Command::Replay { which, all } => Action::Replay(which.deliberate(*all, "replay")?, true),
        Command::Discard { which, all, dry_run } => {
            Action::Discard(which.deliberate(*all, "discard")?, *dry_run)
        }
    };
    kept::run(&Kept::Parked, action, settings, output)
}
