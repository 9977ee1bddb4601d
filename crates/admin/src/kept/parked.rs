//! Why a message is in the parked queue, and its way back to its application: pure.

use crate::drain::Outgoing;
use delayline_amqp::Delivery;
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::{Value, headers},
    topology::Names,
};

use super::{KeptCause, Seen, WayOn, unexpired};

/// The reason for a message that the service could not read, and that the broker moved here
/// as it was.
const UNREADABLE: &str = "unreadable";

/// The reason for a message that its application does not want to try again.
const GAVE_UP: &str = "gave-up";

/// Headers that a message does not take with it when it starts over.
const USED_UP: [&str; 6] = [
    headers::ATTEMPT,
    headers::FIRST_FAILED,
    headers::LAST_FAILED,
    headers::FAILURE,
    headers::REASON,
    headers::DUE,
];

pub(super) fn cause(seen: &Seen<'_>) -> KeptCause {
    let text = |name: &str| match seen.headers?.get(name) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    let failure = text(headers::FAILURE);
    // An application that parks a message itself need not say more than why.
    let default = if failure.is_some() { GAVE_UP } else { UNREADABLE };
    let reason = text(headers::REASON).unwrap_or_else(|| default.into());
    KeptCause::new(app(seen.routing_key).map(|app| app.to_string()), reason, failure)
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
