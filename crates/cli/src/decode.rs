//! `delayline decode`

use serde::Serialize;

use delayline::codec::{Level, RoutingKey};

use crate::{Code, Failure, Output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline decode delay.0000.0000.0000.0000.0000.0101.1010.billing
  delayline decode \"$(delayline key 90s billing)\" --json

Exits with 1 if the key is malformed, and says what is wrong.")]
pub(super) struct Args {
    /// The routing key
    key: String,
}

#[derive(Serialize)]
struct Report {
    app: String,
    seconds: u32,
    delay: String,
    hops: u32,
    levels: Vec<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let key: RoutingKey = args.key.parse().map_err(|error| Failure::new(Code::Problem, error))?;
    let first = key.app.as_str().split('.').next();
    let report = Report {
        seconds: key.delay.seconds(),
        delay: key.delay.to_string(),
        hops: key.delay.hops(),
        levels: key.delay.levels().collect(),
        warning: matches!(first, Some("0" | "1")).then_some(
            "the app key begins with a 0 or 1: the key may have a bit too many, which would halve its delay",
        ),
        app: key.app.to_string(),
    };
    if output.json {
        output.json(&report)?;
        return Ok(Code::Done);
    }
    let levels: Vec<_> = report.levels.iter().map(|level| format!("{level:02}")).collect();
    output.line(format!("app      {}", report.app))?;
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
