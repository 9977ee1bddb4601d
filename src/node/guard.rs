//! A process that outlives us just long enough to clean up.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Ends the process group of a node and removes its directory once the pipe from
/// us is closed: when it is dropped, and also when this process panics or is
/// killed.
///
/// The group has a leader that does nothing but live as long as the group is
/// used, so that the group's number cannot have passed to somebody else's
/// processes when it is killed.
#[derive(Debug)]
pub(super) struct Guard {
    leader: Child,
    process: Child,
    pipe: Option<ChildStdin>,
}

/// Arguments: the group, the directory. The node's processes may write for a
/// moment after they were killed, hence the second attempt.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
read -r answer
[ "$answer" = keep ] && exit 0
kill -s KILL -- "-$1"
rm -rf -- "$2" || { sleep 0.5; rm -rf -- "$2"; }
"#;

impl Guard {
    pub(super) fn start(directory: &Path) -> io::Result<Self> {
        let leader = quiet("sleep").arg("infinity").spawn()?;
        let mut process = quiet("sh")
            .args(["-c", SCRIPT, "delayline-guard", &leader.id().to_string()])
            .arg(directory)
            .stdin(Stdio::piped())
            .spawn()?;
        let pipe = process.stdin.take();
        Ok(Self { leader, process, pipe })
    }

    /// The group that the node's processes belong to.
    pub(super) fn process_group(&self) -> i32 {
        self.leader.id().cast_signed()
    }

    /// Lets the node live on. Returns its process group.
    pub(super) fn disarm(mut self) -> i32 {
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(b"keep\n");
        }
        let _ = self.process.wait();
        self.process_group()
    }
}

/// A command in a process group of its own, so that a Ctrl-C in our terminal
/// does not reach it.
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
