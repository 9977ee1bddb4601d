//! Commands end when nobody is left at the other end: of their terminal, or of a pipe.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
};

use delayline::{amqp::Session, codec::RoutingKey, topology::Queue};
use delayline_settings::Settings;
use portable_pty::{CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    common::{
        app, disturbed_node, eventually, eventually_seen, http, install, installed, shared_node, url,
        vhost_on,
    },
    delayline, json, on,
};

/// What a terminal that goes tells those in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// SIGHUP, as usual.
    Signal,
    /// Nothing: it is ignored, as with `nohup`, or was sent to somebody else.
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
        let size = PtySize { rows: 42, cols: 130, ..PtySize::default() };
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

    /// Reads until this was printed; returns all that was.
    fn prints(&mut self, text: &str) -> String {
        let (mut all, mut part) = (Vec::new(), [0; 4_096]);
        loop {
            match self.reader.read(&mut part) {
                Ok(length @ 1..) => all.extend_from_slice(&part[..length]),
                end => panic!("it ended: {end:?}: {}", String::from_utf8_lossy(&all)),
            }
            let seen = String::from_utf8_lossy(&all);
            if seen.contains(text) {
                return seen.into_owned();
            }
        }
    }

    /// Closes the terminal; returns what is left.
    fn close(self) -> Box<dyn portable_pty::Child + Send + Sync> {
        let Self { child, master, reader, keys } = self;
        // When the writer is dropped, it types what stands for the end of the file, if anything
        // does. Nobody typed that: a terminal that goes is all there is.
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
        eventually_seen("it ends", || child.try_wait().unwrap(), Option::is_some).unwrap()
    }
}

#[test]
fn top_ends_with_its_terminal() {
    let settings = installed(1_000);
    for hangup in [Hangup::Signal, Hangup::Silence] {
        let mut terminal = Terminal::start(Some(&settings), &["top"], hangup);
        terminal.prints("Nothing is held up.");
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
        assert_eq!(session.queue_depth(queue).unwrap(), None, "{hangup:?}");
    }
}

#[test]
fn what_is_said_to_nobody_is_no_panic() {
    // Where bindings cannot be listed, listen leaves what may be somebody else's, and says so.
    let mut settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-queue-type".to_owned(), "classic".into())];
    session.declare_queue(&Queue::new("theirs").with_arguments(arguments)).unwrap();
    settings.management.as_mut().unwrap().url.set_port(Some(1)).unwrap();
    let arguments = ["listen", "--app", "billing", "--queue", "theirs"];
    let mut terminal = Terminal::start(Some(&settings), &arguments, Hangup::Silence);
    terminal.prints("press Ctrl-C to stop");
    assert_eq!(terminal.ends_when_closed().exit_code(), 0);
    assert!(session.queue_depth("theirs").unwrap().is_some());
    let bindings = http(&shared_node(), "GET", &format!("bindings/{}", settings.broker.vhost), &().into());
    let key = RoutingKey::binding_pattern(&app("billing"));
    let stays = bindings.as_array().unwrap().iter().any(|binding| binding["routing_key"] == key);
    assert!(stays, "{bindings}");
}

#[test]
fn probe_and_bench_end_with_their_terminal() {
    let settings = installed(100);
    for hangup in [Hangup::Signal, Hangup::Silence] {
        let mut probe = Terminal::start(Some(&settings), &["probe", "--forever"], hangup);
        probe.prints("arrived");
        probe.ends_when_closed();
        let mut bench = Terminal::start(Some(&settings), &["bench", "--name", "thrown"], hangup);
        bench.prints("publishing");
        bench.ends_when_closed();
        // It has removed its set first.
        let mut session = Session::open(&settings.broker).unwrap();
        assert!(!session.exchange_exists("thrown").unwrap(), "{hangup:?}");
    }
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
        eventually("its node is gone", || fs::read_dir(place.path()).unwrap().count() == 0);
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
        // The terminal shows what is typed into it.
        terminal.prints("half of it");
        assert!(!terminal.ends_when_closed().success());
        assert_eq!(json(on(&settings).args(["top", "--json"]))["waiting"], 0, "{hangup:?}");
    }
}

#[test]
fn serve_goes_on_without_its_terminal_until_it_is_told_to_end() {
    let settings = installed(1_000);
    let arguments = ["serve", "--listen", "127.0.0.1:0"];
    let mut terminal = Terminal::start(Some(&settings), &arguments, Hangup::Signal);
    let log = terminal.prints("/metrics");
    let (_, address) = log.split_once("page at http://").unwrap();
    let url = format!("http://{}/healthz", address.split('/').next().unwrap());
    let mut child = terminal.close();
    eventually("it is in good health", || ureq::get(&url).call().is_ok());
    assert!(child.try_wait().unwrap().is_none());
    let id = Pid::from_raw(child.process_id().unwrap().cast_signed()).unwrap();
    kill_process(id, Signal::TERM).unwrap();
    let ended = eventually_seen("it ends", || child.try_wait().unwrap(), Option::is_some).unwrap();
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
fn what_only_shows_ends_when_nobody_reads() {
    let settings = installed(100);
    let mut listen = piped(&settings, &["listen", "--app", "billing", "--count", "1"]);
    let mut said = String::new();
    BufReader::new(listen.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    let probe = piped(&settings, &["probe", "--forever"]);
    let bench = piped(&settings, &["bench", "--name", "unread"]);
    // What would end by itself was interrupted, and comes first: it is not to have ended before.
    for (mut child, code) in [(bench, 130), (probe, 0), (listen, 0)] {
        assert!(child.try_wait().unwrap().is_none());
        // The other end of its errors stays open: only who reads the output counts.
        drop(child.stdout.take());
        let ended = eventually_seen("it ends", || child.try_wait().unwrap(), Option::is_some);
        assert_eq!(ended.unwrap().code(), Some(code), "{ended:?}");
    }
    assert!(!Session::open(&settings.broker).unwrap().exchange_exists("unread").unwrap());
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
    let said = contains("did not answer within 1 s").and(contains("low on memory"));
    command()
        .args(["app", "check", "billing"])
        .env("DELAYLINE_REQUEST_TIMEOUT", "1s")
        .assert()
        .code(3)
        .stderr(said);
}
