//! `delayline status`, and `delayline top` when it looks once.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use log::debug;

use delayline_admin::{Layout, RecallStats, Severity, management::ManagementApi};
use delayline_core::topology::Topology;
use delayline_settings::Settings;
use delayline_watch::picture::{Collector, Level, Picture, RecallView, Sources};

use crate::{
    Code, Failure, Output,
    again::Again,
    findings, foreign,
    output::{counted, grouped},
    table::table,
    text,
};

/// How long it waits for the management API's first answer. If there is none, it waits no
/// longer for any other.
const FIRST: Duration = Duration::from_secs(5);

/// How long it looks at journals, at most. Each takes a second or two.
const GLANCES: Duration = Duration::from_secs(3);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline status
  delayline status -v                           with the levels that are empty
  delayline status -o wide                      with rates
  delayline status --watch 5                    again every five seconds
  delayline status --json | jq '[.levels[].ready] | add'
  delayline status --layout celery              the delays of others")]
pub(super) struct Args {
    /// Instead of the set: the delays of this layout (nservicebus, celery, celery:PREFIX)
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<Layout>,
    #[command(flatten)]
    pub(super) again: Again,
}

pub(super) fn status(args: &Args, settings: Settings, output: &mut Output) -> Result<Code, Failure> {
    match &args.layout {
        Some(layout) => foreign::run(layout, &settings, output),
        None => run(settings, args.again.every().is_some(), output),
    }
}

/// Looks; if it will look again soon, recalls are not counted, since the broker lists them all.
pub(super) fn run(settings: Settings, again: bool, output: &mut Output) -> Result<Code, Failure> {
    if let Some(Ok(api)) = settings.management.as_ref().map(|api| ManagementApi::within(api, FIRST)) {
        // What it says does not matter.
        let _ = api.clock();
    }
    let stats = Arc::new(RecallStats::default());
    let topology = Topology::new(settings.topology.clone());
    let look = || {
        stats.count(&settings, &topology)?;
        stats.glance(&settings, &topology, GLANCES, &AtomicBool::new(false))
    };
    // What cannot be counted is unknown; the picture says why, as for all that comes from there.
    if !again && let Err(error) = look() {
        debug!("recalls and journals: {error}");
    }
    let sources = Sources { apps: true, recalls: Some(stats), ..Sources::default() };
    let mut collector = Collector::new(settings, sources);
    let picture = collector.look();
    output.report(picture, print)?;
    match &picture.broker.problem {
        Some(problem) => Err(Failure::new(Code::Broker, problem)),
        None => Ok(code(picture)),
    }
}

fn code(picture: &Picture) -> Code {
    match picture.verdict.severity {
        Some(Severity::Problem | Severity::Advice) => Code::Problem,
        Some(Severity::Info) | None => Code::Done,
    }
}

fn print(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    output.line(text::readable(&picture.verdict.headline))?;
    for more in &picture.verdict.more {
        output.line(format!("  {}", text::readable(&more.text)))?;
    }
    output.line(text::place(picture))?;
    if picture.counted.is_none() {
        return Ok(());
    }
    if picture.levels.iter().all(|level| level.ready.is_none()) {
        output.line("no level can be seen; if the set is not installed, run `delayline install`")?;
        return Ok(());
    }
    levels(picture, output)?;
    let all = [
        ("waiting", text::messages(picture.waiting)),
        ("handed on", format!("{}, {} stuck", text::number(picture.handing_on), text::number(picture.stuck))),
        ("unroutable", text::kept(picture.unroutable, picture.unroutable_last_minute)),
        ("parked", text::kept(picture.parked, picture.parked_last_minute)),
        ("failed", format!("{}, not taken yet", text::number(picture.retry))),
    ];
    for (name, value) in all {
        output.line(format!("{name:13}{value}"))?;
    }
    if picture.stuck.is_some_and(|stuck| stuck > 0) {
        output.line("             `delayline doctor` says what holds them up")?;
    }
    for forecast in &picture.forecast {
        output.line(format!("{:13}{}", format!("next {}", forecast.within), text::due(forecast)))?;
    }
    apps(picture, output)?;
    recalled(picture, output)?;
    gateways(picture, output)?;
    findings::unchecked(&picture.unchecked, output)
}

