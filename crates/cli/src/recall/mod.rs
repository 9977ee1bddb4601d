//! `delayline recall`

mod answers;

use std::io::{self, BufRead, IsTerminal};

use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline_admin::{
    self as admin, PendingRecall, PendingRecalls, ScheduleFilter, ScheduleList, ScheduledMessage,
    SweepOptions, SweepReport,
};
use delayline_core::{
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    ending::on_signal,
    journal::reading,
    output::{aside, counted, dry_run, grouped, unchanged},
    scheduled::cut_off,
    table::table,
    time::{self, date},
};

/// The most messages that one run finds in a journal.
const AT_ONCE: usize = 100_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline recall delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17-1@1767222000000
  delayline recall --undo HANDLE
  delayline recall --wait < handles.txt
  delayline recall --app billing --id invoice-17-1
  delayline recall --app billing --due-after 18:00 --due-before 19:00 --all
  delayline recall --pending --app billing
  delayline recall --sweep --dry-run

A handle is the routing key that a message with an id was published with, and behind an
`@` the time when it is due; `send --id` prints it. Without that time, or with one that the
delay in its key rules out, nobody can say whether a recall is in good time. Handles on
standard input stand one to a line, and are all read before anything is done.

  recalled    bound 2 s or more before it is due: it will not be delivered
  too late    it was due already, and as far as can be seen, no recall is bound; nothing
              was changed
  uncertain   bound less than 2 s before it is due, or nobody knows when that is, or an
              earlier recall is bound that may have been in time; --wait looks where it went
  unknown     the journal of the application has no such message
  failed      the broker refused, and says why; the others are done all the same

With --app, the messages are found in the application's journal (docs/recall.md), up to
100,000 at a time: by their id, which finds a waiting retry as well, or, with --all, all
that are due then. What was published without the journal is not found.

The exit code is 0 if all are recalled, 3 if one failed, and 1 otherwise. --sweep removes
the recalls of messages that were due more than an hour ago, if that is safe now; run it
once a day.")]
pub(super) struct Args {
    /// The messages [default: read from standard input]
    #[arg(value_name = "HANDLE", value_parser = args::handle, conflicts_with_all = ["sweep", "pending", "app", "id", "all", "due_after", "due_before", "dry_run"])]
    handles: Vec<Handle>,
    /// Undo the recall: the messages will be delivered
    #[arg(long, conflicts_with_all = ["sweep", "pending"])]
    undo: bool,
    /// Where an answer is uncertain or too late, look where the message went once it is due
    #[arg(long, conflicts_with_all = ["undo", "sweep", "pending"])]
    wait: bool,
    /// List the recalls that are pending
    #[arg(long, conflicts_with = "sweep", group = "which")]
    pending: bool,
    /// Find them in the journal of this application; with --pending, list only its recalls
    #[arg(long, value_name = "KEY", value_parser = args::app, requires = "which")]
    app: Option<AppKey>,
    /// The message with this id, and its retries
    #[arg(long, value_name = "ID", value_parser = args::id, requires = "app", group = "which")]
    id: Option<MessageId>,
    /// All messages that the journal has
    #[arg(long, requires = "app", group = "which")]
    all: bool,
    /// Only what is due at this time or later [default: now]
    #[arg(long, value_name = "TIME", value_parser = time::instant, requires = "all", conflicts_with_all = ["pending", "id"])]
    due_after: Option<Timestamp>,
    /// Only what is due before this time
    #[arg(long, value_name = "TIME", value_parser = time::instant, requires = "all", conflicts_with_all = ["pending", "id"])]
    due_before: Option<Timestamp>,
    // The parser forgets that a flag requires another one if any flag given conflicts with that
    // one. So each of these conflicts with all that the required one conflicts with.
    /// Remove recalls whose messages are over
    #[arg(long, conflicts_with_all = ["app", "id", "all", "due_after", "due_before"])]
    sweep: bool,
    /// Only show what would be removed
    #[arg(long, requires = "sweep", conflicts_with_all = ["undo", "wait", "pending", "app"])]
    dry_run: bool,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        self.pending
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    if args.pending {
        return list(&admin::pending_recalls(settings, &topology, args.app.as_ref())?, output);
    }
    if args.sweep {
        let mut options = SweepOptions::default();
        options.dry_run = args.dry_run;
        let stop = on_signal()?;
        let sweep = || admin::sweep_recalls(settings, &topology, &options, &stop);
        return swept(&output.spinning("sweeping", sweep)?, output);
    }
    let (handles, left) = match &args.app {
        Some(app) => match journalled(args, app, settings, &topology, output)? {
            Ok(found) => found,
            Err(code) => return Ok(code),
        },
        None if args.handles.is_empty() => (typed()?, 0),
        None => (args.handles.clone(), 0),
    };
    let all = answers::All { settings, topology: &topology, undo: args.undo, wait: args.wait };
    all.change(handles, left, output)
}

