//! `delayline-bench`, and its library.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod conformance;
mod fill;
mod measure;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../broker/others/mod.rs"]
mod others;
mod plan;
mod probe;
mod run;
mod usage;

use assert_cmd::Command;
use delayline_settings::Settings;

/// The command, without the settings of the user who runs the tests.
fn bench() -> Command {
    let mut command = Command::cargo_bin("delayline-bench").unwrap();
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELAYLINE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NO_COLOR").current_dir(std::env::temp_dir());
    command
}

/// The command with the settings of a vhost.
fn on(settings: &Settings) -> Command {
    let management = settings.management.as_ref().unwrap();
    let mut command = bench();
    command
        .env("DELAYLINE_URL", common::url(settings))
        .env("DELAYLINE_MANAGEMENT_URL", management.url.as_str())
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string());
    command
}

/// The output of a run that must succeed.
fn stdout(command: &mut Command) -> String {
    let output = command.assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap()
}

/// The JSON that a run printed, checked against its schema.
fn json(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    common::schemas::check(&value);
    value
}
