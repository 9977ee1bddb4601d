//! Values that a shell completes: names in the settings or on the broker.
//!
//! A shell asks with a variable and the words that were typed so far. After any failure, it gets
//! no values and no message, and it gets that soon: the user is typing.

use std::{any::TypeId, ffi::OsString, sync::mpsc, thread, time::Duration};

use clap::{Arg, FromArgMatches};
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate};

use delayline_admin::{Layout, Reason, gateway_names};
use delayline_broker::{ManagementApi, ManagementError, app_names, set_names};
use delayline_core::{
    codec::{AppKey, Level},
    topology::{SetName, Topology},
};
use delayline_settings::Settings;

use crate::{cmd::completions::VARIABLE, flags::Global, tree};

/// How long to wait for the broker.
const WAIT: Duration = Duration::from_secs(1);

/// Answers a shell, if a shell asks.
pub(crate) fn answer() -> bool {
    let asked = CompleteEnv::with_factory(|| with_values(tree::command(), ""))
        .var(VARIABLE)
        .bin("delayline")
        .try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref());
    // Without completions, it prints nothing.
    asked.unwrap_or(true)
}

/// The command with the known values of its arguments; `of` is its parent command.
fn with_values(command: clap::Command, of: &str) -> clap::Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| match source(&arg, of) {
        Some(source) => arg.add(ArgValueCandidates::new(move || candidates(source))),
        None => arg,
    });
    command.mut_subcommands(|nested| with_values(nested, &name))
}

/// Where values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Apps,
    Brokers,
    Gateways,
    Layouts,
    Levels,
    Reasons,
    Sets,
    /// What messages can be transferred from.
    SetsAndLayouts,
}

/// What an argument of a command under `of` takes, as far as that can be looked up.
fn source(arg: &Arg, of: &str) -> Option<Source> {
    let kind = arg.get_value_parser().type_id();
    let is = |wanted: TypeId| kind == wanted;
    match (of, arg.get_id().as_str()) {
        (_, "broker") => Some(Source::Brokers),
        (_, "set") => Some(Source::Sets),
        ("held", "reason") => Some(Source::Reasons),
        ("gateway", "name") => Some(Source::Gateways),
        ("delayline", "from") => Some(Source::SetsAndLayouts),
        _ if is(TypeId::of::<AppKey>()) => Some(Source::Apps),
        _ if is(TypeId::of::<Layout>()) => Some(Source::Layouts),
        _ if is(TypeId::of::<Level>()) => Some(Source::Levels),
        _ if is(TypeId::of::<SetName>()) => Some(Source::Sets),
        _ => None,
    }
}

fn candidates(source: Source) -> Vec<CompletionCandidate> {
    values(source).unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

fn values(source: Source) -> Option<Vec<String>> {
    let layouts = || ["nservicebus", "nservicebus:v1", "celery"].map(str::to_owned).to_vec();
    Some(match source {
        Source::Apps => on_the_broker(app_names)?,
        Source::Brokers => typed()?.layers().broker_names().ok()?,
        Source::Gateways => on_the_broker(gateway_names)?,
        Source::Layouts => layouts(),
        Source::Levels => Level::all().map(|level| level.number().to_string()).collect(),
        Source::Reasons => Reason::ALL.iter().map(ToString::to_string).collect(),
        Source::Sets => on_the_broker(|api, vhost, _| set_names(api, vhost))?,
        Source::SetsAndLayouts => {
            let sets = on_the_broker(|api, vhost, _| set_names(api, vhost));
            sets.into_iter().flatten().chain(layouts()).collect()
        }
    })
}

/// Asks the broker that the settings and the words so far name, for as long as a user waits.
fn on_the_broker(
    ask: impl Fn(&ManagementApi, &str, &Topology) -> Result<Vec<String>, ManagementError> + Send + 'static,
) -> Option<Vec<String>> {
    let settings: Settings = typed()?.settings().ok()?;
    let (say, heard) = mpsc::channel();
    // The thread is never joined: the process ends first.
    thread::spawn(move || {
        let topology = Topology::new(settings.topology.clone());
        let api = ManagementApi::within(settings.management.as_ref()?, WAIT).ok()?;
        say.send(ask(&api, &settings.broker.vhost, &topology).ok()?).ok()
    });
    heard.recv_timeout(WAIT).ok()
}

/// The flags that were typed so far, such as `--broker`; other words may be missing or wrong.
fn typed() -> Option<Global> {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let matches = tree::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    Global::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sources of a command's arguments, by their names.
    fn sources(path: &[&str]) -> Vec<(String, Source)> {
        let mut command = tree::command();
        let mut of = String::new();
        for name in path {
            of = command.get_name().to_owned();
            command = command.find_subcommand(name).unwrap_or_else(|| panic!("{name}")).clone();
        }
        command
            .get_arguments()
            .filter_map(|arg| Some((arg.get_id().as_str().to_owned(), source(arg, &of)?)))
            .collect()
    }

    #[test]
    fn values_that_can_be_looked_up_are() {
        for (path, name, wanted) in [
            (&[][..], "broker", Source::Brokers),
            (&[], "set", Source::Sets),
            (&["app", "show"], "app", Source::Apps),
            (&["app", "add"], "may_publish", Source::Apps),
            (&["send"], "app", Source::Apps),
            (&["gateway", "remove"], "name", Source::Gateways),
            (&["guard", "add"], "layout", Source::Layouts),
            (&["unstick"], "level", Source::Levels),
            (&["held", "list"], "layout", Source::Layouts),
            (&["held", "discard"], "reason", Source::Reasons),
            (&["transfer"], "from", Source::SetsAndLayouts),
            (&["transfer"], "to", Source::Sets),
        ] {
            let found = sources(path);
            assert!(found.contains(&(name.to_owned(), wanted)), "{path:?} {name}: {found:?}");
        }
    }
}
