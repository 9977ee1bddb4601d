//! Publishing messages, and writing records.

use std::time::{Duration, Instant};

use delayline_amqp::{AmqpError, Event, Outstanding, Publisher};
use delayline_core::{
    codec::AppKey,
    message::{Headers, Properties},
    topology::{Names, Topology},
};
use delayline_settings::Settings;

use crate::{
    book::Record,
    error::{ScheduleError, doing},
    place::place,
};

/// How long the broker may take to confirm.
const CONFIRM: Duration = Duration::from_secs(15);

/// Publishes with confirms. Nothing is published a second time: if the connection is lost, it is unknown
/// what arrived.
pub(crate) struct Writer {
    publisher: Publisher,
    outstanding: Outstanding<()>,
    pub(crate) names: Names,
}

impl Writer {
    pub(crate) fn open(settings: &Settings, topology: &Topology) -> Result<Self, ScheduleError> {
        let publisher = Publisher::open(&settings.broker).map_err(ScheduleError::Connection)?;
        Ok(Self { publisher, outstanding: Outstanding::default(), names: topology.names().clone() })
    }

    /// Publishes a message without waiting for the confirm.
    pub(crate) fn push(
        &mut self,
        exchange: &str,
        key: String,
        (properties, headers): (Properties, Headers),
        body: &[u8],
    ) {
        self.outstanding.push((), body.len());
        self.publisher.publish(exchange, key, properties, headers, body);
    }

    /// Writes records of one owner, and waits until they are confirmed.
    pub(crate) fn write<'a>(
        &mut self,
        owner: Option<&AppKey>,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> Result<(), ScheduleError> {
        let exchange = place(&self.names, owner);
        for record in records {
            let body = serde_json::to_vec(record).unwrap_or_default();
            let properties =
                Properties { content_type: Some("application/json".into()), ..Properties::default() };
            self.push(&exchange, Topology::RECORD_KEY.into(), (properties, Headers::new()), &body);
        }
        self.confirm().map_err(doing("writing to the stream of schedules"))
    }

    /// Joins the daemons that wait for their turn.
    pub(crate) fn join(&mut self) -> Result<(), ScheduleError> {
        let exchange = self.names.schedules();
        self.push(&exchange, Topology::TURN_KEY.into(), (Properties::default(), Headers::new()), b"");
        self.confirm().map_err(doing("waiting for the turn to publish schedules"))
    }

    /// Waits until everything is confirmed.
    pub(crate) fn confirm(&mut self) -> Result<(), AmqpError> {
        let deadline = Instant::now() + CONFIRM;
        while !self.outstanding.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let lost = |reason: String| Err(AmqpError::Lost { reason });
            match self.publisher.next_within(left) {
                Some(Event::Ack { tag, multiple }) => drop(self.outstanding.settle(tag, multiple)),
                Some(Event::Nack { .. }) => return lost("the broker refused to store a message".into()),
                Some(Event::Returned(returned)) => {
                    let (exchange, text) = (returned.exchange, returned.text);
                    return lost(format!("exchange `{exchange}` routes a message to no queue ({text})"));
                }
                Some(Event::Blocked(reason)) => {
                    return lost(format!("the broker accepts no messages ({reason})"));
                }
                Some(Event::Unblocked) => {}
                Some(Event::Ended) => return Err(self.publisher.end(CONFIRM)),
                None => {
                    let reason = "it confirmed no message".into();
                    return Err(AmqpError::Silent { limit: CONFIRM, reason });
                }
            }
        }
        Ok(())
    }
}
