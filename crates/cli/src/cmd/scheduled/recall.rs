//! `delayline scheduled recall` and `unrecall`

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline_admin::{self as admin, JournalRead, ScheduleFilter, ScheduleList};
use delayline_core::{
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, output::aside, output::grouped, time, time::date};

use super::{answers, journal::reading, list::cut_off};

/// The most messages that one run finds in a journal.
const AT_ONCE: usize = 100_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled recall delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17-1@1767222000000
  delayline scheduled recall --wait < handles.txt
  delayline scheduled recall --app billing --id invoice-17-1
  delayline scheduled recall --app billing --due-after 18:00 --due-before 19:00 --all

A handle is the routing key of a message with an id, and behind an `@` its due time;
`send --id` prints it. Without a due time, or with a due time that does not fit the delay in
the key, the result is uncertain. Standard input has one handle per line. All handles are
read before anything is done.

  recalled    bound 2 s or more before it is due: a message with this handle will not be
              delivered; `scheduled show` finds out whether the journal has one
  too late    it was due already, and no recall of it exists; nothing was changed
  uncertain   bound less than 2 s before it is due, or the due time is unknown, or an earlier
              recall is bound that may have been in time; --wait finds out where it went
  unknown     the journal of the application has no such message
  failed      the broker refused, and the reason is printed; the others are recalled

With --app, the messages are found in the application's journal (docs/how-to/recall.md), up to
100,000 at a time: by their id, including a waiting retry, or, with --all, all that are due
in the given time. Messages that were published without the journal are not found.

