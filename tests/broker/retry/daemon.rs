//! Starting, reloading, stopping.

use std::{collections::HashMap, fs, time::Duration};

use delayline::node::{NodeOptions, PrivateNode};
use rustix::process::Signal;

use crate::common::{Inbox, eventually, install, installed};

use super::{Daemon, faults::dead_letters, parked};

#[test]
fn a_broken_configuration_is_refused_and_the_old_one_stays() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let mut daemon = Daemon::start(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    dead_letters(&settings, "app", 0..1);
    assert!(inbox.next(Duration::from_secs(30)).is_some());

    fs::write(daemon.policies(), "[default]\nfixed = 'soon'\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new policies are refused", || {
        daemon.log().contains("the old policies stay") && daemon.log().contains("[default] `fixed`")
    });
    dead_letters(&settings, "app", 1..2);
    assert!(inbox.next(Duration::from_secs(30)).is_some(), "{}", daemon.log());

    fs::write(daemon.policies(), "[default]\nattempts = 0\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new policies are taken", || daemon.log().contains("read again"));
    dead_letters(&settings, "app", 2..3);
    let message = parked(&settings, 1).remove(0);
    assert_eq!((message.text("delayline-reason"), message.number("delayline-attempt")), ("attempts", 0));
    let log = daemon.log();
    assert!(log.contains("retry app=app attempt=1/1 delay=1s reason=published id=1"), "{log}");
    assert!(log.contains("park app=app attempt=0 why=attempts reason=published id=2"), "{log}");
    assert!(!log.contains("dead body"), "a body is in the log");
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn sigterm_finishes_what_it_holds_and_several_share_the_work() {
    const COUNT: u32 = 5_000;
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 0..COUNT);
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n";
    let mut daemons = [Daemon::start(&settings, policies), Daemon::start(&settings, policies)];
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut collect = |count| {
        for arrival in inbox.collect(count, Duration::from_secs(30)) {
            *seen.entry(arrival.id).or_default() += 1;
        }
        seen.len()
    };
    collect(1_000);
    for daemon in &mut daemons {
        assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    }
    daemons[0].again(&settings);
    eventually("all arrived", || collect(100) >= COUNT as usize);
    assert_eq!(seen.values().max(), Some(&1), "something came twice although every stop was in order");
    for daemon in &daemons {
        assert!(daemon.log().contains("retry app=app"), "both had a part");
    }
}

#[test]
fn it_waits_for_the_broker_and_for_the_set() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().set("unit_ms", "10").build().unwrap();
    node.kill();
    let mut daemon = Daemon::start(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    eventually("it says that the broker is not there", || daemon.log().contains("cannot reach the broker"));
    node.restart().unwrap();
    eventually("it says that the set is not there", || daemon.log().contains("delayline install"));
    install(&settings);
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 0..1);
    assert!(inbox.next(Duration::from_secs(60)).is_some());
    drop(inbox);
    node.kill();
    node.restart().unwrap();
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 1..2);
    let arrival = inbox.next(Duration::from_secs(60)).unwrap();
    assert_eq!(arrival.headers["delayline-attempt"].as_i64(), Some(1));
    assert_eq!(daemon.stop(), Some(0));
}
