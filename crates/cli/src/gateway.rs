//! `delayline gateway`

use clap::{Subcommand, ValueEnum};
use owo_colors::OwoColorize;

use delayline_admin::{self as admin, Applied, GatewayAdded, GatewayEntry};
use delayline_core::topology::{ExchangeKind, Topology};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    again::Again,
    change,
    output::{grouped, not_installed, unchanged},
    table::table,
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
between. docs/gateway.md has the details.")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Check(_))
    }

    /// Whether to look again and again.
    pub(super) fn again(&self) -> Again {
        match &self.command {
            Command::List(again) => *again,
            _ => Again::default(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add a gateway: the exchanges of its consumers and publishers, and two queues
    #[command(after_help = "\
Examples:
  delayline gateway add orders.delayed --type topic --dry-run
  delayline gateway add orders.delayed --type direct

Adding again changes nothing, and makes what is missing. If an exchange of that name
exists with another type, the command says so, changes nothing and exits with 1.")]
    Add(Add),
    /// List gateways: what waits in them, their daemons, what is wrong
    #[command(after_help = "\
Examples:
  delayline gateway list
  delayline gateway list --json | jq '.gateways[] | select(.channels == 0) | .gateway'")]
    List(Again),
    /// Say what is wrong with a gateway; exits with 1 if anything is
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

Refuses, with exit code 1, while messages wait in its queues. The exchange of the
publishers goes first; six seconds later the messages are counted again, and if there are
any, it is restored. Messages that are still in the levels end up in the unroutable queue;
add the gateway again and replay them.")]
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
    /// The type of that exchange: what was `x-delayed-type` with the plugin
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
    /// Remove it even if messages wait in its queues, which are lost
    #[arg(long)]
    force: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::Add(args) => {
            let kind = args.kind.into();
            let added = admin::add_gateway(settings, &topology, &args.named.name, kind, args.dry_run)?
                .map_err(|error| Failure::usage(format!("no gateway can have this name: {error}")))?;
            show_added(&added, output)
        }
        Command::List(_) => {
            let list = admin::list_gateways(settings, &topology)?;
            let set = &topology.settings().set;
            if output.json {
                output.json(&list)?;
            } else if !list.installed {
                output.line(not_installed(set))?;
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
                let known = set.command("gateway list");
                let reason = match list.installed {
                    true => format!("there is no gateway `{name}` in set `{set}`; `{known}` shows them all"),
                    false => not_installed(set),
                };
                return Err(Failure::new(Code::Problem, reason));
            };
            if output.json {
                output.json(&found)?;
            } else if found.problems.is_empty() {
                output.line(format!("{} gateway `{name}`", "ok".green().bold()))?;
            } else {
                output.line(format!("{} gateway `{name}`", "problem".red().bold()))?;
                for problem in &found.problems {
                    output.line(format!("  {problem}"))?;
                }
            }
            Ok(if found.problems.is_empty() { Code::Done } else { Code::Problem })
        }
        Command::Remove(args) => remove(args, settings, &topology, output),
    }
}

fn show_added(added: &GatewayAdded, output: &mut Output) -> Result<Code, Failure> {
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
         `{gateway}` and need read permission for that. `delayline serve` takes the messages."
    ))?;
    Ok(code)
}

fn show_list(gateways: &[GatewayEntry], output: &mut Output) -> Result<(), Failure> {
    let rows = gateways.iter().map(|it| {
        vec![
            it.gateway.clone(),
            it.kind.clone().unwrap_or_else(|| "missing".into()),
            it.entry.clone(),
            grouped(it.waiting),
            grouped(it.due),
            grouped(it.channels),
            grouped(it.bindings as u64),
        ]
    });
    let header = ["gateway", "type", "publishers use", ">waiting", ">due", ">channels", ">bindings"];
    output.line(table(&header, rows))?;
    for it in gateways {
        for problem in &it.problems {
            output.line(format!("{} {}: {problem}", "problem".red().bold(), it.gateway))?;
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
    let outcome = output
        .spinning("removing", || admin::remove_gateway(settings, topology, name, args.force, args.dry_run));
    let report = match outcome? {
        Ok(report) => report,
        Err(refusal) => {
            let wait = ["Wait until `delayline serve` has sent them on, or use --force to lose them."];
            let advice = if refusal.conflicts.is_empty() { &wait[..] } else { &[] };
            return change::refused(&refusal, advice, output);
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
