//! Why a message is in the queue of a guard, and how it returns to its layout: pure.

use crate::{drain::Outgoing, held::Diagnosis, held::Reason};
use delayline_amqp::Delivery;
use delayline_core::topology::{Object, Queue, Topology};
use delayline_settings::Layout;

use super::{Bound, WayOn, reason::below};

/// The queue that keeps unroutable messages.
pub(super) fn queue(topology: &Topology, layout: &Layout) -> Queue {
    let objects = topology.guard(&layout.kept()).into_iter();
    let mut queue = objects.filter_map(|object| match object {
        Object::Queue(queue) => Some(queue),
        _ => None,
    });
    queue.next_back().expect("a guard has a queue")
}

/// Finds out why a message is here, from its exchange and key.
pub(super) fn diagnose(layout: &Layout, exchange: &str, routing_key: &str) -> Diagnosis {
    let level = layout.level_of(exchange);
    if level.is_none() && exchange != layout.delivery() {
        // The exchange of an application that has the guard, too.
        let detail = Some(format!("it was published to exchange `{exchange}`"));
        return Diagnosis { app: None, reason: Reason::Foreign, detail };
    }
    let key = match layout.read(routing_key) {
        Ok(key) => key,
        Err(error) => {
            return Diagnosis { app: None, reason: Reason::Malformed, detail: Some(error.to_string()) };
        }
    };
    let app = Some(key.destination.to_owned());
    match level {
        // Bits are left that the exchange did not route.
        Some(level) if key.delay.seconds() & below(level) != 0 => {
            let detail = format!(
                "exchange `{exchange}` did not pass it on: a binding of the layout is missing. Start a \
                 program of its library, which declares it again"
            );
            Diagnosis { app, reason: Reason::NotPassedOn, detail: Some(detail) }
        }
        _ => Diagnosis { app, reason: Reason::NobodyBound, detail: None },
    }
}

/// Where a message goes: to the exchange behind the levels if its delay has expired, else to the exchange
/// that did not route it.
pub(super) fn way_on(layout: &Layout, bound: Option<&Bound>, delivery: &Delivery) -> WayOn {
    let diagnosis = diagnose(layout, &delivery.exchange, &delivery.routing_key);
    let exchange = match diagnosis.reason {
        Reason::Malformed => return WayOn::Nowhere,
        Reason::NotPassedOn | Reason::Foreign => delivery.exchange.clone(),
        Reason::NobodyBound => layout.delivery(),
    };
    if diagnosis.reason == Reason::NobodyBound
        && let (Some(app), Some(bound)) = (diagnosis.app, bound)
        && !bound.has(&app)
    {
        return WayOn::Unbound(app);
    }
    WayOn::To(Outgoing::of(delivery, exchange, delivery.routing_key.as_str()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::{codec::Delay, topology::TopologySettings};

    #[test]
    fn finds_why_a_message_is_here() {
        let layout = Layout::celery(None);
        let key = |seconds| layout.key(Delay::from_seconds(seconds).unwrap(), "orders");
        for (exchange, key, reason, app) in [
            ("celery_delayed_delivery", key(5), Reason::NobodyBound, Some("orders")),
            // kombu publishes to the top level, whatever the delay.
            ("celery_delayed_27", key(0), Reason::NobodyBound, Some("orders")),
            ("celery_delayed_3", key(16), Reason::NobodyBound, Some("orders")),
            ("celery_delayed_3", key(17), Reason::NotPassedOn, Some("orders")),
            ("celery_delayed_27", "orders".into(), Reason::Malformed, None),
            ("celery", "orders".into(), Reason::Foreign, None),
        ] {
            let diagnosis = diagnose(&layout, exchange, &key);
            assert_eq!((diagnosis.reason, diagnosis.app.as_deref()), (reason, app), "{exchange} {key}");
        }
    }

    #[test]
    fn the_queue_is_the_one_that_the_guard_declares() {
        let topology = Topology::new(TopologySettings::default());
        assert_eq!(queue(&topology, &Layout::nservicebus()).name, "delayline.guard.nservicebus");
    }
}
