//! `delayline scheduled`

use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline_admin::{
    self as admin, CountBy, JournalRead, ScheduleCount, ScheduleFilter, ScheduleList, ScheduleState,
};
use delayline_core::{
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args, findings,
    journal::reading,
    kept::{printable_line, sample},
    output::{counted, grouped},
    table::table,
    time::{self, date},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled list --app billing
  delayline scheduled list --app billing --due-before 2026-12-24T18:00 --limit 1000 --json
  delayline scheduled list --app billing --id invoice-17-1
  delayline scheduled show HANDLE
  delayline scheduled count --app billing --by day

The application needs a journal (`app add --recall --journal 90d`). Only messages that were
published with a copy for it are listed (`send --journal`; docs/recall.md). The whole journal
is read, and nothing is taken out of it.")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List what is due when, what was recalled, and what is uncertain
    #[command(after_help = "\
Examples:
  delayline scheduled list --app billing
  delayline scheduled list --app billing --due-after 18:00 --due-before 19:00
  delayline scheduled list --app billing --id invoice-17-1 --json | jq -r '.messages[].handle'

  waiting     it is delivered when it is due
  recalled    it was recalled and will not be delivered
  uncertain   it was recalled, but is or was due so soon that only looking tells whether that
              was in time (`recall --wait`)
  due         it was due, and not recalled: with --due-after in the past

The earliest come first. With --json it is one object; `journal.cut_off` says how many older
messages the journal's limits of age and size have cut off.")]
    List {
        #[command(flatten)]
        which: Which,
        /// Only messages with this id
        #[arg(long, value_name = "ID", value_parser = args::id)]
        id: Option<MessageId>,
        /// List at most N messages; the others are counted
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = args::whole::<usize>(0..))]
        limit: usize,
    },
    /// Show a message: state, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline scheduled show delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17-1
  delayline scheduled show HANDLE --json

The exit code is 1 if the journal does not have it.")]
    Show {
        /// The message
        #[arg(value_name = "HANDLE", value_parser = args::handle)]
        handle: Handle,
        /// Show the first N bytes of the body
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = args::whole::<usize>(0..))]
        body_bytes: usize,
    },
    /// Count what is due in each minute, hour or day
    #[command(after_help = "\
Examples:
  delayline scheduled count --app billing --by hour
  delayline scheduled count --app billing --by minute --due-before 19:00 --json