/// The levels that are not empty; with `-v`, all.
fn levels(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    let busy = |level: &&Level| level.ready != Some(0) || level.handing_on.unwrap_or(0) > 0;
    let shown = picture.levels.iter().filter(|level| output.verbose || busy(level));
    let wide = output.wide;
    let rows: Vec<_> = shown
        .map(|level| {
            let mut row = vec![
                format!("{:02}", level.level),
                text::span(level.wait_ms),
                level.ready.map_or_else(|| "missing".into(), |ready| text::number(Some(ready))),
                text::number(level.handing_on),
                text::number(level.stuck),
            ];
            if wide {
                let rates = [level.published_per_s, level.in_per_s, level.out_per_s, level.change_per_s];
                row.extend(rates.map(text::rate));
                row.push(level.queue.clone());
            }
            row
        })
        .collect();
    let left_out = picture.levels.len() - rows.len();
    if !rows.is_empty() {
        let mut header = vec![">level", ">stays", ">waiting", ">handed on", ">stuck"];
        if wide {
            header.extend([">published/s", ">in/s", ">out/s", ">change/s", "queue"]);
        }
        output.line(table(&header, rows))?;
    }
    if left_out > 0 {
        output.line(format!("{} empty", counted(left_out as u64, "level")))?;
    }
    Ok(())
}

/// Recalls, what was recalled, and journals, where there is any of it.
fn recalled(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    let some = |view: &&RecallView| {
        view.recalled > 0 || view.journal.is_some() || view.pending.is_some_and(|pending| pending > 0)
    };
    let rows = picture.recalls.iter().flatten().filter(some).map(|view| {
        let journal = view.journal.as_ref();
        let schedule = journal.and_then(|journal| journal.schedule);
        vec![
            text::readable(&view.app),
            format!("{} of {}", text::number(view.pending), grouped(view.quota)),
            grouped(view.recalled),
            journal.map_or_else(|| "–".into(), |journal| grouped(journal.copies)),
            journal.map_or_else(|| "–".into(), |journal| text::since(picture.at, journal.oldest)),
            journal.map_or_else(|| "–".into(), |journal| text::since(picture.at, journal.newest)),
            schedule.map_or_else(|| "–".into(), |schedule| grouped(schedule.waiting)),
            text::until(picture.at, schedule.and_then(|schedule| schedule.next)),
            text::until(picture.at, schedule.and_then(|schedule| schedule.last)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let header = [
            "app key",
            ">recalls pending",
            ">recalled messages",
            ">copies in its journal",
            ">oldest",
            ">newest",
            ">waiting",
            ">next due",
            ">last due",
        ];
        output.line(table(&header, rows))?;
    }
    Ok(())
}

fn gateways(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    let rows = picture.gateways.iter().flatten().map(|view| {
        let counts = [view.waiting, view.due, view.channels].map(grouped);
        [vec![text::readable(&view.gateway)], counts.to_vec()].concat()
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        output.line(table(&["gateway", ">to be taken", ">due soon", ">channels of daemons"], rows))?;
    }
    Ok(())
}

fn apps(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    match picture.apps.as_deref() {
        None => {}
        Some([]) => output.line("apps         nobody is bound to the dispatch exchange")?,
        Some(apps) => {
            let rows = apps.iter().map(|app| {
                let not_exact = || format!("not exact: {}", app.pattern.as_deref().unwrap_or("?"));
                let key = app.app.clone().unwrap_or_else(not_exact);
                vec![text::readable(&key), text::readable(&app.destination.to_string())]
            });
            output.line(table(&["app key", "delivered to"], rows))?;
        }
    }
    Ok(())
}
