//! `delayline serve` does it by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delayline_admin::{UnstickStats, Unsticker};

use crate::common::daemon::{Daemon, serve_as};

use super::*;

/// A daemon of this user, whose password is his name, that does nothing else.
fn daemon(settings: &Settings, user: &str) -> Daemon {
    let mut command = serve_as(user, settings);
    // Each attempt that fails is in the log, and a complaint only if it is news.
    command
        .args(["--no-retry", "--no-canary", "--no-web"])
        .env("DELAYLINE_LOG", "info,delayline_admin=debug");
    Daemon::with(tempfile::tempdir().unwrap(), command)
}

#[test]
fn a_level_that_hands_on_nothing_is_helped() {
    let settings = installed();
    let clean = policies(&settings);
    leave_behind(&settings, "policies", "delay.level.09");
    let inbox = stuck_without_dispatch(&settings, 0..100);
    let daemon = daemon(&settings, "guest");
    all_arrive(&inbox, 0..100);
    eventually_seen(
        "it says so",
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
fn who_may_not_says_so_once_and_goes_on_looking() {
    let settings = installed();
    let vhost = &settings.broker.vhost;
    http(node(), "PUT", "users/looker", &json!({"password": "looker", "tags": "monitoring"}));
    let none = json!({"configure": "", "write": "", "read": ""});
    http(node(), "PUT", &format!("permissions/{vhost}/looker"), &none);
    let inbox = stuck_without_dispatch(&settings, 0..40);
    let daemon = daemon(&settings, "looker");
    let complaint = "stuck queues cannot be made to try again";
    eventually_seen("it complains", || daemon.log(), |log| log.contains(complaint));
    assert!(daemon.log().contains("it needs the tag `policymaker`"), "{}", daemon.log());
    let attempts = |log: &String| log.matches("`delay.level.00` stuck: ").count();
    eventually_seen("it tries again", || daemon.log(), |log| attempts(log) >= 3);
    // It does not repeat itself, and nothing has moved.
    assert_eq!(daemon.log().matches(complaint).count(), 1, "{}", daemon.log());
    assert!(inbox.next(Duration::ZERO).is_none());
    http(node(), "PUT", "users/looker", &json!({"password": "looker", "tags": "monitoring,policymaker"}));
    all_arrive(&inbox, 0..40);
}

#[test]
fn what_it_did_and_what_it_could_not_do_is_counted() {
    let settings = installed();
    let inbox = stuck_without_dispatch(&settings, 0..40);
    let stop = Arc::new(AtomicBool::new(false));
    let start = |settings: &Settings| {
        let stats: Arc<UnstickStats> = Arc::default();
        let unsticker = Unsticker::new(settings.clone(), Arc::clone(&stats));
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
    eventually_seen("it counts what it may not touch", || refused.blocked(), |&blocked| blocked == 1);
    assert!(refused.attempts().is_empty());
    let (stats, second) = start(&settings);
    all_arrive(&inbox, 0..40);
    eventually_seen(
        "and what it did",
        || stats.attempts(),
        |attempts| attempts.contains_key("delay.level.00"),
    );
    assert_eq!(stats.blocked(), 0);
    // What is over is not counted any more.
    eventually_seen("nothing is blocked", || refused.blocked(), |&blocked| blocked == 0);
    stop.store(true, Ordering::Relaxed);
    first.join().unwrap();
    second.join().unwrap();
}
