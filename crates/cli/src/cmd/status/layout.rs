//! The waiting messages in the delays of others: `status --layout`.

use delayline_admin::{self as admin, Layout, LayoutLevel, LayoutStatus};
use delayline_settings::Settings;
use owo_colors::OwoColorize;

use delayline_term::{Code, Failure, Output, findings, output::counted, table::table, text, text::readable};

pub(crate) fn run(layout: &Layout, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let status = admin::layout_status(settings, layout)?;
    output.report(&status, |status, output| print(status, settings, output))?;
    Ok(code(&status))
}

/// Stuck and unroutable messages are a problem, and so is an incomplete guard.
fn code(status: &LayoutStatus) -> Code {
    let half = status.guarded > 0 && status.guarded < status.exchanges;
    let missing = status.missing() > 0;
    match status.stuck > Some(0) || status.unroutable > Some(0) || half || missing {
        true => Code::Problem,
        false => Code::Done,
    }
}

fn print(status: &LayoutStatus, settings: &Settings, output: &mut Output) -> Result<(), Failure> {
    let layout = readable(&status.layout.to_string());
    let head = match (status.stuck, status.open) {
        (Some(0), Some(0)) => "flowing".green().bold().to_string(),
        (Some(0), _) => "not known yet".yellow().bold().to_string(),
        (None, _) => "not known".yellow().bold().to_string(),
        _ => "stuck".red().bold().to_string(),
    };
    output.line(format!("{head}  layout `{layout}` in vhost `{}`", readable(&status.vhost)))?;
    let busy = |level: &&LayoutLevel| level.ready != Some(0) || level.handing_on != Some(0);
    let shown = status.levels.iter().filter(|level| output.details || busy(level));
    let rows: Vec<_> = shown
        .map(|level| {
            vec![
                format!("{:02}", level.level),
                level.wait_ms.map_or_else(|| "?".into(), text::span),
                if level.missing { "missing".into() } else { text::number(level.ready) },
                text::number(level.handing_on),
                text::number(level.stuck),
            ]
        })
        .collect();
    let left_out = status.levels.len() - rows.len();
    if !rows.is_empty() {
        output.line(table(&[">level", ">stays", ">waiting", ">handed on", ">stuck"], rows))?;
    }
    if left_out > 0 {
        output.line(format!("{} empty", counted(left_out as u64, "level")))?;
    }
    let guard =
        text::guard(&status.layout, (status.guarded, status.exchanges), (status.keeps, status.unroutable));
    let all = [
        ("waiting", text::messages(status.waiting)),
        ("handed on", format!("{}, {} stuck", text::number(status.handing_on), text::number(status.stuck))),
        ("guard", readable(&guard)),
    ];
    for (name, value) in all {
        output.line(format!("{name:13}{value}"))?;
    }
    if status.stuck > Some(0) {
        let doctor = settings.command(&["doctor", "--layout", &layout]);
        output.line(format!("             `{doctor}` shows the cause"))?;
    }
    if status.destinations.is_empty() {
        output.line("destinations no queue or exchange is bound behind the levels")?;
    } else {
        let rows = status
            .destinations
            .iter()
            .map(|it| vec![readable(&it.key), format!("{} `{}`", readable(&it.kind), readable(&it.name))]);
        output.line(table(&["bound with", "delivered to"], rows))?;
    }
    findings::unchecked(&status.unchecked, output)
}
