//! The steps of a message through a gateway. Pure.
//!
//! Values that would move, expire or lose it in the levels travel in one header,
//! `delayline-gateway`. They are restored when it leaves.

use delayline_core::{
    codec::{AppKey, Delay},
    message::{Headers, InvalidMessage, Message, Properties, Value, direct, headers, is_forbidden},
    topology::Unit,
};

use super::x_delay::{self, X_DELAY};

/// The header with all values to restore.
pub(super) const GATEWAY: &str = "delayline-gateway";

/// Its fields.
const KEY: &str = "key";
const DUE: &str = "due";
const EXPIRATION: &str = "expiration";
const USER: &str = "user";
const HEADERS: &str = "headers";

/// How much before its due time a message leaves the levels, so that their own lateness does not
/// make it late. At 1,000 messages a second, two slow cores pass on the slowest 1 % up to 170 ms
/// late (`cargo bench -p delayline-bench --bench gateway`). A daemon holds it for that much longer.
const LEAD_MS: i64 = 250;

/// A message as it was taken from a queue.
#[derive(Debug)]
pub(super) struct Parcel {
    /// Whether it comes from the levels, and not from a publisher. Only then is the gateway's
    /// header trusted.
    pub(super) waited: bool,
    pub(super) routing_key: String,
    pub(super) properties: Properties,
    pub(super) headers: Headers,
    pub(super) body: Vec<u8>,
}

/// The next step for a message.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Publish this now.
    Now(Message),
    /// Publish this at this time, in ms since the epoch.
    At(i64, Message),
}

/// Why a gateway cannot handle a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error(transparent)]
    Delay(#[from] x_delay::Unreadable),
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    #[error("its header `delayline-gateway` was not written by a gateway")]
    Foreign,
}

/// A gateway, reduced to the fields that its messages need.
#[derive(Debug, Clone)]
pub(super) struct Route {
    /// The exchange that consumers are bound to.
    pub(super) exchange: String,
    /// The exchange that publishers use.
    pub(super) entry: String,
    /// The app key under which messages return from the levels.
    pub(super) app: AppKey,
    pub(super) unit: Unit,
}

impl Route {
    /// The next step for a message that was taken at `now`, in ms since the epoch.
    ///
    /// # Errors
    /// Its due time is unreadable, or later than the levels can hold it.
    pub(super) fn step(&self, parcel: Parcel, now: i64) -> Result<Step, Refused> {
        if parcel.waited { self.leaves(parcel, now) } else { self.enters(parcel, now) }
    }

    /// A message that a publisher sent.
    fn enters(&self, mut parcel: Parcel, now: i64) -> Result<Step, Refused> {
        let delay = x_delay::read(&parcel.headers)?.filter(|delay| *delay > 0);
        let Some(delay) = delay else {
            // As the plugin does it, with the header unchanged.
            return Ok(Step::Now(self.out(parcel.routing_key.clone(), parcel)));
        };
        let due = now.saturating_add(delay);
        let wait = in_the_levels(delay, self.unit)?;
        if wait == Delay::ZERO {
            parcel.headers.insert(X_DELAY.into(), x_delay::done(delay));
            return Ok(Step::At(due, self.out(parcel.routing_key.clone(), parcel)));
        }
        let Parcel { routing_key, mut properties, headers: all, body, .. } = parcel;
        let (aside, mut kept): (Headers, Headers) = all.into_iter().partition(|(name, _)| is_put_aside(name));
        kept.insert(headers::EXCHANGE.into(), self.entry.as_str().into());
        kept.insert(headers::ROUTING_KEY.into(), routing_key.as_str().into());
        let mut noted = Headers::from([
            (KEY.into(), routing_key.into()),
            (DUE.into(), due.into()),
            (HEADERS.into(), aside.into()),
        ]);
        noted.extend(properties.expiration.take().map(|text| (EXPIRATION.into(), text.into())));
        noted.extend(properties.user_id.take().map(|text| (USER.into(), text.into())));
        kept.insert(GATEWAY.into(), noted.into());
        let mut message = Message::after(self.app.clone(), wait, body).with_properties(properties);
        message.headers = kept;
        Ok(Step::Now(message))
    }

