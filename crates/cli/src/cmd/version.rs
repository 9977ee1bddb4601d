//! `delayline version`

use delayline_term::{Code, Failure, Output};

/// The version of the wire contract that this program speaks; see docs/reference/wire-contract.md.
const WIRE_CONTRACT: u32 = 1;

#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Version {
    /// The version of delayline.
    version: &'static str,
    /// The version of the wire contract; docs/reference/wire-contract.md.
    wire_contract: u32,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline version
  delayline version --json | jq -r .version")]
pub(crate) struct Args {}

pub(crate) fn run(output: &mut Output) -> Result<Code, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if output.json {
        output.json(&Version { version, wire_contract: WIRE_CONTRACT })?;
    } else {
        output.line(format!("delayline {version}, wire contract {WIRE_CONTRACT}"))?;
    }
    Ok(Code::Done)
}
