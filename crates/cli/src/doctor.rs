//! `delayline doctor`

use std::collections::BTreeMap;

use owo_colors::OwoColorize;

use delayline::topology::Topology;
use delayline_admin::{
    self as admin, DoctorOptions, DoctorReport, FindingCode, HealthFinding, Severity, compare::named,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    output::{counted, printable},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline doctor
  delayline doctor --json | jq -r '.findings[] | [.severity, .code, .subject] | @tsv'
  delayline doctor --trusted installer --trusted retry-service
  delayline doctor --ignore target-can-refuse --ignore dead-letter-prefetch

A problem (✗) delays messages or sends them where they should not go, right now. An advice
(!) is something that could lead to that, or could be better. Each finding has a code that
does not change and a section in docs/doctor.md. The same fault in many places is one
finding; -v and --json list the places. Nothing on the broker is changed. The doctor needs
the management API, and only administrators can see permissions.
Exits with 0 if there is nothing to report, and with 1 if there is anything, even if only
advice.")]
pub(super) struct Args {
    /// Do not report findings with this code; can be given several times
    #[arg(long, value_name = "CODE")]
    ignore: Vec<FindingCode>,
    /// This user may have access to the whole set; can be given several times
    #[arg(long, value_name = "USER")]
    trusted: Vec<String>,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let options = DoctorOptions { trusted: args.trusted.clone(), ..DoctorOptions::default() };
    let bar = output.spinner("looking");
    let report = admin::doctor(settings, &topology, &options);
    bar.finish_and_clear();
    let mut report = report?;
    let before = report.findings.len();
    report.findings.retain(|finding| !args.ignore.contains(&finding.code));
    let ignored = before - report.findings.len();
    let code = if report.findings.is_empty() { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    show(&report, ignored, output)?;
    Ok(code)
}

fn show(report: &DoctorReport, ignored: usize, output: &mut Output) -> Result<(), Failure> {
    for same in alike(&report.findings) {
        let finding = same[0];
        let sign = match finding.severity {
            Severity::Problem => "✗".red().to_string(),
            Severity::Advice => "!".yellow().to_string(),
        };
        output.line(format!("{sign} {}  {}", finding.code.bold(), printable(&finding.subject)))?;
        output.line(format!("    {}", printable(&finding.what)))?;
        if let [_, others @ ..] = same.as_slice()
            && !others.is_empty()
        {
            let subjects = others.iter().map(|other| printable(&other.subject));
            let shown =
                if output.verbose { subjects.collect::<Vec<_>>().join(", ") } else { named(subjects) };
            output.line(format!("    the same: {shown}"))?;
        }
        let details = if output.verbose { finding.details.as_slice() } else { &[] };
        for detail in details {
            output.line(format!("    - {}", printable(detail)))?;
        }
        output.line(format!("    {} {}", "to do:".dimmed(), printable(&finding.advice)))?;
    }
    for unchecked in &report.unchecked {
        output.line(format!("{} not checked: {unchecked}", "?".yellow()))?;
    }
    let ignored = if ignored > 0 { format!(", {ignored} ignored") } else { String::new() };
    let verdict = if report.findings.is_empty() {
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
                // It has no plural.
                Severity::Advice => format!("{count} advice"),
                severity => counted(count, &severity.to_string()),
            })
            .collect();
        format!("{} (docs/doctor.md explains each)", parts.join(", ").red())
    };
    output.line(format!("set `{}`: {verdict}{ignored}", report.set))?;
    Ok(())
}

/// Groups findings that differ only in their subject: a policy can apply to all 28 levels.
fn alike(findings: &[HealthFinding]) -> Vec<Vec<&HealthFinding>> {
    let mut groups: Vec<Vec<&HealthFinding>> = Vec::new();
    for finding in findings {
        let same = |group: &&mut Vec<&HealthFinding>| {
            let first = group[0];
            (first.code, &first.what, &first.advice) == (finding.code, &finding.what, &finding.advice)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}
