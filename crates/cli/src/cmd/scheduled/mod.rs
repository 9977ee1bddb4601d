//! `delayline scheduled`: messages that are not due yet.

mod answers;
mod daemon;
pub(crate) mod journal;
mod list;
mod recall;
pub(crate) mod replace;
mod reschedule;
mod search;
mod sweep;

pub(crate) use list::cut_off;
#[cfg(test)]
pub(crate) use {
    answers::Line, recall::Unknown, reschedule::NotRescheduled, reschedule::Rescheduled, search::Preview,
};

use std::sync::atomic::AtomicBool;

use clap::{Subcommand, ValueEnum};
use delayline_admin::{self as admin, CountBy, FoundMessage, ScheduleList};
use delayline_core::{codec::AppKey, message::Handle, topology::Topology};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, time};

use daemon::Daemon;
use journal::reading;
use search::Filter;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled list --app billing
  delayline scheduled list --app billing --due-before 2026-12-24T18:00 --limit 1000 --json
  delayline scheduled show --app billing --header customer=C-4
  delayline scheduled count --by app
  delayline scheduled recall --app billing --header customer=C-4
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
  delayline scheduled list --app billing --header customer=C-4 --skip 50
  delayline scheduled list --app billing --id invoice-17-1 --json | jq -r '.messages[].handle'

  waiting     it is delivered when it is due
  recalled    it was recalled and will not be delivered
  uncertain   it was recalled, but perhaps too late; `scheduled recall --wait` finds out
  due         it was due, and not recalled: with --due-after in the past

The earliest messages come first. With --json, the output is one object; `journal.cut_off`
is the number of older messages that the journal dropped at its limits of age and size.")]
    List(List),
    /// Show messages: state, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline scheduled show delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17-1
  delayline scheduled show --app billing --header customer=C-4 --limit 3
  delayline scheduled show HANDLE --json

The messages that are due first come first. The exit code is 1 if the journal has no such
message.")]
    Show(Show),
    /// Count scheduled messages by minute, hour, day or application
    #[command(after_help = "\
Examples:
  delayline scheduled count --app billing --by hour
  delayline scheduled count --app billing --by minute --due-before 19:00 --json
  delayline scheduled count --by app --header customer=C-4

Days begin and end in local time. A message that was published twice counts twice. Without
--app, `--by app` counts each application that has a journal; this needs the management API.")]
    Count(Count),
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
    filter: Filter,
    /// List at most N messages; the others are counted
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = values::whole::<usize>(0..))]
    limit: usize,
    /// Leave out the first N messages
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole::<usize>(0..))]
    skip: usize,
    /// List the pending recalls of the broker
    #[arg(long, conflicts_with_all = ["due_after", "due_before", "id", "header", "skip"])]
    recalls: bool,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// The message
    #[arg(value_name = "HANDLE", value_parser = values::handle, required_unless_present = "app",
        conflicts_with_all = ["app", "due_after", "due_before", "id", "header", "limit", "skip"])]
    handle: Option<Handle>,
    /// Show messages of this application
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: Option<AppKey>,
    #[command(flatten)]
    filter: Filter,
    /// Show at most N messages
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = values::whole::<usize>(0..))]
    limit: usize,
    /// Leave out the first N messages
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole::<usize>(0..))]
    skip: usize,
    /// Show the first N bytes of each body
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = values::whole::<usize>(0..))]
    body_bytes: usize,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Args)]
struct Count {
    /// The application
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: Option<AppKey>,
    #[command(flatten)]
    filter: Filter,
    /// Count each minute, hour, day or application separately
    #[arg(long, value_name = "UNIT", value_enum, default_value_t = By::Hour)]
    by: By,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Minute,
    Hour,
    Day,
    App,
}

impl Args {
    /// Whether it changes nothing.
    pub(crate) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Show(_) | Command::Count(_))
    }
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::List(args) => match args.app.as_ref().filter(|_| !args.recalls) {
            None => sweep::list(&admin::pending_recalls(settings, &topology, args.app.as_ref())?, output),
            Some(app) => {
                let filter = args.filter.admin()?;
                let range = args.skip..args.skip.saturating_add(args.limit);
                let ask = args.daemon.ask(settings);
                let listed = ask.list(app, &args.filter, range.clone(), output, |stop, at| {
                    admin::list_scheduled(settings, &topology, app, &filter, range, stop, at)
                })?;
                list::list(&listed, output)
            }
        },
        Command::Show(args) => show(args, settings, &topology, output),
        Command::Count(args) => count(args, settings, &topology, output),
        Command::Recall(args) => recall::recall(args, settings, &topology, output),
        Command::Unrecall(args) => recall::unrecall(args, settings, &topology, output),
        Command::Reschedule(args) => reschedule::run(args, settings, &topology, output),
        Command::Sweep(args) => sweep::run(args, settings, &topology, output),
    }
}

fn show(args: &Show, settings: &Settings, topology: &Topology, output: &mut Output) -> Result<Code, Failure> {
    let mut found = Vec::new();
    let ask = args.daemon.ask(settings);
    let contents = |list: &ScheduleList, found: &mut Vec<FoundMessage>| {
        let (app, stop) = (AppKey::new(&list.app).map_err(Failure::usage)?, AtomicBool::new(false));
        admin::read_scheduled((settings, topology, &app), list, args.body_bytes, &stop, |mut message| {
            // Only its beginning is shown.
            message.body = Vec::new();
            found.push(message);
            Ok::<_, Failure>(())
        })
    };
    let known = args.handle.as_ref().and_then(|handle| ask.find(handle));
    let journal = match (known, &args.handle, &args.app) {
        (Some(list), ..) => {
            contents(&list, &mut found)?;
            list.journal
        }
        (None, Some(handle), _) => {
            let (one, journal) = reading(output, |stop, at| {
                admin::find_scheduled(settings, topology, handle, args.body_bytes, stop, at)
            })?;
            found.extend(one);
            journal
        }
        (None, None, Some(app)) => {
            let filter = args.filter.admin()?;
            let range = args.skip..args.skip.saturating_add(args.limit);
            let list = ask.list(app, &args.filter, range.clone(), output, |stop, at| {
                admin::list_scheduled(settings, topology, app, &filter, range, stop, at)
            })?;
            contents(&list, &mut found)?;
            list.journal
        }
        (None, None, None) => return Err(Failure::usage("pass a HANDLE, or use --app")),
    };
    found.sort_by_key(|it| it.message.due);
    list::show((&found, &journal), output)
}

fn count(
    args: &Count,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let filter = args.filter.admin()?;
    let ask = args.daemon.ask(settings);
    let by = match args.by {
        By::Minute => CountBy::Minute,
        By::Hour => CountBy::Hour,
        By::Day => CountBy::Day,
        By::App => {
            let counts = ask.count("app", args.app.as_ref(), &args.filter, output, |stop, at| {
                admin::count_apps(settings, topology, args.app.as_ref(), &filter, stop, at)
            })?;
            return list::apps(&counts, output);
        }
    };
    let Some(app) = &args.app else {
        return Err(Failure::usage("name the application with --app; `--by app` counts all"));
    };
    let counted = ask.count(by.as_str(), Some(app), &args.filter, output, |stop, at| {
        admin::count_scheduled(settings, topology, app, &filter, (by, time::zone()), stop, at)
    })?;
    list::count(&counted, output)
}
