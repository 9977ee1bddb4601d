//! The facts about a failed message.

use crate::{
    codec::{AppKey, AppKeyError, RoutingKey},
    message::{Headers, Value, headers},
    topology::Names,
};

/// The history of a message: how often it was tried, since when, and where it was first published.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// How many retries there were.
    pub attempt: u32,
    /// When it failed for the first time, in ms since the epoch; `None` if it
    /// never did.
    pub first_failed: Option<i64>,
    /// The ms since the epoch after which it has expired.
    pub expires: Option<i64>,
    /// The exchange it was first published to.
    pub exchange: String,
    /// The routing key it was first published with.
    pub routing_key: String,
}

impl History {
    /// The history of a message that was published there and never failed.
    pub fn new(exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        Self { attempt: 0, first_failed: None, expires: None, exchange, routing_key }
    }
}

/// A message that failed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The application it belongs to.
    pub app: AppKey,
    /// Why it failed: the broker's reason in `x-death` (`rejected`, `expired`, `maxlen`,
    /// `delivery_limit`), or the application's own word.
    pub reason: String,
    /// When it failed, in ms since the epoch.
    pub failed: i64,
    /// Its history.
    pub history: History,
}

impl Failure {
    /// The failure of an application's message, at a time in ms since the epoch.
    pub fn new(app: AppKey, reason: impl Into<String>, failed: i64, history: History) -> Self {
        Self { app, reason: reason.into(), failed, history }
    }
}

/// One entry of `x-death`, reduced to the fields that are used.
#[derive(Default)]
struct Death<'a> {
    queue: &'a str,
    reason: &'a str,
    exchange: &'a str,
    routing_key: &'a str,
    /// The last millisecond of the second that the broker recorded.
    time: Option<i64>,
    expiration: Option<i64>,
}

impl<'a> Death<'a> {
    fn new(value: &'a Value) -> Option<Self> {
        let Value::Table(entry) = value else { return None };
        let first_key = match entry.get("routing-keys") {
            Some(Value::Array(keys)) => keys.first().and_then(text),
            _ => None,
        };
        let of = |name: &str| entry.get(name).and_then(text);
        Some(Self {
            queue: of("queue")?,
            reason: of("reason").unwrap_or_default(),
            exchange: of("exchange").unwrap_or_default(),
            routing_key: first_key.unwrap_or_default(),
            time: entry
                .get("time")
                .and_then(Value::as_i64)
                .map(|second| second.saturating_mul(1_000).saturating_add(999)),
            expiration: of("original-expiration").and_then(|text| text.parse().ok()),
        })
    }

    /// When the message expired because of its `expiration`. The broker erases the property and
    /// does not record when the time began. It began no later than the death.
    fn expires(&self, now: i64) -> Option<i64> {
        let lifetime = self.expiration?;
        let died = self.time.unwrap_or(now).min(now);
        Some(if self.reason == "expired" { died } else { died.saturating_add(lifetime) })
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// The entries of `x-death`, the latest first.
fn deaths(headers: &Headers) -> Vec<Death<'_>> {
    match headers.get("x-death") {
        Some(Value::Array(entries)) => entries.iter().filter_map(Death::new).collect(),
        _ => Vec::new(),
    }
}

/// Whether a message came to its application through the set. Otherwise the application published
/// it to the retry exchange, with its own record.
fn came_through(names: &Names, exchange: &str, deaths: &[Death<'_>]) -> bool {
    let published_for_retry = exchange == names.retry() && died(names, deaths).is_none();
    let carried = |death: &Death<'_>| names.is_on_the_way(death.queue) || names.carries(death.exchange);
    published_for_retry || names.carries(exchange) || deaths.iter().any(carried)
}

/// The death of a message in a queue of its application, if that was the last step.
fn died<'d, 'a>(names: &Names, deaths: &'d [Death<'a>]) -> Option<&'d Death<'a>> {
    deaths.first().filter(|death| !names.is_on_the_way(death.queue))
}

impl History {
    /// The history in the headers of a message that came through `exchange` with `routing_key`.
    ///
    /// Attempts are counted only if the message came to its application through the set, as every
    /// retry does. An application may copy the headers of a retry to another message, which has not
    /// failed yet.
    #[must_use]
    pub fn read(headers: &Headers, exchange: &str, routing_key: &str, names: &Names, now: i64) -> Self {
        let deaths = deaths(headers);
        let recorded = headers.get(headers::EXPIRES).and_then(Value::as_i64);
        let ours = came_through(names, exchange, &deaths);
        let number = |name: &str| headers.get(name).filter(|_| ours).and_then(Value::as_i64);
        let said = |name: &str| headers.get(name).filter(|_| ours).and_then(text);
        let oldest = deaths.last().map(|death| (death.exchange, death.routing_key));
        // The record of an earlier attempt takes precedence over the broker's later record.
        let (exchange, routing_key) = match (said(headers::EXCHANGE), said(headers::ROUTING_KEY)) {
            (Some(exchange), Some(routing_key)) => (exchange, routing_key),
            _ => oldest.unwrap_or((exchange, routing_key)),
        };
        Self {
            attempt: number(headers::ATTEMPT)
                .map_or(0, |attempt| u32::try_from(attempt.max(0)).unwrap_or(u32::MAX)),
            first_failed: number(headers::FIRST_FAILED).filter(|first| (1..=now).contains(first)),
            expires: recorded.or_else(|| deaths.iter().rev().find_map(|death| death.expires(now))),
            exchange: exchange.to_owned(),
            routing_key: routing_key.to_owned(),
        }
    }

