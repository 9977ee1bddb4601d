//! Everything that parses foreign input, as functions that take any bytes and panic if a
//! promise is broken.
//!
//! The tests call them with random bytes and mutated examples; the targets in `fuzz/` do so
//! for as long as one likes, guided by coverage (`scripts/fuzz`).

use std::time::Instant;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::cmd::send::read_json_line;
use delayline_admin::diagnose;
use delayline_amqp::frames;
use delayline_broker::{About, FeatureFlag, NodeInfo, Overview, Policies, Snapshot, unsuitable};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey, Tolerance},
    message::{self, Headers, Properties, Schedule, Value, Wire},
    retry::{Decision, Failure, Policy},
    topology::{Names, SetName, Topology, TopologySettings, Unit},
};
use delayline_schedules::{Spec, Times};
use delayline_settings::{Layers, parse};
use delayline_term::time::instant as read_instant;

/// A target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 9] = [
    ("codec", |bytes| text(bytes, codec)),
    ("times", |bytes| text(bytes, times)),
    ("frames", frames),
    ("json_line", json_line),
    ("headers", headers),
    ("management", management),
    ("policies", |bytes| text(bytes, policies)),
    ("settings", |bytes| text(bytes, settings)),
    ("schedules", schedules),
];

/// Calls a target by its name.
///
/// # Panics
/// If a promise is broken, or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|(other, _)| *other == name);
    target.expect("a target of this name").1(bytes);
}

/// A time long ago, so that times relative to it do not depend on the day.
const NOW: i64 = 1_700_000_000_000;

fn text(bytes: &[u8], target: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        target(text);
    }
}

fn names() -> Names {
    Names::new(SetName::default())
}

/// Each text that can be decoded encodes to the same text.
fn codec(text: &str) {
    if let Ok(key) = text.parse::<RoutingKey>() {
        assert_eq!(key.encode(), text);
        assert_eq!(RoutingKey::app_of_pattern(&RoutingKey::binding_pattern(&key.app)), Ok(key.app));
    }
    if let Ok(app) = RoutingKey::app_of_pattern(text) {
        assert_eq!(RoutingKey::binding_pattern(&app), text);
    }
    if let Ok(app) = AppKey::new(text) {
        assert_eq!(app.as_str(), text);
        assert!(RoutingKey::new(Delay::MAX, app).encode().len() <= 255);
    }
    for exchange in ["delay", "delay.dispatch", "delay.level.07", "delay.retry", text] {
        let _ = diagnose(&names(), exchange, text);
    }
}

/// A time that was read can be written and read back, and rounding stays within its
/// tolerance.
fn times(text: &str) {
    if let Ok(delay) = text.parse::<Delay>() {
        assert_eq!(delay.to_string().parse(), Ok(delay));
    }
    if let Ok(tolerance) = text.parse::<Tolerance>() {
        for seconds in [0, 1, 999, 1_023, 86_399, u64::from(Delay::MAX.seconds())] {
            let delay = Delay::from_seconds(seconds).expect("it is within the range");
            let rounded = tolerance.round(delay);
            assert!((delay..=tolerance.latest(delay)).contains(&rounded) && rounded.hops() <= delay.hops());
        }
    }
    let _ = read_instant(text);
}

/// A line that is accepted makes a message that the router accepts and that keeps the wire
/// contract.
fn json_line(line: &[u8]) {
    if let Ok(Some(message)) = read_json_line(line) {
        sendable(&message);
    }
}

/// A prepared message has no header that could harm it on its way.
fn sendable(message: &Message) {
    message::check(message).expect("an accepted message can be sent");
    let now = Timestamp::from_millisecond(NOW).expect("a time");
    let taken = Instant::now();
    if let Ok(schedule) = Schedule::new(message.when, message.tolerance, (Unit::SECOND, false), now, taken) {
        let wire = Wire::new(message, &schedule, now, taken);
        assert!(wire.properties.expiration.is_none());
        assert!(!wire.headers.keys().any(|name| message::is_forbidden(name)));
        assert!(wire.exchange.is_some() || wire.routing_key.parse::<RoutingKey>().is_ok());
    }
}

