//! `delayline gateway`

use clap::{Subcommand, ValueEnum};
use owo_colors::OwoColorize;

use delayline_admin::{self as admin, Applied, GatewayAdded, GatewayEntry, RemoveRefusal, RemoveReport};
use delayline_core::topology::{ExchangeKind, Topology};
use delayline_settings::Settings;

use crate::again::Again;
use delayline_term::{
    Code, Failure, Output, change, consent::Consent, ending, findings, output::grouped, output::known,
    output::not_installed, output::unchanged, table::table, text::readable,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline gateway add orders.delayed --type topic
  delayline gateway list
  delayline gateway check orders.delayed
  delayline gateway remove orders.delayed

For applications that were written for the delayed-message plugin: they publish with the
header `x-delay` in milliseconds, and any routing key. Publishers use the exchange
`<name>.in`, consumers stay bound to the exchange `<name>`; `delayline serve` works in
between. docs/how-to/gateway.md has the details.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(crate) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Check(_))
    }

    /// Whether to look again and again.
    pub(crate) fn again(&self) -> Again {
        match &self.command {
            Command::List(again) => *again,
            _ => Again::default(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a gateway: two exchanges and two queues
    #[command(after_help = "\
Examples:
  delayline gateway add orders.delayed --type topic --dry-run
  delayline gateway add orders.delayed --type direct

Adding again only makes missing objects. If an exchange of that name exists with another
type, the command reports it, changes nothing and exits with 1.")]
    Add(Add),
    /// List gateways: waiting messages, daemons, faults
    #[command(after_help = "\
Examples:
  delayline gateway list
  delayline gateway list --json | jq '.gateways[] | select(.channels == 0) | .gateway'")]
    List(Again),
    /// Report the faults of a gateway
    #[command(after_help = "\
Examples:
  delayline gateway check orders.delayed
  delayline gateway check orders.delayed --json")]
    Check(Named),
    /// Remove a gateway; the exchange of its consumers stays
    #[command(after_help = "\
Examples:
  delayline gateway remove orders.delayed --dry-run
  delayline gateway remove orders.delayed
  delayline gateway remove orders.delayed --yes

Refuses, with exit code 1, while messages wait in its queues. The exchange of the publishers
is removed first. 12 seconds later the messages are counted again; if there are any, the
exchange is restored. Messages that are still in the levels become unroutable; add the
gateway again and replay them. Ctrl-C and SIGTERM take effect after the removal is complete.")]
    Remove(Remove),
}

/// The type of the exchange that consumers are bound to.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Direct,
    Topic,
    Fanout,
    Headers,
}

impl From<Kind> for ExchangeKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Direct => Self::Direct,
            Kind::Topic => Self::Topic,
            Kind::Fanout => Self::Fanout,
            Kind::Headers => Self::Headers,
        }
    }
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The gateway, which is also the exchange that consumers are bound to
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct Add {
    #[command(flatten)]
    named: Named,
    /// The type of that exchange: the plugin's `x-delayed-type`
    #[arg(long = "type", value_name = "TYPE")]
    kind: Kind,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Remove {
    #[command(flatten)]
    named: Named,
    /// Remove it even if messages wait in its queues; the messages are lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    consent: Consent,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::Add(args) => {
            let kind = args.kind.into();
            let added = admin::add_gateway(settings, &topology, &args.named.name, kind, args.dry_run)?
                .map_err(|error| Failure::usage(format!("no gateway can have this name: {error}")))?;
            show_added(settings, &added, output)
        }
        Command::List(_) => {
            let list = admin::list_gateways(settings, &topology)?;
            let set = &topology.settings().set;
            if output.json {
                output.json(&list)?;
            } else if !list.installed {
                output.line(not_installed(settings))?;
            } else if list.gateways.is_empty() {
                output.line(format!("set `{set}` has no gateways"))?;
            } else {
                show_list(&list.gateways, output)?;
            }
            Ok(if list.installed { Code::Done } else { Code::Problem })
        }
        Command::Check(Named { name }) => {
            let list = admin::list_gateways(settings, &topology)?;
            let Some(found) = list.gateways.into_iter().find(|it| it.gateway == *name) else {
                let set = &topology.settings().set;
                let known = settings.command(&["gateway", "list"]);
                let reason = match list.installed {
                    true => format!("set `{set}` has no gateway `{name}`; `{known}` shows all gateways"),
                    false => not_installed(settings),
                };
                return Err(Failure::new(Code::Problem, reason));
            };
            if output.json {
                output.json(&found)?;
            } else if found.problems.is_empty() && !found.unchecked.is_empty() {
                output.line(format!("{} gateway `{name}`", "not known".yellow().bold()))?;
                findings::unchecked(&found.unchecked, output)?;
            } else if found.problems.is_empty() {
                output.line(format!("{} gateway `{name}`", "ok".green().bold()))?;
            } else {
                output.line(format!("{} gateway `{name}`", "problem".red().bold()))?;
                for problem in &found.problems {
                    output.line(format!("  {}", readable(problem)))?;
                }
                findings::unchecked(&found.unchecked, output)?;
            }
            Ok(if found.problems.is_empty() { Code::Done } else { Code::Problem })
        }
        Command::Remove(args) => remove(args, settings, &topology, output),
    }
}

