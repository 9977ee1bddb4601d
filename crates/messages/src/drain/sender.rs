//! Sending messages on through a router, many at a time, each with a confirm.

use std::time::Duration;

use delayline_amqp::{AmqpError, Delivery, Place};
use delayline_client::{
    Router,
    router::{Cause, Outcome, Pipeline},
};
use delayline_core::{
    codec::AppKey,
    message::{Quota, direct},
};
use delayline_settings::Settings;

use super::Outgoing;

/// The most messages that wait for a confirm. If the process is killed, this many can arrive twice.
pub(super) const WINDOW: usize = 256;

/// The most bytes of bodies in flight, unless a single message is larger.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// After this many refusals in a row with a possible cause outside the messages, the run ends.
const REFUSALS: u32 = 10;

/// The codes with which a broker refuses the exchange instead of the message.
const NO_PERMISSION: u16 = 403;
const NOT_FOUND: u16 = 404;

/// The application name that the router is given; each message comes with its exchange and routing key.
const APP: &str = "delayline-sent-on";

/// What happened to a message.
#[expect(clippy::large_enum_variant, reason = "nearly every answer is a confirm")]
pub(super) enum Settled {
    /// The broker has confirmed its copy.
    Confirmed(Delivery),
    /// The broker has not accepted it, and this is why. The place of the message.
    Refused(Place, String),
}

/// A message whose copy is on its way.
struct InFlight {
    delivery: Delivery,
    /// Where it goes.
    exchange: String,
    /// How long its body is: the copy has it now.
    bytes: usize,
}

/// The router that sends messages on. It publishes them again after a lost connection, and finds the
/// message over which the broker closed a channel.
pub(super) fn router(settings: &Settings) -> Result<Router, AmqpError> {
    settings.router().window(WINDOW).quota(Quota::forwarding()).connect()
}

/// A pipeline that counts its messages, and gives up after too many refusals.
pub(super) struct Sender {
    pipeline: Pipeline<InFlight>,
    app: AppKey,
    bytes: usize,
    refusals: u32,
    /// How many messages have no answer although the caller stopped waiting for it.
    unanswered: usize,
}

impl Sender {
    pub(super) fn new(router: &Router) -> Self {
        let app = AppKey::new(APP).expect("a word");
        Self { pipeline: router.pipeline(), app, bytes: 0, refusals: 0, unanswered: 0 }
    }

    /// Whether another message may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.pipeline.in_flight() < WINDOW && self.bytes < MAX_BYTES
    }

    /// How many messages were not answered.
    pub(super) fn in_flight(&self) -> usize {
        self.pipeline.in_flight() + self.unanswered
    }

    /// Sends a message if it [`has_room`](Self::has_room), and appends an answer if there is
    /// one already.
    ///
    /// # Errors
    /// As for [`answers`](Self::answers).
    pub(super) fn send(
        &mut self,
        mut delivery: Delivery,
        outgoing: Outgoing,
        answers: &mut Vec<Settled>,
    ) -> Result<(), AmqpError> {
        let Outgoing { exchange, routing_key, properties, headers } = outgoing;
        let body = std::mem::take(&mut delivery.body);
        let sent = InFlight { delivery, exchange: exchange.clone(), bytes: body.len() };
        let mut message = direct::keyed(self.app.clone(), exchange, routing_key, body);
        (message.properties, message.headers) = (properties, headers);
        self.bytes += sent.bytes;
        match self.pipeline.push(sent, message) {
            Some(outcome) => self.settle(outcome, answers),
            None => Ok(()),
        }
    }

    /// Appends the broker's answers, waiting no longer than `limit` for the first.
    ///
    /// # Errors The broker gave no answer in time, or refuses everything. Answers that came before are
    /// appended; an unconfirmed message stays in its queue.
    pub(super) fn answers(&mut self, limit: Duration, answers: &mut Vec<Settled>) -> Result<(), AmqpError> {
        let mut said = Ok(());
        let mut next = self.pipeline.next_within(limit);
        while let Some(outcome) = next {
            said = said.and(self.settle(outcome, answers));
            next = self.pipeline.try_next();
        }
        said
    }

    fn settle(&mut self, outcome: Outcome<InFlight>, answers: &mut Vec<Settled>) -> Result<(), AmqpError> {
        let InFlight { delivery, exchange, bytes } = outcome.tag;
        self.bytes -= bytes;
        let error = match outcome.result {
            Ok(_) => {
                self.refusals = 0;
                answers.push(Settled::Confirmed(delivery));
                return Ok(());
            }
            Err(error) => error,
        };
        // A fault of one message is no evidence about the next.
        let is_its_own = match error.cause() {
            Cause::Invalid(_) => true,
            Cause::Rejected { code, .. } => ![NO_PERMISSION, NOT_FOUND].contains(code),
            _ => false,
        };
        let reason = match error.cause() {
            Cause::Returned { code, text } => {
                format!("exchange `{exchange}` routes it to no queue ({code}: {text})")
            }
            Cause::Rejected { .. } => error.cause().to_string(),
            Cause::Nacked => "the broker refused to store the message".into(),
            Cause::Invalid(invalid) => invalid.to_string(),
            // The refusal is not about this message, and the next ones would be refused too.
            cause => {
                self.unanswered += 1;
                return Err(AmqpError::Lost { reason: cause.to_string() });
            }
        };
        self.refusals += u32::from(!is_its_own);
        answers.push(Settled::Refused(Place::of(&delivery), reason.clone()));
        if self.refusals == REFUSALS {
            let reason = format!("{REFUSALS} messages in a row were refused, the last because {reason}");
            return Err(AmqpError::Lost { reason });
        }
        Ok(())
    }
}