/// A failed message is retried or parked, whatever its headers are.
fn headers(bytes: &[u8]) {
    let Ok(Json::Object(map)) = serde_json::from_slice(bytes) else { return };
    let values =
        map.into_iter().map(|(name, json)| Ok::<_, serde_json::Number>((name, Value::try_from(json)?)));
    let Ok(headers) = values.collect::<Result<Headers, _>>() else { return };
    let key = match headers.get("routing-key") {
        Some(Value::Text(key)) => key.clone(),
        _ => "billing".into(),
    };
    let Ok(failure) = Failure::read(&headers, "delay.retry", &key, &names(), NOW) else { return };
    assert!(failure.first_failed() <= failure.failed && failure.failed <= NOW);
    let policies =
        delayline_settings::parse_policies("[default]\nfixed = '10s'\nattempts = 3\n").expect("policies");
    let policy = policies.get(&failure.app, &failure.reason);
    let decision = Decision::new(policy, &failure, None, Unit::SECOND, NOW, 0.5);
    let parts = (Vec::new(), Properties::default(), headers);
    let successor = decision.successor(&failure, &names(), None, parts);
    if message::check(&successor).is_ok() {
        sendable(&successor);
    }
}

/// Any answer of a management API can be compared with the wanted set.
fn management(bytes: &[u8]) {
    let Ok(json) = serde_json::from_slice::<Json>(bytes) else { return };
    let topology = Topology::new(TopologySettings::default());
    let (exchanges, queues) = (part(&json, "exchanges"), part(&json, "queues"));
    let mut snapshot = Snapshot::new("/", exchanges, queues, part(&json, "bindings"));
    snapshot.about = About {
        version: Some(part::<Overview>(&json, "overview").rabbitmq_version),
        flags: Some(part::<Vec<FeatureFlag>>(&json, "flags")),
        nodes: Some(part::<Vec<NodeInfo>>(&json, "running")),
        ..About::default()
    };
    for finding in snapshot.compare(&topology) {
        let _ = finding.to_string();
    }
    let (user, operator) = (part(&json, "policies"), part(&json, "operator_policies"));
    snapshot.apply(Policies { user: Ok(user), operator: Ok(operator) });
    for finding in snapshot.compare(&topology) {
        let _ = finding.to_string();
    }
    let _ = snapshot.dispatch_bindings(&topology);
    let _ = unsuitable(topology.settings(), &snapshot.about);
}

fn part<T: DeserializeOwned + Default>(json: &Json, name: &str) -> T {
    json.get(name).and_then(|part| serde_json::from_value(part.clone()).ok()).unwrap_or_default()
}

/// Policies that are accepted have a schedule that adds up.
fn policies(text: &str) {
    let Ok(policies) = delayline_settings::parse_policies(text) else { return };
    for app in ["billing", "mail"] {
        let app = AppKey::new(app).expect("an app key");
        for reason in ["rejected", "expired", "slow"] {
            adds_up(policies.get(&app, reason));
        }
    }
}

fn adds_up(policy: &Policy) {
    let mut total = 0;
    // The largest allowed number of attempts would take too long to check here.
    for step in policy.schedule().take(1_000) {
        assert!(step.shortest <= step.longest);
        total += u64::from(step.longest.seconds());
        assert_eq!(step.after.1, total);
    }
}

/// Settings from a file, the environment and flags are accepted or refused.
fn settings(text: &str) {
    let _ = parse(text);
    for key in ["url", "other_hosts", "management_url", "set", "confirm_timeout", "window", "unit_ms"] {
        let _ = Layers::new().set(key, text).build();
        let variable = format!("DELAYLINE_{}", key.to_ascii_uppercase());
        let _ = Layers::new().with_environment([(variable, text.to_owned())]).build();
    }
    let _ = Layers::new().with_environment([(format!("DELAYLINE_{text}"), String::new())]).build();
}

