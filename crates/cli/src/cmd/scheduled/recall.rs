//! `delayline scheduled recall` and `unrecall`

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
    path::{Path, PathBuf},
};

use owo_colors::OwoColorize;

use delayline_admin::{JournalRead, ScheduleList};
use delayline_core::{codec::MessageId, message::Handle, topology::Topology};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, output::aside};

use super::{
    answers,
    list::told,
    search::{Change, SEARCHING, Search},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline scheduled recall delay.0000.0000.0000.0000.0000.0101.1010.billing.~.17-1@1767222000000
  delayline scheduled recall --wait < handles.txt
  delayline scheduled recall --app billing --id invoice-17-1
  delayline scheduled recall --app billing --due-after 18:00 --due-before 19:00 --dry-run
  delayline scheduled recall --app billing --header customer=C-4 --yes

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
100,000 at a time. The command shows them and asks, except with --id alone, which means one
message and its waiting retry. Messages without an id cannot be recalled.

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
  delayline scheduled unrecall --app billing --header customer=C-4 --dry-run

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
    #[arg(value_name = "HANDLE", value_parser = values::handle, conflicts_with_all = SEARCHING)]
    #[arg(conflicts_with = "file")]
    handles: Vec<Handle>,
    /// Read handles from this file; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = SEARCHING)]
    file: Option<PathBuf>,
    #[command(flatten)]
    search: Search,
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
    let (handles, left) = match &which.search.app {
        Some(app) => {
            let change = if undo { Change::Unrecall } else { Change::Recall };
            match which.search.select(change, app, (settings, topology), output)? {
                Ok(found) => (found.handles, found.left),
                Err(code) => return Ok(code),
            }
        }
        None => {
            which.search.refuse_dry_run()?;
            let typed = which.handles.is_empty().then(|| typed(which.file.as_deref())).transpose()?;
            (typed.unwrap_or_else(|| which.handles.clone()), 0)
        }
    };
    answers::All { settings, topology, undo, wait }.change(handles, left, output)
}

/// The journal of the application has no such message.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Unknown {
    /// The journal knows none.
    handle: (),
    /// The journal knows none.
    due: (),
    /// The id of the search; `None` if there was none.
    id: Option<String>,
    #[schemars(extend("const" = "unknown"))]
    answer: &'static str,
    /// How many older messages the journal dropped at its limits.
    cut_off: u64,
    /// Whether the limits dropped all messages. Then `cut_off` is 0, since their number is unknown.
    emptied: bool,
    /// How many messages were left out because their headers cannot be read, if headers select.
    unreadable: u64,
}

/// Reports that the journal does not contain the messages to change, and the limits of its contents.
pub(super) fn unknown(
    id: Option<&MessageId>,
    found: &ScheduleList,
    output: &mut Output,
) -> Result<(), Failure> {
    if output.json {
        let id = id.map(ToString::to_string);
        let JournalRead { cut_off, emptied, unreadable, .. } = found.journal;
        output.json(&Unknown { handle: (), due: (), id, answer: "unknown", cut_off, emptied, unreadable })?;
        return Ok(());
    }
    let what = id.map_or_else(|| "such messages".into(), |id| format!("`{id}`"));
    output.line(format!(
        "{}   the journal of `{}` does not contain {what}",
        "unknown".yellow(),
        found.app
    ))?;
    told(&found.journal, output)
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
