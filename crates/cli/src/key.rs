//! `delayline key`

use serde::Serialize;

use delayline_core::{
    codec::{AppKey, Delay, MessageId, RoutingKey, Tolerance},
    topology::Names,
};
use delayline_settings::Settings;

use crate::{Code, Failure, Output, args};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline key 90s billing
  delayline key 1h eu.orders --tolerance 5%
  delayline key 90s billing --id invoice-17
  delayline key 90s billing --json

Publish with this key to the set's entry exchange (`delay` by default), persistent and
with confirms. No broker is needed to compute it.")]
pub(super) struct Args {
    /// How long to wait: 90, 90s, 1h30m, 2d, 8.5y, PT90S
    #[arg(value_parser = args::delay, allow_hyphen_values = true)]
    delay: Delay,
    /// The application that receives the message
    #[arg(value_parser = args::app)]
    app: AppKey,
    /// How much later is acceptable to save queue hops: 5%, 30s
    #[arg(long, value_name = "T", value_parser = args::tolerance, default_value = "0s")]
    tolerance: Tolerance,
    /// The message's id, by which it can be recalled: the key is its handle then, and another
    /// message needs another one
    #[arg(long, value_name = "ID", value_parser = args::id)]
    id: Option<MessageId>,
}

#[derive(Serialize)]
struct Report {
    exchange: String,
    routing_key: String,
    app: String,
    seconds: u32,
    hops: u32,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let delay = args.tolerance.round(args.delay);
    let mut key = RoutingKey::new(delay, args.app.clone());
    if let Some(id) = &args.id {
        key = key.with_id(id.clone()).map_err(Failure::usage)?;
    }
    let routing_key = key.encode();
    if output.json {
        output.json(&Report {
            exchange: Names::new(settings.topology.set.clone()).entry(),
            routing_key,
            app: args.app.to_string(),
            seconds: delay.seconds(),
            hops: delay.hops(),
        })?;
    } else {
        output.line(routing_key)?;
    }
    Ok(Code::Done)
}
