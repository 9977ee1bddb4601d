//! Reads the gateway of a message in the unroutable queue from its headers. Pure.

use jiff::Timestamp;

use delayline_core::{
    codec::{Delay, RoutingKey},
    message::{Headers, Properties, Value, headers},
    topology::{Names, Unit},
};

use super::{
    parcel::{GATEWAY, Noted, in_the_levels},
    x_delay::{self, X_DELAY},
};

/// A message that a gateway could not send on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAside {
    /// The gateway, which is also the exchange of its consumers.
    pub gateway: String,
    /// The routing key with which it was published.
    pub routing_key: String,
    /// The next step it needs.
    pub remains: Remains,
}

/// The next step that a message needs to be delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remains {
    /// Delivery to its consumers: its delay has expired, or it never had one.
    Consumers,
    /// The gateway again, through this exchange and with this routing key: it must still wait.
    Gateway {
        /// The exchange.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
    /// Its gateway is missing, or was missing when it was due.
    Way,
    /// Another delay, because of this fault in its delay.
    Delay(String),
}

impl SetAside {
    /// Reads these headers of a message that waits in the unroutable queue of a set and arrived
    /// there through this exchange. `None` if it did not come through a gateway.
    #[must_use]
    pub fn of(
        names: &Names,
        unit: Unit,
        (exchange, routing_key): (&str, &str),
        headers: &Headers,
        now: Timestamp,
    ) -> Option<Self> {
        let rejected = exchange == names.unroutable();
        let now = now.as_millisecond();
        if let Some(noted) = headers.contains_key(GATEWAY).then(|| Noted::of(headers)).flatten()
            && let Ok(key) = routing_key.parse::<RoutingKey>()
            && let Some(gateway) = Names::gateway_of_app(key.app.as_str())
        {
            let again =
                || Remains::Gateway { exchange: names.dispatch(), routing_key: routing_key.to_owned() };
            let remains = match in_the_levels(noted.due.saturating_sub(now), unit) {
                _ if !rejected => Remains::Way,
                Ok(Delay::ZERO) => Remains::Consumers,
                _ => again(),
            };
            return Some(Self { gateway: gateway.into(), routing_key: noted.key, remains });
        }
        let gateway = rejected.then(|| came_in_through(names, headers)).flatten()?;
        let again =
            Remains::Gateway { exchange: Names::gateway_entry(gateway), routing_key: routing_key.to_owned() };
        let remains = match x_delay::read(headers) {
            Err(error) => Remains::Delay(error.to_string()),
            Ok(delay) => match in_the_levels(delay.unwrap_or(0), unit) {
                Err(error) => Remains::Delay(error.to_string()),
                Ok(Delay::ZERO) => Remains::Consumers,
                Ok(_) => again,
            },
        };
        Some(Self { gateway: gateway.into(), routing_key: routing_key.into(), remains })
    }

    /// Properties and headers as its consumers get them, with a record of where it arrived.
    #[must_use]
    pub fn restored(&self, properties: &Properties, headers: &Headers) -> (Properties, Headers) {
        let (mut properties, mut kept) = (properties.clone(), headers.clone());
        match Noted::of(headers) {
            // Its delay was read on arrival.
            Some(noted) => _ = noted.put_back(&mut properties, &mut kept),
            None => {
                if let Ok(Some(delay @ 1..)) = x_delay::read(headers) {
                    kept.insert(X_DELAY.into(), x_delay::done(delay));
                }
            }
        }
        kept.insert(headers::EXCHANGE.into(), Names::gateway_entry(&self.gateway).into());
        kept.insert(headers::ROUTING_KEY.into(), self.routing_key.as_str().into());
        (properties, kept)
    }
}

