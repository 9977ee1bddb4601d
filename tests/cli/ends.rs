//! Commands end when the other end of their terminal or pipe is gone.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
};

use delayline_amqp::Session;
use delayline_core::{codec::RoutingKey, topology::Queue};
use delayline_settings::Settings;
use portable_pty::{CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::Counting;
use crate::{
    common::{
        app, disturbed_node, eventually, eventually_seen, http, install, installed, shared_node, url,
        vhost_on,
    },
    delayline, json, on,
};

/// The size of the terminals.
const ROWS: u16 = 42;
const COLUMNS: u16 = 130;

/// The signal that a closed terminal sends to its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// SIGHUP, as usual.
    Signal,
    /// None: the process ignores it, as with `nohup`, or it was sent to another process.
    Silence,
}

/// The command in a terminal.
struct Terminal {
    child: Box<dyn portable_pty::Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    reader: Box<dyn Read + Send>,
    keys: Box<dyn Write + Send>,
}

impl Terminal {
    fn start(settings: Option<&Settings>, arguments: &[&str], hangup: Hangup) -> Self {
        Self::start_with(settings, arguments, hangup, &[])
    }

    fn start_with(
        settings: Option<&Settings>,
        arguments: &[&str],
        hangup: Hangup,
        variables: &[(&str, &str)],
    ) -> Self {
        let size = PtySize { rows: ROWS, cols: COLUMNS, ..PtySize::default() };
        let pty = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new("sh");
        let trap = if hangup == Hangup::Silence { "trap '' HUP; " } else { "" };
        command.args(["-c", &format!("{trap}exec \"$@\""), "sh", env!("CARGO_BIN_EXE_delayline")]);
        command.args(arguments);
        for (name, _) in std::env::vars() {
            if name.starts_with("DELAYLINE_") {
                command.env_remove(name);
            }
        }
        if let Some(settings) = settings {
            command.env("DELAYLINE_URL", settings.broker.to_string());
            command.env("DELAYLINE_MANAGEMENT_URL", settings.management.as_ref().unwrap().url.as_str());
            command.env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string());
        }
        command.env("TERM", "xterm-256color");
        for (name, value) in variables {
            command.env(name, value);
        }
        command.cwd(std::env::temp_dir());
        let child = pty.slave.spawn_command(command).unwrap();
        let (reader, keys) = (pty.master.try_clone_reader().unwrap(), pty.master.take_writer().unwrap());
        Self { child, master: pty.master, reader, keys }
    }

    /// Reads until this text was printed, and returns the whole output so far.
    fn prints(&mut self, text: &str) -> String {
        let (mut all, mut part) = (Vec::new(), [0; 4_096]);
        // A screen is drawn in parts: only its changes are printed.
        let mut screen = vt100::Parser::new(ROWS.try_into().unwrap(), COLUMNS.try_into().unwrap(), 0);
        loop {
            match self.reader.read(&mut part) {
                Ok(length @ 1..) => {
                    all.extend_from_slice(&part[..length]);
                    screen.process(&part[..length]);
                }
                end => panic!("it ended: {end:?}: {}", String::from_utf8_lossy(&all)),
            }
            let seen = String::from_utf8_lossy(&all);
            if seen.contains(text) || screen.screen().contents().contains(text) {
                return seen.into_owned();
            }
        }
    }

    /// Closes the terminal and returns the child process.
    fn close(self) -> Box<dyn portable_pty::Child + Send + Sync> {
        let Self { child, master, reader, keys } = self;
        // A dropped writer types the end-of-file character, if the terminal has one. The test must
        // close the terminal without any typing, so it removes the character.
        if let Some(id) = child.process_id()
            && let Ok(terminal) = fs::read_link(format!("/proc/{id}/fd/0"))
        {
            let status = Command::new("stty").arg("-F").arg(terminal).args(["eof", "undef"]).status();
            assert!(status.unwrap().success());
        }
        drop((master, reader, keys));
        child
    }

    /// Closes it, and waits until the command has ended.
    fn ends_when_closed(self) -> ExitStatus {
        let mut child = self.close();
        eventually_seen("the command ends", || child.try_wait().unwrap(), Option::is_some).unwrap()
    }
}

#[test]
fn top_ends_with_its_terminal() {
    let settings = installed(1_000);
    for hangup in [Hangup::Signal, Hangup::Silence] {
        let mut terminal = Terminal::start(Some(&settings), &["status", "--watch"], hangup);
        terminal.prints("No message is stuck.");
        terminal.ends_when_closed();
    }
}

#[test]
fn listen_ends_with_its_terminal_and_takes_down_what_it_made() {
    let settings = installed(1_000);
    for (hangup, queue) in [(Hangup::Signal, "heard"), (Hangup::Silence, "unheard")] {
        let arguments = ["listen", "--app", "billing", "--queue", queue];
        let mut terminal = Terminal::start(Some(&settings), &arguments, hangup);
        terminal.prints("press Ctrl-C to stop");
        terminal.ends_when_closed();
        let mut session = Session::open(&settings.broker).unwrap();
        assert_eq!(session.counts(queue).unwrap(), None, "{hangup:?}");
    }
}

