//! What RabbitMQ's command-line programs do on a private node.

use std::{io, process::Output};

use crate::{NodeError, PrivateNode};

/// What commands say while the broker starts.
const NOT_STARTED: &str = "requires the 'rabbit' app to be running";

impl PrivateNode {
    /// Runs `rabbitmqctl` against the node.
    ///
    /// # Errors
    /// If it cannot be run; its own failure is in the output.
    pub fn ctl(&self, arguments: &[&str]) -> io::Result<Output> {
        self.run("rabbitmqctl", arguments)
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
        let run = |tool, arguments: &[&str]| {
            self.tool(tool).args(["--node", self.name(), "--quiet"]).args(arguments).output()
        };
        let output = run(tool, arguments)?;
        // A broker opens its ports a moment before it calls itself started (3.10.8 to 4.3.6:
        // `do_run_postlaunch_phase`), and refuses most commands until then.
        if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains(NOT_STARTED) {
            return Ok(output);
        }
        run("rabbitmqctl", &["await_startup", "--timeout", "60"])?;
        run(tool, arguments)
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
