//! The .deb on a Debian machine: installed, used, upgraded while messages wait, purged.
//! `scripts/test-package` builds the packages and the machine, and passes their paths.

#[path = "../common/mod.rs"]
mod common;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use delayline_admin as admin;
use delayline_amqp::Session;
use rustix::process::{Pid, Signal, kill_process};

use common::Counting;
use common::{eventually, shared_node, topology, vhost};

/// A machine: a copy of a directory tree, which is deleted with it.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("delayline-machine-").tempdir().unwrap();
        let tree = env::var("PACKAGE_TREE").expect("scripts/test-package runs this");
        let status =
            Command::new("cp").args(["-a", "--reflink=auto", &format!("{tree}/.")]).arg(root.path()).status();
        assert!(status.unwrap().success());
        Self { root }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// A command on the machine.
    fn command(&self, user: Option<&str>, words: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command.args(user.map(|user| format!("--userspec={user}"))).arg(self.root.path()).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
        command
    }

    /// The output of a command that must succeed.
    fn run(&self, words: &[&str]) -> String {
        let output = self.command(None, words).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{words:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    fn dpkg_install(&self, package: &Path) {
        fs::copy(package, self.path("/package.deb")).unwrap();
        self.run(&["dpkg", "-i", "/package.deb"]);
        fs::remove_file(self.path("/package.deb")).unwrap();
    }

    /// The daemon as the systemd unit starts it: its program, user and environment.
    fn start(&self) -> Child {
        let unit = fs::read_to_string(self.path("/usr/lib/systemd/system/delayline.service")).unwrap();
        let values = |key: &str| {
            let lines = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let program = values("ExecStart").remove(0);
        let user = format!("{}:{}", values("User")[0], values("Group")[0]);
        let mut command = self.command(Some(&user), &program.split(' ').collect::<Vec<_>>());
        for variable in values("Environment") {
            let (name, value) = variable.split_once('=').unwrap();
            command.env(name, value);
        }
        command.stdout(Stdio::null()).spawn().unwrap()
    }
}

fn package(variable: &str) -> PathBuf {
    env::var_os(variable).expect("scripts/test-package runs this").into()
}

/// Ends the daemon as systemd does, and expects a clean exit.
fn stop(mut daemon: Child) {
    kill_process(Pid::from_child(&daemon), Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn it_is_installed_used_upgraded_and_purged() {
    let machine = Machine::new();
    let users = fs::read_to_string(machine.path("/etc/passwd")).unwrap();
    machine.dpkg_install(&package("PACKAGE_FIRST"));
    for path in [
        "/usr/bin/delayline",
        "/usr/share/man/man1/delayline-app-add.1.gz",
        "/usr/share/bash-completion/completions/delayline",
        "/usr/share/doc/delayline/licences-of-dependencies.txt",
        "/etc/delayline/delayline.toml",
    ] {
        assert!(machine.has(path), "{path} is missing");
    }
    assert!(fs::read_to_string(machine.path("/etc/passwd")).unwrap().contains("delayline:"));

    // The administrator's settings.
    let settings = vhost().build().unwrap();
    let toml = format!(
        "url = \"{}/{}\"\nmanagement_url = \"{}\"\nweb_listen = \"none\"\ncanary = false\n\
         password_file = \"/etc/delayline/password\"\n",
        shared_node().url(),
        settings.broker.vhost,
        shared_node().management_url()
    );
    fs::write(machine.path("/etc/delayline/delayline.toml"), &toml).unwrap();
    fs::write(machine.path("/etc/delayline/password"), "guest\n").unwrap();
    machine.run(&["chown", "root:delayline", "/etc/delayline/password"]);
    machine.run(&["chmod", "0640", "/etc/delayline/password"]);
    let delayline = |words: &[&str]| {
        let all: Vec<_> = ["/usr/bin/delayline", "--config", "/etc/delayline/delayline.toml"]
            .iter()
            .chain(words)
            .copied()
            .collect();
        machine.run(&all)
    };
    delayline(&["install"]);
    assert!(admin::verify(&settings, &topology(&settings)).unwrap().findings.is_empty());
    delayline(&["app", "add", "billing", "--no-user", "--retry"]);

    // One message waits in a level, and another in the application's queue.
    let mut session = Session::open(&settings.broker).unwrap();
    let mut depth = |queue: &str| session.counts(queue).unwrap().unwrap().ready;
    for delay in ["1d", "1s", "1s"] {
        delayline(&["send", "--app", "billing", "--delay", delay, "--body", "x"]);
    }
    eventually("the messages with a delay of a second arrive", || depth("billing") == 2);
    stop_after_it_ran(&machine);

    // The next version replaces this one, and keeps the administrator's file.
    machine.dpkg_install(&package("PACKAGE_NEXT"));
    assert_eq!(fs::read_to_string(machine.path("/etc/delayline/delayline.toml")).unwrap(), toml);
    delayline(&["verify"]);
    stop_after_it_ran(&machine);

    // Purging removes everything except the machine's own files, and changes nothing on the broker.
    machine.run(&["dpkg", "--purge", "delayline"]);
    let listed = machine.run(&["find", "/", "-xdev", "-name", "*delayline*", "-not", "-path", "/proc/*"]);
    let left: Vec<_> = listed.lines().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs::read_to_string(machine.path("/etc/passwd")).unwrap(), users);
    assert!(admin::verify(&settings, &topology(&settings)).unwrap().findings.is_empty());
    // A day is a little more than 2^16 s.
    assert_eq!(depth("delay.level.16"), 1);
    assert_eq!(depth("billing"), 2);
}

/// Runs the daemon until it consumes messages to be retried.
fn stop_after_it_ran(machine: &Machine) {
    let toml = fs::read_to_string(machine.path("/etc/delayline/delayline.toml")).unwrap();
    let url = toml.split('"').nth(1).unwrap();
    let vhost = url.rsplit('/').next().unwrap();
    let consumers = || {
        let queue = common::http(
            &shared_node(),
            "GET",
            &format!("queues/{vhost}/delay.retry"),
            &serde_json::Value::Null,
        );
        queue["consumers"].as_u64().unwrap_or(0)
    };
    let daemon = machine.start();
    eventually("the daemon serves", || consumers() > 0);
    stop(daemon);
    eventually("its consumer is gone", || consumers() == 0);
}
