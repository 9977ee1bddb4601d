//! Values that a shell completes: names that stand in the settings or on the broker.
//!
//! A shell asks with a variable and the words that were typed so far. Whatever goes wrong, it
//! gets no values and no message, and it gets that soon: somebody is typing.

use std::{any::TypeId, collections::BTreeSet, ffi::OsString, sync::mpsc, thread, time::Duration};

use clap::{Arg, FromArgMatches};
use clap_complete::{ArgValueCandidates, CompleteEnv, CompletionCandidate};

use delayline_admin::{
    Layout, Reason, app_names, gateway_names,
    management::{ManagementApi, ManagementError},
    set_names,
};
use delayline_core::{
    codec::{AppKey, Level},
    topology::{SetName, Topology},
};
use delayline_settings::{Settings, load_policies};

use crate::{
    args::{self, Global},
    policies,
};

/// The variable with which a shell asks; its value is the shell's name. It is none of our
/// settings, whose names begin with `DELAYLINE_`.
pub(super) const VARIABLE: &str = "_DELAYLINE_COMPLETE";

/// How long to wait for the broker.
const WAIT: Duration = Duration::from_secs(1);

/// Answers a shell, if it is one that asks.
pub(super) fn answer() -> bool {
    let asked = CompleteEnv::with_factory(|| with_values(args::command(), ""))
        .var(VARIABLE)
        .bin("delayline")
        .try_complete(std::env::args_os(), std::env::current_dir().ok().as_deref());
    // Where there is nothing to complete, there is nothing to say either.
    asked.unwrap_or(true)
}

/// The command with what is known of the values of its arguments; `of` is the command that it
/// stands under.
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
    Policies,
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
        ("gateway", "name") => Some(Source::Gateways),
        ("retry", "app") => Some(Source::Policies),
        ("delayline", "from") => Some(Source::SetsAndLayouts),
        // The throw-away set of `bench` is a new one.
        ("delayline", "name") => None,
        _ if is(TypeId::of::<AppKey>()) => Some(Source::Apps),
        _ if is(TypeId::of::<Layout>()) => Some(Source::Layouts),
        _ if is(TypeId::of::<Level>()) => Some(Source::Levels),
        _ if is(TypeId::of::<Reason>()) => Some(Source::Reasons),
        _ if is(TypeId::of::<SetName>()) => Some(Source::Sets),
        _ => None,
    }
}

fn candidates(source: Source) -> Vec<CompletionCandidate> {
    values(source).unwrap_or_default().into_iter().map(CompletionCandidate::new).collect()
}

fn values(source: Source) -> Option<Vec<String>> {
    let layouts = || vec!["nservicebus".to_owned(), "celery".to_owned()];
    Some(match source {
        Source::Apps => on_the_broker(app_names)?,
        Source::Brokers => typed()?.layers().broker_names().ok()?,
        Source::Gateways => on_the_broker(gateway_names)?,
        Source::Layouts => layouts(),
        Source::Levels => Level::all().map(|level| level.number().to_string()).collect(),
        Source::Policies => {
            let file = policies::Source::default().file().and_then(|file| load_policies(&file).ok());
            let named = file.iter().flat_map(|policies| policies.apps()).map(ToString::to_string);
            let apps: BTreeSet<_> = on_the_broker(app_names).into_iter().flatten().chain(named).collect();
            apps.into_iter().collect()
        }
        Source::Reasons => Reason::ALL.iter().map(ToString::to_string).collect(),
        Source::Sets => on_the_broker(|api, vhost, _| set_names(api, vhost))?,
        Source::SetsAndLayouts => {
            let sets = on_the_broker(|api, vhost, _| set_names(api, vhost));
            sets.into_iter().flatten().chain(layouts()).collect()
        }
    })
}

/// Asks the broker that the settings and the words so far name, for as long as somebody waits.
fn on_the_broker(
    ask: impl Fn(&ManagementApi, &str, &Topology) -> Result<Vec<String>, ManagementError> + Send + 'static,
) -> Option<Vec<String>> {
    let settings: Settings = typed()?.settings().ok()?;
    let (say, heard) = mpsc::channel();
    // Nobody waits for it to end: the process does before.
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
    let matches = args::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    Global::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sources of a command's arguments, by their names.
    fn sources(path: &[&str]) -> Vec<(String, Source)> {
        let mut command = args::command();
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
            (&["retry", "show"], "app", Source::Policies),
            (&["gateway", "remove"], "name", Source::Gateways),
            (&["guard"], "layout", Source::Layouts),
            (&["unstick"], "level", Source::Levels),
            (&["unroutable"], "layout", Source::Layouts),
            (&["unroutable", "discard"], "reason", Source::Reasons),
            (&["transfer"], "from", Source::SetsAndLayouts),
            (&["transfer"], "to", Source::Sets),
        ] {
            let found = sources(path);
            assert!(found.contains(&(name.to_owned(), wanted)), "{path:?} {name}: {found:?}");
        }
        assert_eq!(sources(&["bench"]), []);
    }
}
