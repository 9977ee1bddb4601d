//! Following a page, and noting which of its promises are not kept.

use std::{
    collections::BTreeSet,
    fs, iter,
    panic::{AssertUnwindSafe, catch_unwind},
    process::Output,
    sync::OnceLock,
};

use delayline_admin::{Kept, KeptGroup};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    message::Value,
    topology::{Binding, Endpoint, Queue},
};
use delayline_node::PrivateNode;
use delayline_settings::Settings;
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use super::{
    super::{
        pages::snippets,
        team::{Receiver, served_on, user_of, user_with, without_queues},
    },
    known::{Framework, Recall, Retries},
    pages,
    promises::{Changes, Promise},
    shell,
};
use crate::common::{
    Arrival, Inbox, PATIENCE, eventually, eventually_seen, http, run_in_time, topology, url,
};

/// The output of a receiver that fails.
const FAILED: &str = "failed: the bank is closed";

/// A text from a page, with the names of another application, because all pages share a set.
fn renamed(text: &str, app: &AppKey) -> String {
    let mut text = text.replace("billing-in", &format!("{app}-in"));
    for (before, after) in [
        ("\"", "\""),
        ("'", "'"),
        ("app_key: ", ","),
        ("routing-key=", "\n"),
        (".recalled.", "\""),
        (".recall.", "\""),
    ] {
        text = text.replace(&format!("{before}billing{after}"), &format!("{before}{app}{after}"));
    }
    text
}

/// Writes the files of a page into a directory, with these changes, and builds them.
fn written(framework: &Framework, key: &AppKey, changes: Changes) -> TempDir {
    let mut page = fs::read_to_string(pages().join(framework.page)).unwrap();
    let mut files: Vec<_> =
        framework.files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    for (_, from, to) in changes {
        let texts = iter::once(&mut page).chain(files.iter_mut().map(|(_, text)| text));
        let found: Vec<_> = texts.filter(|text| text.contains(from)).collect();
        assert!(!found.is_empty(), "{}: nothing has {from:?}", framework.page);
        found.into_iter().for_each(|text| *text = text.replace(from, to));
    }
    let snippets = snippets(&page).into_iter().filter(|it| it.words.len() > 2);
    files.extend(snippets.map(|it| (it.words[1].to_owned(), it.text)));
    if let Recall::Line { file, program, .. } = framework.recall {
        let line = page.lines().find(|line| line.starts_with("- recall: ")).expect("a line about recall");
        let code: Vec<_> = line.split('`').collect();
        let [_, first, _, second, ..] = code[..] else { panic!("the code of {line}") };
        files.push((file.to_owned(), program.replace("{1}", first).replace("{2}", second)));
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = directory.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, renamed(&text, key)).unwrap();
    }
    if !framework.build.is_empty() {
        let built = run_in_time(shell(framework.build, directory.path(), ""));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stdout));
    }
    directory
}

/// The promises that were not kept.
#[derive(Default)]
struct Broken(BTreeSet<Promise>);

impl Broken {
    fn check(&mut self, promise: Promise, check: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(check)).is_err() {
            self.0.insert(promise);
        }
    }
}

/// The output of a program that sends, and whether it reported success.
type Sent = (bool, String);

fn sent(output: &Output) -> Sent {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success() && printed.lines().any(|line| line == "confirmed"), printed)
}

/// Copies of all that is published to a set for an application, as the broker shows them.
struct Wire {
    path: String,
    seen: Vec<Json>,
}

impl Wire {
    fn open(settings: &Settings, key: &AppKey) -> Self {
        let queue = format!("wire.{key}");
        let mut session = Session::open(&settings.broker).unwrap();
        session.declare_queue(&Queue::new(queue.clone())).unwrap();
        for (source, pattern) in [
            ("delay", RoutingKey::binding_pattern(key)),
            ("delay", RoutingKey::recall_pattern(key)),
            ("delay.parked", key.to_string()),
        ] {
            let destination = Endpoint::Queue(queue.clone());
            session.bind(&Binding { source: source.into(), destination, key: pattern }).unwrap();
        }
        Self { path: format!("queues/{}/{queue}/get", settings.broker.vhost), seen: Vec::new() }
    }

    /// All messages up to now, once there is one for which `last` is true.
    fn until(&mut self, node: &PrivateNode, last: impl Fn(&Json) -> bool) -> &[Json] {
        let wanted = json!({ "count": 100, "ackmode": "ack_requeue_false", "encoding": "auto" });
        eventually("a copy arrives", || {
            let new = http(node, "POST", &self.path, &wanted);
            self.seen.extend(new.as_array().unwrap().iter().cloned());
            self.seen.iter().any(&last)
        });
        &self.seen
    }
}

