//! `delayline held`: messages that a set holds until an operator decides: unroutable, parked and
//! recalled messages.

mod print;

pub(crate) use print::sample;
#[cfg(test)]
pub(crate) use print::{Discarded, OfKind};

use clap::{Subcommand, ValueEnum};
use indicatif::ProgressBar;
use jiff::Timestamp;

use delayline_admin::{Kept, KeptReport, Layout, Reason, Selection, drain::Progress, recallable_apps};
use delayline_core::{
    codec::{AppKey, Delay, MessageId},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{again::Again, values};
use delayline_term::{Code, Failure, Output, consent::Consent, ending::on_signal, output, output::aside};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline held list
  delayline held show --kind parked --app billing --limit 3
  delayline held replay --kind unroutable --app billing
  delayline held discard --kind parked --older-than 30d
  delayline held list --layout nservicebus

  unroutable   no queue is bound for its app key, or its routing key is malformed
  parked       used up its attempts or its time
  recalled     was recalled, and has been due since

With --layout, the messages are those that the guard of a layout keeps (`delayline guard`),
and an app key is a destination of that layout.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(crate) fn looks(&self) -> bool {
        matches!(self.command, Command::List { .. } | Command::Show { .. })
    }

    /// Whether to look again and again.
    pub(crate) fn again(&self) -> Again {
        match &self.command {
            Command::List { again, .. } => *again,
            _ => Again::default(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count held messages, by application and reason
    #[command(after_help = "\
Examples:
  delayline held list
  delayline held list --kind recalled --app billing
  delayline held list --kind parked --examine 1000000 --json | jq '.groups'

Nothing is removed. Without --kind, there is a table for each kind, and with --json one
object. Brokers do not record when a message became unroutable, so the times come from the
messages themselves: the last dead-lettering, or else the due time. To list the recalled
messages of all applications, the command needs the management API.")]
    List {
        #[command(flatten)]
        which: Kinds,
        /// Only recalled messages of this application
        #[arg(long, value_name = "APP", value_parser = values::app)]
        app: Option<AppKey>,
        /// Examine the first N messages of each kind
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = values::whole::<u64>(0..))]
        examine: u64,
        #[command(flatten)]
        again: Again,
    },
    /// Show held messages: key, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline held show --kind unroutable --reason malformed --limit 1
  delayline held show --kind parked --app billing --reason expired
  delayline held show --kind recalled --app billing --id invoice-17-1
  delayline held show --kind parked --message-id 4711 --body-bytes 100000 --json")]
    Show {
        #[command(flatten)]
        which: Which,
        /// Show at most N messages
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = values::whole::<usize>(0..))]
        limit: usize,
        /// Show the first N bytes of each body
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = values::whole::<usize>(0..))]
        body_bytes: usize,
    },
    /// Send held messages to their applications again
    #[command(after_help = "\
Examples:
  delayline held replay --kind unroutable --app billing
  delayline held replay --kind parked --app billing --reason timeout
  delayline held replay --kind recalled --app billing --id invoice-17-1
  delayline held replay --kind unroutable --all

Each message is removed only after the broker has confirmed its copy, so none is lost. If the
command is killed, messages in flight may arrive twice. Ctrl-C stops it cleanly; run it again
to continue. Malformed messages, and messages without a bound queue, stay. Parked messages
have all their attempts again; recalled messages arrive at once, with their id.")]
    Replay {
        #[command(flatten)]
        which: Which,
        /// Replay every message
        #[arg(long, conflicts_with_all = SELECTING)]
        all: bool,
        /// Also send on unroutable messages that no queue is bound for, which then come back: the
        /// management API is not asked
        #[arg(long)]
        unbound: bool,
    },
    /// Discard held messages for good
    #[command(after_help = "\