/// The gateway whose queue of incoming messages it passed.
fn came_in_through<'a>(names: &Names, headers: &'a Headers) -> Option<&'a str> {
    let Some(Value::Array(deaths)) = headers.get("x-death") else { return None };
    deaths.iter().find_map(|death| {
        let Value::Table(death) = death else { return None };
        let Some(Value::Text(queue)) = death.get("queue") else { return None };
        names.gateway_of(queue).filter(|gateway| names.gateway(gateway) == *queue)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::codec::AppKey;

    const NOW: i64 = 1_000_000;

    fn of(exchange: &str, key: &str, headers: &Headers) -> Option<SetAside> {
        let names = Names::new("delay".parse().unwrap());
        let now = Timestamp::from_millisecond(NOW).unwrap();
        SetAside::of(&names, Unit::SECOND, (exchange, key), headers, now)
    }

    fn rejected(delay: impl Into<Value>) -> Headers {
        let death = |queue: &str| Value::Table(Headers::from([("queue".into(), queue.into())]));
        let deaths = ["delay.gateway-due.orders", "delay.gateway.orders"].map(death);
        Headers::from([(X_DELAY.into(), delay.into()), ("x-death".into(), Value::Array(deaths.into()))])
    }

    fn waited(due: i64) -> Headers {
        let own = Headers::from([("CC".into(), Value::Array(vec!["copy".into()]))]);
        let noted = Headers::from([
            ("key".into(), "lonely".into()),
            ("due".into(), due.into()),
            ("expiration".into(), "100".into()),
            ("headers".into(), own.into()),
        ]);
        let ours = [(GATEWAY.into(), noted.into()), (X_DELAY.into(), Value::I32(5_000))];
        let levels = [("x-death".into(), Value::Array(vec![])), (headers::DUE.into(), 9.into())];
        ours.into_iter().chain(levels).collect()
    }

    fn inside() -> String {
        RoutingKey::new(Delay::ZERO, AppKey::new("gateway.orders").unwrap()).encode()
    }

    #[test]
    fn finds_the_gateway_the_key_and_the_next_step() {
        let through = |exchange: &str, key: &str| Remains::Gateway {
            exchange: exchange.into(),
            routing_key: key.into(),
        };
        for (exchange, key, headers, remains) in [
            ("delay.unroutable", "lonely", rejected(Value::Void), Remains::Consumers),
            ("delay.unroutable", "lonely", rejected(1_000), Remains::Consumers),
            ("delay.unroutable", "lonely", rejected(60_000), through("orders.in", "lonely")),
            ("delay.unroutable", &inside(), waited(NOW), Remains::Consumers),
            ("delay.unroutable", &inside(), waited(NOW + 60_000), through("delay.dispatch", &inside())),
            ("delay.dispatch", &inside(), waited(NOW), Remains::Way),
        ] {
            let found = of(exchange, key, &headers).unwrap();
            assert_eq!((found.gateway.as_str(), found.routing_key.as_str()), ("orders", "lonely"));
            assert_eq!(found.remains, remains, "{exchange} {headers:?}");
        }
        for delay in [Value::from("soon"), i64::MAX.into()] {
            let found = of("delay.unroutable", "lonely", &rejected(delay)).unwrap();
            assert!(matches!(found.remains, Remains::Delay(_)), "{found:?}");
        }
    }

    #[test]
    fn a_message_without_a_gateway_is_none() {
        assert_eq!(of("delay", "lonely", &rejected(5)), None, "a publisher can write any header");
        assert_eq!(of("delay.unroutable", "lonely", &Headers::new()), None);
        let odd = Headers::from([(GATEWAY.into(), 5.into())]);
        assert_eq!(of("delay.unroutable", &inside(), &odd), None);
        assert_eq!(of("delay.unroutable", "lonely", &waited(NOW)), None);
    }

    #[test]
    fn consumers_get_it_unchanged() {
        let found = of("delay.unroutable", &inside(), &waited(NOW)).unwrap();
        let (properties, kept) = found.restored(&Properties::default(), &waited(NOW));
        assert_eq!(properties.expiration.as_deref(), Some("100"));
        let expected = Headers::from([
            ("CC".into(), Value::Array(vec!["copy".into()])),
            (X_DELAY.into(), Value::I32(-5_000)),
            (headers::EXCHANGE.into(), "orders.in".into()),
            (headers::ROUTING_KEY.into(), "lonely".into()),
        ]);
        assert_eq!(kept, expected);
        let found = of("delay.unroutable", "lonely", &rejected(300)).unwrap();
        let (_, kept) = found.restored(&Properties::default(), &rejected(300));
        assert_eq!(kept[X_DELAY], Value::I32(-300));
    }
}
