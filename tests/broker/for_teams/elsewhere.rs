//! The programs of the other pages, with the credentials that `delayline app add` gives.

use std::process::Command;

use super::{
    clients::{self, example},
    pages::snippets,
    team::{Receiver, served, served_once, user_of},
};
use crate::common::run_in_time;

const README: &str = include_str!("../../../README.md");
const RETRIES: &str = include_str!("../../../docs/retries.md");

/// Pages, and words of the code in them that is run here, or by the tests of the wire contract and of recall.
pub(super) const RUN: [(&str, &str); 10] = [
    ("README.md", "channel.basic_publish("),
    ("README.md", "channel.consume(\"billing\")"),
    ("README.md", "fn main() -> Result"),
    ("retries.md", "channel.consume(\"billing-in\")"),
    ("recall.md", "def publish_with_id("),
    ("recall.md", "def publish_journalled("),
    ("recall.md", "async function publishWithId("),
    ("recall.md", "recaller.recall(&handle)"),
    ("wire-contract.md", "def routing_key("),
    ("wire-contract.md", "function routingKey("),
];

/// The only code of a page that has these words.
fn code(page: &str, words: &str) -> String {
    let mut found: Vec<_> = snippets(page).into_iter().filter(|it| it.text.contains(words)).collect();
    assert_eq!(found.len(), 1, "{words}");
    found.remove(0).text
}

fn python(program: &str, address: &str) -> Receiver {
    let mut command = (clients::PYTHON.command)("".as_ref(), "-c");
    command.arg(program).env("AMQP_URL", address);
    Receiver::start(command, 0)
}

#[test]
fn the_readme_sends_and_receives() {
    let settings = served();
    let address = user_of(&settings, "billing", "billing");
    let send = code(README, "channel.basic_publish(");
    let receive = code(README, "channel.consume(\"billing\")");
    let receiver = python(&format!("{send}{receive}"), &address);
    assert_eq!(receiver.next(), "invoice 17");
    assert_eq!(code(README, "fn main() -> Result"), include_str!("../../../examples/readme.rs"));
    let mut rust = Command::new(example("readme"));
    rust.env("AMQP_URL", &address);
    let output = run_in_time(rust);
    assert!(output.stdout.starts_with(b"due at "), "{output:?}");
    assert_eq!(receiver.next(), "invoice 17");
}

#[test]
fn what_is_rejected_as_the_page_on_retries_says_comes_back() {
    let address = user_of(&served_once(), "billing", "billing-in");
    let before = "import os, pika\n\
                  channel = pika.BlockingConnection(pika.URLParameters(os.environ['AMQP_URL'])).channel()\n\
                  channel.confirm_delivery()\n\
                  channel.basic_publish('delay', 'delay' + '.0000' * 7 + '.billing', b'x', mandatory=True)\n\
                  tried = []\n\
                  def charge(body):\n    tried.append(body)\n    print('tried', len(tried), flush=True)\n    \
                  if len(tried) < 3: raise RuntimeError('the bank is closed')\n    print('done', flush=True)\n";
    let receiver = python(&format!("{before}{}", code(RETRIES, "channel.consume(\"billing-in\")")), &address);
    for line in ["tried 1", "tried 2", "tried 3", "done"] {
        assert_eq!(receiver.next(), line);
    }
}