The exit code is 0 if all are recalled, 3 if any failed, and 1 otherwise.")]
pub(super) struct Recall {
    #[command(flatten)]
    which: Which,
    /// If an answer is uncertain or too late, find out where the message went once it is due
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled unrecall HANDLE
  delayline scheduled unrecall --app billing --id invoice-17-1
  delayline scheduled unrecall --app billing --all

If a message was due already and its recall was in time, it is among the recalled messages:
`delayline held replay --kind recalled` delivers it. The exit code is 0 if all recalls are
undone, 3 if any failed, and 1 otherwise.")]
pub(super) struct Unrecall {
    #[command(flatten)]
    which: Which,
}

/// Which messages.
#[derive(Debug, clap::Args)]
struct Which {
    /// The messages [default: read from standard input]
    #[arg(value_name = "HANDLE", value_parser = values::handle, conflicts_with_all = ["file", "app", "id", "all", "due_after", "due_before"])]
    handles: Vec<Handle>,
    /// Read handles from this file; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["app", "id", "all", "due_after", "due_before"])]
    file: Option<PathBuf>,
    /// Find them in the journal of this application
    #[arg(long, value_name = "APP", value_parser = values::app, requires = "which")]
    app: Option<AppKey>,
    /// The message with this id, and its retries
    #[arg(long, value_name = "ID", value_parser = values::id, requires = "app", group = "which")]
    id: Option<MessageId>,
    /// All messages that the journal has
    #[arg(long, requires = "app", group = "which")]
    all: bool,
    /// Only messages that are due at this time or later [default: now]
    #[arg(long, value_name = "TIME", value_parser = time::instant, requires = "all", conflicts_with = "id")]
    due_after: Option<Timestamp>,
    /// Only messages that are due before this time
    #[arg(long, value_name = "TIME", value_parser = time::instant, requires = "all", conflicts_with = "id")]
    due_before: Option<Timestamp>,
}

pub(super) fn recall(
    args: &Recall,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    change(&args.which, (false, args.wait), settings, topology, output)
}

pub(super) fn unrecall(
    args: &Unrecall,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    change(&args.which, (true, false), settings, topology, output)
}

fn change(
    which: &Which,
    (undo, wait): (bool, bool),
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let (handles, left) = match &which.app {
        Some(app) => match journalled(which, undo, app, settings, topology, output)? {
            Ok(found) => found,
            Err(code) => return Ok(code),
        },
        None if which.handles.is_empty() => (typed(which.file.as_deref())?, 0),
        None => (which.handles.clone(), 0),
    };
    answers::All { settings, topology, undo, wait }.change(handles, left, output)
}

/// The handles in an application's journal, and how many more messages are not changed; or the failed
/// search.
fn journalled(
    args: &Which,
    undo: bool,
    app: &AppKey,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Result<(Vec<Handle>, u64), Code>, Failure> {
    time::in_order(args.due_after, args.due_before)?;
    // Messages that were due are found as well, to report that it is too late.
    let after = if args.id.is_some() { Some(Timestamp::UNIX_EPOCH) } else { args.due_after };
    let mut filter = ScheduleFilter::default()
        .with_id(args.id.clone())
        .with_due_after(after)
        .with_due_before(args.due_before);
    // Each run takes the next ones.
    if args.all && !undo {
        filter = filter.not_recalled();
    }
    let found = reading(output, |stop, at| {
        admin::list_scheduled(settings, topology, app, &filter, AT_ONCE, stop, at)
    })?;
    if found.journal.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    let now = Timestamp::now();
    let mut handles: Vec<_> = found.messages.iter().filter_map(|it| it.recallable(now)).collect();
    let without = (found.messages.len() - handles.len()) as u64;
    // The next run would find the same ones.
    let over = args.due_after.is_some_and(|after| after < now);
    let again = undo || over || without > 0 || !found.unchecked.is_empty();
    if args.all && found.more > 0 && again {
        return Err(Failure::usage(format!(
            "the journal has {} more than the {} that one run takes, and nothing was done; take fewer with \
             --due-after and --due-before",
            grouped(found.more),
            grouped(AT_ONCE as u64)
        )));
    }
    if args.id.is_some() {
        // A retry is a message that was due before: the waiting message counts.
        let waits = |handle: &Handle| handle.due().is_none_or(|due| due > now);
        match handles.iter().any(waits) {
            true => handles.retain(waits),
            false => drop(handles.drain(..handles.len().saturating_sub(1))),
        }
    }
    if handles.is_empty() && without == 0 {
        unknown(args, &found, output)?;
        return Ok(Err(Code::Problem));
    }
    if undo && args.id.is_some() && handles.len() > 1 {
        output.problem("nothing was changed: several messages with this id wait. Pass a handle:")?;
        for handle in &handles {
            let due = handle.due().map_or_else(|| "unknown".into(), date);
            aside(format!("{} (due {due})", handle.routing_key().encode()));
        }
        return Ok(Err(Code::Problem));
    }
    if args.id.is_some() {
        return Ok(Ok((handles, 0)));
    }
    for (count, what) in
        [(found.more, "more are left for the next run"), (without, "have no id, and cannot be recalled")]
    {
        if count > 0 {
            aside(format!("{} {what}", grouped(count)));
        }
    }
    Ok(Ok((handles, found.more + without)))
}

/// The journal of the application has no such message.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Unknown {
    /// The journal knows none.
    handle: (),
    /// The journal knows none.
    due: (),
    /// The id of the search; `None` with `--all`.
    id: Option<String>,
    #[schemars(extend("const" = "unknown"))]
    answer: &'static str,
    /// How many older messages the journal dropped at its limits.
    cut_off: u64,
    /// Whether the limits dropped all messages. Then `cut_off` is 0, since their number is unknown.
    emptied: bool,
}

/// Reports that the journal does not contain the messages to recall, and the limits of its contents.
fn unknown(args: &Which, found: &ScheduleList, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        let id = args.id.as_ref().map(ToString::to_string);
        let JournalRead { cut_off, emptied, .. } = found.journal;
        output.json(&Unknown { handle: (), due: (), id, answer: "unknown", cut_off, emptied })?;
        return Ok(());
    }
    let what = args.id.as_ref().map_or_else(|| "such messages".into(), |id| format!("`{id}`"));
    output.line(format!(
        "{}   the journal of `{}` does not contain {what}",
        "unknown".yellow(),
        found.app
    ))?;
    if let Some(what) = cut_off(&found.journal) {
        output.line(format!("it has dropped {what} at its limits of age and size"))?;
    }
    Ok(())
}

/// Handles from a file or from standard input, one to a line.
fn typed(file: Option<&Path>) -> Result<Vec<Handle>, Failure> {
    let file = file.filter(|file| *file != Path::new("-"));
    if file.is_none() && io::stdin().is_terminal() {
        aside("reading handles from the terminal; Ctrl-D ends them");
    }
    let input: Box<dyn BufRead> = match file {
        Some(file) => {
            let unreadable = |error| Failure::usage(format!("{}: {error}", file.display()));
            Box::new(BufReader::new(File::open(file).map_err(unreadable)?))
        }
        None => Box::new(io::stdin().lock()),
    };
    let (mut handles, mut wrong) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(input.lines()) {
        let line = line?;
        match values::handle(line.trim()) {
            _ if line.trim().is_empty() => {}
            Ok(handle) => handles.push(handle),
            Err(reason) => wrong.push(format!("line {number}: {reason}")),
        }
    }
    match (wrong.as_slice(), handles.is_empty()) {
        ([], true) => {
            Err(Failure::usage("there are no handles: pass them as arguments, or on standard input"))
        }
        ([], false) => Ok(handles),
        (wrong, _) => Err(Failure::usage(format!("nothing was done\n{}", wrong.join("\n")))),
    }
}
