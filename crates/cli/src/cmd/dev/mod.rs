//! `delayline dev`

mod apps;

use std::{
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use owo_colors::OwoColorize;
use serde::Serialize;

use delayline_admin::{self as admin, Applied};
use delayline_amqp::broker::Secret;
use delayline_client::retry::Service;
use delayline_core::{codec::AppKey, retry::SharedPolicies, shell::quoted, topology::Topology};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::{Layers, Settings};

use crate::{cmd::app::address, flags::PolicyFile, values};
use delayline_term::{Code, Failure, Output, ending, output::aside, text::readable};

use apps::App;

/// How often an interrupt and the end of the command are looked for.
const TICK: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline dev --app billing
  delayline dev --apps apps.toml --unit-ms 10
  delayline dev --app billing --unit-ms 10 -- npm test
  delayline dev --app billing --json

Starts RabbitMQ (which must be installed, not running) on free ports of this machine, with a
set, a retry service and these applications. Prints their addresses, and runs until Ctrl-C;
then everything is removed. With a command, it runs until the command ends, and returns its
exit code. The command has the addresses in its environment: AMQP_URL for the first
application, AMQP_URL_EU_SHOP for `eu.shop`, and DELAYLINE_URL and others for `delayline`.

With --unit-ms N, a second of a delay takes N milliseconds: 1 to 1000. A file has a table
for each application, with a password, and what `apply` reads in a platform file
(docs/how-to/platform-file.md): user, queue, publish_only, may_publish, recall, journal and
so on. Each has retries.
  [apps.billing]
  queue = \"billing-in\"
  recall = true
  journal = \"90d\"")]
pub(crate) struct Args {
    /// Register this application, with a queue of its name and retries
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: Vec<AppKey>,
    /// Register the applications of this file
    #[arg(long, value_name = "FILE")]
    apps: Option<PathBuf>,
    #[command(flatten)]
    policies: PolicyFile,
    /// A command to run, and its arguments
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
}

/// The node and its applications, for scripts.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Ready {
    url: String,
    management_url: String,
    set: String,
    unit_ms: u16,
    apps: Vec<Registered>,
}

/// An application and its credentials. They are good for this node only, which is gone when
/// we are.
#[derive(Serialize, schemars::JsonSchema)]
struct Registered {
    app: String,
    user: String,
    password: String,
    queue: Option<String>,
    url: String,
}

/// `set` and `unit_ms` come from the flags. Other settings are ignored: they belong to another broker.
pub(crate) fn run(
    args: &Args,
    (set, unit_ms): (Option<&str>, Option<&str>),
    output: &mut Output,
) -> Result<Code, Failure> {
    let flags = [("set", set), ("unit_ms", unit_ms)];
    let with = |layers: Layers| {
        flags
            .iter()
            .filter_map(|(key, value)| Some((key, (*value)?)))
            .fold(layers, |it, (key, value)| it.set(key, value))
    };
    // Mistakes are reported before anything is started.
    let topology = Topology::new(with(Layers::new()).build()?.topology);
    let mut apps = args.app.iter().map(|app| apps::plain(app, &topology)).collect::<Result<Vec<_>, _>>()?;
    if let Some(file) = &args.apps {
        apps.extend(apps::read(file, &topology)?);
    }
    let policies = SharedPolicies::new(args.policies.load()?);

    let start = || PrivateNode::start(NodeOptions::default());
    let node = output.spinning("starting a private RabbitMQ node", start)?;
    let settings = with(node.settings()).build()?;
    let ready = output.spinning("installing", || set_up(&settings, &topology, &apps, &node))?;
    let stop = match args.command.is_empty() {
        true => ending::on_signal_or_without_reader()?,
        false => ending::on_signal()?,
    };
    let served = Arc::new(AtomicBool::new(false));
    let service = {
        let (service, served) = (Service::new(settings.router(), policies), Arc::clone(&served));
        thread::Builder::new().name("delayline-retry".into()).spawn(move || service.run(&served))?
    };
    let result = match args.command.split_first() {
        None => {
            show(&ready, output)?;
            wait(|| Ok::<_, Failure>(stop.load(Ordering::Relaxed).then_some(Code::Done)))
        }
        Some((program, arguments)) => command(program, arguments, &ready, &stop),
    };
    served.store(true, Ordering::Relaxed);
    // Its unfinished work is removed with the node.
    let _ = service.join();
    result
}

