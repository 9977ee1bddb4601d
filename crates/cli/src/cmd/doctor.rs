//! `delayline doctor`

use std::collections::BTreeMap;

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, DoctorOptions, DoctorReport, FindingCode, Layout, Severity};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::again::Again;
use delayline_term::{Code, Failure, Output, findings, output::counted, text::readable};

/// Explains each finding.

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline doctor
  delayline doctor --json | jq -r '.findings[] | [.severity, .code, .subject] | @tsv'
  delayline doctor --trusted installer --trusted retry-service
  delayline doctor --ignore target-can-refuse --ignore dead-letter-prefetch
  delayline doctor --layout nservicebus         a layout instead of the set
  delayline doctor --watch 1m
  delayline doctor stuck-dead-letters           explains the finding

A problem (✗) delays or misdirects messages right now. Advice (!) is a fault that could
lead to a problem, or an improvement. Each finding has a code that does not change and a
section in docs/runbook. The same fault in many places is a single finding; --details and
--json list the places. Nothing on the broker is changed. The doctor needs the management
API, and only administrators can see permissions. Stuck messages of a layout (--layout) are
reported 15 to 20 s after they stopped: until then they may be moving. Exits with 0 without
findings, and with 1 if there is any finding, even if it is only advice.")]
pub(crate) struct Args {
    /// Explain this finding, without a broker
    #[arg(value_name = "CODE", conflicts_with_all = ["ignore", "trusted", "layout", "watch"])]
    code: Option<FindingCode>,
    /// Do not report findings with this code; can be given several times
    #[arg(long, value_name = "CODE")]
    ignore: Vec<FindingCode>,
    /// This user may have access to the whole set; can be given several times
    #[arg(long, value_name = "USER")]
    trusted: Vec<String>,
    /// Check this layout instead of the set (nservicebus, nservicebus:v1, celery,
    /// celery:PREFIX)
    #[arg(long, value_name = "LAYOUT", conflicts_with = "trusted")]
    layout: Option<Layout>,
    #[command(flatten)]
    pub(crate) again: Again,
}

pub(crate) fn run(
    args: &Args,
    settings: impl FnOnce() -> Result<Settings, Failure>,
    output: &mut Output,
) -> Result<Code, Failure> {
    if let Some(code) = args.code {
        return explain(code, output);
    }
    let settings = &settings()?;
    let topology = Topology::new(settings.topology.clone());
    let options = DoctorOptions { trusted: args.trusted.clone(), ..DoctorOptions::default() };
    let mut report = output.spinning("looking", || match &args.layout {
        Some(layout) => admin::doctor_layout(settings, &topology, layout, &options),
        None => admin::doctor(settings, &topology, &options),
    })?;
    let before = report.findings.len();
    report.findings.retain(|finding| !args.ignore.contains(&finding.code));
    let ignored = before - report.findings.len();
    let code = if report.findings.is_empty() { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    let whose = match &args.layout {
        Some(layout) => format!("layout `{layout}`"),
        None => format!("set `{}`", report.set),
    };
    show(&report, &whose, ignored, settings, output)?;
    Ok(code)
}

/// The meaning of a finding.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Explained {
    #[schemars(with = "String")]
    code: FindingCode,
    severity: Severity,
    /// Its section of the runbook.
    explanation: &'static str,
}

/// Prints the section of the runbook about a finding.
fn explain(code: FindingCode, output: &mut Output) -> Result<Code, Failure> {
    let explanation = code.section().trim_start_matches("## ");
    match output.json {
        true => output.json(&Explained { code, severity: code.severity(), explanation })?,
        false => output.line(explanation)?,
    }
    Ok(Code::Done)
}

fn show(
    report: &DoctorReport,
    whose: &str,
    ignored: usize,
    settings: &Settings,
    output: &mut Output,
) -> Result<(), Failure> {
    findings::show(&report.findings, output)?;
    findings::unchecked(&report.unchecked, output)?;
    let ignored = if ignored > 0 { format!(", {ignored} ignored") } else { String::new() };
    let summary = if report.findings.is_empty() {
        match report.unchecked.is_empty() {
            true => "nothing found".green().to_string(),
            false => "nothing found in what could be checked".yellow().to_string(),
        }
    } else {
        let mut counts: BTreeMap<Severity, u64> = BTreeMap::new();
        for finding in &report.findings {
            *counts.entry(finding.severity).or_default() += 1;
        }
        let parts: Vec<_> = counts
            .into_iter()
            .map(|(severity, count)| match severity {
                Severity::Problem => counted(count, "problem"),
                // These have no plural.
                other => format!("{count} {other}"),
            })
            .collect();
        format!("{} (`{}` explains one)", parts.join(", ").red(), settings.command(&["doctor", "CODE"]))
    };
    output.line(format!("{}: {summary}{ignored}", readable(whose)))?;
    Ok(())
}
