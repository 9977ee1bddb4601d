//! Whose levels a canary's messages go through.

use delayline_admin::layout_status;
use delayline_core::{
    Message,
    codec::{AppKey, Delay, Level, RoutingKey},
    topology::{Binding, Endpoint, Names},
};
use delayline_settings::{Layout, Settings};

use super::CanaryError;

/// The levels of the set, or those that the library of others has declared.
#[derive(Debug, Clone)]
pub(super) enum Way {
    Set(Names),
    Layout(Layout),
}

impl Way {
    /// Whether a canary may go there. Behind unguarded levels of others, its messages would stall
    /// them for everybody if its queue was lost while some are on their way.
    pub(super) fn check(&self, settings: &Settings) -> Result<(), CanaryError> {
        let Self::Layout(layout) = self else { return Ok(()) };
        let status =
            layout_status(settings, layout).map_err(|error| CanaryError::Layout(error.to_string()))?;
        match status.is_guarded() {
            true => Ok(()),
            false => Err(CanaryError::Unguarded { layout: layout.clone() }),
        }
    }

    /// The queue of the canary with this slot.
    pub(super) fn queue(&self, slot: u8) -> String {
        match self {
            Self::Set(names) => names.canary(slot),
            Self::Layout(layout) => layout.canary(slot),
        }
    }

    /// What leads its messages there.
    pub(super) fn binding(&self, app: &AppKey, slot: u8) -> Binding {
        let (source, key) = match self {
            Self::Set(names) => (names.dispatch(), RoutingKey::binding_pattern(app)),
            Self::Layout(layout) => (layout.delivery(), format!("#.{app}")),
        };
        Binding { source, destination: Endpoint::Queue(self.queue(slot)), key }
    }

    /// A message of a canary. In a layout of others it enters at its first set bit, as NServiceBus
    /// does it, and stays in the same queues as one that enters at the top.
    pub(super) fn message(&self, app: &AppKey, delay: Delay) -> Message {
        const BODY: &str = "delayline canary";
        match self {
            Self::Set(_) => Message::after(app.clone(), delay, BODY),
            Self::Layout(layout) => {
                let first = Level::all().rev().find(|level| delay.seconds() & level.units() != 0);
                let exchange = first.map_or_else(|| layout.delivery(), |level| layout.level(level));
                Message::keyed(app.clone(), exchange, layout.key(delay, app.as_str()), BODY)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use delayline_core::{message::Wire, topology::Unit};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn goes_the_way_of_others_with_a_key_of_theirs() {
        let way = Way::Layout(Layout::celery(None));
        let app = AppKey::new("delayline-canary.3").unwrap();
        let message = way.message(&app, Delay::from_seconds(5).unwrap());
        let wire = Wire::at(&message, Unit::SECOND, Timestamp::now()).unwrap();
        assert_eq!(wire.exchange.as_deref(), Some("celery_delayed_2"));
        assert_eq!(wire.routing_key, "0.".repeat(25) + "1.0.1.delayline-canary.3");
        let binding = way.binding(&app, 3);
        assert_eq!(
            (binding.source.as_str(), binding.key.as_str()),
            ("celery_delayed_delivery", "#.delayline-canary.3")
        );
        assert_eq!(way.queue(3), "delayline.canary.celery.3");
    }
}
