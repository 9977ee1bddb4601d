//! `delayline version`

use crate::{Code, Failure, Output};

/// The version of the wire contract that this program speaks; see docs/wire-contract.md.
const WIRE_CONTRACT: u32 = 1;

pub(super) fn run(output: &mut Output) -> Result<Code, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if output.json {
        output.json(&serde_json::json!({ "version": version, "wire_contract": WIRE_CONTRACT }))?;
    } else {
        output.line(format!("delayline {version}, wire contract {WIRE_CONTRACT}"))?;
    }
    Ok(Code::Done)
}
