//! `delayline transfer`

use std::path::PathBuf;

use owo_colors::OwoColorize;

use delayline_admin::{
    self as admin, Evidence, Layout, TransferLevel, TransferOptions, TransferReport, TransferSource, named,
};
use delayline_core::{shell::command, topology::SetName};
use delayline_settings::{Layers, Settings};

use crate::values;
use delayline_term::{
    Code, Failure, Output, change, ending::on_signal, output::at, output::counted, output::dry_run,
    output::grouped, table::table, text, text::readable,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline transfer delay later --dry-run      from the set `delay` to the set `later`
  delayline transfer delay later --rate 2000
  delayline transfer delay delay --to-vhost new
  delayline transfer delay delay --to-config other-broker.toml
  delayline transfer nservicebus delay          the messages of NServiceBus' levels
  delayline transfer celery delay --allow-late

Moves waiting messages with their remaining delay. Stop all publishers of the source first,
or messages keep arriving. Each message is removed only after the destination has confirmed
its copy. If the command is killed and run again, up to 256 messages arrive twice and none is
lost. None is early. The remaining delay is computed from the header delayline-due, from the
time at which the message left the level before (x-death), or from the headers of NServiceBus
and Celery. If it is unknown, the message stays, or restarts its level's wait (--allow-late).

FROM is a set, nservicebus, nservicebus:v1, celery or celery:PREFIX, and TO is a set; write a set with the
name of a layout as set:nservicebus. The command needs the source's management API, and on
RabbitMQ 4.0 and newer the tag `policymaker`: there, examining a message uses up deliveries
unless a policy prevents it. Exits with 1 if any message stays.")]
pub(crate) struct Args {
    /// The set or layout to move messages from
    #[arg(value_name = "FROM")]
    from: From,
    /// The set to move them to
    #[arg(value_name = "TO", value_parser = destination_set)]
    to: SetName,
    /// Move to this vhost of the same broker
    #[arg(long, value_name = "NAME", conflicts_with = "to_config")]
    to_vhost: Option<String>,
    /// Move to the broker of this settings file
    #[arg(long, value_name = "FILE")]
    to_config: Option<PathBuf>,
    /// Also move messages with an unknown remaining delay; they restart their level's wait, so they may
    /// be late by up to that wait
    #[arg(long)]
    allow_late: bool,
    /// Also move messages that would be unroutable at the destination
    #[arg(long)]
    unbound: bool,
    /// Also move messages with an id, whose old handles become invalid; recalled messages stay
    #[arg(long)]
    new_handles: bool,
    /// Move at most N messages a second
    #[arg(long, value_name = "N", value_parser = values::whole::<u32>(1..=1_000_000))]
    rate: Option<u32>,
    /// Only show what would be done. Examines the first 1,000 messages of each level; those in
    /// quorum queues of RabbitMQ 4.0 and newer are only counted, since examining uses up deliveries
    #[arg(long)]
    dry_run: bool,
}

/// What messages are moved from.
#[derive(Debug, Clone)]
enum From {
    Set(SetName),
    Layout(Layout),
}

impl std::str::FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(layout) = text.parse() {
            return Ok(Self::Layout(layout));
        }
        set(text).map(Self::Set).map_err(|error| {
            format!("{error}; or use `nservicebus`, `nservicebus:v1`, `celery` or `celery:PREFIX`")
        })
    }
}

/// The name of a set, alone or behind `set:`.
fn set(text: &str) -> Result<SetName, String> {
    values::parsed(text.strip_prefix("set:").unwrap_or(text))
}

/// The set that messages go to. A layout's name means the layout, not a set of that name.
fn destination_set(text: &str) -> Result<SetName, String> {
    match (text.parse::<Layout>(), set(text)) {
        (Ok(_), Ok(_)) => {
            Err(format!("messages can only be moved to a set; write a set of this name as `set:{text}`"))
        }
        (Ok(_), Err(_)) => Err("messages can only be moved to a set".into()),
        (Err(_), set) => set,
    }
}

