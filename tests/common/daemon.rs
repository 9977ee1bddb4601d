//! `delayline serve`, as an operator starts it.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
};

use delayline_settings::Settings;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::eventually_seen;

/// A process that serves a set, in a directory of its own. Dropping it ends the process.
pub struct Daemon {
    command: Command,
    child: Child,
    directory: TempDir,
}

/// `delayline serve` for a vhost, without the settings of the user who runs the tests. Without
/// further arguments, it watches everything that it can.
pub fn serve(settings: &Settings) -> Command {
    serve_as("guest", settings)
}

/// The same for a user whose password is the user's name.
pub fn serve_as(user: &str, settings: &Settings) -> Command {
    let management = settings.management.as_ref().map_or("none", |management| management.url.as_str());
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("delayline"));
    let ours = |name: &OsString| name.to_string_lossy().starts_with("DELAYLINE_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command
        .arg("serve")
        .env("DELAYLINE_URL", super::url(settings).replace("guest:guest", &format!("{user}:{user}")))
        .env("DELAYLINE_MANAGEMENT_URL", management)
        .env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string())
        .envs(super::vhosts::patient_variables());
    command
}

impl Daemon {
    /// Starts it with these arguments.
    pub fn start(settings: &Settings, arguments: &[&str]) -> Self {
        let mut command = serve(settings);
        command.args(arguments);
        Self::with(tempfile::tempdir().unwrap(), command)
    }

    /// Starts it in a directory.
    pub fn with(directory: TempDir, mut command: Command) -> Self {
        command.current_dir(directory.path()).stdin(Stdio::null());
        let child = spawn(&mut command, directory.path());
        Self { command, child, directory }
    }

    /// Starts another process in place of the last one.
    pub fn again(&mut self) {
        self.child = spawn(&mut self.command, self.directory.path());
    }

    /// The directory in which it runs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Waits for the URL of its page.
    pub fn page(&self) -> String {
        let log = eventually_seen(
            "it logs the address of its page",
            || self.log(),
            |log| log.split_once("page at http://").is_some_and(|(_, rest)| rest.contains(',')),
        );
        let (_, rest) = log.split_once("page at ").unwrap();
        rest.split(',').next().unwrap().to_owned()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.child.wait().unwrap().code()
    }
}

fn spawn(command: &mut Command, directory: &Path) -> Child {
    let log = File::options().create(true).append(true).open(directory.join("log")).unwrap();
    command.stderr(log).spawn().unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}
