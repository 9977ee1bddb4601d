//! `delayline apply` and `delayline diff`

use std::path::PathBuf;

use owo_colors::OwoColorize;

use delayline_admin::{
    self as admin, AddReport, Applied, ApplyOptions, ApplyReport, Platform, PrunedApp, SetReport,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    output::{at, counted, dry_run, grouped, printable, unchanged},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline apply platform.toml --dry-run
  delayline apply platform.toml
  delayline apply platform.toml --prune
  delayline apply platform.toml --json | jq -r .outcome

The file says which sets and applications the vhost should have; docs/platform.md has all
keys. Applying again changes nothing. Users' permissions are overwritten. If a queue or a
binding differs from what the file says, or something else is in the way, the command
names it, changes nothing and exits with 1.")]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline diff platform.toml
  delayline diff platform.toml --prune
  delayline diff platform.toml --json | jq '.sets[].apps[] | select(.outcome != \"unchanged\") | .app'

Shows what `delayline apply` would do, and changes nothing. Exits with 0 if there is
nothing to do and with 1 if there is, for example in a nightly job. No file with a
password is read.")]
pub(super) struct DiffArgs {
    #[command(flatten)]
    source: Source,
}

/// What is to be applied.
#[derive(Debug, clap::Args)]
struct Source {
    /// The platform file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also remove the applications and gateways of its sets that are not in the file
    #[arg(long)]
    prune: bool,
}

impl Source {
    fn apply(&self, settings: &Settings, dry_run: bool, output: &Output) -> Result<ApplyReport, Failure> {
        let platform = Platform::load(&self.file, &settings.topology, !dry_run).map_err(Failure::usage)?;
        let options = ApplyOptions { prune: self.prune, dry_run };
        Ok(output.following("applying", |bar| {
            admin::apply(settings, &platform, options, |done, total| at(bar, done as u64, total as u64))
        })?)
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let report = args.source.apply(settings, args.dry_run, output)?;
    show(&report, output)?;
    Ok(if report.outcome == Applied::Conflict { Code::Problem } else { Code::Done })
}

pub(super) fn diff(args: &DiffArgs, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let report = args.source.apply(settings, true, output)?;
    show(&report, output)?;
    Ok(if report.outcome == Applied::Unchanged { Code::Done } else { Code::Problem })
}

fn show(report: &ApplyReport, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.json(report)?);
    }
    for set in &report.sets {
        of_set(set, output)?;
    }
    for conflict in report.conflicts() {
        output.line(format!("{} {}", "✗".red(), printable(&conflict)))?;
    }
    let changed = |app: &&AddReport| app.outcome != Applied::Unchanged;
    let apps = || report.sets.iter().flat_map(|set| &set.apps);
    let gateways = || report.sets.iter().flat_map(|set| &set.gateways);
    let pruned = report.sets.iter().map(|set| set.pruned.len() + set.pruned_gateways.len()).sum::<usize>();
    let number = apps().filter(changed).count()
        + gateways().filter(|it| it.outcome != Applied::Unchanged).count()
        + pruned;
    let of_gateways = match gateways().count() as u64 {
        0 => String::new(),
        number => format!(", {}", counted(number, "gateway")),
    };
    let head = match report.outcome {
        Applied::Unchanged => unchanged(),
        Applied::DryRun => dry_run(),
        Applied::Conflict => "conflict".red().bold().to_string(),
        _ => "applied".green().bold().to_string(),
    };
    output.line(format!(
        "{head} {}, {}{of_gateways}: {} of them differ",
        counted(report.sets.len() as u64, "set"),
        counted(apps().count() as u64, "application"),
        grouped(if report.outcome == Applied::Unchanged { 0 } else { number as u64 }),
    ))?;
    Ok(())
}

/// What changes: `+` is made, `~` replaced, `-` removed.
fn of_set(report: &SetReport, output: &mut Output) -> Result<(), Failure> {
    let install = &report.install;
    if !install.created.is_empty() || install.created_bindings.is_some_and(|made| made > 0) {
        let objects = counted(install.created.len() as u64, "exchange and queue")
            .replace("exchange and queues", "exchanges and queues");
        let bindings = install.created_bindings.unwrap_or(install.bindings) as u64;
        output.line(format!("set `{}`", report.set))?;
        output.line(format!("  {} {objects}, {}", "+".green(), counted(bindings, "binding")))?;
    }
    for app in report.apps.iter().filter(|app| app.steps.iter().any(|step| !step.stood)) {
        output.line(format!("application `{}`", app.app))?;
        for step in app.steps.iter().filter(|step| !step.stood) {
            match &step.replaces {
                Some(was) => output.line(format!("  {} {}", "~".yellow(), printable(was)))?,
                None => output.line(format!("  {} {}", "+".green(), step.what))?,
            }
        }
    }
    for app in &report.pruned {
        pruned(app, output)?;
    }
    for gateway in report.gateways.iter().filter(|it| it.steps.iter().any(|step| !step.stood)) {
        output.line(format!("gateway `{}`", gateway.gateway))?;
        for step in gateway.steps.iter().filter(|step| !step.stood) {
            output.line(format!("  {} {}", "+".green(), printable(&step.what)))?;
        }
    }
    for gateway in &report.pruned_gateways {
        let Some(report) = &gateway.report else { continue };
        output.line(format!("gateway `{}`", gateway.gateway))?;
        for removed in &report.removed {
            output.line(format!("  {} {}", "-".red(), printable(removed)))?;
        }
    }
    Ok(())
}

fn pruned(app: &PrunedApp, output: &mut Output) -> Result<(), Failure> {
    let Some(report) = &app.report else { return Ok(()) };
    output.line(format!("application `{}`", app.app))?;
    for removed in &report.removed {
        output.line(format!("  {} {removed}", "-".red()))?;
    }
    for left in &report.left {
        output.line(format!("  left alone: {left}"))?;
    }
    Ok(())
}
