//! `delayline key`

use jiff::Timestamp;
use serde::Serialize;

use delayline_core::{
    codec::{AppKey, Delay, Level, MessageId, RoutingKey, Tolerance},
    message::Handle,
    topology::Names,
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, time};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline key encode 90s --app billing
  delayline key decode delay.0000.0000.0000.0000.0000.0101.1010.billing")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print the routing key for a delay and an application
    #[command(after_help = "\
Examples:
  delayline key encode 90s --app billing
  delayline key encode 1h --app eu.orders --tolerance 5%
  delayline key encode 90s --app billing --id invoice-17
  delayline key encode 90s --app billing --json

Publish with this key to the set's entry exchange (`delay` by default), persistent and
with confirms. No broker is needed to compute it.")]
    Encode(Encode),
    /// Explain a routing key or a handle
    #[command(after_help = "\
Examples:
  delayline key decode delay.0000.0000.0000.0000.0000.0101.1010.billing
  delayline key decode \"$(delayline key encode 90s --app billing)\" --json

Exits with 1 if the key is malformed, and shows the fault.")]
    Decode {
        /// The routing key, or the handle of a message
        key: String,
    },
}

#[derive(Debug, clap::Args)]
struct Encode {
    /// The delay: 90, 90s, 1h30m, 2d, 8.5y
    #[arg(value_parser = values::delay, allow_hyphen_values = true)]
    delay: Delay,
    /// The application that receives the message
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: AppKey,
    /// How much later is acceptable to save queue hops: 5%, 30s
    #[arg(long, value_name = "T", value_parser = values::tolerance, default_value = "0s")]
    tolerance: Tolerance,
    /// The message's id, for recalls: the key is then its handle, and each message needs its own id
    #[arg(long, value_name = "ID", value_parser = values::id)]
    id: Option<MessageId>,
}

/// A routing key, and its meaning.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Encoded {
    exchange: String,
    routing_key: String,
    app: String,
    seconds: u32,
    hops: u32,
}

/// The parts of a routing key.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Decoded {
    app: String,
    id: Option<String>,
    due: Option<Timestamp>,
    seconds: u32,
    delay: String,
    /// How many queues it passes, without shortcuts.
    hops: u32,
    /// The same in a set with shortcuts.
    hops_with_shortcuts: u32,
    levels: Vec<Level>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

pub(crate) fn run(
    args: &Args,
    settings: impl FnOnce() -> Result<Settings, Failure>,
    output: &mut Output,
) -> Result<Code, Failure> {
    match &args.command {
        Command::Encode(args) => encode(args, &settings()?, output),
        Command::Decode { key } => decode(key, output),
    }
}

fn encode(args: &Encode, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let shortcuts = settings.topology.shortcuts == Some(true);
    let delay = args.tolerance.round_for(args.delay, shortcuts);
    let mut key = RoutingKey::new(delay, args.app.clone());
    if let Some(id) = &args.id {
        key = key.with_id(id.clone()).map_err(Failure::usage)?;
    }
    let routing_key = key.encode();
    if output.json {
        output.json(&Encoded {
            exchange: Names::new(settings.topology.set.clone()).entry(),
            routing_key,
            app: args.app.to_string(),
            seconds: delay.seconds(),
            hops: delay.hops_with(shortcuts),
        })?;
    } else {
        output.line(routing_key)?;
    }
    Ok(Code::Done)
}

fn decode(key: &str, output: &mut Output) -> Result<Code, Failure> {
    let (key, due) = match key.parse::<Handle>() {
        Ok(handle) => (handle.routing_key().clone(), handle.due()),
        // Without an id it is no handle.
        Err(_) => {
            let key = key.parse::<RoutingKey>().map_err(|error| Failure::new(Code::Problem, error))?;
            (key, None)
        }
    };
    let first = key.app.as_str().split('.').next();
    let report = Decoded {
        seconds: key.delay.seconds(),
        delay: key.delay.to_string(),
        hops: key.delay.hops(),
        hops_with_shortcuts: key.delay.hops_with(true),
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
    let shortcuts = match report.hops_with_shortcuts {
        fewer if fewer < report.hops => format!(", {fewer} with shortcuts"),
        _ => String::new(),
    };
    output.line(format!("hops     {}{shortcuts}", report.hops))?;
    output.line(format!(
        "levels   {}",
        if levels.is_empty() { "none, delivered at once".into() } else { levels.join(" ") }
    ))?;
    if let Some(warning) = report.warning {
        output.line(format!("warning  {warning}"))?;
    }
    Ok(Code::Done)
}
