//! `delayline verify`

use owo_colors::OwoColorize;

use delayline::topology::Topology;
use delayline_admin::{
    self as admin,
    compare::{Cause, Finding},
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    output::{counted, printable},
};

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
    for cause in &report.causes {
        show(cause, output)?;
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
        number => differences(report.causes.len(), number).red().to_string(),
    };
    let hint = match report.findings.len() > report.causes.len() && !output.verbose {
        true => " (-v lists them)",
        false => "",
    };
    output.line(format!("set `{}`: {compared}, {verdict}{hint}", settings.topology.set))?;
    Ok(code)
}

/// What is wrong and what to do; every place only with `-v`.
fn show(cause: &Cause, output: &mut Output) -> Result<(), Failure> {
    let sign = "✗".red().to_string();
    match cause.findings.as_slice() {
        [Finding::Unsuitable { .. }] => output.line(format!("{sign} {}", printable(&cause.what)))?,
        [only @ Finding::Missing { .. }] => {
            output.line(format!("{sign} {}", printable(&only.to_string())))?
        }
        _ => output.line(format!("{sign} {}: {}", printable(&cause.subject), printable(&cause.what)))?,
    }
    if cause.findings.len() > 1 && output.verbose {
        for finding in &cause.findings {
            output.line(format!("    - {}", printable(&finding.to_string())))?;
        }
    }
    output.line(format!("    {} {}", "to do:".dimmed(), printable(&cause.remedy)))?;
    Ok(())
}

fn differences(causes: usize, places: usize) -> String {
    let places_text = counted(places as u64, "difference");
    if causes == places {
        places_text
    } else {
        format!("{places_text} of {}", counted(causes as u64, "cause"))
    }
}
