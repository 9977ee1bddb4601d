//! Why a message is in the parked queue, and how it returns to its application: pure.

use crate::drain::Outgoing;
use delayline_amqp::Delivery;
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Headers, Value, headers},
    topology::Names,
};

use super::{KeptCause, Seen, WayOn, unexpired};

/// The reason for a message that the retry service could not read, and that the broker moved here
/// unchanged.
const UNREADABLE: &str = "unreadable";

/// The reason for a message that its application does not want to try again.
const GAVE_UP: &str = "gave-up";

/// Parked by the queue of an application that is not retried.
const REJECTED: &str = "rejected";

/// Headers that are removed when a message starts over.
const USED_UP: [&str; 6] = [
    headers::ATTEMPT,
    headers::FIRST_FAILED,
    headers::LAST_FAILED,
    headers::FAILURE,
    headers::REASON,
    headers::DUE,
];

pub(super) fn cause(names: &Names, seen: &Seen<'_>) -> KeptCause {
    let text = |name: &str| match seen.headers?.get(name) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let failure = text(headers::FAILURE);
    // An application that parks a message itself need only give a reason.
    let default = match (&failure, seen.headers) {
        (Some(_), _) => GAVE_UP,
        (None, Some(headers)) if was_rejected(names, headers) => REJECTED,
        (None, _) => UNREADABLE,
    };
    let reason = text(headers::REASON).unwrap_or_else(|| default.into());
    KeptCause::new(app(seen.routing_key).map(|app| app.to_string()), reason, failure)
}

/// Whether the queue of an application parked it: unreadable messages come from the retry queue.
fn was_rejected(names: &Names, headers: &Headers) -> bool {
    let Some(Value::Array(deaths)) = headers.get("x-death") else { return false };
    let Some(Value::Table(last)) = deaths.first() else { return false };
    let is = |name: &str, text: &str| matches!(last.get(name), Some(Value::Text(it)) if it == text);
    is("reason", "rejected") && !is("queue", &names.retry())
}

pub(super) fn way_on(names: &Names, delivery: &Delivery) -> WayOn {
    let Some(app) = app(&delivery.routing_key) else { return WayOn::Nowhere };
    let key = RoutingKey::new(Delay::ZERO, app).encode();
    let mut outgoing = Outgoing::of(delivery, names.entry(), key);
    for name in USED_UP {
        outgoing.headers.remove(name);
    }
    WayOn::To(unexpired(outgoing).into())
}

/// Messages are parked under their app key; those that the broker moved may have a delayed
/// key.
fn app(key: &str) -> Option<AppKey> {
    key.parse::<RoutingKey>().map(|key| key.app).ok().or_else(|| AppKey::new(key).ok())
}
