//! `delayline doctor`

use std::collections::BTreeMap;

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, DoctorOptions, DoctorReport, FindingCode, Layout, Severity};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    again::Again,
    findings,
    output::{counted, printable},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline doctor
  delayline doctor --json | jq -r '.findings[] | [.severity, .code, .subject] | @tsv'
  delayline doctor --trusted installer --trusted retry-service
  delayline doctor --ignore target-can-refuse --ignore dead-letter-prefetch
  delayline doctor --layout nservicebus         the delays of others
  delayline doctor --watch 60

A problem (✗) delays messages or sends them where they should not go, right now. An advice
(!) is something that could lead to that, or could be better. Each finding has a code that
does not change and a section in docs/doctor.md. The same fault in many places is one
finding; -v and --json list the places. Nothing on the broker is changed. The doctor needs
the management API, and only administrators can see permissions. What is stuck in the
delays of others (--layout) is told 15 to 20 s after it stalled: until then it may be moving.
Exits with 0 if there is nothing to report, and with 1 if there is anything, even if only
advice.")]
pub(super) struct Args {
    /// Do not report findings with this code; can be given several times
    #[arg(long, value_name = "CODE")]
    ignore: Vec<FindingCode>,
    /// This user may have access to the whole set; can be given several times
    #[arg(long, value_name = "USER")]
    trusted: Vec<String>,
    /// Instead of the set: the delays of this layout (nservicebus, celery, celery:PREFIX)
    #[arg(long, value_name = "LAYOUT", conflicts_with = "trusted")]
    layout: Option<Layout>,
    #[command(flatten)]
    pub(super) again: Again,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
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
    show(&report, &whose, ignored, output)?;
    Ok(code)
}

fn show(report: &DoctorReport, whose: &str, ignored: usize, output: &mut Output) -> Result<(), Failure> {
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
        format!("{} (docs/doctor.md explains each)", parts.join(", ").red())
    };
    output.line(format!("{}: {summary}{ignored}", printable(whose)))?;
    Ok(())
}