/// The handles that an application's journal has, and how many more messages there are that
/// are left as they are; or what the search ended with.
fn journalled(
    args: &Args,
    app: &AppKey,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Result<(Vec<Handle>, u64), Code>, Failure> {
    time::in_order(args.due_after, args.due_before)?;
    // What was due is found as well, to say that it is too late.
    let after = if args.id.is_some() { Some(Timestamp::UNIX_EPOCH) } else { args.due_after };
    let mut filter = ScheduleFilter::default()
        .with_id(args.id.clone())
        .with_due_after(after)
        .with_due_before(args.due_before);
    // Each run takes the next ones.
    if args.all && !args.undo {
        filter = filter.not_recalled();
    }
    let found = reading(output, |stop, at| {
        admin::list_scheduled(settings, topology, app, &filter, AT_ONCE, stop, at)
    })?;
    if found.journal.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    let parsed = |it: &ScheduledMessage| it.handle.parse::<Handle>().ok();
    let mut handles: Vec<_> = found.messages.iter().filter_map(parsed).collect();
    let without = (found.messages.len() - handles.len()) as u64;
    // The next run would find the same ones.
    let over = args.due_after.is_some_and(|after| after < Timestamp::now());
    let again = args.undo || over || without > 0 || !found.unchecked.is_empty();
    if args.all && found.more > 0 && again {
        return Err(Failure::usage(format!(
            "the journal has {} more than the {} that one run takes, and nothing was done; take fewer with \
             --due-after and --due-before",
            grouped(found.more),
            grouped(AT_ONCE as u64)
        )));
    }
    if args.id.is_some() {
        // A retry is a message that was due before: the one that waits counts.
        let now = Timestamp::now();
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
    if args.undo && args.id.is_some() && handles.len() > 1 {
        output.problem("several messages with this id wait, and nothing was changed; name one of them:")?;
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

/// Says that the journal does not have what is to be recalled, and what it does not know.
fn unknown(args: &Args, found: &ScheduleList, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        let id = args.id.as_ref().map(ToString::to_string);
        output.json(&serde_json::json!({
            "handle": null, "due": null, "id": id, "answer": "unknown", "cut_off": found.journal.cut_off,
            "emptied": found.journal.emptied,
        }))?;
        return Ok(());
    }
    let what = args.id.as_ref().map_or_else(|| "such messages".into(), |id| format!("`{id}`"));
    output.line(format!("{}   the journal of `{}` does not have {what}", "unknown".yellow(), found.app))?;
    if let Some(what) = cut_off(&found.journal) {
        output.line(format!("its limits of age and size have cut off {what} from it"))?;
    }
    Ok(())
}

/// Handles from standard input, one to a line.
fn typed() -> Result<Vec<Handle>, Failure> {
    if io::stdin().is_terminal() {
        aside("reading handles from the terminal; Ctrl-D ends them");
    }
    let (mut handles, mut wrong) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(io::stdin().lock().lines()) {
        let line = line?;
        match args::handle(line.trim()) {
            _ if line.trim().is_empty() => {}
            Ok(handle) => handles.push(handle),
            Err(reason) => wrong.push(format!("line {number}: {reason}")),
        }
    }
    match (wrong.as_slice(), handles.is_empty()) {
        ([], true) => Err(Failure::usage("there are no handles: name them, or write them to standard input")),
        ([], false) => Ok(handles),
        (wrong, _) => Err(Failure::usage(format!("nothing was done\n{}", wrong.join("\n")))),
    }
}

fn list(report: &PendingRecalls, output: &mut Output) -> Result<Code, Failure> {
    output.report(report, |report, output| {
        let pending = &report.pending;
        if pending.is_empty() {
            output.line("no recall is pending")?;
        } else {
            let due = |it: &PendingRecall| it.due.map_or_else(|| "unknown".into(), date);
            let rows = pending.iter().map(|it| vec![it.app.clone(), due(it), it.handle.clone()]);
            output.line(table(&["app key", "due at the latest", "handle"], rows))?;
            output.line(format!("{} pending", counted(pending.len() as u64, "recall")))?;
        }
        report.unchecked.iter().try_for_each(|why| Ok(output.line(not_checked(why))?))
    })?;
    Ok(if report.unchecked.is_empty() { Code::Done } else { Code::Problem })
}

fn not_checked(why: &str) -> String {
    format!("{} {why}", "not checked:".yellow().bold())
}

fn swept(report: &SweepReport, output: &mut Output) -> Result<Code, Failure> {
    let code = match report.interrupted {
        true => Code::Interrupted,
        false if !report.unchecked.is_empty() => Code::Problem,
        false => Code::Done,
    };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let verb = if report.dry_run { "would be removed" } else { "removed" };
    let number = |number: usize| grouped(number as u64);
    let head = match (report.dry_run, report.swept + report.noted + report.undone) {
        (true, _) => format!("{} ", dry_run()),
        (false, 0) => format!("{} ", unchanged()),
        (false, _) => String::new(),
    };
    output.line(format!(
        "{head}{}: {} {verb}, {} still needed",
        counted(report.recalls as u64, "recall"),
        number(report.swept),
        number(report.recalls - report.swept - report.left)
    ))?;
    if report.noted > 0 {
        let verb = if report.dry_run { "would be noted" } else { "was noted" };
        output.line(format!("for {} it {verb} when they can go", number(report.noted)))?;
    }
    if report.undone > 0 {
        let verb = if report.dry_run { "would be removed" } else { "were removed" };
        output.line(format!("the notes of {} {verb}", counted(report.undone as u64, "undone recall")))?;
    }
    if report.left > 0 {
        output.line(format!("{} more are over, and left for the next run", number(report.left)))?;
    }
    if let Some(reason) = &report.postponed {
        output.line(format!("{} {reason}", "postponed:".yellow().bold()))?;
    }
    if report.odd > 0 {
        output.line(format!("{} have a key that no message can have", number(report.odd)))?;
    }
    report.unchecked.values().try_for_each(|why| output.line(not_checked(why)))?;
    Ok(code)
}