Examples:
  delayline held discard --kind unroutable --reason malformed --dry-run
  delayline held discard --kind parked --older-than 30d
  delayline held discard --kind recalled --app billing --older-than 7d
  delayline held discard --kind parked --all --yes     without a question, for scripts")]
    Discard {
        #[command(flatten)]
        which: Which,
        /// Discard every message
        #[arg(long, conflicts_with_all = SELECTING)]
        all: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

/// The flags that select messages.
const SELECTING: [&str; 4] = ["id", "message_id", "reason", "older_than"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Unroutable,
    Parked,
    Recalled,
}

#[derive(Debug, clap::Args)]
struct Kinds {
    /// Which messages
    #[arg(long, value_name = "KIND")]
    kind: Option<Kind>,
    /// Instead of a set: the messages that the guard of this layout keeps (nservicebus,
    /// nservicebus:v1, celery, celery:PREFIX)
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<Layout>,
}

#[derive(Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    kinds: Kinds,
    /// Only messages for this application
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: Option<AppKey>,
    /// Only recalled messages that were published with this id
    #[arg(long, value_name = "ID", value_parser = values::id)]
    id: Option<MessageId>,
    /// Only messages with this property message_id
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,
    /// Only messages with this reason, as in `held list`, or with this last failure
    #[arg(long, value_name = "REASON")]
    reason: Option<String>,
    /// Only parked or recalled messages that have been here longer than this, by a time
    /// that the broker or delayline recorded; others are kept
    #[arg(long, value_name = "DURATION", value_parser = values::delay)]
    older_than: Option<Delay>,
}

impl Kinds {
    /// The one kind that they name.
    fn one(&self, app: Option<&AppKey>) -> Result<Kept, Failure> {
        match (self.kind, &self.layout, app) {
            (None | Some(Kind::Unroutable), Some(layout), _) => Ok(Kept::Guarded(layout.clone())),
            (Some(_), Some(_), _) => {
                Err(Failure::usage("a guard keeps unroutable messages only; leave out --kind"))
            }
            (Some(Kind::Unroutable), None, _) => Ok(Kept::Unroutable),
            (Some(Kind::Parked), None, _) => Ok(Kept::Parked),
            (Some(Kind::Recalled), None, Some(app)) => Ok(Kept::Recalled(app.clone())),
            (Some(Kind::Recalled), None, None) => {
                Err(Failure::usage("each application has recalled messages of its own; use --app APP"))
            }
            (None, None, _) => Err(Failure::usage(
                "there is no kind; use --kind unroutable, parked or recalled, or --layout",
            )),
        }
    }

    /// All that they name, each kind with its queues.
    fn all(
        &self,
        app: Option<&AppKey>,
        settings: &Settings,
        topology: &Topology,
    ) -> Result<Vec<(Kind, Vec<Kept>)>, Failure> {
        let recalled = || {
            let apps = match app {
                Some(app) => vec![app.clone()],
                None => recallable_apps(settings, topology)?,
            };
            Ok::<_, Failure>((Kind::Recalled, apps.into_iter().map(Kept::Recalled).collect()))
        };
        match (self.kind, &self.layout) {
            (Some(Kind::Recalled), None) => Ok(vec![recalled()?]),
            (None, None) if app.is_some() => Ok(vec![recalled()?]),
            (None, None) => {
                let of_set = [(Kind::Unroutable, vec![Kept::Unroutable]), (Kind::Parked, vec![Kept::Parked])];
                let recalled = settings.management.is_some().then(recalled).transpose()?;
                if recalled.is_none() {
                    aside("not checked: recalled messages, without the management API; use --app APP");
                }
                Ok(of_set.into_iter().chain(recalled).collect())
            }
            (Some(_), None) if app.is_some() => Err(Failure::usage(
                "--app lists recalled messages only; the lists of other kinds name every app",
            )),
            (kind, _) => Ok(vec![(kind.unwrap_or(Kind::Unroutable), vec![self.one(None)?])]),
        }
    }
}