/// Follows a page: sends, recalls and receives messages, fails, retries, and gives up. Returns the
/// promises that were not kept.
pub(super) fn tried(framework: &Framework, key: &AppKey, changes: Changes) -> BTreeSet<Promise> {
    let mut broken = Broken::default();
    let (node, settings) = served_on();
    let address = user_with(settings, key.as_str(), &["--queue", &format!("{key}-in"), "--recall"]);
    let files = written(framework, key, changes);
    let run = |line: &str, address: &str| run_in_time(shell(&format!("exec {line}"), files.path(), address));
    let mut wire = Wire::open(settings, key);
    let copies = Inbox::open(settings, key.as_str());
    let copy = || copies.next(PATIENCE).expect("a copy");
    // With these bindings, messages with an id are copied as soon as they are sent, and parked ones.
    for (source, pattern) in [("delay", RoutingKey::recall_pattern(key)), ("delay.parked", key.to_string())] {
        let destination = Endpoint::Queue(format!("in.{key}"));
        let binding = Binding { source: source.into(), destination, key: pattern };
        Session::open(&settings.broker).unwrap().bind(&binding).unwrap();
    }

    let (line, seconds) = match framework.recall {
        Recall::Sender => (format!("{} 99999.5 'invoice 17' invoice-17", framework.send), 100_000),
        Recall::Line { run, .. } => (run.to_owned(), 86_400),
    };
    let (_, printed) = sent(&run(&line, &address));
    let to = |seconds| RoutingKey::new(Delay::from_seconds(seconds).unwrap(), key.clone());
    let mut first = copy();
    let handle = first.routing_key.clone();
    broken.check(Promise::Delay, || {
        assert_eq!(handle, to(seconds).with_id("invoice-17".parse().unwrap()).unwrap().encode());
    });
    broken.check(Promise::Recall, || {
        assert!(printed.lines().any(|line| line == "recalled"), "{printed}");
        let path = format!("exchanges/{}/delay.recall.{key}/bindings/source", settings.broker.vhost);
        let bindings = http(node, "GET", &path, &Json::Null).to_string();
        assert!(bindings.contains(&format!("\"{handle}\"")), "{bindings}");
    });
    if framework.several.is_none() {
        let (confirmed, printed) = sent(&run(&format!("{} 89.5 'invoice 17'", framework.send), &address));
        assert!(confirmed, "{printed}");
        first = copy();
        broken.check(Promise::Delay, || assert_eq!(first.routing_key, to(90).encode()));
    }
    let sent_last = |copy: &Json| copy["routing_key"] == first.routing_key;
    let published = wire.until(node, sent_last);
    broken.check(Promise::Persistent, || {
        assert!(published.iter().all(|it| it["properties"]["delivery_mode"] == 2), "{published:?}");
    });
    broken.check(Promise::MessageId, || {
        assert!(published.iter().all(|it| it["properties"]["message_id"].is_string()), "{published:?}");
    });
    if framework.several.is_some() {
        // The program would send the same message without an id.
        send_like(settings, key, &first, "invoice 17");
        first = copy();
    }

    let mut receiver =
        Receiver::start(shell(&format!("exec {}", framework.receive), files.path(), &address), 0);
    // The receiver also prints other lines.
    let next = |receiver: &Receiver| loop {
        let line = receiver.next();
        println!("{line}");
        let words = [FAILED, "done: "].iter().find_map(|words| line.find(words)).map(|at| &line[at..]);
        // A log line may quote the error.
        if let Some(words) = words.filter(|words| !words.starts_with(FAILED) || *words == FAILED) {
            break words.to_owned();
        }
    };
    assert_eq!(next(&receiver), FAILED);
    assert_eq!(next(&receiver), "done: invoice 17");
    send_like(settings, key, &first, "stolen one");
    let is_parked = |copy: &Arrival| copy.routing_key == key.as_str();
    let mut came = vec![copy()];
    while !is_parked(&came[came.len() - 1]) {
        came.push(copy());
    }
    let with = |text: &str| came.iter().find(|copy| String::from_utf8_lossy(&copy.body).contains(text));
    broken.check(Promise::Retry, || {
        // It went through the set, and was not requeued: its copy came before the parked message.
        let retried = with("invoice 17").expect("the message is sent again");
        let attempt = retried.headers.get("delayline-attempt").and_then(Value::as_i64);
        assert_eq!(attempt, (framework.retries == Retries::Service).then_some(1));
        assert_eq!(came.len(), 3, "{came:?}");
    });
    let parked = wire.until(node, |copy| copy["routing_key"] == key.as_str()).last().cloned();
    broken.check(Promise::Park, || {
        let KeptGroup { cause, group, .. } = one_kept(&Kept::Parked, settings, key);
        assert!(group.oldest.is_some(), "{group:?}");
        assert!(cause.detail.as_deref().is_some_and(|it| it.contains("the card is stolen")), "{cause:?}");
        assert_eq!(cause.reason, "gave-up");
        let properties = &parked.expect("a parked message")["properties"];
        assert_eq!(properties["delivery_mode"], 2, "{properties}");
        let id = with("stolen one").expect("a copy").id.as_str();
        assert!(properties["message_id"] == id && !id.is_empty(), "{id} was parked with {properties}");
    });
    // Neither message is delivered again: this later message arrives next.
    send_like(settings, key, &first, "another 18");
    broken.check(Promise::Retry, || {
        assert_eq!(next(&receiver), FAILED);
        assert_eq!(next(&receiver), "done: another 18");
    });
    broken.check(Promise::Park, || assert_eq!(one_kept(&Kept::Parked, settings, key).group.count, 1));
    receiver.terminate();

    // Some programs look for the queue.
    let without = without_queues();
    Session::open(&without.broker).unwrap().declare_queue(&Queue::new(format!("{key}-in"))).unwrap();
    let mut refusals = vec![
        (Promise::Refused, stranger(settings), "1"),
        (Promise::Range, address, "268435456"),
        (Promise::Returned, url(without), "1"),
    ];
    refusals.retain(|(promise, ..)| framework.promises().contains(promise));
    let outcomes: Vec<Sent> = match framework.several {
        Some(line) => {
            let arguments = refusals.iter().map(|(_, address, delay)| format!(" '{address}' {delay}"));
            let output = run(&arguments.fold(line.to_owned(), |line, each| line + &each), "");
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let printed = printed.split_terminator("ended\n").map(str::to_owned);
            printed.map(|it| (it.lines().any(|line| line == "confirmed"), it)).collect()
        }
        None => refusals
            .iter()
            .map(|(_, address, delay)| sent(&run(&format!("{} {delay} 'refused'", framework.send), address)))
            .collect(),
    };
    assert_eq!(outcomes.len(), refusals.len(), "{outcomes:?}");
    for ((promise, ..), (sent, printed)) in refusals.iter().zip(outcomes) {
        broken.check(*promise, || {
            assert!(!sent && !printed.is_empty(), "the message was sent: {printed}");
            // Without this check, the delay could become another one.
            assert!(*promise != Promise::Range || printed.contains("a delay is 0 to "), "{printed}");
        });
    }
    broken.0
}