/// Installs the set and registers the applications.
fn set_up(
    settings: &Settings,
    topology: &Topology,
    apps: &[App],
    node: &PrivateNode,
) -> Result<Ready, Failure> {
    admin::install(settings, topology, false, || {})?;
    let mut registered = Vec::new();
    for App { spec, user, password } in apps {
        let report = admin::add_app(settings, topology, spec, false, false)?;
        if report.outcome == Applied::Conflict {
            return Err(Failure::usage(format!(
                "application `{}`: {}",
                spec.app,
                report.conflicts.join("; ")
            )));
        }
        // So that what a team runs with its own credentials in production works here.
        admin::show_management(settings, user, &Secret::new(password))?;
        registered.push(Registered {
            app: spec.app.to_string(),
            user: user.clone(),
            password: password.clone(),
            queue: spec.queue_name().map(str::to_owned),
            url: address(&settings.broker, user, password),
        });
    }
    Ok(Ready {
        url: node.url(),
        management_url: node.management_url(),
        set: topology.settings().set.to_string(),
        unit_ms: topology.settings().unit.millis(),
        apps: registered,
    })
}

fn show(ready: &Ready, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.json(ready)?);
    }
    output.line(format!(
        "{} a private RabbitMQ node at {}, its pages at {} (user and password guest)",
        "started".green().bold(),
        ready.url,
        ready.management_url
    ))?;
    for (name, value) in variables(ready) {
        output.line(format!("export {name}={}", quoted(&value)))?;
    }
    for Registered { app, queue, .. } in &ready.apps {
        let receives =
            queue.as_ref().map_or_else(String::new, |queue| format!(", receives from queue `{queue}`"));
        output.line(format!("application `{app}`: sends to exchange `{}`{receives}", ready.set))?;
    }
    if ready.unit_ms != 1_000 {
        output.line(format!("a second of a delay takes {} ms here", ready.unit_ms))?;
    }
    Ok(output.line("press Ctrl-C to end it")?)
}

/// The environment variables of programs.
fn variables(ready: &Ready) -> Vec<(String, String)> {
    let mut variables: Vec<_> =
        ready.apps.first().map(|first| ("AMQP_URL".to_owned(), first.url.clone())).into_iter().collect();
    variables.extend(ready.apps.iter().map(|it| (variable(&it.app), it.url.clone())));
    variables.extend([
        ("DELAYLINE_URL".into(), ready.url.clone()),
        ("DELAYLINE_MANAGEMENT_URL".into(), ready.management_url.clone()),
        ("DELAYLINE_SET".into(), ready.set.clone()),
        ("DELAYLINE_UNIT_MS".into(), ready.unit_ms.to_string()),
    ]);
    variables
}

/// `AMQP_URL_EU_SHOP`
fn variable(app: &str) -> String {
    let letter =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    format!("AMQP_URL_{}", app.chars().map(letter).collect::<String>())
}

/// Runs a command until it ends. A signal from the terminal reaches the command as well as us. A
/// signal to us alone ends the command, too.
fn command(program: &str, arguments: &[String], ready: &Ready, stop: &AtomicBool) -> Result<Code, Failure> {
    let started = Command::new(program).args(arguments).envs(variables(ready)).spawn();
    let mut child = started.map_err(|error| Failure::usage(format!("`{program}` cannot be run: {error}")))?;
    aside(format!("the broker is ready; `{}` runs", readable(program)));
    let ended = wait(|| match (child.try_wait()?, stop.load(Ordering::Relaxed)) {
        (Some(status), _) => Ok::<_, Failure>(Some(code(status))),
        (None, true) => {
            end(&mut child)?;
            Ok(Some(Code::Interrupted))
        }
        (None, false) => Ok(None),
    });
    // It has ended, unless waiting for it failed.
    let _ = child.kill();
    ended
}

/// The code that a command ended with; as shells count it, if a signal ended it.
fn code(status: ExitStatus) -> Code {
    let number = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    Code::Other(u8::try_from(number).unwrap_or(1))
}

/// Asks a process to end, and waits for that; a second signal ends us at once.
fn end(child: &mut Child) -> Result<(), Failure> {
    let _ =
        rustix::process::kill_process(rustix::process::Pid::from_child(child), rustix::process::Signal::TERM);
    child.wait()?;
    Ok(())
}

/// Looks until something exists.
fn wait<T, E>(mut look: impl FnMut() -> Result<Option<T>, E>) -> Result<T, E> {
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_one_that_shells_take() {
        assert_eq!(variable("eu.shop-2"), "AMQP_URL_EU_SHOP_2");
        assert_eq!(variable("käse"), "AMQP_URL_K_SE");
    }
}
