//! No output shows a password.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use predicates::str::contains;

use crate::{common, delayline};

pub(super) const MARK: &str = "hunter2-marked-password";

/// Checks that the text does not contain the password, neither in plain text nor as HTTP encodes
/// it. The base64 form depends on the position of its first byte in a group of three.
pub(super) fn assert_hidden(text: &str, whose: &str) {
    assert!(!text.contains(MARK), "{whose} printed the password:\n{text}");
    for before in 0..3 {
        let encoded = BASE64_STANDARD.encode([&b"\0\0"[..before], MARK.as_bytes()].concat());
        // The first and the last characters also contain bits of neighbouring bytes.
        let middle = &encoded[4..encoded.len() - 4];
        assert!(!text.contains(middle), "{whose} printed the password in base64:\n{text}");
    }
}

/// Runs a command with all logging enabled, and looks for the password in its output.
pub(super) fn search(arguments: &[&str], variables: &[(&str, &str)]) {
    for level in ["trace", "amiquip=trace,amiquip::io_loop=trace,debug", "off"] {
        let output = delayline()
            .args(arguments)
            .arg("-vvv")
            .env("DELAYLINE_LOG", level)
            .env("RUST_LOG", "trace")
            .env("RUST_BACKTRACE", "full")
            .envs(variables.iter().copied())
            .write_stdin("body")
            .output()
            .unwrap();
        // A usage error would end the command before it could leak anything.
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("Usage: "), "{arguments:?}: {text}");
        for stream in [&output.stdout, &output.stderr] {
            assert_hidden(&String::from_utf8_lossy(stream), &format!("{arguments:?} at {level}"));
        }
    }
}

#[test]
fn no_output_holds_the_password() {
    let node = &common::shared_node();
    let settings = common::installed(1_000);
    common::http(
        node,
        "PUT",
        "users/marked",
        &serde_json::json!({"password": MARK, "tags": "administrator"}),
    );
    let vhost = &settings.broker.vhost;
    common::http(
        node,
        "PUT",
        &format!("permissions/{vhost}/marked"),
        &serde_json::json!({"configure": ".*", "write": ".*", "read": ".*"}),
    );
    let address = node.url().replace("amqp://", "");
    let good = format!("amqp://marked:{MARK}@{address}/{vhost}");
    let bad_user = format!("amqp://nobody:{MARK}@{address}/{vhost}");
    let bad_vhost = format!("amqp://marked:{MARK}@{address}/nowhere");
    let unreachable = format!("amqp://marked:{MARK}@127.0.0.1:1/{vhost}");
    let malformed = format!("amqp://marked:{MARK}@{address}/a/b?x=1");
    let management = node.management_url();
    for url in [&good, &bad_user, &bad_vhost, &unreachable, &malformed] {
        let variables = [("DELAYLINE_URL", url.as_str()), ("DELAYLINE_MANAGEMENT_URL", &management)];
        search(&["install"], &variables);
        search(&["verify", "--json"], &variables);
        search(&["status"], &variables);
        search(&["send", "--app", "app", "--delay", "1s"], &variables);
        search(&["listen", "--app", "app", "--timeout", "1s"], &variables);
        search(&["uninstall", "--yes"], &variables);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, format!("password = \"{MARK}\nx = [")).unwrap();
    search(&["status", "--config", file.path().to_str().unwrap()], &[]);
    std::fs::write(&file, format!("password = [\"{MARK}\"]")).unwrap();
    search(&["status", "--config", file.path().to_str().unwrap()], &[]);
    search(
        &["status"],
        &[("DELAYLINE_PASSWORD", MARK), ("DELAYLINE_HEARTBEAT", "often"), ("DELAYLINE_URL", &unreachable)],
    );
}

#[test]
fn no_output_holds_the_password_of_an_application() {
    let settings = common::installed(1_000);
    let node = &common::shared_node();
    let good = format!("{}/{}", node.url(), settings.broker.vhost);
    // No broker listens there.
    let bad = format!("amqp://127.0.0.1:1/{}", settings.broker.vhost);
    for url in [&good, &bad] {
        let management = node.management_url();
        let variables = [
            ("DELAYLINE_URL", url.as_str()),
            ("DELAYLINE_MANAGEMENT_URL", management.as_str()),
            ("DELAYLINE_APP_PASSWORD", MARK),
        ];
        search(&["app", "add", "secretive"], &variables);
        search(&["app", "add", "secretive", "--print", "definitions"], &variables);
        search(&["app", "list", "--json"], &variables);
        search(&["app", "check", "secretive", "--json"], &variables);
        search(&["app", "check", "secretive", "--user", "guest"], &variables);
        search(&["app", "remove", "secretive", "--yes", "--delete-user", "--json"], &variables);
    }
}

#[test]
fn the_applications_password_is_never_a_flag() {
    delayline()
        .args(["app", "check", "billing", "--app-password", MARK])
        .assert()
        .code(2)
        .stderr(contains("--app-password-file"))
        .stderr(contains(MARK).count(0));
}

#[test]
fn a_password_in_a_flag_is_refused_before_it_does_more_harm() {
    for flag in ["--url", "--management-url"] {
        let scheme = if flag == "--url" { "amqp" } else { "http" };
        delayline()
            .args(["status", flag, &format!("{scheme}://user:{MARK}@localhost")])
            .assert()
            .code(2)
            .stderr(contains("process list"))
            .stderr(predicates::str::contains(MARK).count(0));
    }
}

#[test]
fn the_password_is_in_no_process_list() {
    for (command, flag) in
        [(&["status"][..], "--password-file"), (&["app", "check", "billing"], "--app-password-file")]
    {
        // A server that never answers keeps the command running.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let holder = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut header = [0; 8];
            stream.read_exact(&mut header).unwrap();
            stream
        });
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{MARK}").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_delayline"))
            .args(command)
            .args(["--url", &format!("amqp://user@127.0.0.1:{port}"), flag])
            .arg(file.path())
            .env("DELAYLINE_PASSWORD_FILE", file.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stream = holder.join().unwrap();
        let line = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains(MARK));
        drop(stream);
        assert_eq!(child.wait().unwrap().code(), Some(3));
    }
}
