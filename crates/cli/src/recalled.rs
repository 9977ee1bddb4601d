//! `delayline recalled`

use clap::Subcommand;

use delayline_admin::{Kept, Selection, recallable_apps};
use delayline_core::{
    codec::{AppKey, Delay, MessageId},
    topology::Topology,
};
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
  delayline recalled list
  delayline recalled show --app billing --id invoice-17-1
  delayline recalled replay --app billing --id invoice-17-1
  delayline recalled discard --app billing --older-than 7d --dry-run

A message comes here when it is due, not when it is recalled: `delayline recall --pending`
lists what was recalled and still waits.")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        matches!(self.command, Command::List { .. } | Command::Show { .. })
    }

    /// Whether to look again and again.
    pub(super) fn again(&self) -> Again {
        match &self.command {
            Command::List { limit, .. } => limit.again,
            _ => Again::default(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count recalled messages, by application
    #[command(after_help = "\
Examples:
  delayline recalled list
  delayline recalled list --app billing --json | jq '.groups'

Nothing is removed. Without --app it needs the management API.")]
    List {
        /// Only those of this application
        #[arg(long, value_name = "KEY", value_parser = args::app)]
        app: Option<AppKey>,
        #[command(flatten)]
        limit: Limit,
    },
    /// Show single messages: key, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline recalled show --app billing
  delayline recalled show --app billing --id invoice-17-1 --json")]
    Show {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        size: Size,
    },
    /// Send messages to their application after all
    #[command(after_help = "\
Examples:
  delayline recalled replay --app billing --id invoice-17-1
  delayline recalled replay --app billing --all

They arrive at once, with the id they had. Each message is removed only after the broker
has confirmed its copy, so none is lost whatever happens. If the command is killed, messages
in flight may arrive twice. Ctrl-C stops it cleanly; run it again to continue.")]
    Replay {
        #[command(flatten)]
        which: Which,
        /// Replay every message of the application
        #[arg(long, conflicts_with_all = ["id", "message_id", "older_than"])]
        all: bool,
    },
    /// Discard messages for good
    #[command(
        visible_alias = "purge",
        after_help = "\
Examples:
  delayline recalled discard --app billing --older-than 7d --dry-run
  delayline recalled discard --app billing --all"
    )]
    Discard {
        #[command(flatten)]
        which: Which,
        /// Discard every message of the application
        #[arg(long, conflicts_with_all = ["id", "message_id", "older_than"])]
        all: bool,
        #[command(flatten)]
        dry_run: DryRun,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The application
    #[arg(long, value_name = "KEY", value_parser = args::app)]
    app: AppKey,
    /// Only messages that were published with this id
    #[arg(long, value_name = "ID", value_parser = args::id)]
    id: Option<MessageId>,
    /// Only messages with this property message_id
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,
    /// Only messages that have been here longer than this
    #[arg(long, value_name = "AGE", value_parser = args::delay)]
    older_than: Option<Delay>,
}

impl Which {
    fn kept(&self) -> Kept {
        Kept::Recalled(self.app.clone())
    }

    fn selection(&self) -> Selection {
        let before = self.older_than.map(kept::ago);
        let (id, message_id) = (self.id.clone(), self.message_id.clone());
        Selection { id, message_id, before, ..Selection::default() }
    }

    fn deliberate(&self, all: bool, what: &str) -> Result<Selection, Failure> {
        deliberate(self.selection(), all, &format!("{what} (--id, --message-id, --older-than)"))
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let (which, action) = match &args.command {
        Command::List { app, limit } => {
            let apps = match app {
                Some(app) => vec![app.clone()],
                None => recallable_apps(settings, &Topology::new(settings.topology.clone()))?,
            };
            let all: Vec<_> = apps.into_iter().map(Kept::Recalled).collect();
            return kept::list(&all, kept::Words::RECALLED, *limit, settings, output);
        }
        Command::Show { which, size } => (which, Action::Show(which.selection(), *size)),
        Command::Replay { which, all } => (which, Action::Replay(which.deliberate(*all, "replay")?, true)),
        Command::Discard { which, all, dry_run } => {
            (which, Action::Discard(which.deliberate(*all, "discard")?, *dry_run))
        }
    };
    kept::run(&which.kept(), action, settings, output)
}
