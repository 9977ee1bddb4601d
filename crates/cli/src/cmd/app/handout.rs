//! `delayline app show`, and the last output of `delayline app add`: the values that an application's
//! team needs.

use owo_colors::OwoColorize;
use serde::Serialize;

use delayline_admin::{self as admin, AppEntry};
use delayline_amqp::broker::Broker;
use delayline_broker::ManagementApi;
use delayline_core::{codec::AppKey, percent, shell::quoted, topology::Topology};
use delayline_settings::Settings;
use delayline_watch::web::{Token, WebError};

use crate::{flags::PolicyFile, values};
use delayline_term::{Code, Failure, Output, output::not_installed, text::readable};

use super::{
    print,
    programs::{CLIENTS, Names, Program, programs},
    retries::{self, Retries},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline app show billing
  delayline app show billing --for python
  delayline app show billing --for go --json | jq -r '.programs[0].text' > send.go
  delayline app show billing --details          with the time of each retry
  delayline app show billing --reason expired --policies policies.toml

Prints the address without its password, the exchange, the app key, the queue and the
retries. With --for, it also prints the programs of docs/for-teams with these names. The
times of retries assume that every attempt fails at once; add the application's processing
time to each. Exits with 1 if no queue is bound for the application.")]
pub(crate) struct Args {
    /// The application
    #[arg(value_name = "APP", value_parser = values::app)]
    app: AppKey,
    /// Its RabbitMQ user [default: the user that may consume from its queue]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Show the retries of messages that fail for this reason
    #[arg(long, default_value = "rejected")]
    reason: String,
    #[command(flatten)]
    policies: PolicyFile,
    #[command(flatten)]
    wanted: Wanted,
}

/// Which programs to print.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Wanted {
    /// Print programs to send and to receive with, for this language or client
    #[arg(long = "for", value_name = "LANGUAGE", value_parser = CLIENTS)]
    client: Option<String>,
    /// Print the application's token for the daemon's list of scheduled messages; needs web_token_file
    #[arg(long, hide_short_help = true)]
    token: bool,
}

/// The values that a team needs.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Handout {
    #[serde(flatten)]
    names: Names,
    user: Option<String>,
    /// The address, with PASSWORD in the password's place.
    url: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    programs: Vec<Program>,
    /// The token for the daemon's API; with `--token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl Handout {
    /// # Errors There is no token, although one is wanted.
    pub(crate) fn new(
        names: Names,
        user: Option<String>,
        settings: &Settings,
        wanted: &Wanted,
    ) -> Result<Self, Failure> {
        let url = address(&settings.broker, user.as_deref().unwrap_or("USER"), "PASSWORD");
        let programs = wanted.client.iter().flat_map(|client| programs(client, &names)).collect();
        let token = wanted.token.then(|| token(&names.app, settings)).transpose()?;
        Ok(Self { names, user, url, programs, token })
    }

    /// Prints it for people.
    pub(crate) fn show(&self, settings: &Settings, output: &mut Output) -> Result<(), Failure> {
        let Names { app, queue, exchange, sends_to, .. } = &self.names;
        let shown = |name: &str| format!("`{}`", readable(name));
        output.line(format!("  address      AMQP_URL={}", quoted(&self.url)))?;
        let keys: Vec<_> = sends_to.iter().map(|app| shown(app)).collect();
        let keys = match keys.as_slice() {
            [] => format!("app key {}", shown(app)),
            keys => format!("app key {}; it receives no messages", keys.join(" or ")),
        };
        output.line(format!("  send         to exchange {}, {keys}", shown(exchange)))?;
        if let Some(queue) = queue {
            output.line(format!("  receive      from queue {}", shown(queue)))?;
        }
        if self.programs.is_empty() {
            let clients = CLIENTS.join(", ");
            let show = settings.command(&["app", "show", app, "--for", "LANGUAGE"]);
            output.line(format!("  programs     {show} ({clients})"))?;
        }
        if let Some(token) = &self.token {
            output.line(format!("  token        {token}"))?;
        }
        for Program { file, text } in &self.programs {
            output.line(format!("\n{}\n\n{}", format!("── {file} ──").bold(), text.trim_end()))?;
        }
        Ok(())
    }
}