    /// A message that has been in the levels.
    fn leaves(&self, mut parcel: Parcel, now: i64) -> Result<Step, Refused> {
        let noted = Noted::of(&parcel.headers).ok_or(Refused::Foreign)?;
        // The clock of the daemon that received it may be ahead of this one.
        let wait = in_the_levels(noted.due.saturating_sub(now), self.unit)?;
        if wait != Delay::ZERO {
            let mut again = Message::after(self.app.clone(), wait, parcel.body);
            (again.properties, again.headers) = (parcel.properties, parcel.headers);
            return Ok(Step::Now(again));
        }
        let (key, due) = (noted.key.clone(), noted.due);
        noted.put_back(&mut parcel.properties, &mut parcel.headers)?;
        Ok(Step::At(due, self.out(key, parcel)))
    }

    /// The message as consumers get it. A `user_id` becomes a header: the broker accepts the
    /// property only from the user it names.
    fn out(&self, routing_key: String, parcel: Parcel) -> Message {
        let Parcel { mut properties, headers: mut kept, body, .. } = parcel;
        if let Some(user) = properties.user_id.take() {
            kept.insert(headers::USER_ID.into(), user.into());
        }
        let mut message = direct::verbatim(self.app.clone(), self.exchange.clone(), routing_key, body);
        (message.properties, message.headers) = (properties, kept);
        message
    }
}

/// How many whole units a message waits in the levels, if it is due after this many ms.
pub(super) fn in_the_levels(rest: i64, unit: Unit) -> Result<Delay, Refused> {
    let units = rest.saturating_sub(LEAD_MS).max(0) / i64::from(unit.millis());
    let units = u64::try_from(units).unwrap_or(0);
    Ok(Delay::from_seconds(units).map_err(InvalidMessage::from)?)
}

/// The values that a message carries in the levels.
pub(super) struct Noted {
    /// Its own routing key.
    pub(super) key: String,
    /// When it is due, in ms since the epoch.
    pub(super) due: i64,
    rest: Headers,
}

impl Noted {
    /// `None` if no gateway wrote it.
    pub(super) fn of(headers: &Headers) -> Option<Self> {
        let Some(Value::Table(mut rest)) = headers.get(GATEWAY).cloned() else { return None };
        let due = rest.get(DUE)?.as_i64()?;
        match rest.remove(KEY)? {
            Value::Text(key) => Some(Self { key, due, rest }),
            _ => None,
        }
    }

    /// Restores properties and headers, and marks the delay as expired.
    pub(super) fn put_back(
        mut self,
        properties: &mut Properties,
        headers: &mut Headers,
    ) -> Result<(), x_delay::Unreadable> {
        headers.retain(|name, _| !is_put_aside(name));
        if let Some(Value::Table(aside)) = self.rest.remove(HEADERS) {
            headers.extend(aside);
        }
        if let Some(delay) = x_delay::read(headers)? {
            headers.insert(X_DELAY.into(), x_delay::done(delay));
        }
        if let Some(Value::Text(text)) = self.rest.remove(EXPIRATION) {
            properties.expiration = Some(text);
        }
        if let Some(Value::Text(user)) = self.rest.remove(USER) {
            properties.user_id = Some(user);
        }
        Ok(())
    }
}

