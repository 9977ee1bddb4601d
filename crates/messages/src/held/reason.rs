//! Why a message is in the unroutable queue: pure.

use delayline_core::shell::command;
use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::drain::Outgoing;
use delayline_amqp::Delivery;
use delayline_core::{
    codec::{Level, RoutingKey},
    topology::Names,
};

use super::{Bound, KeptCause, WayOn};

/// Why a message could not be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It was due, and no queue is bound for its app key.
    NobodyBound,
    /// An exchange of the set did not route it although its key is valid: a binding of the set is missing.
    NotPassedOn,
    /// Its routing key is malformed.
    Malformed,
    /// It came through an exchange that is not of this set.
    Foreign,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NobodyBound, Self::NotPassedOn, Self::Malformed, Self::Foreign];

    /// Its name, for people and scripts.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NobodyBound => "nobody-bound",
            Self::NotPassedOn => "not-passed-on",
            Self::Malformed => "malformed",
            Self::Foreign => "foreign",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Reason {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join("`, `");
            format!("`{text}` is not a reason; use `{all}`")
        })
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The diagnosis of an unroutable message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The app it is for; `None` if its key does not name one.
    pub app: Option<String>,
    /// Why it is here.
    #[schemars(with = "String")]
    pub reason: Reason,
    /// Details of the fault, if any.
    pub detail: Option<String>,
}

/// Finds out why a message is unroutable, from its exchange and key.
#[must_use]
pub fn diagnose(names: &Names, exchange: &str, routing_key: &str) -> Diagnosis {
    let key = match routing_key.parse::<RoutingKey>() {
        Ok(key) => key,
        Err(error) => {
            return Diagnosis { app: None, reason: Reason::Malformed, detail: Some(error.to_string()) };
        }
    };
    let (reason, detail) = if exchange == names.dispatch() {
        (Reason::NobodyBound, None)
    } else {
        match Level::all().find(|&level| names.level_exchange(level) == exchange) {
            // The bits above this level are done. If none are left, the message went on to dispatch. The
            // message does not show that: brokers record only the exchange it was published to.
            Some(level) if key.delay.seconds() & below(level) == 0 => (Reason::NobodyBound, None),
            Some(_) => {
                let detail = format!(
                    "exchange `{exchange}` did not pass it on: a binding of the set is missing. \
                     Run `{}`, then `{}`",
                    command(&["verify"]),
                    command(&["install"])
                );
                (Reason::NotPassedOn, Some(detail))
            }
            None => (Reason::Foreign, Some(format!("it came through exchange `{exchange}`"))),
        }
    };
    Diagnosis { app: Some(key.app.to_string()), reason, detail }
}

/// The bits at or below a level.
pub(super) const fn below(level: Level) -> u32 {
    level.units() | (level.units() - 1)
}

impl From<Diagnosis> for KeptCause {
    fn from(Diagnosis { app, reason, detail }: Diagnosis) -> Self {
        Self::new(app, reason.as_str(), detail)
    }
}

/// Where an unroutable message goes. If the bindings are unknown, it counts as bound.
pub(super) fn way_on(names: &Names, bound: Option<&Bound>, delivery: &Delivery) -> WayOn {
    let diagnosis = diagnose(names, &delivery.exchange, &delivery.routing_key);
    let (Some(exchange), Some(app)) = (diagnosis.way_on(names, &delivery.exchange), diagnosis.app) else {
        return WayOn::Nowhere;
    };
    if diagnosis.reason == Reason::NobodyBound && bound.is_some_and(|bound| !bound.has(&app)) {
        return WayOn::Unbound(app);
    }
    WayOn::To(Outgoing::of(delivery, exchange, delivery.routing_key.as_str()).into())
}

impl Diagnosis {
    /// Where the message can be sent: to dispatch if its delay has expired, else to the exchange that did
    /// not route it, with the rest of its delay. `None` if no exchange would route it.
    #[must_use]
    pub fn way_on(&self, names: &Names, exchange: &str) -> Option<String> {
        match self.reason {
            Reason::NobodyBound => Some(names.dispatch()),
            Reason::NotPassedOn => Some(exchange.to_owned()),
            Reason::Malformed | Reason::Foreign => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::codec::{AppKey, Delay};

    fn key(seconds: u64) -> String {
        RoutingKey::new(Delay::from_seconds(seconds).unwrap(), AppKey::new("app").unwrap()).encode()
    }

    #[test]
    fn finds_why_a_message_is_here() {
        let names = Names::new("delay".parse().unwrap());
        for (exchange, key, reason, way_on) in [
            ("delay.dispatch", key(5), Reason::NobodyBound, Some("delay.dispatch")),
            // A delay of 0, or zeros down from level 3: straight on to dispatch.
            ("delay", key(0), Reason::NobodyBound, Some("delay.dispatch")),
            ("delay.level.03", key(16), Reason::NobodyBound, Some("delay.dispatch")),
            ("delay.level.03", key(17), Reason::NotPassedOn, Some("delay.level.03")),
            ("delay", key(1), Reason::NotPassedOn, Some("delay")),
            ("delay", "garbage".into(), Reason::Malformed, None),
            ("delay.dispatch", "delay.0000.0001".into(), Reason::Malformed, None),
            ("elsewhere", key(5), Reason::Foreign, None),
        ] {
            let diagnosis = diagnose(&names, exchange, &key);
            assert_eq!(diagnosis.reason, reason, "{exchange} {key}");
            assert_eq!(diagnosis.way_on(&names, exchange).as_deref(), way_on, "{exchange} {key}");
        }
        let diagnosis = diagnose(&names, "delay", "delay.0000.0001");
        assert!(diagnosis.detail.unwrap().contains("2 of the seven words"));
    }

    #[test]
    fn reads_its_own_names() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
        }
        assert!("other".parse::<Reason>().unwrap_err().contains("nobody-bound"));
    }

    #[test]
    fn masks() {
        assert_eq!(Level::all().map(below).collect::<Vec<_>>()[..4], [1, 3, 7, 15]);
        assert_eq!(below(Level::TOP), (1 << 28) - 1);
    }
}