#[test]
fn output_without_a_reader_is_no_panic() {
    // If bindings cannot be listed, `listen` keeps a binding that may belong to an application, and
    // reports that.
    let mut settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-queue-type".to_owned(), "classic".into())];
    session.declare_queue(&Queue::new("theirs").with_arguments(arguments)).unwrap();
    settings.management.as_mut().unwrap().url.set_port(Some(1)).unwrap();
    let arguments = ["listen", "--app", "billing", "--queue", "theirs"];
    let mut terminal = Terminal::start(Some(&settings), &arguments, Hangup::Silence);
    terminal.prints("press Ctrl-C to stop");
    assert_eq!(terminal.ends_when_closed().exit_code(), 0);
    assert!(session.counts("theirs").unwrap().is_some());
    let bindings = http(&shared_node(), "GET", &format!("bindings/{}", settings.broker.vhost), &().into());
    let key = RoutingKey::binding_pattern(&app("billing"));
    let stays = bindings.as_array().unwrap().iter().any(|binding| binding["routing_key"] == key);
    assert!(stays, "{bindings}");
}

#[test]
fn demo_ends_with_its_terminal_and_takes_its_node_along() {
    for hangup in [Hangup::Signal, Hangup::Silence] {
        let place = tempfile::tempdir().unwrap();
        let variables = [("TMPDIR", place.path().to_str().unwrap())];
        let mut terminal = Terminal::start_with(None, &["demo"], hangup, &variables);
        terminal.prints("started");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        terminal.ends_when_closed();
        eventually("the node is gone", || fs::read_dir(place.path()).unwrap().count() == 0);
    }
}

#[test]
fn half_a_body_is_not_sent() {
    let settings = installed(1_000);
    for hangup in [Hangup::Signal, Hangup::Silence] {
        let arguments = ["send", "--app", "billing", "--delay", "1d"];
        let mut terminal = Terminal::start(Some(&settings), &arguments, hangup);
        terminal.prints("Ctrl-D ends it");
        terminal.keys.write_all(b"half of it\n").unwrap();
        // The terminal echoes the typed text.
        terminal.prints("half of it");
        assert!(!terminal.ends_when_closed().success());
        assert_eq!(json(on(&settings).args(["status", "--json"]))["waiting"], 0, "{hangup:?}");
    }
}

#[test]
fn serve_goes_on_without_its_terminal_until_a_signal_ends_it() {
    let settings = installed(1_000);
    let arguments = ["serve", "--listen", "127.0.0.1:0"];
    let mut terminal = Terminal::start(Some(&settings), &arguments, Hangup::Signal);
    let log = terminal.prints("/metrics");
    let (_, address) = log.split_once("page at http://").unwrap();
    let url = format!("http://{}/healthz", address.split('/').next().unwrap());
    let mut child = terminal.close();
    eventually("the daemon is healthy", || ureq::get(&url).call().is_ok());
    assert!(child.try_wait().unwrap().is_none());
    let id = Pid::from_raw(child.process_id().unwrap().cast_signed()).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    let ended = eventually_seen("the command ends", || child.try_wait().unwrap(), Option::is_some).unwrap();
    assert!(ended.success(), "{ended:?}");
}

/// The command with its output in a pipe.
fn piped(settings: &Settings, arguments: &[&str]) -> Child {
    let (address, vhost) = (shared_node().url(), &settings.broker.vhost);
    Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(arguments)
        .env("DELAYLINE_URL", format!("{address}/{vhost}"))
        .env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url())
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_listener_ends_when_its_reader_is_gone() {
    let settings = installed(100);
    let mut listen = piped(&settings, &["listen", "--app", "billing", "--count", "1"]);
    let mut said = String::new();
    BufReader::new(listen.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(listen.try_wait().unwrap().is_none());
    // Stderr stays open: only the reader of the output counts.
    drop(listen.stdout.take());
    let ended = eventually_seen("the command ends", || listen.try_wait().unwrap(), Option::is_some);
    assert_eq!(ended.unwrap().code(), Some(0), "{ended:?}");
}

#[test]
fn a_check_of_an_application_does_not_wait_for_the_end_of_an_alarm() {
    let node = disturbed_node();
    let settings = vhost_on(&node).build().unwrap();
    install(&settings);
    let command = || {
        let mut command = delayline();
        command
            .env("DELAYLINE_URL", url(&settings))
            .env("DELAYLINE_MANAGEMENT_URL", node.management_url())
            .env("DELAYLINE_APP_PASSWORD", "secret");
        command
    };
    command().args(["app", "add", "billing"]).assert().success();
    command().args(["app", "check", "billing"]).assert().success();
    let alarm = "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).";
    node.tell(&["eval", alarm]).unwrap();
    let said = contains("did not answer within 10 s").and(contains("low on memory"));
    command()
        .args(["app", "check", "billing"])
        .env("DELAYLINE_REQUEST_TIMEOUT", "10s")
        .assert()
        .code(3)
        .stderr(said);
}
