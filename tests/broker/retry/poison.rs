//! Messages over which the broker closes connections, or takes seconds to hand out, stop
//! nobody else's retries.

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

#[test]
fn what_amqp_0_9_1_cannot_carry_is_parked_and_others_go_on() {
    let Some(settings) = speaking_1_0() else { return };
    let inbox = Inbox::open(&settings, "good");
    let odd = Inbox::open(&settings, "odd");
    let kinds: Vec<_> = ["plain", "nan", "decimal", "plain"].into_iter().chain(foreign::DEADLY).collect();
    let publish = || foreign::publish(&settings, "delay.retry", "odd", kinds.iter().copied());
    publish();
    // More than the service holds at a time, with others of the kind behind them.
    dead_letters(&settings, "good", 0..300);
    foreign::publish(&settings, "delay.retry", "odd", ["char"; 20]);
    publish();
    dead_letters(&settings, "good", 300..320);

    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    // Some come twice: those that were published and not yet acknowledged at a crash.
    let mut seen = BTreeSet::new();
    eventually_seen(
        "all others are tried again",
        || {
            seen.extend(inbox.collect(100, Duration::from_millis(100)).into_iter().map(|arrival| arrival.id));
            (
                seen.len(),
                daemon.log().lines().filter(|line| !line.contains("app=good")).collect::<Vec<_>>().join("\n"),
            )
        },
        |(count, _)| *count == 320,
    );
    // What every version crashes over is parked. What some crash over, a NaN and a decimal, is
    // here or there, and what nobody crashes over is here: each of them at least once.
    let deadly = 2 * foreign::DEADLY.len() + 20;
    let mut session = Session::open(&settings.broker).unwrap();
    let mut arrived: BTreeMap<String, usize> = BTreeMap::new();
    let mut parked = 0;
    eventually("each has come back or is parked", || {
        for arrival in odd.collect(100, Duration::from_millis(100)) {
            *arrived.entry(String::from_utf8(arrival.body).unwrap()).or_default() += 1;
        }
        parked = session.queue_depth("delay.parked").unwrap().unwrap().ready as usize;
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

/// The broker writes a header that lies thousands deep in seconds.
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
    // Those behind it come first, but for the share that waits behind it on its channel: one that does
    // is enough to see that not all wait, however slow the machine is.
    let first = inbox.collect(1, PATIENCE).len();
    let mut session = Session::open(&settings.broker).unwrap();
    let parked = session.queue_depth("delay.parked").unwrap().unwrap().ready;
    // On 3.10 it may be the first all the same.
    let older = session.server_version().is_some_and(|version| version.starts_with("3."));
    assert!(first == 1 && (older || parked == 0), "{first} {parked} {}", daemon.log());
    assert_eq!(inbox.collect(299, PATIENCE).len(), 299);
    eventually("the broker has moved it as it is", || {
        session.queue_depth("delay.parked").unwrap().is_some_and(|depth| depth.ready == 1)
    });
    assert!(daemon.log().contains("it is moved as it is"), "{}", daemon.log());
    assert_eq!(daemon.stop(), Some(0));
}
