//! The command as people and scripts use it.

mod again;
mod app;
mod broker;
mod complete;
pub(crate) mod daemon;
mod dev;
mod doctor;
mod ends;
pub(crate) mod exit_codes;
mod index;
mod inputs;
mod management;
mod manners;
mod offline;
mod panics;
mod parked;
mod prometheus;
mod recalled;
mod safety;
mod scheduled;
pub(crate) mod schemas;
pub(crate) mod secrets;
pub(crate) mod terminal;
mod top;
mod tutorial;
mod unroutable;
mod unstick;
mod web;

use assert_cmd::Command;
use delayline_settings::Settings;

use crate::common;

/// The command with a clean environment, without the settings of the user who runs the tests.
pub(crate) fn delayline() -> Command {
    let mut command = Command::cargo_bin("delayline").unwrap();
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELAYLINE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NO_COLOR").current_dir(std::env::temp_dir());
    command
}

/// The command with the settings of a vhost.
pub(crate) fn on(settings: &Settings) -> Command {
    let management = settings.management.as_ref().unwrap();
    let mut command = delayline();
    command
        .env("DELAYLINE_URL", common::url(settings))
        .env("DELAYLINE_MANAGEMENT_URL", management.url.as_str())
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
        .envs(common::vhosts::patient_variables());
    command
}

/// The output of a run that must succeed.
pub(crate) fn stdout(command: &mut Command) -> String {
    let output = command.assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap()
}

/// The JSON that a run printed, checked against its schema.
pub(crate) fn json(command: &mut Command) -> serde_json::Value {
    let value = document(command);
    schemas::check(&value);
    value
}

/// The same for JSON in the format of another program.
pub(crate) fn document(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
}