pub(crate) fn run(args: &Args, mut from: Settings, output: &mut Output) -> Result<Code, Failure> {
    let mut to = destination(args, &from)?;
    to.topology.set = args.to.clone();
    let source = match &args.from {
        From::Set(set) => {
            from.topology.set = set.clone();
            TransferSource::Set
        }
        From::Layout(layout) => TransferSource::Layout(layout.clone()),
    };
    let place = |settings: &Settings| {
        let broker = &settings.broker;
        (broker.host.clone(), broker.port, broker.vhost.clone(), settings.topology.set.clone())
    };
    if source == TransferSource::Set && place(&from) == place(&to) {
        return Err(Failure::usage(
            "source and destination are the same set; name another set, another vhost (--to-vhost) or another \
             broker (--to-config)",
        ));
    }
    let mut options = TransferOptions::default();
    (options.allow_late, options.unbound) = (args.allow_late, args.unbound);
    (options.new_handles, options.rate, options.dry_run) = (args.new_handles, args.rate, args.dry_run);
    let stop = on_signal()?;
    let report = output.following("moving", |bar| {
        admin::transfer((&from, &source), &to, &options, &stop, |seen| at(bar, seen.moved, seen.total))
    })?;
    output.report(&report, show)?;
    Ok(code(&report))
}

/// Where messages go: the same broker, or the broker of a file, which has all its settings.
fn destination(args: &Args, from: &Settings) -> Result<Settings, Failure> {
    let mut to = match &args.to_config {
        Some(file) => {
            let to = Layers::new().with_file(Some(file)).build()?;
            to.check_files()?;
            to
        }
        None => from.clone(),
    };
    if let Some(vhost) = &args.to_vhost {
        to.broker.vhost.clone_from(vhost);
    }
    Ok(to)
}

fn code(report: &TransferReport) -> Code {
    let stays = report.withheld > 0 || report.handing_on != Some(0) || report.unfinished;
    let stays = stays || !report.uncounted.is_empty();
    match report {
        _ if report.interrupted => Code::Interrupted,
        _ if report.failure.is_some() => Code::Broker,
        _ if report.dry_run && report.stay() == 0 && report.uncounted.is_empty() => Code::Done,
        _ if stays || report.stay() > 0 => Code::Problem,
        _ => Code::Done,
    }
}

fn show(report: &TransferReport, output: &mut Output) -> Result<(), Failure> {
    let (from, to) = (readable(&report.from), readable(&report.to));
    let head = match report.dry_run {
        true => dry_run(),
        false => "moved".green().bold().to_string(),
    };
    output.line(format!("{head} {} from `{from}` to `{to}`", of(report)))?;
    let busy =
        report.levels.iter().filter(|level| level.waiting != Some(0) || level.moved > 0 || level.stay > 0);
    let rows: Vec<_> = busy.map(|level| row(level, report)).collect();
    if !rows.is_empty() {
        let moved = if report.dry_run { ">would move" } else { ">moved" };
        let mut head = vec!["level", ">waiting", moved, ">stay"];
        if report.unexamined > 0 {
            head.push(">not examined");
        }
        output.line(table(&head, rows))?;
    }
    for (by, count) in &report.told {
        let known = match by {
            Evidence::DueHeader => "due at the time in their header delayline-due".to_owned(),
            Evidence::Death => "due at a time known from the level before, to the second".to_owned(),
            Evidence::Framework => "due at the time in a header of the framework".to_owned(),
            _ => format!(
                "late by up to {}, since their remaining delay is unknown",
                text::span(report.late_by_ms)
            ),
        };
        output.line(format!("  {} {known}", counted(*count, "message")))?;
    }
    stays(report, output)?;
    unexamined(report, output)?;
    if report.in_doubt > 0 {
        output.line(format!("  {} may arrive twice", counted(report.in_doubt, "message")))?;
    }
    if report.handing_on != Some(0) {
        output.line(format!(
            "  {} between two levels at the start; stuck messages cannot be moved (`{}`)",
            text::messages(report.handing_on),
            command(&["doctor"])
        ))?;
    }
    change::ended_early(report.failure.as_deref(), report.interrupted, output)?;
    if report.unfinished {
        output.line("  messages keep arriving: stop their publishers, then run this again")?;
    }
    if !report.uncounted.is_empty() {
        output.line(format!(
            "  it is unknown whether messages are in {}, which did not answer. Run this again, or find the cause \
             with `{}`",
            named(report.uncounted.iter().map(|queue| format!("`{}`", readable(queue)))),
            command(&["doctor"])
        ))?;
    }
    Ok(())
}

