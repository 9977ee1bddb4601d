//! `delayline recall`

use std::{
    collections::BTreeMap,
    io::{self, BufRead, IsTerminal},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde::Serialize;

use delayline::{
    codec::{AppKey, MessageId},
    message::Handle,
    recall::{Answer, MARGIN, RecallError, Recaller},
    topology::Topology,
};
use delayline_admin::{
    self as admin, AdminError, Kept, PendingRecall, ScheduleFilter, ScheduleList, ScheduledMessage,
    SweepOptions, SweepReport, drain::DrainError,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    ending::on_signal,
    output::{aside, at, counted, dry_run, grouped, unchanged},
    table::table,
    time::{self, date},
};

/// The most messages that one run finds in a journal.
const AT_ONCE: usize = 100_000;

/// How long after it was due a message is looked for, at most, and how often.
const LATE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline recall delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17@1767222000000
  delayline recall --undo HANDLE
  delayline recall --wait < handles.txt
  delayline recall --app billing --id invoice-17
  delayline recall --app billing --due-after 18:00 --due-before 19:00 --all
  delayline recall --pending --app billing
  delayline recall --sweep --dry-run

A handle is the routing key that a message with an id was published with, and behind an
`@` the time when it is due; `send` prints it. Without that time, nobody can say whether a
recall is in good time. Handles on standard input stand one to a line, and are all read
before anything is done.

  recalled    bound 2 s or more before it is due: it will not be delivered
  too late    it was due already, and as far as can be seen, no recall is bound; nothing
              was changed
  uncertain   bound less than 2 s before it is due, or nobody knows when that is, or an
              earlier recall is bound that may have been in time; --wait looks where it went

  unknown     the journal of the application has no such message

With --app, the messages are found in the application's journal (docs/recall.md), up to
100,000 at a time: by their id, which finds a waiting retry as well, or, with --all, all
that are due then. What was published without the journal is not found.

The exit code is 1 unless all are recalled. `--sweep` removes the recalls of messages that
were due more than an hour ago, if that is safe now; run it once a day.")]
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

/// What came of one handle.
#[derive(Debug, Serialize)]
struct Line {
    handle: String,
    due: Option<Timestamp>,
    answer: &'static str,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    if args.pending {
        let pending = admin::pending_recalls(settings, &topology, args.app.as_ref())?;
        return list(&pending, output);
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
    let stop = on_signal()?;
    let mut harmless = BTreeMap::new();
    let mut recaller = Recaller::connect(settings.broker.clone(), settings.topology.set.clone())?;
    let (mut done, mut open) = (0_u64, left);
    let mut interrupted = false;
    for handle in handles {
        if stop.load(Ordering::Relaxed) {
            return Ok(Code::Interrupted);
        }
        let (handle, answer) = match args.undo {
            true => (handle.clone(), recaller.undo(&handle)?),
            false => {
                let answer = recaller.recall(&handle)?;
                let looks = args.wait
                    && answer != Answer::InTime
                    && *harmless
                        .entry(handle.app().clone())
                        .or_insert_with(|| is_harmless(handle.app(), settings, &topology));
                let answer = match looks && is_aside(&mut recaller, &handle, &stop)? {
                    true => Answer::InTime,
                    false => doubted(answer, &handle, settings, &topology),
                };
                // It would have looked longer.
                interrupted = looks && answer != Answer::InTime && stop.load(Ordering::Relaxed);
                (handle, answer)
            }
        };
        let in_time = answer == Answer::InTime;
        done += u64::from(in_time);
        open += u64::from(!in_time);
        show(&handle, answer, args.undo, output)?;
    }
    if interrupted {
        return Ok(Code::Interrupted);
    }
    if !output.json && done + open > 1 {
        let what = if args.undo { "undone" } else { "recalled" };
        output.line(format!("{} {what}, {} not or not certainly", grouped(done), grouped(open)))?;
    }
    Ok(if open == 0 { Code::Done } else { Code::Problem })
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
    let stop = on_signal()?;
    let found = output.following("reading the journal", |bar| {
        admin::list_scheduled(settings, topology, app, &filter, AT_ONCE, &stop, |read, all| {
            at(bar, read, all);
        })
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
        }))?;
        return Ok(());
    }
    let what = args.id.as_ref().map_or_else(|| "such messages".into(), |id| format!("`{id}`"));
    output.line(format!("{}   the journal of `{}` does not have {what}", "unknown".yellow(), found.app))?;
    if found.journal.cut_off > 0 {
        output.line(format!(
            "{} are no longer in it, because of its limits of age and size",
            counted(found.journal.cut_off, "older message")
        ))?;
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

/// Whether looking for a message among the recalled ones takes none away.
fn is_harmless(app: &AppKey, settings: &Settings, topology: &Topology) -> bool {
    match Kept::Recalled(app.clone()).check(settings, topology) {
        Err(
            error @ AdminError::Drain(DrainError::DeliveryLimit { .. } | DrainError::UnknownLimit { .. }),
        ) => {
            aside(format!("where messages of `{app}` went is not looked at: {error}"));
            false
        }
        // What else is wrong, looking says.
        _ => true,
    }
}

/// An earlier run, whose answer was lost perhaps, may have been in time, as far as that can be
/// seen.
fn doubted(answer: Answer, handle: &Handle, settings: &Settings, topology: &Topology) -> Answer {
    match answer {
        Answer::TooLate if admin::is_recall_bound(settings, topology, handle).unwrap_or(false) => {
            Answer::Uncertain
        }
        answer => answer,
    }
}

/// Whether a message is among the recalled ones once it is due, or when somebody ends us.
fn is_aside(recaller: &mut Recaller, handle: &Handle, stop: &AtomicBool) -> Result<bool, Failure> {
    let left =
        |until: Timestamp| Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
    let Some(due) = handle.due() else { return Ok(recaller.is_recalled(handle)?) };
    while !left(due).is_zero() && !stop.load(Ordering::Relaxed) {
        thread::sleep(left(due).min(LOOK_EVERY));
    }
    let end = due.saturating_add(MARGIN + LATE).unwrap_or(Timestamp::MAX);
    loop {
        if recaller.is_recalled(handle)? {
            return Ok(true);
        }
        if left(end).is_zero() || stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn show(handle: &Handle, answer: Answer, undo: bool, output: &mut Output) -> Result<(), Failure> {
    let (word, shown) = match (answer, undo) {
        (Answer::InTime, false) => ("recalled", "recalled ".green().to_string()),
        (Answer::InTime, true) => ("undone", "undone   ".green().to_string()),
        (Answer::TooLate, _) => ("too-late", "too late ".red().to_string()),
        _ => ("uncertain", "uncertain".yellow().to_string()),
    };
    let key = handle.routing_key().encode();
    if output.json {
        return Ok(output.json(&Line { handle: key, due: handle.due(), answer: word })?);
    }
    let due = handle.due().map_or_else(|| "unknown".into(), date);
    Ok(output.line(format!("{shown} {key} (due {due})"))?)
}

fn list(pending: &[PendingRecall], output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(&serde_json::json!({ "pending": pending }))?;
        return Ok(Code::Done);
    }
    if pending.is_empty() {
        output.line("no recall is pending")?;
        return Ok(Code::Done);
    }
    let due = |it: &PendingRecall| it.due.map_or_else(|| "unknown".into(), date);
    let rows = pending.iter().map(|it| vec![it.app.clone(), due(it), it.handle.clone()]);
    output.line(table(&["app key", "due at the latest", "handle"], rows))?;
    output.line(format!("{} pending", counted(pending.len() as u64, "recall")))?;
    Ok(Code::Done)
}

fn swept(report: &SweepReport, output: &mut Output) -> Result<Code, Failure> {
    let code = if report.interrupted { Code::Interrupted } else { Code::Done };
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
    Ok(code)
}

impl From<RecallError> for Failure {
    fn from(error: RecallError) -> Self {
        Self::new(Code::Broker, error)
    }
}
