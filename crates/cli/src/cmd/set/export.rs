//! `delayline export`

use std::path::PathBuf;

use clap::ValueEnum;

use delayline_admin::{Export, Platform};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use delayline_term::{Code, Failure, Output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline export > set.json                   then: rabbitmqctl import_definitions set.json
  delayline export --format terraform > delayline.tf.json
  delayline export --file platform.toml         with its applications and gateways

Prints the set of the settings (--set, --queue-type, --replicas, --shortcuts) for their vhost.
No broker is needed. `app add --print` does the same for an application. None of these tools verifies
existing objects: run `delayline verify` afterwards. docs/how-to/platform-file.md lists the
pitfalls of each tool.")]
pub(crate) struct Args {
    /// The tool to write for
    #[arg(long, value_name = "FORMAT", default_value = "definitions")]
    format: Format,
    /// The sets, applications and gateways of this platform file instead; `-` for standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A tool that can make what we would make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
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

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let nothing = Export::new(&settings.broker.vhost);
    let export = match &args.file {
        Some(file) => {
            let platform = Platform::load(file, &settings.topology, false).map_err(Failure::usage)?;
            platform.sets.iter().fold(nothing, |export, set| {
                let topology = &set.topology;
                let export = set
                    .apps
                    .iter()
                    .fold(export.with_set(topology), |export, app| export.with_app(topology, app));
                let add =
                    |export: Export, (name, kind): &(String, _)| export.with_gateway(topology, name, *kind);
                set.gateways.iter().fold(export, add)
            })
        }
        None => nothing.with_set(&Topology::new(settings.topology.clone())),
    };
    print(&export, args.format, output)
}

/// A document for another tool.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Exported {
    /// The tool that reads the document.
    #[schemars(extend("enum" = ["definitions", "terraform"]))]
    format: String,
    /// The document.
    #[schemars(extend("type" = "object"))]
    document: serde_json::Value,
}

pub(crate) fn print(export: &Export, format: Format, output: &mut Output) -> Result<Code, Failure> {
    let document = match format {
        Format::Definitions => export.definitions(),
        Format::Terraform => export.terraform(),
    };
    match output.json {
        true => output.json(&Exported { format: format.name(), document })?,
        // For version control, where a difference is read line by line.
        false => output.line(format!("{document:#}"))?,
    }
    Ok(Code::Done)
}
