//! `delayline schedule`

use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline_core::{
    codec::{AppKey, Delay},
    topology::Topology,
};
use delayline_schedules::{
    self as schedules, AllSchedules, Change, Changed, Missed, ScheduleChange, ScheduleDetails, ScheduleName,
    ScheduleSummary, Spec, State, Timing,
};
use delayline_settings::{Settings, read_bytes};

use crate::values;
use delayline_term::{
    Code, Failure, Output, consent::Consent, output::counted, output::dry_run, output::unchanged,
    table::table, text::readable, time,
};

/// How many occurrences `show` shows.
const OCCURRENCES: usize = 10;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline schedule add newsletter --app billing --cron '0 8 * * MON-FRI' --zone Europe/Berlin
  delayline schedule list
  delayline schedule show newsletter
  delayline schedule remove newsletter

`delayline serve` publishes the occurrences of the next hours ahead, as delayed messages, so
a daemon that stops for less misses nothing. docs/how-to/schedules.md has the details.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(crate) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Show(_))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a schedule, or change it
    #[command(after_help = "\
Examples:
  delayline schedule add newsletter --app billing --cron '0 8 * * MON-FRI' --zone Europe/Berlin
  delayline schedule add digest --app billing --cron @daily --body-file digest.json
  delayline schedule add heartbeat --app billing --every 15m --body ping
  delayline schedule add report --app billing --cron @monthly --missed all --missed-within 7d
  delayline schedule add billing/digest --every 1h   as the user of this application

If the schedule exists, it is changed: messages published ahead are recalled and replaced.
A local time that the clocks skip is right after the gap, one that they show twice is the
first of the two. An interval counts from --start, or else from 1970-01-01T00:00:00Z.")]
    Add(Box<Add>),
    /// List schedules, and when each is due next
    #[command(after_help = "\
Examples:
  delayline schedule list
  delayline schedule list --own billing         as the user of this application
  delayline schedule list --json | jq '.schedules[] | select(.state == \"paused\") | .schedule'")]
    List(List),
    /// Show a schedule, with its next ten occurrences
    #[command(after_help = "\
Examples:
  delayline schedule show newsletter
  delayline schedule show newsletter --json | jq -r '.occurrences[].utc'")]
    Show(Named),
    /// Publish nothing until it is resumed
    #[command(after_help = "\
Examples:
  delayline schedule pause newsletter

Messages published ahead are recalled, if messages of the application can be.")]
    Pause(Named),
    /// Publish again, from now on
    #[command(after_help = "\
Examples:
  delayline schedule resume newsletter

Occurrences during the pause are left out.")]
    Resume(Named),
    /// Publish its message once, now
    #[command(after_help = "\
Examples:
  delayline schedule run newsletter

The schedule goes on as before.")]
    Run(Named),
    /// Remove a schedule
    #[command(after_help = "\
Examples:
  delayline schedule remove newsletter --dry-run
  delayline schedule remove newsletter --yes

Messages published ahead are recalled, if messages of the application can be.")]
    Remove(Remove),
}

#[derive(Debug, clap::Args)]
struct List {
    /// Only those that this application manages itself
    #[arg(long, value_name = "APP", value_parser = values::app)]
    own: Option<AppKey>,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The schedule; APP/NAME if an application manages it itself
    #[arg(value_name = "NAME", value_parser = values::parsed::<ScheduleName>)]
    name: ScheduleName,
}

