//! `delayline verify`

use owo_colors::OwoColorize;

use delayline_admin::{
    self as admin, FindingCode,
    compare::{Difference, findings as findings_of},
};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, findings,
    output::{counted, not_installed},
};

pub(super) fn run(settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let mut report = admin::verify(settings, &topology)?;
    let code = if report.findings.is_empty() { Code::Done } else { Code::Problem };
    if !report.installed {
        // Each object is missing, and each binding: that is said in one word.
        report.differences.retain(|it| matches!(it, Difference::Unsuitable { .. }));
        report.findings = findings_of(&settings.topology.set, &report.differences);
    }
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    if !report.installed {
        output.line(not_installed(&settings.topology.set))?;
        return Ok(code);
    }
    findings::show(&report.findings, output)?;
    findings::unchecked(&report.unchecked, output)?;
    let compared = match report.bindings {
        0 => format!("{} compared", counted(report.objects as u64, "object")),
        bindings => format!(
            "{} and {} compared",
            counted(report.objects as u64, "object"),
            counted(bindings as u64, "binding")
        ),
    };
    let streams = report.findings.iter().filter(|finding| finding.code == FindingCode::TargetStream).count();
    let (causes, places) = (report.findings.len() - streams, report.differences.len());
    let summary = match places {
        0 if streams == 0 => "no difference".green().to_string(),
        0 => "no difference, but a stream is bound to dispatch".red().to_string(),
        places => differences(causes, places).red().to_string(),
    };
    let hint = match places > causes && !output.verbose {
        true => " (-v lists them)",
        false => "",
    };
    output.line(format!("set `{}`: {compared}, {summary}{hint}", settings.topology.set))?;
    Ok(code)
}

fn differences(causes: usize, places: usize) -> String {
    let places_text = counted(places as u64, "difference");
    if causes == places {
        places_text
    } else {
        format!("{places_text} of {}", counted(causes as u64, "cause"))
    }
}
