//! The process that publishes messages with any content.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use delayline_settings::Settings;
use serde::Deserialize;
use serde_json::json;

use crate::common;

/// A content, as defined in `contents.py`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Content {
    pub(super) name: String,
    /// Whether a message with this content can end all dead-lettering. If so, it is measured alone.
    pub(super) may_end: MayEnd,
    /// The delay in units.
    pub(super) units: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MayEnd {
    Never,
    Stream,
    Always,
}

/// The running process.
pub(super) struct Publisher {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) contents: Vec<Content>,
}

impl Publisher {
    pub(super) fn start(settings: &Settings) -> Self {
        let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
        let mut child = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/contents/contents.py"))
            .arg(common::url(settings))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut publisher = Self { child, input, output, contents: Vec::new() };
        publisher.contents = serde_json::from_str(&publisher.line()).unwrap();
        publisher
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Publishes a content. Returns the broker's refusal, if there was one.
    pub(super) fn publish(&mut self, key: &str, content: usize) -> Option<String> {
        let line = json!({ "exchange": "delay", "key": key, "content": content });
        writeln!(self.input, "{line}").unwrap();
        serde_json::from_str(&self.line()).unwrap()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
