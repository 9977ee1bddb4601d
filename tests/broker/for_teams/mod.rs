//! The programs in docs/for-teams work as the pages describe, with the credentials from `delayline
//! app add`. The tests use the programs as they are printed for an application, in every language.

mod clients;
mod elsewhere;
mod frameworks;
mod pages;
mod team;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use clients::Client;
pub(crate) use clients::example;
use delayline_core::codec::{Delay, RoutingKey};
pub(crate) use team::Receiver;
use team::{Team, user_of, without_queues};

use crate::common::{Inbox, PATIENCE, app, not_tested::not_tested, url};

/// Runs a client's programs, from `app add` to a delayed and a retried message, including all
/// errors.
fn works(client: &'static Client) {
    if let Err(reason) = (client.at_hand)() {
        return not_tested(&format!("{}: {reason}", client.name));
    }
    tried(client, &Team::new(client), |_| {});
}

/// The same, with programs that `change` modifies first.
fn tried(client: &Client, team: &Team, change: impl FnOnce(&Team)) {
    // The owner's program declares exactly the queue that `app add` would declare.
    team.run_as_owner();
    let begun = Instant::now();
    team.add();
    change(team);
    let building = Instant::now();
    (client.build)(team.directory());
    let built = building.elapsed();
    let mut receiver = team.receive();
    let copies = Inbox::open(team.settings(), team.app());
    let sent = Instant::now();
    team.send("89.5", "invoice 17").confirmed();
    assert_eq!(receiver.next(), "failed: the bank is closed");
    let unit = team.settings().topology.unit.duration();
    assert!(sent.elapsed() >= unit * 90, "the message was early");
    assert_eq!(receiver.next(), "done: invoice 17 at attempt 1");
    say_how_long(client, begun.elapsed(), built);
    // The delay is rounded up.
    let key = RoutingKey::new(Delay::from_seconds(90).unwrap(), app(team.app())).encode();
    assert_eq!(copies.next(PATIENCE).expect("a copy").routing_key, key);

    // A duplicate is processed only once.
    team.publish_as_sent("twice", "a copy");
    assert_eq!(receiver.next(), "failed: the bank is closed");
    assert_eq!(receiver.next(), "done: a copy at attempt 1");
    team.publish_as_sent("twice", "a copy");
    assert_eq!(receiver.next(), "skipped, done before: twice");

    // A delay beyond the range, and a message that the broker does not route, are not confirmed.
    for delay in ["268435456", "-1"] {
        team.send(delay, "too far").refused();
    }
    let stranger = user_of(team.settings(), "stranger", "stranger");
    team.send_to(&stranger, "1", "another application's key").refused();
    team.send_to(&url(without_queues()), "1", "no queue takes it").refused();

    // The receiver ends on request, and later messages wait.
    receiver.stop();
    team.publish_as_sent("later", "for the next one");
    team.holds_only(1);
}

/// Prints how long the first five minutes took.
fn say_how_long(client: &Client, all: Duration, built: Duration) {
    let (all, built) = (all.as_secs_f64(), built.as_secs_f64());
    println!("TOOK {:<10} {all:5.1} s, including {built:4.1} s to build", client.name);
}

/// The test must notice each of these mistakes in a program.
#[test]
fn spoiled_programs_do_not_pass() {
    let client = &clients::PYTHON;
    if let Err(reason) = (client.at_hand)() {
        return not_tested(&format!("{}: {reason}", client.name));
    }
    for (number, (what, from, to)) in [
        ("it rounds down", "math.ceil(seconds)", "int(seconds)"),
        ("a word is missing", ":034_b", ":029_b"),
        ("it does not wait for confirms", "    channel.confirm_delivery()\n", ""),
        ("failed messages are requeued", "requeue=False", "requeue=True"),
        ("duplicates are processed again", "properties.message_id in done", "False"),
        ("it ignores the request to end", "(signal.SIGTERM, signal.SIGINT)", "()"),
    ]
    .into_iter()
    .enumerate()
    {
        let team = Team::another(client, number);
        let passed = catch_unwind(AssertUnwindSafe(|| tried(client, &team, |team| team.spoil(from, to))));
        let failed = passed.expect_err(what);
        let said = failed.downcast_ref::<String>().map_or("", String::as_str);
        assert!(!said.starts_with("no program has"), "{what}: {said}");
    }
}

#[test]
fn python() {
    works(&clients::PYTHON);
}

#[test]
fn aio_pika() {
    works(&clients::AIO_PIKA);
}

#[test]
fn celery() {
    works(&clients::CELERY);
}

#[test]
fn javascript() {
    works(&clients::JAVASCRIPT);
}

#[test]
fn rust() {
    works(&clients::RUST);
}

#[test]
fn lapin() {
    works(&clients::LAPIN);
}

#[test]
fn java() {
    works(&clients::JAVA);
}

#[test]
fn go() {
    works(&clients::GO);
}

#[test]
fn php() {
    works(&clients::PHP);
}

#[test]
fn ruby() {
    works(&clients::RUBY);
}
