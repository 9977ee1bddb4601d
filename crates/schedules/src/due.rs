//! The message of an occurrence. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use delayline_core::{
    codec::Delay,
    message::{InvalidMessage, Wire},
    topology::Unit,
};

use crate::{
    book::Sent,
    definition::{
        Spec, jitter_ms,
        name::{ScheduleName, message_id},
    },
};

/// An occurrence that is to be published.
pub(crate) struct Due {
    pub(crate) name: ScheduleName,
    pub(crate) rev: u64,
    pub(crate) at: Timestamp,
    /// Whether its message can be recalled.
    pub(crate) recall: bool,
}

impl Due {
    /// Its message, without the body, and the record of it. The delay counts from `base`.
    pub(crate) fn message(
        &self,
        spec: &Spec,
        zone: &TimeZone,
        unit: Unit,
        base: Timestamp,
    ) -> Result<(Wire, Sent), InvalidMessage> {
        let late = jitter_ms(spec, &self.name, self.at, unit);
        let left = self.at.duration_since(base) + SignedDuration::from_millis(late);
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        let delay = Delay::at_least_units(left, unit.duration())?;
        let mut message = spec.message(&self.name, self.at, zone, delay);
        if self.recall {
            message = message.with_id(message_id(&self.name, self.at, self.rev));
        }
        Ok((Wire::at(&message, unit, base)?, Sent(self.at.as_millisecond(), late, delay)))
    }
}
