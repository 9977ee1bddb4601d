//! `delayline apply` and `delayline diff`

use std::path::PathBuf;

use owo_colors::OwoColorize;

use delayline_admin::{
    self as admin, AddReport, Applied, ApplyOptions, ApplyReport, Platform, PrunedApp, SetReport,
};
use delayline_schedules::Changed;
use delayline_settings::Settings;

use super::install::switched;
use crate::cmd::app::landed;
use delayline_term::{
    Code, Failure, Output, consent::Consent, ending, findings, output::at, output::counted, output::dry_run,
    output::grouped, output::unchanged, text::readable,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline apply platform.toml --dry-run
  delayline apply platform.toml
  delayline apply platform.toml --prune --yes
  delayline apply platform.toml --json | jq -r .outcome

The file lists the sets and applications that the vhost should have
(docs/how-to/platform-file.md). Applying again changes nothing. Users' permissions are
overwritten. If a queue or a binding differs from the file, or another object conflicts,
the command names it, changes nothing and exits with 1. --prune removes applications, so it
asks first.")]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline diff platform.toml
  delayline diff platform.toml --prune
  delayline diff platform.toml --json | jq '.sets[].apps[] | select(.outcome != \"unchanged\") | .app'

Shows the changes that `delayline apply` would make, and makes none. Also lists applications,
gateways and rights of users that are not in the file. Exits with 0 without a difference and
with 1 otherwise, for example in a nightly job. No file with a password is read.")]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    source: Source,
}

/// The definitions to apply.
#[derive(Debug, clap::Args)]
struct Source {
    /// The platform file; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Also remove applications, gateways and rights of users that are not in the file
    #[arg(long)]
    prune: bool,
}

impl Source {
    fn apply(&self, settings: &Settings, dry_run: bool, output: &Output) -> Result<ApplyReport, Failure> {
        let platform = Platform::load(&self.file, &settings.topology, !dry_run).map_err(Failure::usage)?;
        let options = ApplyOptions { prune: self.prune, dry_run };
        let stop = ending::on_signal()?;
        Ok(output.following("applying", |bar| {
            admin::apply(settings, &platform, options, &stop, |done, total| {
                at(bar, done as u64, total as u64)
            })
        })?)
    }
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let run = |dry_run, output: &mut Output| {
        let report = args.source.apply(settings, dry_run, output)?;
        show(&report, output)?;
        Ok(if report.outcome == Applied::Conflict { Code::Problem } else { Code::Done })
    };
    // Without --prune, nothing is removed.
    if (args.source.prune || args.consent.dry_run)
        && let Some(code) = args.consent.ask(output, |output| run(true, output))?
    {
        return Ok(code);
    }
    run(false, output)
}

pub(crate) fn diff(args: &DiffArgs, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let report = args.source.apply(settings, true, output)?;
    show(&report, output)?;
    let same = report.outcome == Applied::Unchanged && report.sets.iter().all(|it| it.not_in_file.is_empty());
    Ok(if same { Code::Done } else { Code::Problem })
}

fn show(report: &ApplyReport, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.json(report)?);
    }
    for set in &report.sets {
        of_set(set, output)?;
    }
    for conflict in report.conflicts() {
        output.line(format!("{} {}", "✗".red(), readable(&conflict)))?;
    }
    let changed = |app: &&AddReport| app.outcome != Applied::Unchanged;
    let apps = || report.sets.iter().flat_map(|set| &set.apps);
    let gateways = || report.sets.iter().flat_map(|set| &set.gateways);
    let pruned = |set: &SetReport| {
        let schedules = set.schedules.iter().filter(|it| it.outcome != Changed::Unchanged).count();
        set.pruned.len() + set.pruned_gateways.len() + set.pruned_users.len() + schedules
    };
    let pruned = report.sets.iter().map(pruned).sum::<usize>();
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
        findings::warnings(&install.warnings, output)?;
    }
    for line in switched(install) {
        output.line(format!("set `{}`: {line}", report.set))?;
    }
    let is_same = |app: &AddReport| {
        app.steps.iter().all(|step| step.stood) && app.removed.is_empty() && app.kept.is_empty()
    };
    for app in report.apps.iter().filter(|app| !is_same(app)) {
        output.line(format!("application `{}`", app.app))?;
        for step in app.steps.iter().filter(|step| !step.stood) {
            match &step.replaces {
                Some(was) => output.line(format!("  {} {}", "~".yellow(), readable(was)))?,
                None => output.line(format!("  {} {}", "+".green(), step.what))?,
            }
        }
        landed(app, &format!("  {}", "-".red()), output)?;
        findings::warnings(&app.warnings, output)?;
    }
    for app in &report.pruned {
        pruned(app, output)?;
    }
    for gateway in report.gateways.iter().filter(|it| it.steps.iter().any(|step| !step.stood)) {
        output.line(format!("gateway `{}`", gateway.gateway))?;
        for step in gateway.steps.iter().filter(|step| !step.stood) {
            output.line(format!("  {} {}", "+".green(), readable(&step.what)))?;
        }
    }
    for gateway in &report.pruned_gateways {
        let Some(report) = &gateway.report else { continue };
        output.line(format!("gateway `{}`", gateway.gateway))?;
        for removed in &report.removed {
            output.line(format!("  {} {}", "-".red(), readable(removed)))?;
        }
    }
    for change in report.schedules.iter().filter(|it| it.outcome != Changed::Unchanged) {
        let sign = match change.outcome {
            Changed::Added => "+".green().to_string(),
            Changed::Removed => "-".red().to_string(),
            _ => "~".yellow().to_string(),
        };
        output.line(format!("{sign} schedule `{}`", change.schedule))?;
    }
    for user in &report.pruned_users {
        output.line(format!("user `{}`", readable(user)))?;
        output.line(format!("  {} permissions and topic permissions in this vhost", "-".red()))?;
    }
    for surplus in &report.not_in_file {
        output.line(format!("not in the file (--prune removes it): {}", readable(surplus)))?;
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
