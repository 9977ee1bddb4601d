//! A message that makes the broker close a connection does no harm to other messages.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delayline_admin::{Kept, Selection};
use delayline_amqp::{Event, Next, Publisher, Session};
use delayline_client::{
    retry::{RetryStats, Service, SharedPolicies},
    router::{Cause, Stats},
};
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    message::{Headers, InvalidMessage, Properties, Quota, Value},
    topology::{Binding, Endpoint, JournalSettings, Object, Queue},
};
use delayline_settings::Settings;

use super::retry::faults::dead_letters;
use crate::common::{Inbox, PATIENCE, app, eventually, installed, topology};

/// Contents that crash the streams of this broker, and that a forwarding router sends.
pub(crate) fn crashes(settings: &Settings) -> Vec<(Properties, Headers)> {
    let one = |name: &str, value: Value| (Properties::default(), Headers::from([(name.to_owned(), value)]));
    let mut crashes = vec![one("price", Value::Decimal { scale: 2, value: 125 })];
    let version = Session::open(&settings.broker).unwrap().server_version().unwrap();
    if !version.starts_with("3.") {
        let nested = Value::Table(one("in", Value::Decimal { scale: 0, value: 1 }).1);
        crashes.extend([
            one("x-stream-filter-value", 5.into()),
            one("x-amqp-1.0-properties", "text".into()),
            one("x-odd", Value::Array(vec![nested])),
            (Properties { kind: Some("amqp-1.0".into()), ..Properties::default() }, Headers::new()),
        ]);
    }
    if version.starts_with("4.0") {
        let id = Some("urn:uuid:zzzzzzzz-7dec-11d0-a765-00a0c91e6bf6".into());
        crashes.push((Properties { message_id: id, ..Properties::default() }, Headers::new()));
    }
    crashes
}

/// Binds a new stream to an exchange for all messages of an application.
pub(crate) fn stream(settings: &Settings, exchange: &str, key: &str) {
    let mut session = Session::open(&settings.broker).unwrap();
    let name = format!("stream.{key}");
    let kind = [("x-queue-type".to_owned(), "stream".into())];
    session.declare_queue(&Queue::new(name.clone()).with_arguments(kind)).unwrap();
    let key = RoutingKey::binding_pattern(&app(key));
    session.bind(&Binding { source: exchange.into(), destination: Endpoint::Queue(name), key }).unwrap();
}

/// Makes the journal of an application.
fn journal(settings: &Settings, key: &str) {
    let mut session = Session::open(&settings.broker).unwrap();
    for object in topology(settings).journal(&app(key), JournalSettings::default()) {
        match object {
            Object::Queue(queue) => session.declare_queue(&queue).unwrap(),
            Object::Binding(binding) => session.bind(&binding).unwrap(),
            Object::Exchange(_) => {}
        }
    }
}

fn with((properties, headers): (Properties, Headers), mut message: Message) -> Message {
    (message.properties, message.headers) = (properties, headers);
    message
}

fn soon(key: &str, body: impl Into<Vec<u8>>) -> Message {
    Message::after(app(key), Delay::from_seconds(1).unwrap(), body)
}

/// Publishes a message directly into the queue of an inbox, behind all others.
pub(crate) fn marker(settings: &Settings, key: &str, body: &str) {
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    let (properties, headers) = Default::default();
    publisher.publish("", format!("in.{key}"), properties, headers, body.as_bytes());
    assert!(matches!(publisher.next_within(PATIENCE), Some(Event::Ack { .. })));
    publisher.close(PATIENCE);
}

/// The number of arrivals of each body.
fn counted(inbox: &Inbox, settings: &Settings, key: &str, count: usize) -> BTreeMap<Vec<u8>, u32> {
    let mut bodies: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut come = |body| *bodies.entry(body).or_default() += 1;
    let mut different = std::collections::HashSet::new();
    while different.len() < count {
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} of {count}", different.len()));
        different.insert(arrival.body.clone());
        come(arrival.body);
    }
    marker(settings, key, "the last");
    inbox.until("the last").into_iter().for_each(|arrival| come(arrival.body));
    bodies
}

