//! `delayline scheduled`: messages that are not due yet.

mod answers;
pub(crate) mod journal;
mod list;
mod recall;
pub(crate) mod replace;
mod reschedule;
mod sweep;

pub(crate) use list::cut_off;
#[cfg(test)]
pub(crate) use {answers::Line, recall::Unknown, reschedule::Rescheduled};

use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;

use delayline_admin::{self as admin, CountBy, ScheduleFilter};
use delayline_core::{
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, time};

use journal::reading;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled list --app billing
  delayline scheduled list --app billing --due-before 2026-12-24T18:00 --limit 1000 --json
  delayline scheduled list --app billing --id invoice-17-1
  delayline scheduled show HANDLE
  delayline scheduled count --app billing --by day
  delayline scheduled recall --app billing --id invoice-17-1
  delayline scheduled reschedule HANDLE --delay 2h

A list needs a journal of the application (`app add --recall --journal 90d`), which has a
copy of each of its messages (docs/how-to/recall.md). The whole journal is read, and
nothing is removed from it.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List scheduled messages: due time, state, handle
    #[command(after_help = "\
Examples:
  delayline scheduled list --app billing
  delayline scheduled list --recalls            pending recalls, without a journal
  delayline scheduled list --app billing --due-after 18:00 --due-before 19:00
  delayline scheduled list --app billing --id invoice-17-1 --json | jq -r '.messages[].handle'

  waiting     it is delivered when it is due
  recalled    it was recalled and will not be delivered
  uncertain   it was recalled, but perhaps too late; `scheduled recall --wait` finds out
  due         it was due, and not recalled: with --due-after in the past

The earliest messages come first. With --json, the output is one object; `journal.cut_off`
is the number of older messages that the journal dropped at its limits of age and size.")]
    List(List),
    /// Show a message: state, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline scheduled show delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17-1
  delayline scheduled show HANDLE --json

The exit code is 1 if the journal does not contain the message.")]
    Show {
        /// The message
        #[arg(value_name = "HANDLE", value_parser = values::handle)]
        handle: Handle,
        /// Show the first N bytes of the body
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = values::whole::<usize>(0..))]
        body_bytes: usize,
    },
    /// Count the messages that are due in each minute, hour or day
    #[command(after_help = "\
Examples:
  delayline scheduled count --app billing --by hour
  delayline scheduled count --app billing --by minute --due-before 19:00 --json

Days begin and end in local time. A message that was published twice counts twice.")]
    Count {
        /// The application
        #[arg(long, value_name = "APP", value_parser = values::app)]
        app: AppKey,
        #[command(flatten)]
        due: Due,
        /// The length of each counted time
        #[arg(long, value_name = "UNIT", value_enum, default_value_t = By::Hour)]
        by: By,
    },
    /// Recall messages: they are not delivered
    Recall(recall::Recall),
    /// Undo recalls: the messages are delivered
    Unrecall(recall::Unrecall),
    /// Deliver a message at another time
    Reschedule(reschedule::Args),
    /// Remove recalls whose messages were due more than an hour ago
    Sweep(sweep::Args),
}

#[derive(Debug, clap::Args)]
struct List {
    /// The application; with --recalls, all by default
    #[arg(long, value_name = "APP", value_parser = values::app, required_unless_present = "recalls")]
    app: Option<AppKey>,
    #[command(flatten)]
    due: Due,
    /// Only messages with this id
    #[arg(long, value_name = "ID", value_parser = values::id)]
    id: Option<MessageId>,
    /// List at most N messages; the others are counted
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::whole::<usize>(0..))]
    limit: usize,
    /// List the pending recalls of the broker
    #[arg(long, conflicts_with_all = ["due_after", "due_before", "id"])]
    recalls: bool,
}

/// When messages are due.
#[derive(Debug, Clone, clap::Args)]
struct Due {
    /// Only messages that are due at this time or later [default: now]
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    due_after: Option<Timestamp>,
    /// Only messages that are due before this time
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    due_before: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Minute,
    Hour,
    Day,
}

impl Due {
    fn filter(&self) -> Result<ScheduleFilter, Failure> {
        time::in_order(self.due_after, self.due_before)?;
        Ok(ScheduleFilter::default().with_due_after(self.due_after).with_due_before(self.due_before))
    }
}

impl Args {
    /// Whether it changes nothing.
    pub(crate) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Show { .. } | Command::Count { .. })
    }
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::List(args) => match args.app.as_ref().filter(|_| !args.recalls) {
            None => sweep::list(&admin::pending_recalls(settings, &topology, args.app.as_ref())?, output),
            Some(app) => {
                let filter = args.due.filter()?.with_id(args.id.clone());
                let listed = reading(output, |stop, at| {
                    admin::list_scheduled(settings, &topology, app, &filter, args.limit, stop, at)
                })?;
                list::list(&listed, output)
            }
        },
        Command::Show { handle, body_bytes } => {
            let (found, journal) = reading(output, |stop, at| {
                admin::find_scheduled(settings, &topology, handle, *body_bytes, stop, at)
            })?;
            list::show((found.as_ref(), &journal), output)
        }
        Command::Count { app, due, by } => {
            let by = match by {
                By::Minute => CountBy::Minute,
                By::Hour => CountBy::Hour,
                By::Day => CountBy::Day,
            };
            let (filter, by) = (due.filter()?, (by, time::zone()));
            let counted = reading(output, |stop, at| {
                admin::count_scheduled(settings, &topology, app, &filter, by, stop, at)
            })?;
            list::count(&counted, output)
        }
        Command::Recall(args) => recall::recall(args, settings, &topology, output),
        Command::Unrecall(args) => recall::unrecall(args, settings, &topology, output),
        Command::Reschedule(args) => reschedule::run(args, settings, output),
        Command::Sweep(args) => sweep::run(args, settings, &topology, output),
    }
}
