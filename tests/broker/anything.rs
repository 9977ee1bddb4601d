//! Random messages of many publishers, published through the router and through retries. Each
//! message is delivered as promised, or its publisher gets the reason.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::AtomicBool,
    thread,
};

use delayline_amqp::Session;
use delayline_client::{
    Router,
    retry::{Service, SharedPolicies},
    router::{Cause, PublishError, Receipt},
};
use delayline_core::{
    Message,
    codec::Delay,
    message::{Headers, Properties, Quota, Value, is_forbidden},
    topology::{Binding, Endpoint, Exchange, ExchangeKind},
};
use delayline_settings::Settings;
use fastrand::Rng;

use super::culprits::{Stopping, crashes, marker, parked, stream};
use crate::common::{Arrival, Inbox, PATIENCE, app, installed};

/// The number of messages; `RANDOM_MESSAGES` overrides it.
const MESSAGES: usize = 1_000;

/// The number of publishers; each has its own application.
const PUBLISHERS: usize = 10;

/// The publisher whose application has a stream bound to the entry exchange.
const STREAMED: usize = 3;

/// The expected result of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Promise {
    Delivered,
    /// The router does not send it.
    Invalid,
    /// The broker refuses it with this code.
    Refused(u16),
}

/// Makes random messages.
struct Maker {
    random: Rng,
    crashes: Vec<(Properties, Headers)>,
    /// Whether the messages go into the retry queue.
    retries: bool,
}

impl Maker {
    fn text(&mut self) -> String {
        let length = self.random.usize(0..40);
        (0..length).map(|_| self.random.choice(['\0', '\n', 'a', '~', 'ü', '€', '😀']).unwrap()).collect()
    }

    /// A value of any type. If `simple` is set, the value cannot crash a stream.
    fn value(&mut self, depth: usize, simple: bool) -> Value {
        let random = &mut self.random;
        match random.u8(0..if depth > 4 { 16 } else { 18 }) {
            0 => Value::Bool(random.bool()),
            1 => Value::I8(random.i8(..)),
            2 => Value::U8(random.u8(..)),
            3 => Value::I16(random.i16(..)),
            4 => Value::U16(random.u16(..)),
            5 => Value::I32(random.i32(..)),
            6 => Value::U32(random.u32(..)),
            7 => Value::I64(random.choice([i64::MIN, -1, 0, i64::MAX]).unwrap()),
            8 => Value::F32(random.choice([f32::MIN, f32::MAX, f32::MIN_POSITIVE, -0.0, 1e-45]).unwrap()),
            9 => Value::F64(random.choice([f64::MIN, f64::MAX, 5e-324, -0.0, 0.1]).unwrap()),
            10 | 11 if !simple => Value::Decimal { scale: random.u8(..), value: random.u32(..) },
            12 => Value::Bytes((0..random.usize(0..50)).map(|_| random.u8(..)).collect()),
            13 => Value::Timestamp(random.choice([0, 1_700_000_000, i64::MAX as u64, u64::MAX]).unwrap()),
            14 => Value::Void,
            16 => Value::Array((0..random.usize(0..4)).map(|_| self.value(depth + 1, simple)).collect()),
            17 => Value::Table(
                (0..random.usize(0..4)).map(|_| (self.text(), self.value(depth + 1, simple))).collect(),
            ),
            _ => Value::Text(self.text()),
        }
    }

    fn headers(&mut self, simple: bool) -> Headers {
        let any = ["", "x-odd", "CC", "BCC", "x-death", "x-delivery-count", "x-opt-delivery-time", "x-match"];
        let mut headers: Headers = (0..self.random.usize(0..8))
            .map(|_| {
                let name = match self.random.bool() {
                    true => self.random.choice(any).unwrap().to_owned(),
                    false => self.text(),
                };
                (name, self.value(0, simple))
            })
            .collect();
        if self.random.u8(..) < 10 {
            let deep = (0..62).fold(self.value(9, simple), |inner, _| Value::Array(vec![inner]));
            headers.insert("deep".into(), deep);
        }
        if !simple && self.random.u8(..) < 10 {
            headers.insert("x-stream-filter-value".into(), self.value(0, simple));
        }
        headers
    }

    fn properties(&mut self) -> Properties {
        let mut text = || self.random.bool().then(|| "ü€ x".repeat(self.random.usize(0..36)));
        let mut properties = Properties {
            content_type: text(),
            content_encoding: text(),
            correlation_id: text(),
            reply_to: text(),
            kind: text(),
            app_id: text(),
            ..Properties::default()
        };
        properties.priority = self.random.bool().then(|| self.random.u8(..));
        properties.timestamp =
            self.random.bool().then(|| self.random.choice([0, 1, u64::from(u32::MAX)]).unwrap());
        properties.user_id = self.random.bool().then(|| "guest".into());
        properties
    }