Days begin and end in local time. A message that was published twice counts twice.")]
    Count {
        #[command(flatten)]
        which: Which,
        /// How long the time is that is counted together
        #[arg(long, value_name = "UNIT", value_enum, default_value_t = By::Hour)]
        by: By,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Which {
    /// The application
    #[arg(long, value_name = "KEY", value_parser = args::app)]
    app: AppKey,
    /// Only what is due at this time or later [default: now]
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    due_after: Option<Timestamp>,
    /// Only what is due before this time
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    due_before: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    Minute,
    Hour,
    Day,
}

impl Which {
    fn filter(&self) -> Result<ScheduleFilter, Failure> {
        time::in_order(self.due_after, self.due_before)?;
        Ok(ScheduleFilter::default().with_due_after(self.due_after).with_due_before(self.due_before))
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::List { which, id, limit } => {
            let (app, filter) = (&which.app, which.filter()?.with_id(id.clone()));
            let listed = reading(output, |stop, at| {
                admin::list_scheduled(settings, &topology, app, &filter, *limit, stop, at)
            })?;
            list(&listed, output)
        }
        Command::Show { handle, body_bytes } => {
            let (found, journal) = reading(output, |stop, at| {
                admin::find_scheduled(settings, &topology, handle, *body_bytes, stop, at)
            })?;
            let code = match &found {
                _ if journal.interrupted => Code::Interrupted,
                Some(_) => Code::Done,
                None => Code::Problem,
            };
            match found {
                Some(found) if output.json => output.json(&found)?,
                Some(found) => {
                    let state = coloured(found.message.state);
                    let due = found.message.due.map_or_else(|| "unknown".into(), date);
                    output.line(format!("{state} due {due}"))?;
                    output.line(format!("  handle       {}", found.message.handle))?;
                    if found.message.copies > 1 {
                        output.line(format!("  published    {} times", grouped(found.message.copies)))?;
                    }
                    for reason in &found.unchecked {
                        output.line(format!("  not checked  {reason}"))?;
                    }
                    sample(&found.sample, output)?;
                }
                None if output.json => {}
                None => {
                    output.line("the journal does not have it")?;
                    told(&journal, output)?;
                }
            }
            Ok(code)
        }
        Command::Count { which, by } => {
            let by = match by {
                By::Minute => CountBy::Minute,
                By::Hour => CountBy::Hour,
                By::Day => CountBy::Day,
            };
            let (app, filter, by) = (&which.app, which.filter()?, (by, time::zone()));
            let counted = reading(output, |stop, at| {
                admin::count_scheduled(settings, &topology, app, &filter, by, stop, at)
            })?;
            count(&counted, output)
        }
    }
}

fn code(journal: &JournalRead) -> Code {
    if journal.interrupted { Code::Interrupted } else { Code::Done }
}

fn coloured(state: ScheduleState) -> String {
    match state {
        ScheduleState::Waiting => state.as_str().green().to_string(),
        ScheduleState::Uncertain => state.as_str().yellow().to_string(),
        ScheduleState::Recalled => state.as_str().red().to_string(),
        _ => state.as_str().to_owned(),
    }
}

fn list(list: &ScheduleList, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(list)?;
        return Ok(code(&list.journal));
    }
    let number = |number: u32| if number == 0 { String::new() } else { grouped(number.into()) };
    let rows = list.messages.iter().map(|it| {
        let handle = match it.copies {
            0 | 1 => printable_line(&it.handle),
            copies => format!("{} (published {copies} times)", printable_line(&it.handle)),
        };
        let due = it.due.map_or_else(|| "unknown".into(), date);
        // Without colours, which the table would give room.
        vec![
            due,
            it.state.as_str().to_owned(),
            number(it.attempt),
            grouped(it.bytes.unwrap_or(0) as u64),
            handle,
        ]
    });
    if list.messages.is_empty() && list.more == 0 {
        output.line(format!(
            "nothing like that is scheduled for `{}`, as far as its journal knows",
            list.app
        ))?;
    } else {
        output.line(table(&["due", "state", ">retry", ">bytes", "handle"], rows))?;
        let more = match list.more {
            0 => String::new(),
            more => format!("; {} more are not listed (--limit)", grouped(more)),
        };
        output.line(format!(
            "{} waiting, {} recalled, {} uncertain{more}",
            grouped(list.waiting),
            grouped(list.recalled),
            grouped(list.uncertain)
        ))?;
    }
    undated(list.undated, output)?;
    ending(&list.journal, &list.unchecked, output)
}

fn count(count: &ScheduleCount, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(count)?;
        return Ok(code(&count.journal));
    }
    if count.slots.is_empty() {
        output.line(format!("nothing is scheduled for `{}`, as far as its journal knows", count.app))?;
    } else {
        let rows = count.slots.iter().map(|it| {
            let number = |number: u64| if number == 0 { String::new() } else { grouped(number) };
            vec![date(it.from), number(it.waiting), number(it.recalled), number(it.uncertain), number(it.due)]
        });
        output.line(table(&["from", ">waiting", ">recalled", ">uncertain", ">was due"], rows))?;
    }
    if count.later > 0 {
        output.line(format!("{} are due later, and not counted apart", counted(count.later, "message")))?;
    }
    undated(count.undated, output)?;
    ending(&count.journal, &count.unchecked, output)
}

fn undated(undated: u64, output: &mut Output) -> Result<(), Failure> {
    if undated > 0 {
        output.line(format!(
            "{} do not say when they are due (header delayline-due), and are listed only by --id",
            counted(undated, "message")
        ))?;
    }
    Ok(())
}

fn ending(journal: &JournalRead, unchecked: &[String], output: &mut Output) -> Result<Code, Failure> {
    told(journal, output)?;
    findings::unchecked(unchecked, output)?;
    Ok(code(journal))
}

/// What the limits of a journal have cut off, if they have.
pub(crate) fn cut_off(journal: &JournalRead) -> Option<String> {
    match journal.cut_off {
        _ if journal.emptied => Some("all older messages".into()),
        0 => None,
        count => Some(counted(count, "older message")),
    }
}

/// What a journal does not tell.
fn told(journal: &JournalRead, output: &mut Output) -> Result<(), Failure> {
    if let Some(what) = cut_off(journal) {
        output.line(format!(
            "{} its limits of age and size have cut off {what} from the journal; those that still wait are not \
             listed",
            "!".yellow(),
        ))?;
    }
    if journal.odd > 0 {
        output.line(format!(
            "{} {} of the journal are no delayed messages of this application, and are delivered nowhere: \
             their routing key is wrong",
            "!".yellow(),
            counted(journal.odd, "message")
        ))?;
    }
    if journal.interrupted {
        output.line(format!("interrupted after {}", counted(journal.read, "message")))?;
    }
    Ok(())
}
