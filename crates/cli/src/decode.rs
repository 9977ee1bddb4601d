//! `delayline decode`

use serde::Serialize;

use delayline_core::{
    codec::{Level, RoutingKey},
    message::Handle,
};
use jiff::Timestamp;

use crate::{Code, Failure, Output, time};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline decode delay.0000.0000.0000.0000.0000.0101.1010.billing
  delayline decode \"$(delayline key 90s billing)\" --json

Exits with 1 if the key is malformed, and says what is wrong.")]
pub(super) struct Args {
    /// The routing key, or the handle of a message
    key: String,
}

#[derive(Serialize)]
struct Report {
    app: String,
    id: Option<String>,
    due: Option<Timestamp>,
    seconds: u32,
    delay: String,
    hops: u32,
    levels: Vec<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let (key, due) = match args.key.parse::<Handle>() {
        Ok(handle) => (handle.routing_key().clone(), handle.due()),
        // Without an id it is no handle.
        Err(_) => {
            let key = args.key.parse::<RoutingKey>().map_err(|error| Failure::new(Code::Problem, error))?;
            (key, None)
        }
    };
    let first = key.app.as_str().split('.').next();
    let report = Report {
        seconds: key.delay.seconds(),
        delay: key.delay.to_string(),
        hops: key.delay.hops(),
        levels: key.delay.levels().collect(),
        warning: matches!(first, Some("0" | "1")).then_some(
            "the app key begins with a 0 or 1: the key may have a bit too many, which would halve its delay",
        ),
        id: key.id().map(ToString::to_string),
        due,
        app: key.app.to_string(),
    };
    if output.json {
        output.json(&report)?;
        return Ok(Code::Done);
    }
    let levels: Vec<_> = report.levels.iter().map(|level| format!("{level:02}")).collect();
    output.line(format!("app      {}", report.app))?;
    if let Some(id) = &report.id {
        output.line(format!("id       {id}"))?;
    }
    if let Some(due) = report.due {
        output.line(format!("due      {}", time::date(due)))?;
    }
    output.line(format!("delay    {} ({} s)", report.delay, report.seconds))?;
    output.line(format!("hops     {}", report.hops))?;
    output.line(format!(
        "levels   {}",
        if levels.is_empty() { "none, delivered at once".into() } else { levels.join(" ") }
    ))?;
    if let Some(warning) = report.warning {
        output.line(format!("warning  {warning}"))?;
    }
    Ok(Code::Done)
}