    /// A message of a publisher, and its expected result.
    fn message(&mut self, publisher: usize, id: String) -> (Message, Promise) {
        let simple = publisher == STREAMED || self.retries && is_apart(publisher);
        let delay = Delay::from_seconds(self.random.choice([0, 1, 5, 30]).unwrap()).unwrap();
        let mut message = Message::after(app(&key(publisher)), delay, id.as_str());
        (message.properties, message.headers) = (self.properties(), self.headers(simple));
        let promise = match self.random.u8(0..50) {
            0 => {
                let odd = self.random.choice([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]).unwrap();
                let inside =
                    Value::Table(Headers::from([("in".into(), Value::Array(vec![Value::F64(odd)]))]));
                message
                    .headers
                    .insert("odd".into(), self.random.choice([Value::F32(odd as f32), inside]).unwrap());
                Promise::Invalid
            }
            1 => {
                message.properties.reply_to = Some("x".repeat(256));
                Promise::Invalid
            }
            2 => {
                message.properties.user_id = Some("somebody".into());
                Promise::Refused(406)
            }
            3..8 if !self.crashes.is_empty() && simple => {
                let crash = self.random.choice(&self.crashes).unwrap().clone();
                (message.properties, message.headers) = crash;
                Promise::Refused(541)
            }
            _ => Promise::Delivered,
        };
        (message, promise)
    }
}

/// Whether this publisher's retried messages contain nothing that may crash a stream. Such messages
/// never share a connection with messages that may.
fn is_apart(publisher: usize) -> bool {
    publisher.is_multiple_of(2)
}

fn key(publisher: usize) -> String {
    format!("p{publisher}")
}

/// The results of one publisher's messages.
type Outcomes = Vec<(Message, Promise, Result<Receipt, PublishError>)>;

/// Messages by body, with the maximum number of arrivals, and whether the message must arrive.
type Arriving = BTreeMap<String, (Message, u32, bool)>;

/// Publishes random messages from many threads through one router.
fn publish(router: &Router, seed: u64, each: usize, crashes: &[(Properties, Headers)]) -> Vec<Outcomes> {
    thread::scope(|scope| {
        let publishing: Vec<_> = (0..PUBLISHERS)
            .map(|publisher| {
                scope.spawn(move || {
                    let random = Rng::with_seed(seed + publisher as u64);
                    let mut maker = Maker { random, crashes: crashes.to_vec(), retries: crashes.is_empty() };
                    let mut pipeline = router.pipeline();
                    let (mut sent, mut results) = (Vec::new(), HashMap::new());
                    for number in 0..each {
                        let (message, promise) = maker.message(publisher, format!("{publisher}-{number}"));
                        sent.push((message.clone(), promise));
                        results.extend(
                            pipeline.push(number, message).map(|outcome| (outcome.tag, outcome.result)),
                        );
                    }
                    results.extend(pipeline.map(|outcome| (outcome.tag, outcome.result)));
                    assert_eq!(results.len(), each, "each message has one outcome");
                    let result = |number| results.remove(&number).unwrap();
                    let outcomes = sent.into_iter().zip((0..each).map(result));
                    outcomes.map(|((message, promise), result)| (message, promise, result)).collect()
                })
            })
            .collect();
        publishing.into_iter().map(|publishing| publishing.join().unwrap()).collect()
    })
}

/// Checks that each message of a publisher had the expected result. Returns the messages that may
/// arrive.
fn promised(outcomes: Outcomes) -> Arriving {
    let mut arriving = Arriving::new();
    for (message, promise, result) in outcomes {
        let id = String::from_utf8(message.body.clone()).unwrap();
        match (promise, result) {
            (Promise::Delivered, Ok(receipt)) => {
                arriving.insert(id, (message, receipt.publishes, true));
            }
            (Promise::Invalid, Err(error)) => {
                assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
            }
            (Promise::Refused(promised), Err(error)) => {
                let Cause::Rejected { code, text } = error.cause() else { panic!("{error}") };
                let crashed = *code == 541;
                let reason = if crashed { "INTERNAL_ERROR" } else { "PRECONDITION_FAILED" };
                assert!(*code == promised && text.contains(reason), "{error}");
                if crashed {
                    // The level may have stored the message before the stream crashed. The router
                    // sends it again together with others, and then alone, so several copies may
                    // arrive.
                    assert!(error.maybe_delivered());
                    arriving.insert(id, (message, 5, false));
                }
            }
            (_, result) => panic!("{promise:?}, but {result:?} of {message:?}"),
        }
    }
    arriving
}

