//! `delayline status`: a set, or the delays of others, once or on a screen.

mod layout;
mod screen;

use std::{sync::Arc, time::Duration};

use log::debug;

use delayline_admin::{Layout, RecallStats, Severity};
use delayline_broker::ManagementApi;
use delayline_core::topology::{SetName, Topology};
use delayline_settings::Settings;
use delayline_watch::picture::{Collector, Level, Picture, RecallView, Sources};

use crate::again::Again;
use delayline_term::{Code, Failure, Output, findings, output::counted, output::grouped, table::table, text};

/// How long it waits for the management API's first answer. Without a first answer, it does not wait
/// for others.
const FIRST: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline status
  delayline status --details                    with the levels that are empty
  delayline status -o wide                      with rates
  delayline status --watch                      on a screen of its own; q ends it
  delayline status --watch 5s --json | jq '[.levels[].ready] | add'
  delayline status --layout celery              a layout instead of the set

On a terminal, --watch shows a screen; rates appear after ten seconds, since they are
measured from changes. In a pipe it prints the state after each pause. The daemon measures
the lateness of messages and shows it on its page. Exits with 1 if there is a problem.")]
pub(crate) struct Args {
    /// Show this layout instead of the set (nservicebus, nservicebus:v1, celery, celery:PREFIX)
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<Layout>,
    #[command(flatten)]
    again: Again,
}

impl Args {
    /// Whether to print again and again; a screen always does.
    pub(crate) fn again(&self) -> Again {
        if screen::is_possible() { Again::default() } else { self.again }
    }
}

pub(crate) fn run(args: &Args, settings: Settings, output: &mut Output) -> Result<Code, Failure> {
    let watched = args.again.every().is_some();
    match &args.layout {
        layout if watched && !output.json && screen::is_possible() => screen::run(layout.as_ref(), settings),
        Some(layout) => layout::run(layout, &settings, output),
        None => look(settings, watched, output),
    }
}

/// Looks; if it will look again soon, recalls are not counted, since the broker lists them all.
fn look(settings: Settings, again: bool, output: &mut Output) -> Result<Code, Failure> {
    if let Some(Ok(api)) = settings.management.as_ref().map(|api| ManagementApi::within(api, FIRST)) {
        // The content of the answer does not matter.
        let _ = api.clock();
    }
    let stats = Arc::new(RecallStats::default());
    let topology = Topology::new(settings.topology.clone());
    // Counts that cannot be read are unknown; the picture contains the reason.
    if !again && let Err(error) = stats.count(&settings, &topology) {
        debug!("recalls: {error}");
    }
    let sources = Sources { apps: true, recalls: Some(stats), ..Sources::default() };
    let set = settings.topology.set.clone();
    let mut collector = Collector::new(settings, sources);
    let picture = collector.look();
    output.report(picture, |picture, output| print(picture, &set, output))?;
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

fn print(picture: &Picture, set: &SetName, output: &mut Output) -> Result<(), Failure> {
    output.line(text::readable(&picture.verdict.headline))?;
    for more in &picture.verdict.more {
        output.line(format!("  {}", text::readable(&more.text)))?;
    }
    output.line(text::place(picture))?;
    if picture.counted.is_none() {
        return Ok(());
    }
    if picture.levels.iter().all(|level| level.ready.is_none()) {
        let install = set.command(&["install"]);
        output.line(format!("no level is visible; if the set is not installed, run `{install}`"))?;
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
        output.line(format!("             `{}` shows the cause", set.command(&["doctor"])))?;
    }
    for forecast in &picture.forecast {
        output.line(format!("{:13}{}", format!("next {}", forecast.within), text::due(forecast)))?;
    }
    apps(picture, output)?;
    recalled(picture, output)?;
    gateways(picture, output)?;
    findings::unchecked(&picture.unchecked, output)
}

/// The levels that are not empty; with `--details`, all.
fn levels(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    let busy = |level: &&Level| level.ready != Some(0) || level.handing_on.unwrap_or(0) > 0;
    let shown = picture.levels.iter().filter(|level| output.details || busy(level));
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
                row.push(level.queue.clone());
            }
            row
        })
        .collect();
    let left_out = picture.levels.len() - rows.len();
    if !rows.is_empty() {
        let mut header = vec![">level", ">stays", ">waiting", ">handed on", ">stuck"];
        if wide {
            header.push("queue");
        }
        output.line(table(&header, rows))?;
    }
    if left_out > 0 {
        output.line(format!("{} empty", counted(left_out as u64, "level")))?;
    }
    Ok(())
}

/// Pending recalls and recalled messages, if there are any.
fn recalled(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    let some =
        |view: &&RecallView| view.recalled != Some(0) || view.pending.is_some_and(|pending| pending > 0);
    let rows = picture.recalls.iter().flatten().filter(some).map(|view| {
        vec![
            text::readable(&view.app),
            format!("{} of {}", text::number(view.pending), grouped(view.quota)),
            text::number(view.recalled),
        ]
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        output.line(table(&["app key", ">recalls pending", ">recalled messages"], rows))?;
    }
    Ok(())
}

fn gateways(picture: &Picture, output: &mut Output) -> Result<(), Failure> {
    let rows = picture.gateways.iter().flatten().map(|view| {
        let counts = [view.waiting, view.due, view.channels].map(text::number);
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
        Some([]) => output.line("apps         no queue is bound to the dispatch exchange")?,
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
