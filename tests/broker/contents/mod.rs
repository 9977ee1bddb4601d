//! Messages with each content are sent to each kind of bound target. The outcomes are compared with
//! the document.

mod page;
mod publisher;
mod targets;
mod ways_out;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::{Consumer, Next, Session};
use delayline_core::topology::{Binding, Endpoint};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::json;

use self::{
    page::{Outcome, Page, Series},
    publisher::{Content, MayEnd, Publisher},
    targets::{Ground, Made, TARGETS, Target},
};
use crate::common::Counting;
use crate::{
    common::{self, PATIENCE, eventually},
    tenant::{key, mend},
    unstick::anew,
};

/// The documented command that prints the keys of stuck messages.
pub(crate) fn stuck_keys() -> &'static str {
    let document = include_str!("../../../docs/runbook/stuck.md");
    let (_, rest) = document.split_once("## stuck-dead-letters").expect("the document has the section");
    let (_, rest) = rest.split_once("rabbitmqctl eval '\n").expect("the section has the command");
    rest.split_once('\'').unwrap().0
}

/// Runs a command in the broker, and returns its output in one line.
fn eval(node: &PrivateNode, code: &str) -> String {
    node.tell(&["eval", code]).unwrap().replace(char::is_whitespace, "")
}

/// Whether dead-lettering has ended. On a slow machine, a worker does not crash a hundred times
/// within a second. Then the supervisor does not give up, and only the worker's own level is stuck.
fn has_ended(node: &PrivateNode) -> bool {
    let code = "Workers = fun () -> lists:sort([W || {_, W, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup)]) end,
        whereis(rabbit_fifo_dlx_sup) =:= undefined orelse
        begin Before = catch Workers(), timer:sleep(200), Before =/= (catch Workers()) end.";
    eval(node, code) == "true"
}

/// A node with a set. Its broker tries again every second instead of every 180 s.
struct Bench {
    node: PrivateNode,
    settings: Settings,
    session: RefCell<Session>,
    unroutable: Consumer,
    publisher: RefCell<Publisher>,
    contents: Vec<Content>,
}

impl Bench {
    fn start() -> Self {
        let options = NodeOptions {
            rabbit: vec![
                "{dead_letter_worker_publisher_confirm_timeout, 1000}".into(),
                "{dead_letter_worker_consumer_prefetch, 512}".into(),
            ],
            plugins: ["consistent_hash", "recent_history", "random"]
                .map(|kind| format!("rabbitmq_{kind}_exchange"))
                .into(),
            ..NodeOptions::default()
        };
        let node = PrivateNode::start(options).unwrap();
        let settings = common::named_vhost(&node, "matter").set("unit_ms", "100").build().unwrap();
        common::install(&settings);
        let mut session = Session::open(&settings.broker).unwrap();
        let unroutable = session.consume("delay.unroutable", 1_000).unwrap();
        let publisher = Publisher::start(&settings);
        let contents = publisher.contents.clone();
        let (session, publisher) = (RefCell::new(session), RefCell::new(publisher));
        let bench = Self { node, settings, session, unroutable, publisher, contents };
        let ground = bench.ground();
        ground.queue("good", &json!({ "x-queue-type": "quorum" }));
        let good = Made { bound: vec![Endpoint::Queue("good".into())], ..Made::default() };
        Self::bindings(&good, "").for_each(|binding| {
            bench.session.borrow_mut().bind(&Binding { key: pattern("good"), ..binding }).unwrap();
        });
        bench
    }

