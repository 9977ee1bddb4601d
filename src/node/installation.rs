//! Where RabbitMQ's programs are.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// A RabbitMQ that is installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    programs: PathBuf,
}

/// Directories that hold `rabbitmq-server` itself: Debian's packages first, then
/// the generic archive's and Homebrew's places. Debian's `/usr/sbin` has a
/// wrapper instead, which changes the user and starts the system's broker.
const PLACES: [&str; 4] = [
    "/usr/lib/rabbitmq/bin",
    "/usr/local/lib/rabbitmq/sbin",
    "/opt/rabbitmq/sbin",
    "/opt/homebrew/opt/rabbitmq/sbin",
];

impl Installation {
    /// Looks for RabbitMQ: in `RABBITMQ_HOME`, then in the usual places.
    #[must_use]
    pub fn find() -> Option<Self> {
        let home = env::var_os("RABBITMQ_HOME").map(|home| Path::new(&home).join("sbin"));
        home.into_iter()
            .chain(PLACES.map(PathBuf::from))
            .find(|programs| programs.join("rabbitmq-server").is_file())
            .map(|programs| Self { programs })
    }

    /// A command for one of its programs.
    pub(super) fn tool(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }

    /// A command for Erlang's port mapper, which nodes find each other by.
    pub(super) fn epmd(&self) -> Command {
        Command::new("epmd")
    }
}