/// A schedule that is accepted has occurrences in their order.
fn schedules(bytes: &[u8]) {
    let Ok(spec) = serde_json::from_slice::<Spec>(bytes) else { return };
    let Ok(times) = Times::checked(&spec, Unit::SECOND) else { return };
    for mut at in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
        for _ in 0..5 {
            let Some(next) = times.next(at) else { break };
            assert!(next > at && spec.end.is_none_or(|end| next <= end));
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::{prelude::*, sample::Index};

    use super::*;

    /// The examples of a target.
    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let directory =
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("fuzz/seeds").join(name);
        let files =
            fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect()
    }

    /// How an example is changed: at two places of it, with some bytes.
    #[derive(Debug, Clone)]
    enum Change {
        Cut,
        Remove,
        Replace(Vec<u8>),
        Insert(Vec<u8>),
        Repeat(u8),
    }

    fn changes() -> impl Strategy<Value = Vec<(Change, Index, Index)>> {
        let bytes = || {
            prop_oneof![prop::collection::vec(any::<u8>(), 1..9), "[ -~]{1,4}".prop_map(String::into_bytes)]
        };
        let change = prop_oneof![
            Just(Change::Cut),
            Just(Change::Remove),
            bytes().prop_map(Change::Replace),
            bytes().prop_map(Change::Insert),
            (1_u8..40).prop_map(Change::Repeat),
        ];
        prop::collection::vec((change, any::<Index>(), any::<Index>()), 0..4)
    }

    fn changed(mut bytes: Vec<u8>, changes: &[(Change, Index, Index)]) -> Vec<u8> {
        for (change, one, other) in changes {
            let (one, other) = (one.index(bytes.len() + 1), other.index(bytes.len() + 1));
            let range = one.min(other)..one.max(other);
            match change {
                Change::Cut => bytes.truncate(one),
                Change::Remove => drop(bytes.drain(range)),
                Change::Replace(with) => {
                    let end = bytes.len().min(one + with.len());
                    drop(bytes.splice(one..end, with.iter().copied()));
                }
                Change::Insert(more) => drop(bytes.splice(one..one, more.iter().copied())),
                Change::Repeat(times) => {
                    let part = bytes[range.clone()].repeat((*times).into());
                    drop(bytes.splice(range, part));
                }
            }
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn no_bytes_break_a_promise(bytes in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>()) {
            for (_, target) in TARGETS {
                target(&bytes);
                target(text.as_bytes());
            }
        }

        #[test]
        fn no_changed_example_breaks_a_promise(example in any::<Index>(), changes in changes()) {
            for (name, target) in TARGETS {
                let seeds = seeds(name);
                target(&changed(example.get(&seeds).clone(), &changes));
            }
        }
    }

    #[test]
    fn every_target_has_examples_and_a_program() {
        for (name, target) in TARGETS {
            let program =
                format!("{}/fuzz/fuzz_targets/{name}.rs", concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
            assert!(Path::new(&program).exists(), "{program}");
            assert!(!seeds(name).is_empty());
            seeds(name).iter().for_each(|seed| target(seed));
        }
    }

    /// A target ignores input that it cannot read, so its examples must be readable: else it
    /// would check nothing, unnoticed.
    #[test]
    fn examples_are_what_their_target_reads() {
        let texts = |name: &str| {
            let texts = seeds(name).into_iter().map(|seed| String::from_utf8(seed).unwrap());
            texts.collect::<Vec<_>>()
        };
        let codec = texts("codec");
        assert!(codec.iter().any(|text| text.parse::<RoutingKey>().is_ok()), "{codec:?}");
        assert!(codec.iter().any(|text| RoutingKey::app_of_pattern(text).is_ok()), "{codec:?}");
        assert!(codec.iter().any(|text| AppKey::new(text.as_str()).is_ok()), "{codec:?}");
        let times = texts("times");
        assert!(times.iter().any(|text| text.parse::<Delay>().is_ok()), "{times:?}");
        assert!(times.iter().any(|text| text.parse::<Tolerance>().is_ok()), "{times:?}");
        assert!(times.iter().any(|text| read_instant(text).is_ok()), "{times:?}");
        let lines = texts("json_line");
        let read = |line: &&String| matches!(read_json_line(line.as_bytes()), Ok(Some(_)));
        assert!(lines.iter().filter(read).count() >= 2, "{lines:?}");
        for text in texts("policies") {
            assert!(delayline_settings::parse_policies(&text).is_ok(), "{text}");
        }
        for text in texts("schedules") {
            let spec: Spec = serde_json::from_str(&text).unwrap();
            assert!(Times::checked(&spec, Unit::SECOND).is_ok(), "{text}");
        }
        for name in ["headers", "management"] {
            for seed in seeds(name) {
                assert!(serde_json::from_slice::<Json>(&seed).is_ok(), "{name}");
            }
        }
    }
}
