//! A process that outlives this one just long enough to clean up.

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Ends a process group and cleans up once the pipe from this process is closed: when the guard is
/// dropped, and also when this process panics or is killed.
///
/// The group has a leader that only stays alive while the group is used. So the group's number
/// cannot be reused for other processes before it is killed.
#[derive(Debug)]
pub(super) struct Guard {
    leader: Child,
    process: Child,
    pipe: Option<ChildStdin>,
}

/// Arguments: the group, the clean-up and its arguments.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
read -r answer
[ "$answer" = keep ] && exit 0
kill -s KILL -- "-$1"
cleanup=$2
shift 2
eval "$cleanup"
"#;

impl Guard {
    /// Starts the guard with a shell script that cleans up, and the script's arguments.
    pub(super) fn start(
        cleanup: &str,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> io::Result<Self> {
        let leader = quiet("sleep").arg("infinity").spawn()?;
        let mut process = quiet("sh")
            .args(["-c", SCRIPT, "delayline-guard", &leader.id().to_string(), cleanup])
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()?;
        let pipe = process.stdin.take();
        Ok(Self { leader, process, pipe })
    }

    /// The group to start processes in.
    pub(super) fn process_group(&self) -> i32 {
        self.leader.id().cast_signed()
    }

    /// Leaves the group's processes running. Returns the process group.
    pub(super) fn disarm(mut self) -> i32 {
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(b"keep\n");
        }
        let _ = self.process.wait();
        self.process_group()
    }
}

/// A command in its own process group, so that a Ctrl-C in this terminal does not reach it.
fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.pipe.take().is_some() {
            let _ = self.process.wait();
            let _ = self.leader.wait();
        }
    }
}
