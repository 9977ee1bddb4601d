//! `delayline app show`, and what `delayline app add` says at its end: what an application's
//! team needs to know.

use owo_colors::OwoColorize;
use serde::Serialize;

use delayline_admin::{self as admin, AppEntry};
use delayline_amqp::broker::Broker;
use delayline_core::{codec::AppKey, percent, shell::quoted, topology::Topology};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, app_show, args,
    output::{not_installed, printable},
    programs::{CLIENTS, Names, Program, programs},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline app show billing
  delayline app show billing --for python
  delayline app show billing --for go --json | jq -r '.programs[0].text' > send.go

Prints what the application's team needs: the address without its password, the exchange,
the app key and the queue; and with --for the programs of docs/for-teams with these names.
Exits with 1 if nothing is bound for the application.")]
pub(super) struct Args {
    /// The application
    #[arg(value_name = "APP", value_parser = args::app)]
    app: AppKey,
    /// Its RabbitMQ user [default: the one that may consume its queue]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    wanted: Wanted,
}

/// Which programs to print.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Wanted {
    /// Print programs to send and to receive with, for this language or client
    #[arg(long = "for", value_name = "LANGUAGE", value_parser = CLIENTS)]
    client: Option<String>,
}

/// What a team needs to know.
#[derive(Debug, Serialize)]
pub(super) struct Handout {
    #[serde(flatten)]
    names: Names,
    user: Option<String>,
    /// The address, with PASSWORD in the password's place.
    url: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<Program>,
}

impl Handout {
    pub(super) fn new(names: Names, user: Option<String>, broker: &Broker, wanted: &Wanted) -> Self {
        let url = address(broker, user.as_deref().unwrap_or("USER"), "PASSWORD");
        let programs = wanted.client.iter().flat_map(|client| programs(client, &names)).collect();
        Self { names, user, url, programs }
    }

    /// Prints it for people.
    pub(super) fn show(&self, output: &mut Output) -> Result<(), Failure> {
        let Names { app, queue, exchange } = &self.names;
        let shown = |name: &str| format!("`{}`", printable(name));
        output.line(format!("  address      AMQP_URL={}", quoted(&self.url)))?;
        output.line(format!("  send         to exchange {}, app key {}", shown(exchange), shown(app)))?;
        if let Some(queue) = queue {
            output.line(format!("  receive      from queue {}", shown(queue)))?;
        }
        if self.programs.is_empty() {
            let clients = CLIENTS.join(", ");
            output.line(format!(
                "  programs     delayline app show {} --for LANGUAGE ({clients})",
                quoted(app)
            ))?;
        }
        for Program { file, text } in &self.programs {
            output.line(format!("\n{}\n\n{}", format!("── {file} ──").bold(), text.trim_end()))?;
        }
        Ok(())
    }
}

/// A broker's address for a user.
pub(super) fn address(broker: &Broker, user: &str, password: &str) -> String {
    let scheme = if broker.tls.is_some() { "amqps" } else { "amqp" };
    // Clients do not agree on what an empty path means; all take `/%2F` for the vhost `/`.
    let [user, password, vhost] = [user, password, &broker.vhost].map(percent::encode);
    let host = if broker.host.contains(':') { format!("[{}]", broker.host) } else { broker.host.clone() };
    format!("{scheme}://{user}:{password}@{host}:{}/{vhost}", broker.port)
}

pub(super) fn run(
    args: &Args,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let list = admin::list_apps(settings, topology)?;
    let app = args.app.as_str();
    let its = || list.apps.iter().filter(|entry| entry.app.as_deref() == Some(app));
    let Some(entry) = its().find(|entry| entry.binding.is_some()) else {
        let reason = match (list.installed, its().next()) {
            (true, Some(unbound)) => app_show::not_bound(unbound),
            (true, None) => format!("application `{app}` is not registered here (delayline app add)"),
            (false, _) => not_installed(&topology.settings().set),
        };
        return Err(Failure::new(Code::Problem, reason));
    };
    let names = Names { app: app.into(), queue: entry.queue.clone(), exchange: topology.names().entry() };
    let user = args.user.clone().or_else(|| consumer(entry));
    let handout = Handout::new(names, user, &settings.broker, &args.wanted);
    if output.json {
        output.json(&handout)?;
    } else {
        output.line(format!("application `{app}`"))?;
        handout.show(output)?;
    }
    Ok(Code::Done)
}

/// The user that may consume an application's queue and publish its key, if there is just one.
fn consumer(entry: &AppEntry) -> Option<String> {
    let users = entry.users.iter().flatten();
    let mut both = users.filter(|user| user.consumes == Some(true) && user.publishes == Some(true));
    both.next().filter(|_| both.next().is_none()).map(|user| user.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_can_be_read_whatever_is_in_it() {
        let broker = Broker::from_url("amqps://admin:secret@broker.example/team%2Fa").unwrap();
        let address = address(&broker, "svc billing@x", "a/b%:");
        assert_eq!(address, "amqps://svc%20billing%40x:a%2Fb%25%3A@broker.example:5671/team%2Fa");
        let read = Broker::from_url(&address).unwrap();
        assert_eq!((read.credentials.username(), read.vhost.as_str()), (Some("svc billing@x"), "team/a"));
        let broker = Broker::from_url("amqp://localhost").unwrap();
        assert_eq!(super::address(&broker, "u", "p"), "amqp://u:p@localhost:5672/%2F");
    }
}