/// Checks that these messages arrive unchanged, not more often than allowed, and that no other
/// message arrives.
fn arrive(settings: &Settings, inbox: &Inbox, publisher: usize, expected: &Arriving) {
    let mut times: HashMap<String, u32> = HashMap::new();
    let mut check = |arrival: Arrival| {
        let id = String::from_utf8(arrival.body).unwrap();
        let (message, most, must) =
            expected.get(&id).unwrap_or_else(|| panic!("{id} must not come to {publisher}"));
        assert_eq!(arrival.properties, message.properties, "{id}");
        for (name, value) in message.headers.iter().filter(|(name, _)| !is_forbidden(name)) {
            assert_eq!(arrival.headers.get(name), Some(value), "{id}: {name:?}");
        }
        let times = times.entry(id).or_default();
        *times += 1;
        assert!(*times <= *most, "{message:?} came {times} times");
        usize::from(*must && *times == 1)
    };
    let count = expected.values().filter(|(.., must)| *must).count();
    let mut different = 0;
    while different < count {
        let arrival = inbox.next(PATIENCE);
        different += check(arrival.unwrap_or_else(|| panic!("only {different} of {count}")));
    }
    marker(settings, &key(publisher), "the last");
    inbox.until("the last").into_iter().for_each(|arrival| _ = check(arrival));
}

#[test]
fn random_messages_are_delivered_as_promised_or_refused_to_their_own_publisher() {
    let number = std::env::var("RANDOM_MESSAGES").map_or(MESSAGES, |number| number.parse().unwrap());
    let each = number / PUBLISHERS / 2;
    let seed = std::env::var("RANDOM_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("RANDOM_MESSAGES={number} RANDOM_SEED={seed}");
    let settings = installed(10);
    let crashes = crashes(&settings);
    let inboxes: Vec<_> = (0..PUBLISHERS).map(|publisher| Inbox::open(&settings, &key(publisher))).collect();
    stream(&settings, "delay", &key(STREAMED));

    // First through the router.
    let router = settings.router().window(100).publish_timeout(PATIENCE).quota(Quota::forwarding());
    let outcomes = publish(&router.clone().connect().unwrap(), seed, each, &crashes);
    for (publisher, outcomes) in outcomes.into_iter().enumerate() {
        arrive(&settings, &inboxes[publisher], publisher, &promised(outcomes));
    }

    // Then through a retry, as failed messages.
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_exchange(&Exchange::new("fill", ExchangeKind::Fanout)).unwrap();
    let destination = Endpoint::Exchange("delay.retry".into());
    session.bind(&Binding { source: "fill".into(), destination, key: String::new() }).unwrap();
    let mut filling = settings.clone();
    filling.topology.set = "fill".parse().unwrap();
    let fill = filling.router().window(100).publish_timeout(PATIENCE).quota(Quota::forwarding());
    let fill = fill.connect().unwrap();
    let failed = publish(&fill, !seed, each, &[]);
    let crashing = (0..5 * crashes.len()).map(|number| {
        let (properties, headers) = crashes[number % crashes.len()].clone();
        let mut message = Message::after(app(&key(STREAMED)), Delay::ZERO, format!("crash {number}"));
        (message.properties, message.headers) = (properties, headers);
        fill.publish(message.clone()).unwrap();
        (format!("crash {number}"), (message, 3, false))
    });
    let crashing: Arriving = crashing.collect();
    let policies = delayline_settings::parse_policies("[default]\nfixed = '1s'\nattempts = 1\n").unwrap();
    let service = Service::new(router, SharedPolicies::new(policies));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| service.run(&stop));
        let _stopping = Stopping(&stop);
        for (publisher, outcomes) in failed.into_iter().enumerate() {
            let mut arriving = promised(outcomes);
            if !is_apart(publisher) {
                // Messages in flight during a crash are sent again.
                arriving.values_mut().for_each(|(_, most, _)| *most *= 2);
            }
            if publisher == STREAMED {
                arriving.extend(crashing.clone());
            }
            arrive(&settings, &inboxes[publisher], publisher, &arriving);
        }
        let mut parked = parked(&settings, crashing.len());
        parked.sort_unstable();
        parked.dedup();
        assert_eq!(parked.len(), crashing.len());
        assert!(
            parked.iter().all(|(key, body)| key.ends_with(".p3") && body.starts_with("crash ")),
            "{parked:?}"
        );
    });
}