/// The token of an application for a daemon with these settings.
fn token(app: &str, settings: &Settings) -> Result<String, Failure> {
    let secret = settings.web.token.clone().ok_or_else(|| {
        Failure::usage("an application's token follows from the daemon's token; set web_token_file to that of the daemon")
    })?;
    let token = Token::new(secret).map_err(|error| Failure::usage(WebError::Token(error)))?;
    Ok(token.of_app(&AppKey::new(app).map_err(Failure::usage)?))
}

/// What `app show` prints as JSON.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Shown<'a> {
    #[serde(flatten)]
    handout: &'a Handout,
    /// Absent if it receives no messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<&'a Retries<'a>>,
}

/// A broker's address for a user.
pub(crate) fn address(broker: &Broker, user: &str, password: &str) -> String {
    let scheme = if broker.tls.is_some() { "amqps" } else { "amqp" };
    // Clients do not agree on what an empty path means; all take `/%2F` for the vhost `/`.
    let [user, password, vhost] = [user, password, &broker.vhost].map(percent::encode);
    let host = if broker.host.contains(':') { format!("[{}]", broker.host) } else { broker.host.clone() };
    format!("{scheme}://{user}:{password}@{host}:{}/{vhost}", broker.port)
}

pub(crate) fn run(
    args: &Args,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let list = admin::list_apps(settings, topology)?;
    let app = args.app.as_str();
    let its = || list.apps.iter().filter(|entry| entry.app.as_deref() == Some(app));
    let Some(entry) = its().find(|entry| entry.binding.is_some()) else {
        let user = args.user.as_deref().unwrap_or(app);
        let mut sends_to = admin::apps_of_publisher(settings, topology, user)?;
        if its().next().is_none() && !sends_to.is_empty() {
            sends_to.retain(|key| key != app);
            let names = Names {
                app: app.into(),
                queue: None,
                exchange: topology.names().entry(),
                sends_to,
                recall: false,
            };
            let handout = Handout::new(names, Some(user.into()), settings, &args.wanted)?;
            if output.json {
                output.json(&Shown { handout: &handout, retries: None })?;
            } else {
                output.line(format!("application `{app}`"))?;
                handout.show(settings, output)?;
            }
            return Ok(Code::Done);
        }
        let reason = match (list.installed, its().next()) {
            (true, Some(unbound)) => print::not_bound(settings, unbound),
            (true, None) => {
                let add = settings.command(&["app", "add", app]);
                format!("application `{app}` is not registered here; register it with `{add}`")
            }
            (false, _) => not_installed(settings),
        };
        return Err(Failure::new(Code::Problem, reason));
    };
    let exchange = topology.names().entry();
    let names = Names {
        app: app.into(),
        queue: entry.queue.clone(),
        exchange,
        sends_to: Vec::new(),
        recall: entry.recall.is_some(),
    };
    let user = args.user.clone().or_else(|| consumer(entry));
    let handout = Handout::new(names, user, settings, &args.wanted)?;
    let policies = args.policies.load()?;
    let retries = match entry.queue.as_deref().and_then(|queue| parks(settings, topology, queue)) {
        Some(true) => Retries::none(&args.reason),
        _ => Retries::new(&policies, &args.app, &args.reason),
    };
    if output.json {
        output.json(&Shown { handout: &handout, retries: Some(&retries) })?;
    } else {
        output.line(format!("application `{app}`"))?;
        handout.show(settings, output)?;
        retries::show(&retries, args.policies.file().as_deref(), settings, output)?;
    }
    Ok(Code::Done)
}

/// Whether a queue parks rejected messages itself (`app add --retry none`), if that can be seen.
fn parks(settings: &Settings, topology: &Topology, queue: &str) -> Option<bool> {
    let api = ManagementApi::new(settings.management.as_ref()?).ok()?;
    let queue = api.queue(&settings.broker.vhost, queue).ok()??;
    let to =
        queue.arguments.get("x-dead-letter-exchange").or_else(|| queue.policy_value("dead-letter-exchange"));
    Some(to?.as_str()? == topology.names().parked())
}

/// The user that may consume an application's queue and publish its key, if exactly one may.
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