fn show_added(settings: &Settings, added: &GatewayAdded, output: &mut Output) -> Result<Code, Failure> {
    let code = match added.outcome {
        Applied::Conflict if added.no_set => Code::Broker,
        Applied::Conflict => Code::Problem,
        _ => Code::Done,
    };
    if output.json {
        output.json(added)?;
        return Ok(code);
    }
    let GatewayAdded { gateway, entry, .. } = added;
    let found = (added.outcome, &added.steps[..], &added.conflicts[..]);
    if !change::made(&format!("gateway `{gateway}`"), "added", found, output)? {
        return Ok(code);
    }
    output.line(format!(
        "Publishers use exchange `{entry}` and need write permission for it; consumers bind to exchange \
         `{gateway}` and need read permission for that. `{}` takes the messages.",
        settings.command(&["serve"])
    ))?;
    Ok(code)
}

fn show_list(gateways: &[GatewayEntry], output: &mut Output) -> Result<(), Failure> {
    let rows = gateways.iter().map(|it| {
        vec![
            it.gateway.clone(),
            it.kind.clone().unwrap_or_else(|| "missing".into()),
            it.entry.clone(),
            known(it.waiting),
            known(it.due),
            known(it.channels),
            grouped(it.bindings as u64),
        ]
    });
    let header = ["gateway", "type", "publishers use", ">waiting", ">due", ">channels", ">bindings"];
    output.line(table(&header, rows))?;
    for it in gateways {
        for problem in &it.problems {
            output.line(format!(
                "{} {}: {}",
                "problem".red().bold(),
                readable(&it.gateway),
                readable(problem)
            ))?;
        }
    }
    Ok(())
}

fn remove(
    args: &Remove,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let name = &args.named.name;
    let stop = ending::on_signal()?;
    let run = |dry_run| admin::remove_gateway(settings, topology, name, (args.force, dry_run), &stop);
    let plan = |output: &mut Output| removed(settings, name, run(true)?, output);
    if let Some(code) = args.consent.ask(output, plan)? {
        return Ok(code);
    }
    let outcome = output.spinning("removing", || run(false))?;
    removed(settings, name, outcome, output)
}

fn removed(
    settings: &Settings,
    name: &str,
    outcome: Result<RemoveReport, RemoveRefusal>,
    output: &mut Output,
) -> Result<Code, Failure> {
    let report = match outcome {
        Ok(report) => report,
        Err(refusal) => {
            let serve = settings.command(&["serve"]);
            let wait = format!("Wait until `{serve}` has sent them on, or use --force to lose them.");
            let advice: &[&str] = if refusal.is_in_use() { &[&wait] } else { &[] };
            return change::refused(&refusal, refusal.interrupted, advice, output);
        }
    };
    if output.json {
        output.json(&report)?;
        return Ok(Code::Done);
    }
    change::removed(report.dry_run, (&report.removed, &report.discarded, &report.left), output)?;
    if report.removed.is_empty() {
        output.line(format!("{} gateway `{name}`: nothing to remove", unchanged()))?;
    }
    Ok(Code::Done)
}