impl Which {
    fn kept(&self) -> Result<Kept, Failure> {
        let kept = self.kinds.one(self.app.as_ref())?;
        let refused = match kept {
            Kept::Recalled(_) if self.reason.is_some() => Some("--reason"),
            Kept::Unroutable | Kept::Guarded(_) if self.older_than.is_some() => Some("--older-than"),
            Kept::Unroutable | Kept::Guarded(_) | Kept::Parked if self.id.is_some() => Some("--id"),
            _ => None,
        };
        match refused {
            Some(flag) => Err(Failure::usage(format!("{flag} does not select {} messages", kept.as_str()))),
            None => Ok(kept),
        }
    }

    fn selection(&self, kept: &Kept) -> Result<Selection, Failure> {
        let recalled = matches!(kept, Kept::Recalled(_));
        if let (Kept::Unroutable | Kept::Guarded(_), Some(reason)) = (kept, &self.reason) {
            reason.parse::<Reason>().map_err(|error| Failure::usage(format!("--reason: {error}")))?;
        }
        Ok(Selection {
            app: self.app.clone().filter(|_| !recalled),
            id: self.id.clone(),
            message_id: self.message_id.clone(),
            reason: self.reason.clone(),
            before: self.older_than.map(ago),
        })
    }

    /// The selection of a command that changes something: everything only with `all`.
    fn deliberate(&self, kept: &Kept, all: bool, what: &str) -> Result<Selection, Failure> {
        let selection = self.selection(kept)?;
        match selection.is_everything() && !all {
            true => Err(Failure::usage(format!(
                "name the messages to {what} (--app, --id, --message-id, --reason, --older-than), or use --all \
                 for all {} messages",
                kept.as_str()
            ))),
            false => Ok(selection),
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::List { which, app, examine, .. } => {
            let kinds = which.all(app.as_ref(), settings, &topology)?;
            let mut worst = Code::Done;
            for (kind, all) in kinds {
                let report = output.following("looking", |bar| {
                    all.iter().try_fold(KeptReport::new((0, 0), Vec::new()), |report, kept| {
                        let left = examine.saturating_sub(report.examined);
                        kept.list(settings, &topology, left, |at| follow(bar, at))
                            .map(|next| report.and(next))
                    })
                })?;
                worst = worst.or(print::list(kind.words(), &report, output)?);
            }
            Ok(worst)
        }
        Command::Show { which, limit, body_bytes } => {
            let kept = which.kept()?;
            let selection = which.selection(&kept)?;
            let (mut messages, size) = (Vec::new(), (*limit, *body_bytes));
            let drained = kept.messages(settings, &topology, &selection, size, |it| messages.push(it))?;
            print::show(&kept, &messages, &drained, output)
        }
        Command::Replay { which, all, unbound } => {
            let kept = which.kept()?;
            let selection = which.deliberate(&kept, *all, "replay")?;
            let stop = on_signal()?;
            let done = output.following("replaying", |bar| {
                kept.replay(settings, &topology, &selection, !unbound, &stop, |at| follow(bar, at))
            });
            match done? {
                Ok(report) => print::replayed(&kept, &report, settings, output),
                Err(refusal) => Err(Failure::new(Code::Problem, refusal)),
            }
        }
        Command::Discard { which, all, consent } => {
            let kept = which.kept()?;
            let selection = which.deliberate(&kept, *all, "discard")?;
            let plan = |output: &mut Output| {
                let stop = on_signal()?;
                let (selected, drained) = output.following("counting", |bar| {
                    kept.count_selected(settings, &topology, &selection, &stop, |at| follow(bar, at))
                })?;
                print::would_discard(selected, &drained, output)
            };
            if let Some(code) = consent.ask(output, plan)? {
                return Ok(code);
            }
            let stop = on_signal()?;
            let drained = output.following("discarding", |bar| {
                kept.discard(settings, &topology, &selection, &stop, |at| follow(bar, at))
            })?;
            print::discarded(&drained, output)
        }
    }
}

/// The time that is so long ago.
fn ago(age: Delay) -> Timestamp {
    let age = jiff::SignedDuration::from_secs(age.seconds().into());
    Timestamp::now().saturating_sub(age).unwrap_or(Timestamp::MIN)
}

pub(crate) fn follow(bar: &ProgressBar, at: Progress) {
    output::at(bar, at.settled, at.total);
}