    fn ground(&self) -> Ground<'_> {
        Ground { node: &self.node, settings: &self.settings, session: &self.session }
    }

    fn eval(&self, code: &str) -> String {
        eval(&self.node, code)
    }

    fn depth(&self, queue: &str) -> u64 {
        self.session.borrow_mut().counts(queue).unwrap().map_or(0, |depth| u64::from(depth.ready))
    }

    /// Sends a message of another application through the same levels, and returns whether it
    /// arrives. If it does not, all dead-lettering has ended.
    fn others_are_served(&self) -> bool {
        let served = self.served_within(PATIENCE);
        served.unwrap_or_else(|| {
            panic!("the other application's message does not arrive: {}", self.eval(stuck_keys()))
        })
    }

    /// The same with a time limit; `None` if the message has not arrived by then although
    /// dead-lettering works.
    fn served_within(&self, limit: Duration) -> Option<bool> {
        let before = self.depth("good");
        let refused = self.publisher.borrow_mut().publish(&key(3, "good"), 0);
        assert_eq!(refused, None);
        let began = Instant::now();
        while self.depth("good") == before {
            if began.elapsed() > Duration::from_secs(3) && has_ended(&self.node) {
                return Some(false);
            }
            if began.elapsed() >= limit {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
        Some(true)
    }

    /// Measures the outcome of these contents for a target.
    fn measure(
        &self,
        number: usize,
        target: &Target,
        contents: &BTreeSet<usize>,
    ) -> BTreeMap<usize, Outcome> {
        let name = format!("t{number}");
        let made = target.make(&self.ground(), &name);
        self.bind(&made, &name);
        let mut before = self.settled(&made);
        let (single, together): (Vec<_>, Vec<_>) =
            contents.iter().copied().partition(|&content| match self.contents[content].may_end {
                MayEnd::Never => false,
                MayEnd::Stream => target.name.contains("stream"),
                MayEnd::Always => true,
            });
        let together = (!together.is_empty()).then_some(together);
        let (mut outcomes, mut moved, mut recovered) = (BTreeMap::new(), BTreeSet::new(), false);
        for group in together.into_iter().chain(single.into_iter().map(|content| vec![content])) {
            let (sent, refused): (Vec<_>, Vec<_>) =
                group.into_iter().partition(|&content| self.publish(&name, content));
            outcomes.extend(refused.into_iter().map(|content| (content, Outcome::Refused)));
            if sent.is_empty() || self.others_are_served() {
                moved.extend(sent);
                continue;
            }
            assert_eq!(
                sent.len(),
                1,
                "a message of {sent:?} ends dead-lettering: set `may_end` for them, so that each is measured alone"
            );
            outcomes.insert(sent[0], Outcome::Ends);
            self.recover(&made, &name);
            recovered = true;
        }
        if recovered {
            // The earlier messages may have moved during the recovery, so they are sent again.
            before = self.settled(&made);
            self.drain_unroutable(&name);
            assert!(moved.iter().all(|&content| self.publish(&name, content)));
            assert!(self.others_are_served());
        }
        outcomes.extend(self.sort_out(&made, &name, before, moved));
        // Unbinding frees stuck messages, so that the next target finds an empty level.
        self.unbind(&made, &name);
        outcomes
    }

    /// Publishes a content for a target, and returns whether the broker accepted it.
    fn publish(&self, name: &str, content: usize) -> bool {
        let key = key(self.contents[content].units, &format!("{name}.c{content}"));
        let refusal = self.publisher.borrow_mut().publish(&key, content);
        if let Some(refusal) = &refusal {
            println!("  {}: {refusal}", self.contents[content].name);
        }
        refusal.is_none()
    }

    /// The number of messages at the end of a route, once it no longer changes.
    fn settled(&self, made: &Made) -> Option<u64> {
        let end = made.end.as_deref()?;
        let mut last = None;
        loop {
            let depth = Some(self.depth(end));
            if depth == last {
                return depth;
            }
            last = depth;
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// The outcome of each message, once a later message of another application has arrived.
    fn sort_out(
        &self,
        made: &Made,
        name: &str,
        before: Option<u64>,
        sent: BTreeSet<usize>,
    ) -> Vec<(usize, Outcome)> {
        let arrived =
            || made.end.as_deref().zip(before).map(|(end, before)| self.depth(end).saturating_sub(before));
        let began = Instant::now();
        let (mut kept, mut last, mut same) = (BTreeSet::new(), None, 0);
        loop {
            if arrived() == Some(sent.len() as u64) {
                return sent.into_iter().map(|content| (content, Outcome::Delivered)).collect();
            }
            kept.extend(self.drain_unroutable(name));
            if kept.is_superset(&sent) {
                return sent.into_iter().map(|content| (content, Outcome::Kept)).collect();
            }
            if began.elapsed() > Duration::from_millis(400) {
                let stuck = self.stuck(name);
                let delivered: BTreeSet<_> =
                    sent.iter().copied().filter(|it| !kept.contains(it) && !stuck.contains(it)).collect();
                let complete = arrived().is_none_or(|arrived| arrived >= delivered.len() as u64);
                same = if last.as_ref() == Some(&stuck) && complete { same + 1 } else { 0 };
                last = Some(stuck.clone());
                // The broker tries again every second. A message that is still stuck after that
                // stays stuck.
                if same >= if stuck.is_empty() { 0 } else { 4 } && complete {
                    let outcome = |content| match (kept.contains(&content), stuck.contains(&content)) {
                        (true, _) => Outcome::Kept,
                        (_, true) => Outcome::Blocks,
                        _ => Outcome::Delivered,
                    };
                    return sent.into_iter().map(|content| (content, outcome(content))).collect();
                }
                thread::sleep(Duration::from_millis(700));
            }
            assert!(began.elapsed() < PATIENCE, "{name}: {sent:?} sent, {kept:?} kept, {last:?} stuck");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The contents in levels that no queue takes for a target. Messages in a landing queue do not
    /// count.
    fn stuck(&self, name: &str) -> BTreeSet<usize> {
        let printed = self.eval(stuck_keys());
        let levels = printed.split("{<<\"").filter(|entry| entry.starts_with("delay.level."));
        let mark = format!(".{name}.c");
        let number = |entry: &str| {
            let (_, rest) = entry.split_once(&mark)?;
            rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
        };
        levels.filter_map(number).collect()
    }

    /// Takes all messages out of the unroutable queue, and returns the contents for a target.
    fn drain_unroutable(&self, name: &str) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        while let Next::Delivery(delivery) = self.unroutable.next(Duration::from_millis(5)) {
            if let Some((_, number)) = delivery.routing_key.split_once(&format!(".{name}.c")) {
                found.insert(number.parse().unwrap());
            }
            self.unroutable.ack(delivery).unwrap();
        }
        found
    }

    fn bindings(made: &Made, name: &str) -> impl Iterator<Item = Binding> {
        let key = pattern(&format!("{name}.*"));
        made.bound.clone().into_iter().map(move |destination| Binding {
            source: "delay.dispatch".into(),
            destination,
            key: key.clone(),
        })
    }

    fn bind(&self, made: &Made, name: &str) {
        Self::bindings(made, name).for_each(|binding| self.session.borrow_mut().bind(&binding).unwrap());
    }

    fn unbind(&self, made: &Made, name: &str) {
        Self::bindings(made, name).for_each(|binding| self.session.borrow_mut().unbind(&binding).unwrap());
    }

    /// Runs the documented commands, and then restores the broker's own code.
    fn recover(&self, made: &Made, name: &str) {
        self.unbind(made, name);
        let mut runs = 0;
        while runs == 0 || self.served_within(Duration::from_secs(60)) != Some(true) {
            runs += 1;
            assert!(runs <= 3, "the commands do not help: {}", self.eval(stuck_keys()));
            self.eval(mend());
            self.eval(anew());
        }
        println!("  dead-lettering runs again after {runs} of the commands");
        eventually("no message is stuck", || self.stuck(name).is_empty());
        assert!(!has_ended(&self.node));
        self.eval("[begin code:purge(M), {module, M} = code:load_file(M) end || M <- [rabbit_dead_letter, mc], code:ensure_loaded(M) =:= {module, M}].");
        self.bind(made, name);
    }
}

fn pattern(app: &str) -> String {
    format!("delay.{}{app}", "*.".repeat(7))
}

/// The sample that every test run measures: the contents and targets that differ most between
/// versions.
const SAMPLE: ([&str; 9], [&str; 4]) = (
    [
        "nothing special",
        "a header of each simple type",
        "a header that is a decimal",
        "a header NaN",
        "`x-stream-filter-value`: a number",
        "`type`: `amqp-1.0`",
        "`reply_to`: not UTF-8",
        "`x-death` that no broker writes",
        "`x-death` of its first journey, sent again",
    ],
    ["quorum queue", "exchange to a stream", "full quorum queue that refuses", "nothing"],
);

/// The part of the matrix to measure: `sample`; `all` to compare everything; `write` to write
/// everything into the document.
const PART: &str = "TEST_CONTENTS";

/// Only targets whose names contain this text; all if it is not set.
const ONLY: &str = "TEST_TARGETS";

#[test]
fn the_effects_of_a_message_are_those_in_the_document() {
    let part = std::env::var(PART).unwrap_or_else(|_| "sample".into());
    let bench = Bench::start();
    let version = bench.session.borrow().server_version().unwrap();
    let series = Series::of(&version);
    let chosen = |sample: &[&str], name: &str| part != "sample" || sample.contains(&name);
    let contents: BTreeSet<_> =
        (0..bench.contents.len()).filter(|&it| chosen(&SAMPLE.0, &bench.contents[it].name)).collect();
    let names: Vec<_> = bench.contents.iter().map(|content| content.name.as_str()).collect();
    let mut page = Page::read(&names, TARGETS);
    let mut wrong = Vec::new();
    let only = std::env::var(ONLY).unwrap_or_default();
    let wanted = |target: &Target| chosen(&SAMPLE.1, target.name) && target.name.contains(&only);
    for (number, target) in TARGETS.iter().enumerate().filter(|(_, target)| wanted(target)) {
        println!("{}", target.name);
        for (content, outcome) in bench.measure(number, target, &contents) {
            println!("  {}: {outcome:?}", names[content]);
            if let Some(difference) = page.compare(series, (content, number), outcome) {
                wrong.push(difference);
            }
        }
    }
    if part == "write" {
        page.write(&version);
        return;
    }
    assert!(wrong.is_empty(), "docs/reference/message-outcomes.md ({PART}=write renews it): {wrong:#?}");
    page.is_as_it_is_written();
}
