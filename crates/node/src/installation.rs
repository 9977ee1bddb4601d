//! The location of RabbitMQ's programs.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

/// A RabbitMQ that is installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    programs: PathBuf,
    /// The root directory of another Debian release, which contains the programs.
    root: Option<PathBuf>,
}

/// Directories that contain `rabbitmq-server` itself: Debian's packages first, then the generic
/// archive and Homebrew. Debian's `/usr/sbin` has only a wrapper, which changes the user and starts
/// the system's broker.
const PLACES: [&str; 4] = [
    "/usr/lib/rabbitmq/bin",
    "/usr/local/lib/rabbitmq/sbin",
    "/opt/rabbitmq/sbin",
    "/opt/homebrew/opt/rabbitmq/sbin",
];

/// Runs a program inside another root directory, in a mount namespace that ends with it. The
/// program sees the parent of the node's directory under the same name. Arguments: the root, that
/// directory, the working directory, the program and its arguments.
const ENTER: &str = r#"
root=$1 shared=$2 place=$3
shift 3
mount --rbind /proc "$root/proc" &&
mount --rbind /dev "$root/dev" &&
{ [ -e "$root/etc/hosts" ] || : >"$root/etc/hosts"; } &&
mount --bind /etc/hosts "$root/etc/hosts" &&
mkdir -p "$root$shared" &&
mount --bind "$shared" "$root$shared" &&
exec chroot "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$place" "$@"
"#;

impl Installation {
    /// Searches for RabbitMQ: in `RABBITMQ_ROOT`, the root directory of another Debian release from
    /// `scripts/brokers`; in `RABBITMQ_HOME`; then in the usual places.
    #[must_use]
    pub fn find() -> Option<Self> {
        match env::var_os("RABBITMQ_ROOT").filter(|root| !root.is_empty()) {
            Some(root) => Self::in_root(root),
            None => Self::on_this_machine(),
        }
    }

    /// The installation under the root directory of another Debian release. Only root can start it.
    pub fn in_root(root: impl AsRef<OsStr>) -> Option<Self> {
        let root = PathBuf::from(root.as_ref());
        let programs = PathBuf::from(PLACES[0]);
        let inside = root.join(programs.strip_prefix("/").unwrap_or(&programs));
        inside.join("rabbitmq-server").is_file().then_some(Self { programs, root: Some(root) })
    }

    fn on_this_machine() -> Option<Self> {
        let home = env::var_os("RABBITMQ_HOME").map(|home| Path::new(&home).join("sbin"));
        home.into_iter()
            .chain(PLACES.map(PathBuf::from))
            .find(|programs| programs.join("rabbitmq-server").is_file())
            .map(|programs| Self { programs, root: None })
    }

    /// A command for a program of RabbitMQ or Erlang, such as `epmd`, the port mapper through which
    /// nodes find each other, or `erl_call`, which makes a node evaluate an expression. It runs in
    /// `place`, the node's directory, and in a network namespace if one is given.
    pub(super) fn tool(&self, name: &str, place: &Path, namespace: Option<&str>) -> Command {
        let program = match name {
            "epmd" => PathBuf::from(name),
            "erl_call" => "/usr/lib/erlang/bin/erl_call".into(),
            _ => self.programs.join(name),
        };
        let mut words: Vec<PathBuf> = Vec::new();
        if let Some(namespace) = namespace {
            words.extend(["ip", "netns", "exec", namespace].map(PathBuf::from));
        }
        if let Some(root) = &self.root {
            words.extend(["unshare", "--mount", "sh", "-c", ENTER, "delayline-enter"].map(PathBuf::from));
            let shared = place.parent().unwrap_or(place);
            words.extend([root.as_path(), shared, place].map(Path::to_owned));
        }
        words.push(program);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(place);
        command
    }
}
