//! Some messages make the broker close connections, or take seconds to deliver. They do not stop
//! the retries of other applications.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::Duration,
};

use delayline_amqp::Session;

use crate::{
    common::{Inbox, PATIENCE, eventually, eventually_seen, foreign, installed, url},
    uncarried::speaking_1_0,
};

use super::{daemon, faults::dead_letters};
use crate::common::Counting;

#[test]
fn messages_that_amqp_0_9_1_cannot_carry_are_parked_and_others_go_on() {
    let Some(settings) = speaking_1_0() else { return };
    let inbox = Inbox::open(&settings, "good");
    let odd = Inbox::open(&settings, "odd");
    let kinds: Vec<_> = ["plain", "nan", "decimal", "plain"].into_iter().chain(foreign::DEADLY).collect();
    let publish = || foreign::publish(&settings, "delay.retry", "odd", kinds.iter().copied());
    publish();
    // More messages than the service holds at a time, with other unusual messages behind them.
    dead_letters(&settings, "good", 0..300);
    foreign::publish(&settings, "delay.retry", "odd", ["char"; 20]);
    publish();
    dead_letters(&settings, "good", 300..320);

    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    // Messages that were published but not yet acknowledged at a crash come twice.
    let mut seen = BTreeSet::new();
    eventually_seen(
        "all other messages are retried",
        || {
            seen.extend(inbox.collect(100, Duration::from_millis(100)).into_iter().map(|arrival| arrival.id));
            (
                seen.len(),
                daemon.log().lines().filter(|line| !line.contains("app=good")).collect::<Vec<_>>().join("\n"),
            )
        },
        |(count, _)| *count == 320,
    );
    // Messages that crash every version are parked. A NaN and a decimal crash only some versions,
    // and are parked or retried. All others are retried. Each message is there at least once.
    let deadly = 2 * foreign::DEADLY.len() + 20;
    let mut session = Session::open(&settings.broker).unwrap();
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    let mut parked = 0;
    eventually("each message is retried or parked", || {
        for arrival in odd.collect(100, Duration::from_millis(100)) {
            *arrived.entry(String::from_utf8(arrival.body).unwrap()).or_default() += 1;
        }
        parked = session.counts("delay.parked").unwrap().unwrap().ready as usize;
        let came = |kind: &str| arrived.get(kind).copied().unwrap_or_default();
        came("plain") >= 4 && came("nan") + came("decimal") + parked >= deadly + 4
    });
    assert!((deadly..=deadly + 4).contains(&parked), "{parked} {arrived:?}\n{}", daemon.log());
    for kind in foreign::DEADLY {
        assert_eq!(arrived.get(kind), None, "{arrived:?}");
    }
    let log = daemon.log();
    assert!(log.contains(r#"park key="odd" id=longtype (property `content-type` is longer"#), "{log}");
    assert_eq!(daemon.stop(), Some(0));
}

/// The broker takes seconds to write a header that is nested thousands deep.
#[test]
fn deep_headers_hold_up_a_part_only() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "good");
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let status = Command::new(&python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/retry/deep.py"))
        .args([&url(&settings), "18000"])
        .status()
        .unwrap();
    assert!(status.success());
    dead_letters(&settings, "good", 0..300);
    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    // The later messages arrive first, except those on the same channel. A single one is enough to
    // show that not all of them wait, on any machine.
    let first = inbox.collect(1, PATIENCE).len();
    let mut session = Session::open(&settings.broker).unwrap();
    let parked = session.counts("delay.parked").unwrap().unwrap().ready;
    // On 3.10, the deep message may still come first.
    let older = session.server_version().is_some_and(|version| version.starts_with("3."));
    assert!(first == 1 && (older || parked == 0), "{first} {parked} {}", daemon.log());
    assert_eq!(inbox.collect(299, PATIENCE).len(), 299);
    eventually("the broker has moved the message unchanged", || {
        session.counts("delay.parked").unwrap().is_some_and(|depth| depth.ready == 1)
    });
    eventually("that is logged", || daemon.log().contains("it is moved unchanged"));
    assert_eq!(daemon.stop(), Some(0));
}
