//! What goes wrong becomes visible.

use std::time::Instant;

use delayline_node::{NodeOptions, PrivateNode};

use serde_json::Value as Json;

use super::{Daemon, cell, open, send};
use crate::common::{eventually, eventually_seen, http, install, new_set, refusing, shared_node};

/// Says how long something took; how long it may take depends on the machine.
fn visible(what: &str, since: Instant) {
    println!("{what}: visible after {:.1} s", since.elapsed().as_secs_f64());
}

#[test]
fn a_stalled_level_and_a_flood_for_nobody() {
    let settings = new_set(1_000);
    refusing(&settings, "slow");
    let daemon = Daemon::start(&settings, &["--no-canary"]).has_looked();
    let page = open(&daemon);
    // What the doctor thinks of such a queue comes when it comes, and is an error too.
    eventually("it is drawn", || page.number("#unroutable .count") == Some(0));

    let since = Instant::now();
    send(&settings, "nobody", 0, 500);
    eventually("the flood is said", || {
        page.text(".verdict").contains("500 messages for nobody came in the last minute.")
    });
    visible("an unroutable flood", since);
    assert_eq!(page.number("#unroutable .count"), Some(500));

    send(&settings, "slow", 4, 40);
    // It is a stall from when the first is due.
    eventually("nothing waits any more", || page.number(&cell(2, ".ready")) == Some(0));
    let since = Instant::now();
    eventually("the stall is in its row", || {
        page.eval("document.querySelector('[data-stuck]') !== null") == true
    });
    visible("a stall, in the row of its level", since);
    eventually("the stall is said", || page.text(".verdict").contains("Level 02 "));
    visible("a stall, in words", since);
    let vhost = &settings.broker.vhost;
    let queue = || http(&shared_node(), "GET", &format!("queues/{vhost}/delay.level.02"), &Json::Null);
    let said = eventually_seen(
        "page and broker say the same",
        || (page.text(&cell(2, ".stuck span")), page.text("#headline"), queue()["messages_dlx"].to_string()),
        |(row, headline, broker)| {
            row == broker && *headline == format!("Level 02 is stuck: {broker} messages cannot move on.")
        },
    );
    println!("{said:?}");
    assert!(page.text("#more").contains("500 messages for nobody"));
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
    eventually("it is drawn", || page.number(&cell(20, ".ready")) == Some(77));

    node.write_down_queues().unwrap();
    let since = Instant::now();
    node.kill();
    eventually("it says so", || page.text("#headline") == "The broker cannot be reached.");
    visible("a broker that was killed", since);
    let sub = page.text("#sub");
    assert!(sub.starts_with("Since ") && sub.contains("Numbers below are from"), "{sub}");
    // What was seen last stays, and looks old.
    assert_eq!(page.number(&cell(20, ".ready")), Some(77));
    assert_eq!(page.eval("document.body.hasAttribute('data-stale')"), true);
    assert_eq!(page.complaints(), Vec::<String>::new());

    node.restart().unwrap();
    eventually("it is there again", || page.eval("document.body.hasAttribute('data-stale')") == false);
    assert_ne!(page.text("#headline"), "The broker cannot be reached.");

    let since = Instant::now();
    node.pause();
    eventually("a broker that is silent is noticed too", || {
        page.text("#headline") == "The broker cannot be reached."
    });
    visible("a broker that fell silent", since);
    node.resume();

    drop(daemon);
    eventually("the daemon is gone", || page.text("#headline") == "The daemon does not answer.");
    assert!(page.text("#sub").starts_with("Since "), "{}", page.text("#sub"));
}
