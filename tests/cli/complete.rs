//! Completion in shells: commands, flags, and names that only the broker or the settings contain. A
//! shell asks only once and waits only a second, so these tests ask until all names are found.

use std::{env, ffi::OsString, fs, net::TcpListener, path::Path};

use assert_cmd::Command;
use delayline_settings::Settings;
use portable_pty::CommandBuilder;

use crate::{
    common::{eventually_seen, installed, not_tested::not_tested, shared_node},
    delayline, on, stdout,
    terminal::Terminal,
};

/// A script that prints bash's completions of its arguments.
const BASH: &str = r#"source <(delayline completions bash)
complete -p delayline >/dev/null || echo 'nothing is registered'
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
_clap_complete_delayline delayline "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}""#;

/// A set with two applications, and a gateway.
fn with_names() -> Settings {
    let settings = installed(1_000);
    for app in ["billing", "shop"] {
        on(&settings).args(["app", "add", app, "--no-user"]).assert().success();
    }
    on(&settings).args(["gateway", "add", "orders.delayed", "--type", "topic"]).assert().success();
    settings
}

/// The search path, with the folder of our command first.
fn path() -> OsString {
    let ours = Path::new(env!("CARGO_BIN_EXE_delayline")).parent().unwrap().to_owned();
    let others = env::var_os("PATH").unwrap_or_default();
    env::join_paths(std::iter::once(ours).chain(env::split_paths(&others))).unwrap()
}

/// Whether this shell is installed.
fn has(shell: &str) -> bool {
    let found = env::split_paths(&path()).any(|folder| folder.join(shell).exists());
    if !found {
        not_tested(&format!("{shell} is not installed"));
    }
    found
}

/// The environment that the completion needs for the names of a vhost.
fn environment(settings: &Settings) -> [(&'static str, OsString); 4] {
    let url = format!("{}/{}", shared_node().url(), settings.broker.vhost);
    [
        ("DELAYLINE_URL", url.into()),
        ("DELAYLINE_MANAGEMENT_URL", shared_node().management_url().into()),
        ("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string().into()),
        ("PATH", path()),
    ]
}

/// The completions of the last of these words in bash. There must be no other output, because it
/// would appear in the middle of the command line.
fn bash(environment: &[(&str, OsString)], words: &[&str]) -> Vec<String> {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", BASH, "bash", "delayline"]).args(words).current_dir(env::temp_dir());
    let output = bash.envs(environment.iter().cloned()).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(['\n', '\u{b}']).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_names() {
    let settings = with_names();
    let environment = environment(&settings);
    for (words, wanted) in [
        (&["held", "rep"][..], &["replay"][..]),
        (&["verify", "--management-u"], &["--management-url"]),
        (&["verify", "-o", ""], &["table", "json", "wide"]),
        (&["unstick", "--level", "27"], &["27"]),
        (&["guard", "add", ""], &["celery", "nservicebus", "nservicebus:v1"]),
        (&["app", "show", "bi"], &["billing"]),
        (&["send", "--app", "s"], &["shop"]),
        (&["app", "add", "new", "--may-publish", "billing,s"], &["billing,shop"]),
        (&["gateway", "check", "or"], &["orders.delayed"]),
        (&["transfer", "d"], &["delay"]),
        (&["verify", "--set", "d"], &["delay"]),
    ] {
        let found = || {
            let mut found = bash(&environment, words);
            found.retain(|word| !word.starts_with('-') || words.last().unwrap().starts_with('-'));
            found
        };
        eventually_seen(&format!("{words:?}"), found, |found| {
            wanted.iter().all(|word| found.contains(&(*word).to_owned())) && found.len() == wanted.len()
        });
    }
}

#[test]
fn brokers_are_those_of_the_settings_that_are_meant() {
    let settings = with_names();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("some.toml");
    let text = format!(
        "[brokers.here]\nurl = '{}/{}'\nmanagement_url = '{}'\n[brokers.nowhere]\nurl = 'amqp://127.0.0.1:1'\n",
        shared_node().url(),
        settings.broker.vhost,
        shared_node().management_url()
    );
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let environment = [("PATH", path())];
    assert_eq!(bash(&environment, &["--config", file, "verify", "--broker", ""]), ["here", "nowhere"]);
    let found = || bash(&environment, &["--config", file, "app", "show", "--broker", "here", "bill"]);
    eventually_seen("the applications of that broker", found, |found| found == &["billing"]);
}

#[test]
fn without_a_broker_completion_offers_no_names_and_prints_no_error() {
    // A server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for (name, value) in [
        ("DELAYLINE_MANAGEMENT_URL", silent.as_str()),
        ("DELAYLINE_MANAGEMENT_URL", "http://127.0.0.1:1"),
        ("DELAYLINE_MANAGEMENT_URL", "none"),
        ("DELAYLINE_USERNAME", "without-a-password"),
        ("DELAYLINE_CONFIG", "/nowhere/at/all"),
        ("DELAYLINE_WINDW", "7"),
    ] {
        let environment = [("PATH", path()), (name, value.into())];
        assert_eq!(bash(&environment, &["app", "show", "b"]), [""; 0], "{name}={value}");
        assert_eq!(bash(&environment, &["app", "sho"]), ["show"], "{name}={value}");
    }
    // Words that have no completion.
    for words in [&["nonsense", "b"][..], &["app", "show", "a", "b", "c"], &["app", "show", "--", "b"]] {
        bash(&[("PATH", path())], words);
    }
    // Without a shell's request, the command runs as usual.
    delayline().env("_DELAYLINE_COMPLETE", "").arg("version").assert().success();
}

#[test]
fn fish_completes_names() {
    if !has("fish") {
        return;
    }
    let settings = with_names();
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("fish/completions");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("delayline.fish"), stdout(delayline().args(["completions", "fish"]))).unwrap();
    let complete = |line: &str| {
        let mut fish = Command::new("fish");
        fish.args(["-c", &format!("complete -C '{line}'")]).envs(environment(&settings));
        fish.env("XDG_CONFIG_HOME", home.path()).env("HOME", home.path());
        let text = stdout(&mut fish);
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete("delayline held rep"), ["replay"]);
    eventually_seen("applications", || complete("delayline app show bi"), |found| found == &["billing"]);
}

#[test]
fn zsh_completes_names() {
    if !has("zsh") {
        return;
    }
    let settings = with_names();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("_delayline"), stdout(delayline().args(["completions", "zsh"]))).unwrap();
    let mut command = CommandBuilder::new("zsh");
    command.args(["-f", "-i"]);
    for (name, value) in environment(&settings) {
        command.env(name, value);
    }
    command.env("HOME", folder.path());
    let mut zsh = Terminal::start(command, (40, 120));
    // The script is autoloaded, as the packages install it.
    zsh.press(&format!(
        "PS1='ready> '; fpath=({} $fpath); autoload -U compinit; compinit -u -D; clear; print begun\r",
        folder.path().display()
    ));
    zsh.eventually_shows("begun\nready> ");
    zsh.press("delayline held rep\t");
    zsh.eventually_shows("delayline held replay");
    // If the line was not completed, it is typed again.
    let completed = || {
        zsh.press("\u{15}delayline app show bi\t");
        // This text appears after the completion, so the completion has finished.
        zsh.press(" end");
        zsh.eventually_shows(" end")
    };
    eventually_seen("applications", completed, |screen| screen.contains("delayline app show billing"));
}
