//! Signals that end a command while it waits for an answer.

use std::{
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    os::unix::process::ExitStatusExt,
    process::{Command as Process, Stdio},
    sync::mpsc,
    thread,
};

use rustix::process::{Pid, Signal, kill_process};

/// A broker that accepts connections and never answers. Returns its address, and a channel that
/// reports each connection.
fn deaf() -> (SocketAddr, mpsc::Receiver<()>) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    let (came, comes) = mpsc::channel();
    thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((connection, _)) = deaf.accept() {
            open.push(connection);
            let _ = came.send(());
        }
    });
    (address, comes)
}

/// A command with a broker at that address. SIGINT interrupts it.
fn at_nobody(address: SocketAddr, words: &[&str]) -> Process {
    // If the tests run in the background, they may ignore SIGINT, and the command would inherit
    // that.
    let mut process = Process::new("env");
    process.args(["--default-signal=INT", env!("CARGO_BIN_EXE_delayline")]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELAYLINE_") {
            process.env_remove(name);
        }
    }
    process
        .args(words)
        .envs([
            ("DELAYLINE_URL", format!("amqp://{address}")),
            ("DELAYLINE_MANAGEMENT_URL", format!("http://{address}")),
            ("DELAYLINE_CONNECT_TIMEOUT", "3s".into()),
            ("DELAYLINE_APP_PASSWORD", "x".into()),
        ])
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    process
}

/// The exit code of a command that is interrupted while it waits for an answer.
pub(super) fn interrupted(words: &[&str]) -> i32 {
    let (address, comes) = deaf();
    let mut child = at_nobody(address, words).spawn().unwrap();
    comes.recv().unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    // The code that a shell reports.
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

#[test]
fn a_second_signal_ends_a_daemon_at_once() {
    let (address, comes) = deaf();
    let mut serve = at_nobody(address, &["serve", "--no-web"]);
    // The long timeout keeps the daemon waiting for its broker during the whole test.
    serve.env("DELAYLINE_CONNECT_TIMEOUT", "10m").stderr(Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut says = |word: &str| log.any(|line| line.unwrap().contains(word));
    comes.recv().unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(says("stopping"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(says("a second signal"));
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Service managers kill a daemon that takes much longer than 25 s.
#[test]
fn one_signal_ends_a_daemon_whose_broker_and_management_api_answer_nothing() {
    let (address, comes) = deaf();
    let mut serve = at_nobody(address, &["serve", "--no-web"]);
    serve.env("DELAYLINE_CONNECT_TIMEOUT", "1h").stderr(Stdio::piped());
    let child = serve.spawn().unwrap();
    // Connections of the service, of the gateways, and others.
    (0..3).for_each(|_| comes.recv().unwrap());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    // The code is 1 if the service had begun to connect.
    assert!(matches!(ended.status.code(), Some(0 | 1)), "{said}");
    assert!(said.contains("did not end in time"), "{said}");
}

/// Such a daemon would look healthy, but would never get a connection.
#[test]
fn a_daemon_that_may_open_too_few_files_does_not_start() {
    let mut limited = Process::new("sh");
    limited.args(["-c", "ulimit -n 20 && exec \"$0\" serve --no-web", env!("CARGO_BIN_EXE_delayline")]);
    let ended = limited.current_dir(std::env::temp_dir()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("may have 20 files and connections open") && said.contains("LimitNOFILE"),
        "{said}"
    );
}

#[test]
fn one_signal_ends_a_command_that_only_looks_at_a_silent_broker() {
    for words in [
        &["scheduled", "list", "--app", "shop", "--json"][..],
        &["scheduled", "recall", "--app", "shop", "--id", "a"],
        &["status", "--watch", "1"],
    ] {
        let (address, comes) = deaf();
        let mut look = at_nobody(address, words);
        look.env("DELAYLINE_CONNECT_TIMEOUT", "10m").stderr(Stdio::piped());
        let child = look.spawn().unwrap();
        comes.recv().unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{words:?}");
        let said = String::from_utf8(ended.stderr).unwrap();
        let said = said.lines().last().unwrap();
        assert!(said.contains("has not answered yet"), "{words:?}: {said}");
        if words.contains(&"--json") {
            let said: serde_json::Value = serde_json::from_str(said).unwrap();
            assert_eq!(
                (said["schema"].as_str(), said["exit_code"].as_i64()),
                (Some("error"), Some(130)),
                "{said}"
            );
        }
    }
}
