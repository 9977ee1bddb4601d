//! `delayline export`

use std::path::PathBuf;

use clap::ValueEnum;

use delayline_admin::{Export, Platform};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{Code, Failure, Output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline export > definitions.json           then: rabbitmqctl import_definitions definitions.json
  delayline export --format terraform > delayline.tf.json
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
}

/// A tool that can make what we would make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A definitions fragment to import
    Definitions,
    /// Resources for the provider cyrilgdn/rabbitmq, as *.tf.json
    Terraform,
}

impl Format {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
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
    print(&export, args.format, output)
}

pub(super) fn print(export: &Export, format: Format, output: &mut Output) -> Result<Code, Failure> {
    let document = match format {
        Format::Definitions => export.definitions(),
        Format::Terraform => export.terraform(),
    };
    match output.json {
        true => output.json(&serde_json::json!({ "format": format.name(), "document": document }))?,
        // For version control, where a difference is read line by line.
        false => output.line(format!("{document:#}"))?,
    }
    Ok(Code::Done)
}
