//! The connections of a daemon, and its turn to publish.

use std::{thread, time::Duration};

use jiff::Timestamp;

use delayline_amqp::{AmqpError, Consumer, Delivery, Next};
use delayline_client::recall::Recaller;
use delayline_core::topology::Unit;

use crate::{
    error::{ScheduleError, doing},
    store::{Follower, Writer},
};

/// The connections of a daemon.
pub(crate) struct Line {
    pub(crate) follower: Follower,
    pub(crate) writer: Writer,
    pub(crate) turn: Consumer,
    /// What it holds while it is its turn.
    pub(crate) held: Option<Delivery>,
    pub(crate) recaller: Option<Recaller>,
}

impl Line {
    /// Whether it is this daemon's turn since now.
    pub(crate) fn takes_turn(&mut self) -> Result<bool, ScheduleError> {
        let mut taken = false;
        loop {
            match self.turn.next(Duration::ZERO) {
                Next::Delivery(delivery) => match self.held.replace(delivery) {
                    // One is enough.
                    Some(old) => self.turn.ack(old).map_err(doing("taking the turn to publish"))?,
                    None => taken = true,
                },
                Next::Timeout => return Ok(taken),
                Next::Ended(cause) => {
                    let ended = || AmqpError::Lost { reason: "the consumer ended".into() };
                    return Err(doing("taking the turn to publish")(cause.unwrap_or_else(ended)));
                }
            }
        }
    }
}

/// The instant from which delays count: now, or the beginning of this second. A message waits for whole
/// seconds, so it is late by the part of a second in which it was published. Most occurrences are at the
/// full second. So messages are published at the beginning of a second.
pub(crate) fn base(unit: Unit) -> Timestamp {
    let unit = i64::from(unit.millis());
    loop {
        let now = Timestamp::now().as_millisecond();
        let into = now % unit;
        if unit < 100 || into < unit / 4 {
            let base = if unit < 100 { now } else { now - into };
            return Timestamp::from_millisecond(base).unwrap_or(Timestamp::MAX);
        }
        thread::sleep(Duration::from_millis((unit - into).unsigned_abs()));
    }
}
