//! `delayline status`

use std::time::Duration;

use delayline::topology::Topology;
use delayline_admin::{self as admin, LevelStatus, Status};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    output::{counted, grouped},
    table::table,
};

pub(super) fn run(settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let status = admin::status(settings, &topology)?;
    let missing = status.levels.iter().filter(|level| level.ready.is_none()).count();
    let is_stuck = status.levels.iter().any(|level| level.stuck.is_some_and(|stuck| stuck > 0));
    let code = if is_stuck || missing > 0 || [status.unroutable, status.retry, status.parked].contains(&None)
    {
        Code::Problem
    } else {
        Code::Done
    };
    if output.json {
        output.json(&status)?;
        return Ok(code);
    }
    if missing == status.levels.len() {
        output.line(format!(
            "set `{}` is not installed here; run `delayline install`",
            settings.topology.set
        ))?;
        return Ok(code);
    }
    show(&status, output)?;
    Ok(code)
}

fn show(status: &Status, output: &mut Output) -> Result<(), Failure> {
    let number = |count: Option<u64>| count.map_or_else(|| "?".into(), grouped);
    let rows = status.levels.iter().map(|level| {
        vec![
            format!("{:02}", level.level),
            wait(level),
            level.ready.map_or_else(|| "missing".into(), grouped),
            number(level.handing_on),
            number(level.stuck),
        ]
    });
    output.line(table(&[">level", ">waits here", ">ready", ">handed on", ">stuck"], rows))?;
    let ready: u64 = status.levels.iter().filter_map(|level| level.ready).sum();
    // One unknown part makes the sum unknown.
    let stuck = status.levels.iter().map(|level| level.stuck).sum::<Option<u64>>();
    let due = status.levels.iter().map(|level| level.handing_on).sum::<Option<u64>>();
    output.line(format!("waiting     {}", counted(ready, "message")))?;
    output.line(format!("due         {} being handed on, {} of them stuck", number(due), number(stuck)))?;
    if stuck.is_some_and(|stuck| stuck > 0) {
        output.line("            `delayline doctor` says what holds them up")?;
    }
    for (name, count) in
        [("unroutable", status.unroutable), ("retry", status.retry), ("parked", status.parked)]
    {
        output.line(match count {
            Some(count) => format!("{name:12}{}", counted(count, "message")),
            None => format!("{name:12}the queue is missing"),
        })?;
    }
    match &status.apps {
        Some(apps) if apps.is_empty() => {
            output.line("apps        nobody is bound to the dispatch exchange")?
        }
        Some(apps) => {
            let rows = apps.iter().map(|app| {
                let key = app
                    .app
                    .clone()
                    .unwrap_or_else(|| format!("not exact: {}", app.pattern.as_deref().unwrap_or("?")));
                vec![key, app.destination.to_string()]
            });
            output.line(table(&["app key", "delivered to"], rows))?;
        }
        None => {}
    }
    for unseen in &status.unseen {
        output.line(format!("not seen: {unseen}"))?;
    }
    Ok(())
}

/// A level's wait in the largest fitting unit: `4.3 y`, `12.1 d`, `8 s`, `4 ms`.
fn wait(level: &LevelStatus) -> String {
    let wait = Duration::from_millis(level.wait_ms);
    let seconds = wait.as_secs_f64();
    for (size, unit) in [(31_557_600.0, "y"), (86_400.0, "d"), (3_600.0, "h"), (60.0, "m")] {
        if seconds >= size {
            return format!("{:.1} {unit}", seconds / size);
        }
    }
    if seconds >= 1.0 { format!("{seconds:.0} s") } else { format!("{} ms", level.wait_ms) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_short_to_read() {
        let shown = |wait_ms| {
            wait(&LevelStatus {
                level: delayline::codec::Level::LOWEST,
                queue: String::new(),
                wait_ms,
                ready: None,
                handing_on: None,
                stuck: None,
            })
        };
        assert_eq!(
            [1, 512, 1_000, 32_000, 64_000, 4_096_000, 131_072_000, 134_217_728_000].map(shown),
            ["1 ms", "512 ms", "1 s", "32 s", "1.1 m", "1.1 h", "1.5 d", "4.3 y"]
        );
    }
}
