//! RabbitMQ's command-line programs on a private node.

use std::{
    io::{self, Write},
    process::{Output, Stdio},
};

use crate::{error::NodeError, private::PrivateNode};

const RABBITMQCTL: &str = "rabbitmqctl";

/// The error of commands while the broker starts.
const NOT_STARTED: &str = "requires the 'rabbit' app to be running";

impl PrivateNode {
    /// Runs `rabbitmqctl` against the node.
    ///
    /// # Errors
    /// The command cannot be run. Its own failure is in the output.
    pub fn ctl(&self, arguments: &[&str]) -> io::Result<Output> {
        self.run(RABBITMQCTL, arguments)
    }

    /// Runs a `rabbitmqctl` command and returns its output.
    ///
    /// # Errors
    /// The command cannot be run, or fails. The error contains its output.
    pub fn tell(&self, arguments: &[&str]) -> Result<String, NodeError> {
        let Output { status, stdout, stderr } =
            self.ctl(arguments).map_err(NodeError::io("run rabbitmqctl"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match status.success() {
            true => Ok(text(&stdout)),
            false => {
                let said = text(&stdout) + &text(&stderr);
                Err(NodeError::Refused { arguments: arguments.join(" "), status, said })
            }
        }
    }

    /// Runs `rabbitmq-queues` against the node.
    ///
    /// # Errors
    /// The command cannot be run. Its own failure is in the output.
    pub fn queues_tool(&self, arguments: &[&str]) -> io::Result<Output> {
        self.run("rabbitmq-queues", arguments)
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> io::Result<Output> {
        if let (RABBITMQCTL, ["eval", code]) = (tool, arguments)
            && let Some(output) = self.evaluate(code)
        {
            return Ok(output);
        }
        let run = |tool, arguments: &[&str]| {
            self.tool(tool).args(["--node", self.name(), "--quiet"]).args(arguments).output()
        };
        let output = run(tool, arguments)?;
        // A broker opens its ports a moment before it reports that it has started (3.10.8 to 4.3.6:
        // `do_run_postlaunch_phase`). Until then, it refuses most commands.
        if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains(NOT_STARTED) {
            return Ok(output);
        }
        run(RABBITMQCTL, &["await_startup", "--timeout", "60"])?;
        run(tool, arguments)
    }

    /// The output of `rabbitmqctl eval`, from an Erlang program that takes 10 ms instead of a
    /// second. Empty if that program cannot be run, or reports an error.
    fn evaluate(&self, code: &str) -> Option<Output> {
        let name = if self.name().contains('.') { "-name" } else { "-sname" };
        let mut child = self
            .tool("erl_call")
            .args([name, self.name(), "-timeout", "60", "-e"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        // The program has its own form for values that are not text, and escapes text.
        let code = code.trim_end().strip_suffix('.')?;
        let as_hex = format!(
            "Text = unicode:characters_to_binary(io_lib:format(\"~p~n\", [begin {code} end])), \
             lists:flatten([io_lib:format(\"~2.16.0b\", [Byte]) || <<Byte>> <= Text])."
        );
        writeln!(child.stdin.take()?, "{as_hex}").ok()?;
        let mut output = child.wait_with_output().ok()?;
        let hex = str::from_utf8(output.stdout.trim_ascii_end()).ok()?;
        let hex = hex.strip_prefix("{ok, \"")?.strip_suffix("\"}")?;
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        output.stdout = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?;
        Some(output)
    }

    /// Makes the broker write its queues and bindings to disk now. Up to 4.0, a kill may otherwise
    /// lose changes that it has just confirmed.
    ///
    /// Otherwise the broker writes within three seconds. If a quorum queue was declared within that
    /// time before [`kill`](Self::kill), it returns as an empty replica without peers. It never has
    /// a leader, and never answers. (Measured: three of four such queues on 3.10.8, some on 4.0.5,
    /// none on 4.3.6.)
    ///
    /// # Errors
    /// The broker cannot be reached or refuses.
    pub fn write_down_queues(&self) -> Result<(), NodeError> {
        self.tell(&["eval", "catch mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()], ok."])?;
        Ok(())
    }
}