/// The address of a user that may not publish any of the pages' app keys.
fn stranger(settings: &Settings) -> String {
    static STRANGER: OnceLock<String> = OnceLock::new();
    STRANGER.get_or_init(|| user_of(settings, "stranger", "stranger")).clone()
}

/// Publishes the message of a page's program again, with another text. It has the same length,
/// because some formats contain the length.
fn send_like(settings: &Settings, key: &AppKey, sent: &Arrival, text: &str) {
    let body = String::from_utf8(sent.body.clone()).unwrap().replace("invoice 17", text);
    let message = Message::after(key.clone(), Delay::ZERO, body).with_properties(sent.properties.clone());
    let mine =
        sent.headers.iter().filter(|(name, _)| !name.starts_with("x-") && !name.starts_with("delayline-"));
    let message = mine.fold(message, |message, (name, value)| message.with_header(name, value.clone()));
    settings.router().connect().unwrap().publish(message).unwrap();
}

/// The only group of kept messages for an application, once there is one.
fn one_kept(kept: &Kept, settings: &Settings, key: &AppKey) -> KeptGroup {
    let look = || {
        let mut groups = kept.list(settings, &topology(settings), 1_000, |_| {}).unwrap().groups;
        groups.retain(|group| group.cause.app.as_deref() == Some(key.as_str()));
        groups
    };
    let mut groups = eventually_seen("a message is kept", look, |groups| !groups.is_empty());
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups.remove(0)
}
