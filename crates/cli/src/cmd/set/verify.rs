//! `delayline verify`

use owo_colors::OwoColorize;

use delayline_admin::{self as admin, FindingCode, findings as findings_of};
use delayline_broker::Difference;
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use crate::again::Again;
use delayline_term::{Code, Failure, Output, findings, output::counted, output::not_installed};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline verify
  delayline verify --details                    with every place that differs
  delayline verify --json | jq '.findings'

Exits with 0 only if everything was compared, and with 3 if a part could not be: bindings and
policies need the management API.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) again: Again,
}

pub(crate) fn run(settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let mut report = admin::verify(settings, &topology)?;
    // Leaders of new queues are known ten seconds later; anything else that is unknown stays so.
    let is_checked = report.unchecked.len() <= usize::from(report.unchecked_for_now);
    let code = match report.findings.is_empty() {
        false => Code::Problem,
        true if is_checked => Code::Done,
        true => Code::Broker,
    };
    if !report.installed {
        // All objects and bindings are missing: one word reports that.
        report.differences.retain(|it| matches!(it, Difference::Unsuitable { .. }));
        report.findings = findings_of(&settings.topology.set, &report.differences);
    }
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    if !report.installed {
        output.line(not_installed(settings))?;
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
    let hint = match places > causes && !output.details {
        true => " (--details lists them)",
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
