//! What RabbitMQ's command-line programs do on a private node.

use std::{
    io::{self, Write},
    process::{Output, Stdio},
};

use crate::{NodeError, PrivateNode};

const RABBITMQCTL: &str = "rabbitmqctl";

/// What commands say while the broker starts.
const NOT_STARTED: &str = "requires the 'rabbit' app to be running";

impl PrivateNode {
    /// Runs `rabbitmqctl` against the node.
    ///
    /// # Errors
    /// If it cannot be run; its own failure is in the output.
    pub fn ctl(&self, arguments: &[&str]) -> io::Result<Output> {
        self.run(RABBITMQCTL, arguments)
    }

    /// Has `rabbitmqctl` do something: what it prints.
    ///
    /// # Errors
    /// If it cannot be run, or fails; then with what it said.
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
    /// If it cannot be run; its own failure is in the output.
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
        // A broker opens its ports a moment before it calls itself started (3.10.8 to 4.3.6:
        // `do_run_postlaunch_phase`), and refuses most commands until then.
        if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains(NOT_STARTED) {
            return Ok(output);
        }
        run(RABBITMQCTL, &["await_startup", "--timeout", "60"])?;
        run(tool, arguments)
    }

    /// What `rabbitmqctl eval` prints, by a program of Erlang that takes 10 ms instead of a second.
    /// Nothing if that program cannot be run, or reports an error.
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
        // It has a form of its own for what is no text, and escapes what is.
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

    /// Makes the broker write to disk now which queues and bindings it has. Up to 4.0, what it
    /// has answered a moment before a kill may be lost otherwise.
    ///
    /// By itself it does so within three seconds. A quorum queue that was declared later
    /// than that before [`kill`](Self::kill) comes back as an empty replica that knows of
    /// no others, never has a leader, and answers nobody (measured: three of four such
    /// queues on 3.10.8, some on 4.0.5, none on 4.3.6).
    ///
    /// # Errors
    /// If the broker cannot be asked or refuses.
    pub fn write_down_queues(&self) -> Result<(), NodeError> {
        self.tell(&["eval", "catch mnesia:sync_log(), [dets:sync(Table) || Table <- dets:all()], ok."])?;
        Ok(())
    }
}
