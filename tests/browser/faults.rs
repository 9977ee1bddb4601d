//! Faults become visible on the page.

use std::time::Instant;

use delayline_node::{NodeOptions, PrivateNode};

use serde_json::Value as Json;

use super::{Daemon, cell, open, send};
use crate::common::{eventually, eventually_seen, http, install, new_set, refusing, shared_node};

/// Prints how long something took. There is no limit, because it depends on the machine.
fn visible(what: &str, since: Instant) {
    println!("{what}: visible after {:.1} s", since.elapsed().as_secs_f64());
}

#[test]
fn a_stuck_level_and_a_flood_of_unroutable_messages() {
    let settings = new_set(1_000);
    refusing(&settings, "slow");
    let daemon = Daemon::start(&settings, &["--no-canary"]).has_looked();
    let page = open(&daemon);
    // The doctor reports such a queue as an error at some later moment, so the test does not wait
    // for it.
    eventually("the page shows the counts", || page.number("#unroutable .count") == Some(0));

    let since = Instant::now();
    send(&settings, "nobody", 0, 500);
    eventually("the headline reports the flood", || {
        page.text(".verdict").contains("500 messages are unroutable, all from the last minute.")
    });
    visible("an unroutable flood", since);
    assert_eq!(page.number("#unroutable .count"), Some(500));

    send(&settings, "slow", 4, 40);
    // The level is stuck as soon as the first message is due.
    eventually("no message of the level waits", || page.number(&cell(2, ".ready")) == Some(0));
    let since = Instant::now();
    eventually("the row of the level shows the stall", || {
        page.eval("document.querySelector('[data-stuck]') !== null") == true
    });
    visible("a stall, in the row of its level", since);
    eventually("the headline reports the stall", || page.text(".verdict").contains("Level 02 "));
    visible("a stall, in words", since);
    let vhost = &settings.broker.vhost;
    let queue = || http(&shared_node(), "GET", &format!("queues/{vhost}/delay.level.02"), &Json::Null);
    let said = eventually_seen(
        "the page and the broker show the same number",
        || (page.text(&cell(2, ".stuck span")), page.text("#headline"), queue()["messages_dlx"].to_string()),
        |(row, headline, broker)| {
            row == broker && *headline == format!("Level 02 is stuck: {broker} messages cannot move on.")
        },
    );
    println!("{said:?}");
    assert!(page.text("#more").contains("500 messages are unroutable"));
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
fn a_broker_that_stops_and_comes_back_and_a_daemon_that_is_gone() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().build().unwrap();
    install(&settings);
    send(&settings, "billing", 1 << 20, 77);
    let daemon = Daemon::start(&settings, &[]).has_looked();
    let page = open(&daemon);
    eventually("the page shows the counts", || page.number(&cell(20, ".ready")) == Some(77));

    node.write_down_queues().unwrap();
    let since = Instant::now();
    node.kill();
    eventually("the page reports the killed broker", || {
        page.text("#headline") == "The broker cannot be reached."
    });
    visible("a broker that was killed", since);
    let sub = page.text("#sub");
    assert!(sub.starts_with("Since ") && sub.contains("Numbers below are from"), "{sub}");
    // The last numbers stay on the page, and look old.
    assert_eq!(page.number(&cell(20, ".ready")), Some(77));
    assert_eq!(page.eval("document.body.hasAttribute('data-stale')"), true);
    assert_eq!(page.complaints(), Vec::<String>::new());

    node.restart().unwrap();
    eventually("the page shows the broker again", || {
        page.eval("document.body.hasAttribute('data-stale')") == false
    });
    assert_ne!(page.text("#headline"), "The broker cannot be reached.");

    let since = Instant::now();
    node.pause();
    eventually("the page reports the silent broker, too", || {
        page.text("#headline") == "The broker cannot be reached."
    });
    visible("a broker that fell silent", since);
    node.resume();

    drop(daemon);
    eventually("the page reports that the daemon is gone", || {
        page.text("#headline") == "The daemon does not answer."
    });
    assert!(page.text("#sub").starts_with("Since "), "{}", page.text("#sub"));
}
