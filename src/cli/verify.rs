//! `delayline verify`

use owo_colors::OwoColorize;

use crate::{
    Settings, admin,
    topology::{Finding, Topology},
};

use super::{Code, Failure, Output, output::counted};

pub(super) fn run(settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let report = admin::verify(settings, &topology)?;
    let code = if report.findings.is_empty() { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    let missing = report.findings.iter().filter(|finding| matches!(finding, Finding::Missing { .. })).count();
    if missing == report.objects {
        output.line(format!(
            "set `{}` is not installed here; run `delayline install`",
            settings.topology.set
        ))?;
        return Ok(code);
    }
    for finding in &report.findings {
        output.line(format!("{} {finding}", "✗".red()))?;
    }
    for unchecked in &report.unchecked {
        output.line(format!("{} not checked: {unchecked}", "?".yellow()))?;
    }
    let compared = match report.bindings {
        0 => format!("{} compared", counted(report.objects as u64, "object")),
        bindings => format!(
            "{} and {} compared",
            counted(report.objects as u64, "object"),
            counted(bindings as u64, "binding")
        ),
    };
    let verdict = match report.findings.len() {
        0 => "no difference".green().to_string(),
        number => counted(number as u64, "difference").red().to_string(),
    };
    output.line(format!("set `{}`: {compared}, {verdict}", settings.topology.set))?;
    Ok(code)
}