#[derive(Debug, clap::Args)]
struct Remove {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Add {
    #[command(flatten)]
    named: Named,
    /// The app key of the application that receives the messages [default: the APP of APP/NAME]
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: Option<AppKey>,
    /// Minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, @monthly
    #[arg(long, value_name = "CRON", conflicts_with = "every", required_unless_present = "every")]
    cron: Option<String>,
    /// The time zone of the expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    zone: Option<String>,
    /// An interval of 10s or more
    #[arg(long, value_name = "DURATION", value_parser = values::delay)]
    every: Option<Delay>,
    /// The body of the messages
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// A file with the body, of at most 64 KiB; `-` is standard input
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// Its MIME type
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// A header of the messages; repeatable
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// No occurrence before this time
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    start: Option<Timestamp>,
    /// No occurrence after this time
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    end: Option<Timestamp>,
    /// Make each message late by a different time, up to this
    #[arg(long, value_name = "DURATION", value_parser = values::delay)]
    jitter: Option<Delay>,
    /// What to do with occurrences that were not published in time: skip, once (only the last) or all
    #[arg(long, value_name = "POLICY", value_parser = values::parsed::<Missed>, default_value = "once")]
    missed: Missed,
    /// How much later these may be published [default: 1d]
    #[arg(long, value_name = "DURATION", value_parser = values::delay)]
    missed_within: Option<Delay>,
    /// How far ahead occurrences are published; two are in any case [default: 1d]
    #[arg(long, value_name = "DURATION", value_parser = values::delay)]
    ahead: Option<Delay>,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("write a header as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Add {
    fn spec(&self) -> Result<Spec, Failure> {
        let timing = Timing::new(self.cron.clone(), self.every, self.zone.clone()).map_err(Failure::usage)?;
        let app = self.app.clone().or_else(|| self.named.name.owner());
        let app =
            app.ok_or_else(|| Failure::usage("name the application that receives the messages with --app"))?;
        let mut spec = Spec::new(app, timing);
        (spec.start, spec.end, spec.missed) = (self.start, self.end, self.missed);
        spec.jitter = self.jitter.unwrap_or(spec.jitter);
        spec.missed_within = self.missed_within.unwrap_or(spec.missed_within);
        spec.ahead = self.ahead.unwrap_or(spec.ahead);
        spec.content_type.clone_from(&self.content_type);
        spec.headers.extend(self.headers.iter().cloned());
        spec.body = match &self.body_file {
            Some(file) => {
                read_bytes(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?
            }
            None => self.body.clone().unwrap_or_default().into_bytes(),
        };
        spec.check().map_err(Failure::usage)?;
        Ok(spec)
    }
}

/// The result of `schedule run`.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Ran<'a> {
    /// The schedule.
    schedule: &'a ScheduleName,
    /// The id of the message that was published.
    message_id: String,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let change = |name: &ScheduleName, change: Change<'_>, dry_run, output: &mut Output| {
        let change = || schedules::change(settings, &topology, name, change, dry_run);
        let changed = output.spinning("changing", change)?;
        show_change(settings, &changed, output)
    };
    match &args.command {
        Command::Add(args) => change(&args.named.name, Change::Set(&args.spec()?), args.dry_run, output),
        Command::Pause(Named { name }) => change(name, Change::Pause, false, output),
        Command::Resume(Named { name }) => change(name, Change::Resume, false, output),
        Command::Remove(args) => {
            let remove =
                |dry_run, output: &mut Output| change(&args.named.name, Change::Remove, dry_run, output);
            match args.consent.ask(output, |output| remove(true, output))? {
                Some(code) => Ok(code),
                None => remove(false, output),
            }
        }
        Command::Run(Named { name }) => {
            let message_id = schedules::run_now(settings, &topology, name)?;
            if output.json {
                output.json(&Ran { schedule: name, message_id })?;
            } else {
                output.line(format!("{} `{message_id}`", "published".green().bold()))?;
            }
            Ok(Code::Done)
        }
        Command::List(List { own }) => {
            show_list(settings, &schedules::list(settings, &topology, own.as_ref())?, output)
        }
        Command::Show(Named { name }) => {
            show(settings, &schedules::show(settings, &topology, name, OCCURRENCES)?, output)
        }
    }
}

/// The advice if no daemon publishes.
fn no_daemon(settings: &Settings, daemons: Option<u32>) -> Option<String> {
    let serve = settings.command(&["serve"]);
    (daemons == Some(0)).then(|| format!("{} no daemon publishes schedules; run `{serve}`", "!".yellow()))
}

fn show_change(settings: &Settings, change: &ScheduleChange, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(change)?;
        return Ok(Code::Done);
    }
    let word = match change.outcome {
        Changed::Added => "added",
        Changed::Changed => "changed",
        Changed::Unchanged => "",
        Changed::Paused => "paused",
        Changed::Resumed => "resumed",
        Changed::Removed => "removed",
    };
    let name = &change.schedule;
    let head = match (change.outcome, change.dry_run) {
        (Changed::Unchanged, _) => unchanged(),
        (_, true) => format!("{} would be {word}:", dry_run()),
        (_, false) => word.green().bold().to_string(),
    };
    let next = match change.next {
        Some(next) => format!(", due next at {}", time::date(next)),
        None if change.outcome == Changed::Added => ", which has no further occurrence".into(),
        None => String::new(),
    };
    output.line(format!("{head} schedule `{name}`{next}"))?;
    if change.outcome == Changed::Added && !change.recall {
        let ahead = "messages of this application cannot be recalled, so they are published 15 minutes ahead";
        output.line(format!("  {ahead} at most, and arrive after a pause, a change or a removal"))?;
    }
    if change.ahead > 0 && change.outcome != Changed::Unchanged {
        let messages = counted(change.ahead as u64, "message");
        let text = match (change.recall, change.recalled) {
            (false, _) => format!(
                "{messages} that were published ahead will arrive: messages of this application cannot be recalled"
            ),
            (true, Some(true)) => format!("{messages} that were published ahead are recalled"),
            (true, Some(false)) => format!("{messages} that were published ahead are not recalled yet"),
            (true, None) => format!("{messages} that were published ahead are recalled then"),
        };
        output.line(format!("  {text}"))?;
    }
    if let Some(advice) = no_daemon(settings, change.daemons) {
        output.line(advice)?;
    }
    Ok(Code::Done)
}

