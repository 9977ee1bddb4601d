//! Unroutable messages that came through a gateway for `x-delay`, and their way to its
//! consumers: pure.

use jiff::Timestamp;

use crate::{drain::Outgoing, held::Reason};
use delayline_amqp::Delivery;
use delayline_client::gateway::{Remains, SetAside};
use delayline_core::{
    message::Headers,
    topology::{Names, Topology},
};

use super::{Bound, KeptCause, Seen, WayOn};

/// The gateway of such a message; `None` if it did not come through a gateway.
pub(super) fn of(topology: &Topology, seen: &Seen<'_>) -> Option<SetAside> {
    let way = (seen.exchange, seen.routing_key);
    let unit = topology.settings().unit;
    SetAside::of(topology.names(), unit, way, seen.headers?, Timestamp::now())
}

/// Why it is here. The routing key is left out, since a different key in each message would make each a
/// group of its own.
pub(super) fn cause(names: &Names, aside: &SetAside, seen: &Seen<'_>) -> KeptCause {
    let gateway = &aside.gateway;
    let app = app(gateway);
    let (reason, detail) = match &aside.remains {
        Remains::Consumers => {
            (Reason::NobodyBound, format!("no queue was bound to exchange `{gateway}` for its routing key"))
        }
        Remains::Gateway { .. } => (
            Reason::NotPassedOn,
            format!("gateway `{gateway}` could not send it on; the log of the daemon shows why"),
        ),
        Remains::Delay(error) => (Reason::Malformed, error.clone()),
        Remains::Way => {
            let inside = super::diagnose(names, seen.exchange, seen.routing_key);
            let gone = format!("gateway `{gateway}` was not there when it was due");
            (inside.reason, inside.detail.unwrap_or(gone))
        }
    };
    let gateway = Some(gateway.clone());
    KeptCause { gateway, ..KeptCause::new(Some(app), reason.as_str(), Some(detail)) }
}

/// The app key that selects the messages of a gateway.
fn app(gateway: &str) -> String {
    Names::gateway_app(gateway).map_or_else(|_| gateway.to_owned(), |app| app.to_string())
}

/// Whether it would be routed now; `None` if that makes no difference.
pub(super) fn is_bound(bound: &Bound, aside: &SetAside, seen: &Seen<'_>) -> Option<bool> {
    let SetAside { gateway, routing_key, .. } = aside;
    match aside.remains {
        Remains::Consumers => {
            Some(bound.routes(gateway, routing_key, seen.headers.unwrap_or(&Headers::new())))
        }
        Remains::Way | Remains::Gateway { .. } => Some(bound.has(&app(gateway))),
        Remains::Delay(_) => None,
    }
}

/// Where it goes: to its consumers, or through the gateway again if it still has to wait. If the bindings
/// are unknown, it counts as bound.
pub(super) fn way_on(names: &Names, bound: Option<&Bound>, aside: &SetAside, delivery: &Delivery) -> WayOn {
    if bound.is_some_and(|bound| is_bound(bound, aside, &delivery.into()) == Some(false)) {
        return WayOn::Unbound(app(&aside.gateway));
    }
    let outgoing = match &aside.remains {
        Remains::Consumers => {
            let (properties, headers) = aside.restored(&delivery.properties, &delivery.headers);
            let (exchange, routing_key) = (aside.gateway.clone(), aside.routing_key.clone());
            Outgoing { exchange, routing_key, properties, headers }
        }
        Remains::Gateway { exchange, routing_key } => {
            Outgoing::of(delivery, exchange.clone(), routing_key.clone())
        }
        Remains::Way => return super::reason::way_on(names, bound, delivery),
        Remains::Delay(_) => return WayOn::Nowhere,
    };
    WayOn::To(outgoing.into())
}
