//! The messages in the queue of recalled messages, and how they reach the application after all: pure.

use crate::drain::Outgoing;
use delayline_amqp::Delivery;
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::Names,
};

use super::{KeptCause, WayOn, unexpired};

/// The reason for a message that was recalled.
const RECALLED: &str = "recalled";

/// The reason for any other message in this queue.
const STRAY: &str = "stray";

pub(super) fn cause(app: &AppKey, key: &str) -> KeptCause {
    if recalled(app, key).is_some() {
        return KeptCause::new(Some(app.to_string()), RECALLED, None);
    }
    let detail = format!("no message of `{app}` with an id has this routing key");
    KeptCause::new(key.parse::<RoutingKey>().ok().map(|key| key.app.to_string()), STRAY, Some(detail))
}

/// It is due, so it goes without a delay. It keeps its id, by which the application may recognise it. The
/// recall was for a key with another delay.
pub(super) fn way_on(names: &Names, app: &AppKey, delivery: &Delivery) -> WayOn {
    let id = recalled(app, &delivery.routing_key).and_then(|key| key.id().cloned());
    let key = id.and_then(|id| RoutingKey::new(Delay::ZERO, app.clone()).with_id(id).ok());
    let Some(key) = key else { return WayOn::Nowhere };
    let outgoing = Outgoing::of(delivery, names.entry(), key.encode());
    WayOn::To(unexpired(outgoing).into())
}

/// The key of a message that was recalled.
fn recalled(app: &AppKey, key: &str) -> Option<RoutingKey> {
    key.parse::<RoutingKey>().ok().filter(|key| key.app == *app && key.id().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_the_application_with_an_id_were_recalled() {
        let app = AppKey::new("billing").unwrap();
        let delay = "delay.0000.0000.0000.0000.0000.0000.1010";
        for (key, of, reason) in [
            (format!("{delay}.billing.~.17"), Some("billing"), "recalled"),
            (format!("{delay}.billing"), Some("billing"), "stray"),
            (format!("{delay}.orders.~.17"), Some("orders"), "stray"),
            ("garbage".into(), None, "stray"),
        ] {
            let cause = cause(&app, &key);
            assert_eq!((cause.app.as_deref(), cause.reason.as_str()), (of, reason), "{key}");
            assert_eq!(cause.detail.is_some(), reason == "stray");
        }
    }
}
