//! `delayline serve` frees stuck queues automatically.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delayline_admin::{UnstickStats, Unsticker};
use delayline_broker::Survey;

use crate::common::daemon::{Daemon, serve_as};

use super::*;

/// A daemon that only frees stuck queues, for a user whose password is the user's name.
fn daemon(settings: &Settings, user: &str) -> Daemon {
    let mut command = serve_as(user, settings);
    // The log shows each failed attempt, but repeats a complaint only if it changes.
    command
        .args(["--no-retry", "--no-canary", "--no-web"])
        .env("DELAYLINE_LOG", "info,delayline_provision=debug");
    Daemon::with(tempfile::tempdir().unwrap(), command)
}

#[test]
fn a_level_that_hands_on_nothing_is_helped() {
    let settings = installed();
    let clean = policies(&settings);
    leave_behind(&settings, "policies", "delayline-unstick", "delay.level.09");
    let inbox = stuck_without_dispatch(&settings, 0..100);
    let daemon = daemon(&settings, "guest");
    all_arrive(&inbox, 0..100);
    eventually_seen(
        "the log reports the freed queue",
        || daemon.log(),
        |log| {
            log.contains("queue `delay.level.00` has had dead letters for")
                && log.contains("queue `delay.level.00` is flowing again")
                && log.contains("deleted the policy that an earlier run left behind")
        },
    );
    assert_eq!(policies(&settings), clean);
}

#[test]
fn a_missing_right_is_reported_once_and_the_daemon_goes_on() {
    let settings = installed();
    let vhost = &settings.broker.vhost;
    http(node(), "PUT", "users/looker", &json!({"password": "looker", "tags": "monitoring"}));
    let none = json!({"configure": "", "write": "", "read": ""});
    http(node(), "PUT", &format!("permissions/{vhost}/looker"), &none);
    let inbox = stuck_without_dispatch(&settings, 0..40);
    let daemon = daemon(&settings, "looker");
    let complaint = "stuck queues cannot be made to try again";
    eventually_seen("the daemon complains", || daemon.log(), |log| log.contains(complaint));
    assert!(daemon.log().contains("Give it the tag `policymaker`"), "{}", daemon.log());
    let attempts = |log: &String| log.matches("`delay.level.00` stuck: ").count();
    eventually_seen("the daemon tries again", || daemon.log(), |log| attempts(log) >= 3);
    // The complaint is not repeated, and no message has moved.
    assert_eq!(daemon.log().matches(complaint).count(), 1, "{}", daemon.log());
    assert!(inbox.next(Duration::ZERO).is_none());
    http(node(), "PUT", "users/looker", &json!({"password": "looker", "tags": "monitoring,policymaker"}));
    all_arrive(&inbox, 0..40);
}

#[test]
fn attempts_and_blocked_queues_are_counted() {
    let settings = installed();
    let inbox = stuck_without_dispatch(&settings, 0..40);
    let stop = Arc::new(AtomicBool::new(false));
    let start = |settings: &Settings| {
        let stats: Arc<UnstickStats> = Arc::default();
        let unsticker = Unsticker::new(settings.clone(), Arc::new(Survey::new(settings)), Arc::clone(&stats));
        let stop = Arc::clone(&stop);
        (stats, thread::spawn(move || unsticker.run(&stop)))
    };
    http(node(), "PUT", "users/counted", &json!({"password": "counted", "tags": "monitoring"}));
    let none = json!({"configure": "", "write": "", "read": ""});
    http(node(), "PUT", &format!("permissions/{}/counted", settings.broker.vhost), &none);
    let url = format!("{}/{}", node().url(), settings.broker.vhost);
    let layers = node().settings().set("url", url).set("unit_ms", "10");
    let (refused, first) =
        start(&layers.set("username", "counted").set("password", "counted").build().unwrap());
    eventually_seen(
        "it counts the queue that it may not change",
        || refused.blocked(),
        |&blocked| blocked == Some(1),
    );
    assert!(refused.attempts().is_empty());
    let (stats, second) = start(&settings);
    all_arrive(&inbox, 0..40);
    eventually_seen(
        "it counts its attempt",
        || stats.attempts(),
        |attempts| attempts.contains_key("delay.level.00"),
    );
    eventually_seen("it is free to help", || stats.blocked(), |&blocked| blocked == Some(0));
    // A queue that is no longer stuck is not counted.
    eventually_seen("no queue is blocked", || refused.blocked(), |&blocked| blocked == Some(0));
    stop.store(true, Ordering::Relaxed);
    first.join().unwrap();
    second.join().unwrap();
}