    /// Whether the message has expired now.
    #[must_use]
    pub fn is_expired(&self, now: i64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl Failure {
    /// The failure of a message in the retry queue, from its headers.
    ///
    /// The app key is its routing key, or the last part of a delayed routing key.
    ///
    /// # Errors
    /// The routing key contains no app key.
    pub fn read(
        headers: &Headers,
        exchange: &str,
        routing_key: &str,
        names: &Names,
        now: i64,
    ) -> Result<Self, AppKeyError> {
        let app = match routing_key.parse::<RoutingKey>() {
            Ok(key) => key.app,
            Err(_) => AppKey::new(routing_key)?,
        };
        // A message that an application published here directly may have passed through the set
        // before. But since then, it has not died in a queue of its own.
        let deaths = deaths(headers);
        let death = died(names, &deaths);
        let said = headers.get(headers::FAILURE).and_then(text);
        let reason = death.map(|death| death.reason).or(said).unwrap_or("published");
        let failed = death.and_then(|death| death.time).unwrap_or(now).min(now);
        let history = History::read(headers, exchange, routing_key, names, now);
        let failed = failed.max(history.first_failed.unwrap_or(failed));
        Ok(Self { app, reason: reason.to_owned(), failed, history })
    }

    /// When it failed for the first time, in ms since the epoch.
    #[must_use]
    pub fn first_failed(&self) -> i64 {
        self.history.first_failed.unwrap_or(self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::SetName;

    const NOW: i64 = 1_700_000_000_500;

    fn death(queue: &str, reason: &str, exchange: &str, key: &str, more: &[(&str, Value)]) -> Value {
        let mut entry = Headers::from([
            ("queue".into(), queue.into()),
            ("reason".into(), reason.into()),
            ("exchange".into(), exchange.into()),
            ("routing-keys".into(), Value::Array(vec![key.into(), "cc".into()])),
            ("time".into(), Value::Timestamp(1_699_999_990)),
            ("count".into(), 1_i64.into()),
        ]);
        entry.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        Value::Table(entry)
    }

    fn read(headers: &Headers, key: &str) -> Result<Failure, AppKeyError> {
        Failure::read(headers, "delay.retry", key, &Names::new(SetName::default()), NOW)
    }

    fn dead(deaths: Vec<Value>) -> Headers {
        Headers::from([("x-death".into(), Value::Array(deaths))])
    }

    #[test]
    fn reads_a_first_failure() {
        let headers = dead(vec![death("in.billing", "rejected", "orders", "order.created", &[])]);
        let failure = read(&headers, "billing").unwrap();
        assert_eq!((failure.app.as_str(), failure.reason.as_str()), ("billing", "rejected"));
        assert_eq!((failure.failed, failure.first_failed()), (1_699_999_990_999, 1_699_999_990_999));
        let History { attempt, expires, exchange, routing_key, .. } = failure.history;
        assert_eq!((attempt, expires), (0, None));
        assert_eq!((exchange.as_str(), routing_key.as_str()), ("orders", "order.created"));
    }

    #[test]
    fn the_record_of_an_earlier_attempt_counts() {
        let mut headers = dead(vec![
            death("in.billing", "rejected", "delay.dispatch", "delay.x", &[]),
            death("delay.level.00", "expired", "delay", "delay.x", &[]),
        ]);
        for (name, value) in [
            (headers::ATTEMPT, Value::I64(3)),
            (headers::FIRST_FAILED, Value::I64(NOW - 50_000)),
            (headers::EXCHANGE, "orders".into()),
            (headers::ROUTING_KEY, "".into()),
            (headers::EXPIRES, Value::I64(NOW - 1)),
        ] {
            headers.insert(name.into(), value);
        }
        let failure = read(&headers, "billing").unwrap();
        assert_eq!((failure.history.attempt, failure.first_failed()), (3, NOW - 50_000));
        assert_eq!((failure.history.exchange.as_str(), failure.history.routing_key.as_str()), ("orders", ""));
        assert!(failure.history.is_expired(NOW));
    }

    #[test]
    fn decodes_a_delayed_key_and_refuses_an_invalid_app_key() {
        let delayed = RoutingKey::new("5s".parse().unwrap(), "eu.orders".parse().unwrap()).encode();
        assert_eq!(read(&Headers::new(), &delayed).unwrap().app.as_str(), "eu.orders");
        assert_eq!(read(&Headers::new(), "").unwrap_err(), AppKeyError::Empty);
        assert!(read(&Headers::new(), "a b").is_err() && read(&Headers::new(), &"x".repeat(200)).is_err());
    }

    #[test]
    fn a_message_that_was_published_here_carries_its_own_reason() {
        let mut headers = dead(vec![death("delay.level.03", "expired", "delay", "delay.x", &[])]);
        assert_eq!(read(&headers, "billing").unwrap().reason, "published");
        headers.insert(headers::FAILURE.into(), "timeout".into());
        let failure = read(&headers, "billing").unwrap();
        assert_eq!((failure.reason.as_str(), failure.failed), ("timeout", NOW));
        // The landing queue is the last step.
        let landing = death("delay.landing.billing", "expired", "delay.dispatch", "delay.x", &[]);
        let level = death("delay.level.03", "expired", "delay", "delay.x", &[]);
        headers.insert("x-death".into(), Value::Array(vec![landing, level]));
        assert_eq!(read(&headers, "billing").unwrap().reason, "timeout");
    }

    #[test]
    fn a_record_that_an_application_copied_to_another_message_does_not_count() {
        let copied = |deaths: Vec<Value>| {
            let mut headers = dead(deaths);
            for (name, value) in [
                (headers::ATTEMPT, Value::I64(7)),
                (headers::FIRST_FAILED, Value::I64(NOW - 50_000)),
                (headers::EXCHANGE, "orders".into()),
                (headers::ROUTING_KEY, "order.created".into()),
            ] {
                headers.insert(name.into(), value);
            }
            headers
        };
        let rejected = |exchange| death("in.billing", "rejected", exchange, "mail.sent", &[]);
        let failure = read(&copied(vec![rejected("mails")]), "billing").unwrap();
        assert_eq!((failure.history.attempt, failure.first_failed()), (0, failure.failed));
        assert_eq!((&*failure.history.exchange, &*failure.history.routing_key), ("mails", "mail.sent"));
        // A message that came through the set is a retry, even with other queues in between.
        let landing = || death("delay.landing.billing", "expired", "delay.dispatch", "delay.x", &[]);
        let elsewhere = || death("other.billing", "expired", "delay.dispatch", "delay.x", &[]);
        for deaths in [
            vec![rejected("delay")],
            vec![rejected("delay.dispatch")],
            vec![rejected("mine"), landing()],
            vec![rejected("mine"), elsewhere()],
            // The application published it to the retry exchange, so its record counts.
            vec![landing()],
            vec![],
        ] {
            let failure = read(&copied(deaths), "billing").unwrap();
            assert_eq!((failure.history.attempt, &*failure.history.exchange), (7, "orders"));
        }
        let names = Names::new(SetName::default());
        let seen = |exchange| History::read(&copied(vec![]), exchange, "order.created", &names, NOW).attempt;
        assert_eq!([seen("mails"), seen(""), seen("delay"), seen("delay.dispatch")], [0, 0, 7, 7]);
    }

    #[test]
    fn the_erased_expiration_is_found_again() {
        let lifetime = [("original-expiration", Value::from("60000"))];
        let expires = |reason| {
            let headers = dead(vec![death("in.billing", reason, "orders", "k", &lifetime)]);
            read(&headers, "billing").unwrap().history.expires
        };
        assert_eq!(expires("rejected"), Some(1_699_999_990_999 + 60_000));
        assert_eq!(expires("expired"), Some(1_699_999_990_999));
    }

    #[test]
    fn invalid_headers_are_no_history() {
        let headers = Headers::from([
            ("x-death".into(), Value::Array(vec![Value::Void, Value::Table(Headers::new())])),
            (headers::ATTEMPT.into(), "many".into()),
            (headers::FIRST_FAILED.into(), Value::I64(i64::MAX)),
            (headers::EXCHANGE.into(), Value::Void),
        ]);
        let failure = read(&headers, "billing").unwrap();
        assert_eq!((failure.history.attempt, failure.first_failed()), (0, NOW));
        assert_eq!(failure.history.exchange, "delay.retry");
        let negative = Headers::from([(headers::ATTEMPT.into(), Value::I64(-5))]);
        assert_eq!(read(&negative, "billing").unwrap().history.attempt, 0);
        let huge = Headers::from([(headers::ATTEMPT.into(), Value::I64(i64::MAX))]);
        assert_eq!(read(&huge, "billing").unwrap().history.attempt, u32::MAX);
    }
}