/// Headers that would move, hold back or lose a message in the levels, or that a gateway writes
/// itself.
fn is_put_aside(name: &str) -> bool {
    is_forbidden(name) || name.starts_with("delayline-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::Names;

    const NOW: i64 = 1_000_000;

    fn route() -> Route {
        Route {
            exchange: "orders".into(),
            entry: "orders.in".into(),
            app: Names::gateway_app("orders").unwrap(),
            unit: Unit::SECOND,
        }
    }

    fn parcel(headers: Headers) -> Parcel {
        let properties = Properties {
            message_id: Some("7".into()),
            expiration: Some("100".into()),
            user_id: Some("shop".into()),
            ..Properties::default()
        };
        Parcel {
            waited: false,
            routing_key: "order.created".into(),
            properties,
            headers,
            body: b"body".to_vec(),
        }
    }

    fn delayed(delay: i64) -> Headers {
        Headers::from([(X_DELAY.into(), delay.into())])
    }

    fn exchange_and_key(message: &Message) -> (&str, &str) {
        let direct = direct::of(message).unwrap();
        (&direct.exchange, &direct.routing_key)
    }

    #[test]
    fn a_message_without_a_delay_passes_unchanged() {
        for headers in [Headers::new(), delayed(0), delayed(-5), Headers::from([("CC".into(), "x".into())])] {
            let Ok(Step::Now(message)) = route().step(parcel(headers.clone()), NOW) else { panic!() };
            assert_eq!(exchange_and_key(&message), ("orders", "order.created"));
            assert_eq!(message.properties.expiration.as_deref(), Some("100"));
            let mut expected = headers;
            expected.insert(headers::USER_ID.into(), "shop".into());
            assert_eq!(message.headers, expected);
        }
    }

    #[test]
    fn a_message_due_within_a_second_never_enters_the_levels() {
        for delay in [1, 999, 1_000, 1_249] {
            let Ok(Step::At(due, message)) = route().step(parcel(delayed(delay)), NOW) else { panic!() };
            assert_eq!((due, exchange_and_key(&message).1), (NOW + delay, "order.created"));
            assert_eq!(message.headers[X_DELAY].as_i64(), Some(-delay));
        }
    }

    #[test]
    fn whole_seconds_wait_in_the_levels_and_the_rest_in_the_daemon() {
        for (delay, seconds) in [(1_250, 1), (2_249, 1), (2_250, 2), (90_500, 90), (5_000_000_000, 4_999_999)]
        {
            let Ok(Step::Now(message)) = route().step(parcel(delayed(delay)), NOW) else { panic!() };
            assert!(direct::of(&message).is_none());
            assert_eq!(
                message.when,
                delayline_core::message::When::After(Delay::from_seconds(seconds).unwrap()),
                "{delay}"
            );
            assert_eq!(message.properties.expiration, None, "it would leave its level early");
        }
    }

    #[test]
    fn a_message_leaves_unchanged() {
        let mut headers = delayed(90_500);
        for (name, value) in [
            ("CC", Value::Array(vec!["copy".into()])),
            ("x-death", Value::Array(vec![])),
            ("x-delivery-count", 3.into()),
            ("delayline-due", 5.into()),
            ("mine", true.into()),
        ] {
            headers.insert(name.into(), value);
        }
        let Ok(Step::Now(mut inside)) = route().step(parcel(headers.clone()), NOW) else { panic!() };
        assert!(inside.headers.keys().all(|name| !is_forbidden(name)), "{:?}", inside.headers);
        // The headers that the levels add.
        inside.headers.insert("x-death".into(), Value::Array(vec![Value::Void]));
        inside.headers.insert("x-first-death-queue".into(), "delay.level.06".into());
        inside.headers.insert(headers::DUE.into(), 9.into());
        let back = Parcel {
            waited: true,
            routing_key: "delay.gateway.orders".into(),
            properties: inside.properties,
            headers: inside.headers,
            body: inside.body,
        };
        let Ok(Step::At(due, message)) = route().step(back, NOW + 90_007) else { panic!() };
        assert_eq!(due, NOW + 90_500);
        assert_eq!(exchange_and_key(&message), ("orders", "order.created"));
        assert_eq!(message.body, b"body");
        assert_eq!(message.properties.expiration.as_deref(), Some("100"));
        headers.insert(X_DELAY.into(), Value::I32(-90_500));
        headers.insert(headers::USER_ID.into(), "shop".into());
        assert_eq!(message.headers, headers);
    }

    #[test]
    fn refuses_with_a_reason() {
        let step = |headers| route().step(parcel(headers), NOW);
        let text = Headers::from([(X_DELAY.into(), "soon".into())]);
        assert!(matches!(step(text), Err(Refused::Delay(_))));
        assert!(matches!(step(delayed(i64::MAX)), Err(Refused::Invalid(InvalidMessage::Delay(_)))));
        let odd = Headers::from([(GATEWAY.into(), Headers::from([(DUE.into(), 5.into())]).into())]);
        for headers in [odd, Headers::new()] {
            let found = route().step(Parcel { waited: true, ..parcel(headers) }, NOW);
            assert_eq!(found, Err(Refused::Foreign));
        }
    }

    fn noted(due: i64) -> Headers {
        let noted = Headers::from([(DUE.into(), due.into()), (KEY.into(), "theirs".into())]);
        Headers::from([(GATEWAY.into(), noted.into()), (X_DELAY.into(), 5.into())])
    }

    #[test]
    fn a_gateways_header_from_a_publisher_does_not_count() {
        let Ok(Step::At(due, message)) = route().step(parcel(noted(NOW + 1_000_000)), NOW) else { panic!() };
        assert_eq!((due, exchange_and_key(&message).1), (NOW + 5, "order.created"));
    }

    #[test]
    fn a_message_that_returns_long_before_it_is_due_waits_in_the_levels_again() {
        let early = Parcel { waited: true, ..parcel(noted(NOW + 60_500)) };
        let Ok(Step::Now(message)) = route().step(early, NOW) else { panic!() };
        assert_eq!(message.when, delayline_core::message::When::After(Delay::from_seconds(60).unwrap()));
        assert!(message.headers.contains_key(GATEWAY));
    }
}
