//! What waits where in the delays of others: `status --layout` and `top --layout`.

use delayline_admin::{self as admin, Layout, LayoutLevel, LayoutStatus};
use delayline_settings::Settings;
use owo_colors::OwoColorize;

use crate::{
    Code, Failure, Output, findings,
    output::{counted, grouped, printable},
    table::table,
    text,
};

pub(super) fn run(layout: &Layout, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let status = admin::layout_status(settings, layout)?;
    output.report(&status, print)?;
    Ok(code(&status))
}

/// What is stuck or unroutable is a problem, and so is a guard that is only half there.
fn code(status: &LayoutStatus) -> Code {
    let half = status.guarded > 0 && status.guarded < status.exchanges;
    let missing = status.levels.iter().any(|level| level.ready.is_none());
    match status.stuck > 0 || status.unroutable > Some(0) || half || missing {
        true => Code::Problem,
        false => Code::Done,
    }
}

/// Whether a guard stands, on so many of so many exchanges, and what it keeps.
pub(super) fn guard(layout: &Layout, (some, all): (usize, usize), kept: Option<u64>) -> String {
    match kept {
        _ if some == 0 => format!("none: `delayline guard {layout}` keeps what nobody is bound for"),
        _ if some < all => format!("{some} of {all} exchanges: run `delayline guard {layout}` again"),
        Some(kept) => format!("set, and keeps {}", counted(kept, "message")),
        None => "set, by somebody else".into(),
    }
}

fn print(status: &LayoutStatus, output: &mut Output) -> Result<(), Failure> {
    let layout = printable(&status.layout.to_string());
    let head = match status.stuck {
        0 => "flowing".green().bold().to_string(),
        _ => "stuck".red().bold().to_string(),
    };
    output.line(format!("{head}  layout `{layout}` in vhost `{}`", printable(&status.vhost)))?;
    let busy = |level: &&LayoutLevel| level.ready != Some(0) || level.handing_on > 0;
    let shown = status.levels.iter().filter(|level| output.verbose || busy(level));
    let rows: Vec<_> = shown
        .map(|level| {
            vec![
                format!("{:02}", level.level),
                level.wait_ms.map_or_else(|| "?".into(), text::span),
                level.ready.map_or_else(|| "missing".into(), grouped),
                grouped(level.handing_on),
                grouped(level.stuck),
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
    let guard = guard(&status.layout, (status.guarded, status.exchanges), status.unroutable);
    let all = [
        ("waiting", counted(status.waiting, "message")),
        ("handed on", format!("{}, {} stuck", grouped(status.handing_on), grouped(status.stuck))),
        ("guard", printable(&guard)),
    ];
    for (name, value) in all {
        output.line(format!("{name:13}{value}"))?;
    }
    if status.stuck > 0 {
        output.line(format!("             `delayline doctor --layout {layout}` says what holds them up"))?;
    }
    if status.destinations.is_empty() {
        output.line("destinations nobody is bound behind the levels")?;
    } else {
        let rows = status
            .destinations
            .iter()
            .map(|it| vec![printable(&it.key), format!("{} `{}`", printable(&it.kind), printable(&it.name))]);
        output.line(table(&["bound with", "delivered to"], rows))?;
    }
    findings::unchecked(&status.unchecked, output)
}