#[test]
fn a_message_that_crashes_the_broker_fails_alone_and_with_its_reason() {
    let settings = installed(10);
    stream(&settings, "delay", "streamed");
    let inbox = Inbox::open(&settings, "good");
    let stats = Arc::<Stats>::default();
    let router = settings.router().counting(Arc::clone(&stats)).quota(Quota::forwarding()).connect().unwrap();
    let crashes = crashes(&settings);
    let mut pipeline = router.pipeline();
    let mut outcomes = Vec::new();
    for number in 0..200_usize {
        let place = number.checked_sub(100).and_then(|place| crashes.get(place));
        if let Some(crash) = place {
            let message = with(crash.clone(), soon("streamed", "bad"));
            outcomes.extend(pipeline.push("bad", message));
        }
        outcomes.extend(pipeline.push("good", soon("good", number.to_string())));
    }
    outcomes.extend(pipeline);
    assert_eq!(outcomes.len(), 200 + crashes.len());
    for outcome in outcomes {
        match (outcome.tag, outcome.result) {
            ("good", Ok(receipt)) => assert!(receipt.publishes <= 2, "{receipt:?}"),
            ("bad", Err(error)) => {
                let Cause::Rejected { code: 541, text } = error.cause() else { panic!("{error}") };
                assert!(text.contains("INTERNAL_ERROR"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    let arrived = counted(&inbox, &settings, "good", 200);
    assert!(arrived.values().all(|times| *times <= 2), "{arrived:?}");
    let counts = stats.counts();
    assert_eq!(counts.rejected, crashes.len() as u64);
    assert!(counts.reconnects <= 1 + 2 * crashes.len() as u64, "{counts:?}");
}

#[test]
fn numbers_that_end_all_dead_lettering_never_leave_the_router() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "good");
    let stats = Arc::<Stats>::default();
    let router = settings.router().counting(Arc::clone(&stats)).connect().unwrap();
    let mut pipeline = router.pipeline();
    let mut refused = 0;
    let mut outcomes = Vec::new();
    let decimal = || Value::Decimal { scale: 2, value: 125 };
    for number in 0..200_u32 {
        let odd = match number {
            25 => decimal(),
            75 => Value::Table(Headers::from([("in".into(), Value::Array(vec![decimal()]))])),
            50 => Value::F64(f64::NAN),
            100 => Value::F32(f32::NEG_INFINITY),
            150 => {
                Value::Array(vec![Value::Table(Headers::from([("in".into(), Value::F64(f64::INFINITY))]))])
            }
            _ => Value::Void,
        };
        outcomes.extend(pipeline.push(number, soon("good", number.to_string()).with_header("odd", odd)));
    }
    outcomes.extend(pipeline);
    for outcome in outcomes {
        match outcome.result {
            Ok(receipt) => assert_eq!(receipt.publishes, 1),
            Err(error) => {
                let Cause::Invalid(cause) = error.cause() else { panic!("{error}") };
                match outcome.tag {
                    25 | 75 => assert_eq!(*cause, InvalidMessage::Decimal { name: "odd".into() }),
                    50 | 100 | 150 => assert!(matches!(cause, InvalidMessage::NotFinite { .. }), "{cause}"),
                    other => panic!("{other}: {cause}"),
                }
                assert!(error.to_string().contains("`odd`") && !error.maybe_delivered(), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((refused, stats.counts().lost, stats.counts().rejected), (5, 0, 0));
    assert_eq!(counted(&inbox, &settings, "good", 195).values().max(), Some(&1));
}

/// Publishes failed messages to the retry queue, as an application may do itself.
fn failed(settings: &Settings, key: &str, contents: &[(Properties, Headers)]) {
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    for (number, (properties, headers)) in contents.iter().enumerate() {
        let body = format!("{key} {number}");
        publisher.publish(
            "delay.retry",
            key.to_owned(),
            properties.clone(),
            headers.clone(),
            body.as_bytes(),
        );
        assert!(matches!(publisher.next_within(PATIENCE), Some(Event::Ack { .. })));
    }
    publisher.close(PATIENCE);
}

/// Runs the retry service while `during` runs. Returns the statistics of its routers.
fn retrying(settings: &Settings, during: impl FnOnce(&RetryStats)) -> Arc<Stats> {
    let policies = delayline_settings::parse_policies("[default]\nfixed = '1s'\nattempts = 1\n").unwrap();
    let (retries, stats) = (Arc::<RetryStats>::default(), Arc::<Stats>::default());
    let router = settings.router().counting(Arc::clone(&stats));
    let service = Service::new(router, SharedPolicies::new(policies)).counting(Arc::clone(&retries));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| service.run(&stop));
        // Also stops the service after a panic; otherwise the scope would never end.
        let _stopping = Stopping(&stop);
        during(&retries);
    });
    stats
}

/// Stops a service, even if the test fails.
pub(crate) struct Stopping<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The number of arrivals of each message id.
fn counted_ids(inbox: &Inbox, settings: &Settings, key: &str, count: usize) -> HashMap<String, u32> {
    let mut ids: HashMap<String, u32> = HashMap::new();
    while ids.len() < count {
        let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} of {count}", ids.len()));
        *ids.entry(arrival.id).or_default() += 1;
    }
    marker(settings, key, "the last");
    for arrival in inbox.until("the last") {
        *ids.entry(arrival.id).or_default() += 1;
    }
    ids
}

#[test]
fn retries_that_a_journal_cannot_keep_harm_their_own_application_alone() {
    let settings = installed(10);
    journal(&settings, "tenant");
    let good = Inbox::open(&settings, "good");
    let contents: Vec<_> = crashes(&settings).into_iter().cycle().take(12).collect();
    failed(&settings, "tenant", &contents);
    dead_letters(&settings, "good", 0..199);
    retrying(&settings, |retries| {
        let arrived = counted_ids(&good, &settings, "good", 199);
        assert_eq!(arrived.values().max(), Some(&1), "{arrived:?}");
        let parked = parked(&settings, contents.len());
        assert!(
            parked.iter().all(|(key, body)| key == "tenant" && body.starts_with("tenant ")),
            "{parked:?}"
        );
        eventually("the messages are counted", || {
            let counts = retries.by_app();
            let refused = counts.get("tenant").and_then(|tenant| tenant.parked.get("refused"));
            refused == Some(&(contents.len() as u64))
        });
    });
}

/// The keys and bodies of `count` parked messages.
pub(crate) fn parked(settings: &Settings, count: usize) -> Vec<(String, String)> {
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("delay.parked", 100).unwrap();
    let mut found = Vec::new();
    while found.len() < count {
        match consumer.next(PATIENCE) {
            Next::Delivery(delivery) => {
                found.push((delivery.routing_key.clone(), String::from_utf8_lossy(&delivery.body).into()));
                consumer.ack(delivery).unwrap();
            }
            other => panic!("{} of {count} parked: {other:?}", found.len()),
        }
    }
    found
}

#[test]
fn a_replay_goes_on_behind_messages_that_crash_the_broker() {
    let settings = installed(10);
    let topology = topology(&settings);
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    // A replay that gets this many refusals in a row would stop.
    let crash = crashes(&settings).remove(0);
    let plain = (Properties::default(), Headers::new());
    for (key, (properties, headers)) in
        std::iter::repeat_n(("streamed", &crash), 12).chain(std::iter::repeat_n(("good", &plain), 3))
    {
        let key = RoutingKey::new(Delay::ZERO, app(key)).encode();
        publisher.publish("delay", key, properties.clone(), headers.clone(), b"kept");
        assert!(matches!(publisher.next_within(PATIENCE), Some(Event::Ack { .. })));
    }
    publisher.close(PATIENCE);
    stream(&settings, "delay.dispatch", "streamed");
    let inbox = Inbox::open(&settings, "good");
    let (all, stop) = (Selection::default(), AtomicBool::new(false));
    let report = Kept::Unroutable.replay(&settings, &topology, &all, false, &stop, |_| {}).unwrap().unwrap();
    let drained = report.drained;
    assert_eq!((&drained.failure, drained.sent, drained.refused), (&None, 3, 12), "{drained:?}");
    assert!(drained.refusal.unwrap().contains("541"));
    assert_eq!(inbox.collect(3, PATIENCE).len(), 3);
}