/// How many messages were moved, or would be, as far as that is known.
fn of(report: &TransferReport) -> String {
    let waiting = text::messages(report.waiting);
    match report.waiting.unwrap_or(u64::MAX).saturating_sub(report.unexamined) {
        _ if report.unexamined == 0 => format!("{} of {waiting}", grouped(report.moved)),
        0 => format!("? of {waiting}"),
        examined => {
            format!("{} of the {} examined, {waiting} in all,", grouped(report.moved), grouped(examined))
        }
    }
}

fn row(level: &TransferLevel, report: &TransferReport) -> Vec<String> {
    let known = |count: u64| match report.only_counted.contains(&level.queue) {
        true => "?".to_owned(),
        false => grouped(count),
    };
    let mut row =
        vec![readable(&level.queue), text::number(level.waiting), known(level.moved), known(level.stay)];
    if report.unexamined > 0 {
        row.push(grouped(level.unexamined));
    }
    row
}

/// What a dry run has not examined, and why.
fn unexamined(report: &TransferReport, output: &mut Output) -> Result<(), Failure> {
    let levels = |counted: bool| {
        let levels =
            report.levels.iter().filter(move |level| report.only_counted.contains(&level.queue) == counted);
        levels.map(|level| level.unexamined).sum::<u64>()
    };
    for (count, because) in [
        (
            levels(true),
            "examining a quorum queue counts as a delivery on this version of RabbitMQ, and only the \
             transfer itself lifts the limit",
        ),
        (levels(false), "a dry run examines the first 1,000 of each level"),
    ] {
        if count > 0 {
            output.line(format!("  {} not examined: {because}", counted(count, "message")))?;
        }
    }
    Ok(())
}

fn stays(report: &TransferReport, output: &mut Output) -> Result<(), Failure> {
    let stay = |count| {
        format!("{} {}", counted(count, "message"), if count == 1 { "stays" } else { "stay" }.yellow())
    };
    let they = |count, one: &'static str, more: &'static str| if count == 1 { one } else { more };
    if report.untold > 0 {
        let they = they(report.untold, "it has", "they have");
        output.line(format!(
            "  {}: it is unknown how long {they} waited (--allow-late)",
            stay(report.untold)
        ))?;
    }
    for (app, count) in &report.unbound {
        let app = readable(app);
        output.line(format!("  {} for `{app}`: no queue is bound there (--unbound)", stay(*count)))?;
    }
    if report.with_id > 0 {
        let they = they(
            report.with_id,
            "it has an id, and its handle would change",
            "they have an id, and their handles would change",
        );
        output.line(format!("  {}: {they} (--new-handles)", stay(report.with_id)))?;
    }
    if report.recalled > 0 {
        let they = they(
            report.recalled,
            "it was recalled, and goes to the recalled queue when it is due",
            "they were recalled, and go to the recalled queue when they are due",
        );
        output.line(format!("  {}: {they}", stay(report.recalled)))?;
    }
    for (count, because) in [(report.malformed, &report.malformed_because), (report.refused, &report.refusal)]
    {
        if count > 0 {
            let because = because.as_deref().map(readable).unwrap_or_default();
            output.line(format!("  {}: {because}", stay(count)))?;
        }
    }
    if report.withheld > 0 {
        let them = they(report.withheld, "it", "them");
        output.line(format!("  {}: the broker did not deliver {them}", stay(report.withheld)))?;
    }
    Ok(())
}