fn state(state: State) -> &'static str {
    match state {
        State::Active => "active",
        State::Paused => "paused",
        State::Removed => "removed",
    }
}

fn due(summary: &ScheduleSummary) -> String {
    match summary.next {
        Some(next) => time::date(next),
        None if summary.state == State::Active => "never".into(),
        None => "–".into(),
    }
}

fn show_list(settings: &Settings, list: &AllSchedules, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(list)?;
        return Ok(Code::Done);
    }
    if list.schedules.is_empty() {
        output.line(format!("set `{}` has no schedules", list.set))?;
        return Ok(Code::Done);
    }
    let rows = list.schedules.iter().map(|it| {
        let (name, times) = (it.schedule.to_string(), it.times.clone());
        vec![name, it.app.clone(), times, state(it.state).into(), due(it), it.ahead.to_string()]
    });
    output.line(table(&["schedule", "application", "times", "state", "due next", ">ahead"], rows))?;
    for it in &list.schedules {
        if let Some(fault) = &it.fault {
            output.line(format!("{} {}: {}", "problem".red().bold(), it.schedule, readable(fault)))?;
        }
    }
    if let Some(advice) = no_daemon(settings, list.daemons) {
        output.line(advice)?;
    }
    Ok(Code::Done)
}

fn show(settings: &Settings, details: &ScheduleDetails, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(details)?;
        return Ok(Code::Done);
    }
    let ScheduleDetails { summary, spec, occurrences, .. } = details;
    output.line(format!("schedule `{}`, {}", summary.schedule, state(summary.state)))?;
    let recall = if details.recall { "can be recalled" } else { "cannot be recalled" };
    let mut lines = vec![
        ("application", format!("{}; its messages {recall}", summary.app)),
        ("times", summary.times.clone()),
        ("ahead", format!("{}; {} now", spec.ahead, counted(summary.ahead as u64, "message"))),
        ("missed", format!("{}, within {}", spec.missed.as_str(), spec.missed_within)),
    ];
    lines.extend(spec.start.map(|start| ("start", time::date(start))));
    lines.extend(spec.end.map(|end| ("end", time::date(end))));
    lines.extend((spec.jitter != Delay::ZERO).then(|| ("jitter", spec.jitter.to_string())));
    let of_type = spec.content_type.as_ref().map(|it| format!(", {it}")).unwrap_or_default();
    lines.push(("body", format!("{}{of_type}", counted(spec.body.len() as u64, "byte"))));
    let headers = spec.headers.iter().map(|(name, value)| ("header", format!("{name}={value}")));
    lines.extend(headers);
    lines.extend(summary.fault.clone().map(|fault| ("problem", fault)));
    for (name, value) in lines {
        output.line(format!("  {name:<12} {}", readable(&value)))?;
    }
    if !occurrences.is_empty() {
        let rows = occurrences.iter().map(|it| vec![it.local.clone(), it.utc.to_string()]);
        output.line(table(&["due next", "in UTC"], rows))?;
    }
    if let Some(advice) = no_daemon(settings, details.daemons) {
        output.line(advice)?;
    }
    Ok(Code::Done)
}
