//! The programs on other pages, with the credentials from `delayline app add`.

use std::{process::Command, sync::atomic::AtomicBool};

use delayline_admin::{Kept, Selection};

use super::{
    clients::{self, example},
    pages::snippets,
    team::{Receiver, served, served_once, user_of},
};
use crate::common::{Inbox, PATIENCE, run_in_time, topology};

const README: &str = include_str!("../../../README.md");
const TEAMS: &str = include_str!("../../../docs/for-teams/README.md");
const PYTHON: &str = include_str!("../../../docs/for-teams/python.md");
const RETRIES: &str = include_str!("../../../docs/how-to/retries.md");

/// Pages and parts of their code. The code is run here, or by the tests of the wire contract and of
/// recalls.
pub(super) const RUN: [(&str, &str); 12] = [
    ("for-teams/README.md", "charge(body)"),
    ("README.md", "channel.basic_publish("),
    ("README.md", "channel.consume(\"billing\")"),
    ("README.md", "fn main() -> Result"),
    ("retries.md", "channel.consume(\"billing-in\")"),
    ("python.md", "def park("),
    ("tutorial.md", "if attempt < 2"),
    ("python.md", "def publish_with_id("),
    ("javascript.md", "async function publishWithId("),
    ("recall.md", "recaller.recall(&handle)"),
    ("wire-contract.md", "def routing_key("),
    ("wire-contract.md", "function routingKey("),
];

/// The only code on a page that contains these words.
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
    assert_eq!(code(README, "fn main() -> Result"), include_str!("../../../examples/publish.rs"));
    let mut rust = Command::new(example("publish"));
    rust.env("AMQP_URL", &address);
    let output = run_in_time(rust);
    assert!(output.stdout.starts_with(b"due at "), "{output:?}");
    assert_eq!(receiver.next(), "invoice 17");
}

#[test]
fn the_first_example_for_teams_sends_receives_and_retries() {
    let address = user_of(&served(), "billing", "billing-in");
    let charge = "tried = []\ndef charge(body):\n    tried.append(body)\n    print(body.decode(), len(tried), flush=True)\n    \
                  return len(tried) == 3\n";
    let receiver = python(&format!("{charge}{}", code(TEAMS, "charge(body)")), &address);
    for line in ["invoice 17 1", "invoice 17 2", "invoice 17 3"] {
        assert_eq!(receiver.next(), line);
    }
}

#[test]
fn a_message_rejected_as_on_the_page_on_retries_is_retried() {
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

#[test]
fn an_application_parks_its_own_messages_and_no_others() {
    let settings = served();
    let address = user_of(&settings, "billing", "billing-in");
    user_of(&settings, "shop", "shop-in");
    let program = "import os, pika\n\
                  connection = pika.BlockingConnection(pika.URLParameters(os.environ['AMQP_URL']))\n\
                  channel = connection.channel()\n\
                  channel.confirm_delivery()\n\
                  mine = pika.BasicProperties(message_id='4711', headers={'mine': 'kept', 'x-own': 'not kept'})\n\
                  channel.basic_publish('delay', 'delay' + '.0000' * 7 + '.billing', b'invoice 17', mine)\n\
                  method, properties, body = next(channel.consume('billing-in'))\n\
                  def work(body): raise Final('the card is stolen')\n\
                  work_or_park(channel, method, properties, body, work)\n\
                  for exchange, key in [('delay.parked', 'shop'), ('delay.parked', '#'), ('delay.retry', 'billing')]:\n    \
                  channel = connection.channel()\n    channel.confirm_delivery()\n    \
                  try: channel.basic_publish(exchange, key, b'x')\n    \
                  except pika.exceptions.ChannelClosedByBroker as error: print(error.reply_code, flush=True)\n    \
                  else: print('sent', flush=True)\n";
    let receiver = python(&format!("import pika\n{}{program}", code(PYTHON, "def park(")), &address);
    for _ in 0..3 {
        assert_eq!(receiver.next(), "403");
    }
    let all = Selection::default();
    let mut seen = Vec::new();
    Kept::Parked.messages(&settings, &topology(&settings), &all, (10, 100), |it| seen.push(it)).unwrap();
    assert_eq!(seen.len(), 1, "{seen:?}");
    let (cause, sample) = (&seen[0].cause, &seen[0].sample);
    assert_eq!((cause.app.as_deref(), &*cause.reason), (Some("billing"), "gave-up"));
    assert_eq!(cause.detail.as_deref(), Some("the card is stolen"));
    assert_eq!(sample.body.as_deref(), Some("invoice 17"));
    assert_eq!(sample.headers["mine"], "kept");
    assert!(!sample.headers.contains_key("x-own"), "{sample:?}");
    // The attempts start over.
    let inbox = Inbox::open(&settings, "billing");
    let stop = AtomicBool::new(false);
    Kept::Parked.replay(&settings, &topology(&settings), &all, true, &stop, |_| {}).unwrap().unwrap();
    let back = inbox.next(PATIENCE).expect("the message comes back");
    assert!(!back.headers.contains_key("delayline-failure"), "{back:?}");
}
