//! Foreign layouts on a real broker: that of NServiceBus, declared like its transport does, and
//! that of kombu, declared by kombu itself.

use std::{
    collections::HashMap,
    io::Write,
    process::{Command, Stdio},
};

use delayline_admin::Layout;
use delayline_amqp::Session;
use delayline_core::{
    codec::{Delay, Level},
    topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::raw;

/// Declares a queue and binds it to the layout's last exchange, as an endpoint does.
pub(crate) fn bound(session: &mut Session, layout: &Layout, queue: &str) {
    let arguments = [("x-queue-type".to_owned(), Argument::from("quorum"))];
    session.declare_queue(&Queue::new(queue).with_arguments(arguments)).unwrap();
    let destination = Endpoint::Queue(queue.into());
    let key = format!("#.{queue}");
    session.bind(&Binding { source: layout.delivery(), destination, key }).unwrap();
}

/// The layout of NServiceBus' transport, with units of `unit_ms` milliseconds instead of seconds.
pub(crate) fn nservicebus(session: &mut Session, unit_ms: i64) -> Layout {
    let layout = Layout::nservicebus();
    let arguments = [
        ("x-queue-type", "quorum"),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-overflow", "reject-publish"),
    ];
    declared(session, &layout, unit_ms, &arguments);
    layout
}

/// Version 1 of that layout.
pub(crate) fn nservicebus_v1(session: &mut Session, unit_ms: i64) -> Layout {
    let layout = Layout::nservicebus_v1();
    declared(session, &layout, unit_ms, &[("x-queue-mode", "lazy")]);
    layout
}

/// The layout of kombu with classic queues.
pub(crate) fn classic_kombu(session: &mut Session, unit_ms: i64) -> Layout {
    let layout = Layout::celery(None);
    declared(session, &layout, unit_ms, &[("x-queue-type", "classic"), ("x-overflow", "reject-publish")]);
    layout
}

/// Declares a layout whose levels have these arguments as well.
fn declared(session: &mut Session, layout: &Layout, unit_ms: i64, more: &[(&str, &str)]) {
    for name in layout.exchanges() {
        session.declare_exchange(&Exchange::new(name, ExchangeKind::Topic)).unwrap();
    }
    for level in Level::all() {
        let name = layout.level(level);
        let below = level.below().map_or_else(|| layout.delivery(), |below| layout.level(below));
        let arguments = [
            ("x-message-ttl", (unit_ms << level.number()).into()),
            ("x-dead-letter-exchange", below.as_str().into()),
        ];
        let arguments: Vec<(&str, Argument)> = arguments.into();
        let more = more.iter().map(|(name, value)| (*name, Argument::from(*value)));
        let arguments = arguments.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value));
        session.declare_queue(&Queue::new(name.clone()).with_arguments(arguments)).unwrap();
        let above = "*.".repeat(usize::from(Level::TOP.number() - level.number()));
        for (destination, bit) in [(Endpoint::Queue(name.clone()), 1), (Endpoint::Exchange(below), 0)] {
            let key = format!("{above}{bit}.#");
            session.bind(&Binding { source: name.clone(), destination, key }).unwrap();
        }
    }
}

/// Makes kombu declare its layout and bind a queue to it through the topic exchange `celery`.
/// Returns kombu's routing keys to that queue for these delays.
pub(crate) fn kombu(settings: &Settings, unit_ms: u32, queue: &str, delays: &[u64]) -> HashMap<u64, String> {
    let python = std::env::var("TEST_PYTHON")
        .expect("TEST_PYTHON is the path of a Python with kombu; scripts/test sets it");
    let url = format!("amqp://guest:guest@127.0.0.1:{}/{}", settings.broker.port, settings.broker.vhost);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/broker/others/celery.py");
    let mut child = Command::new(python)
        .args([script, &url, &unit_ms.to_string(), queue])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(json!(delays).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "kombu could not declare its layout");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Publishes messages as a sender of that layout does. Their bodies are numbers.
pub(crate) fn publish(
    settings: &Settings,
    layout: &Layout,
    to: &str,
    units: u64,
    bodies: std::ops::Range<u32>,
) {
    publish_with(settings, layout, to, units, bodies, |_| json!({}));
}

/// The rest of a key that kombu up to 5.6.2 makes of one that has so many delays already.
pub(crate) fn accumulated(layout: &Layout, delays: usize, to: &str) -> String {
    let delay = Delay::from_seconds(60).unwrap();
    (0..delays).fold(to.to_owned(), |key, _| layout.key(delay, &key))
}

/// The same, with headers.
pub(crate) fn publish_with(
    settings: &Settings,
    layout: &Layout,
    to: &str,
    units: u64,
    bodies: std::ops::Range<u32>,
    headers: impl Fn(u32) -> Json,
) {
    let delay = Delay::from_seconds(units).unwrap();
    // The sender of NServiceBus starts at the level of the highest bit, and kombu always at the top
    // level.
    let first = match layout.is_nservicebus() {
        true => {
            Level::all().rev().find(|level| delay.seconds() & level.units() != 0).unwrap_or(Level::LOWEST)
        }
        false => Level::TOP,
    };
    let (exchange, key) = (layout.level(first), layout.key(delay, to));
    let message = |body: u32| {
        let properties = json!({"message_id": body.to_string(), "headers": headers(body)});
        raw::message(&exchange, &key, body, &properties)
    };
    raw::publish(settings, bodies.map(message));
}
