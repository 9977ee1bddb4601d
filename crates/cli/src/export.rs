//! `delayline export`

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::Value as Json;

use delayline_admin::{Export, Platform};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{Code, Failure, Output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline export > definitions.json           then: rabbitmqctl import_definitions definitions.json
  delayline export --format terraform > delayline.tf.json
  delayline export --format kubernetes --cluster rabbit | kubectl apply -f -
  delayline export --format rabbitmqctl --url amqp://broker/orders > install.sh
  delayline export --file platform.toml         with its applications

Prints the set of the settings (--set, --queue-type, --replicas) for their vhost. No broker
is needed. `app add --print` does the same for an application. None of these tools compares
what stands with what should be: run `delayline verify` afterwards. docs/export.md has the
traps of each.")]
pub(super) struct Args {
    /// The tool to write for
    #[arg(long, value_name = "FORMAT", default_value = "definitions")]
    format: Format,
    /// The sets and applications of this platform file instead
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

/// A tool that can make what we would make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A definitions fragment to import
    Definitions,
    /// Commands to run in a shell on the broker's machine
    Rabbitmqctl,
    /// Resources for the provider cyrilgdn/rabbitmq, as *.tf.json
    Terraform,
    /// Objects for RabbitMQ's topology operator
    Kubernetes,
}

impl Format {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// What a format needs to know besides.
#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// Name of the RabbitmqCluster, for the format kubernetes
    #[arg(long, value_name = "NAME", default_value = "rabbitmq")]
    cluster: String,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let nothing = Export::new(&settings.broker.vhost);
    let export = match &args.file {
        Some(file) => {
            let platform = Platform::load(file, &settings.topology, false).map_err(Failure::usage)?;
            platform.sets.iter().fold(nothing, |export, set| {
                let topology = &set.topology;
                set.apps.iter().fold(export.with_set(topology), |export, app| export.with_app(topology, app))
            })
        }
        None => nothing.with_set(&Topology::new(settings.topology.clone())),
    };
    print(&export, args.format, &args.target, output)
}

pub(super) fn print(
    export: &Export,
    format: Format,
    target: &Target,
    output: &mut Output,
) -> Result<Code, Failure> {
    let document = match format {
        Format::Definitions => export.definitions(),
        Format::Terraform => export.terraform(),
        Format::Kubernetes => export.kubernetes(&target.cluster),
        Format::Rabbitmqctl if output.json => Json::from(export.rabbitmqctl()),
        Format::Rabbitmqctl => {
            export.rabbitmqctl().iter().try_for_each(|line| output.line(line))?;
            return Ok(Code::Done);
        }
    };
    match output.json {
        true => output.json(&serde_json::json!({ "format": format.name(), "document": document }))?,
        // For version control, where a difference is read line by line.
        false => output.line(format!("{document:#}"))?,
    }
    Ok(Code::Done)
}
