//! Foreign layouts, as data: names, keys and headers of delay layouts that other libraries declare.
//! Pure.
//!
//! NServiceBus' transport and kombu (Celery's library) build the same cascade of 28 levels: an
//! exchange and a queue for each level, keys of one bit to a word, and one exchange behind level 0.
//! None of their exchanges has an alternate exchange, so unroutable messages are lost.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use delayline_core::{
    codec::{Delay, Level},
    topology::topic_matches,
};

/// The bits of a key, each followed by a dot.
const HEAD: usize = 2 * 28;

/// A layout that a foreign library declares, or an older version of it did. A vhost has at most one of each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout(Kind);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    NServiceBus,
    /// Version 1 of NServiceBus' delays.
    OldNServiceBus,
    /// Kombu's layout, with its prefix for the names if it has one.
    Celery(Option<String>),
}

/// Why a text is not the name of a layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a layout; use `nservicebus`, `nservicebus:v1` (the transport up to 6), `celery`, or \
     `celery:PREFIX` with kombu's prefix",
    found.escape_debug()
)]
pub struct LayoutError {
    found: String,
}

/// The parts of a routing key of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignKey<'a> {
    /// The whole delay, in units of the layout: seconds.
    pub delay: Delay,
    /// The receiver of the message: the rest of the key.
    pub destination: &'a str,
}

/// Why a routing key does not belong to a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignKeyError {
    /// It does not begin with 28 bits.
    #[error("the routing key does not begin with 28 words that are 0 or 1")]
    Bits,
    /// The part after the bits is missing.
    #[error("the routing key names no destination after its 28 bits")]
    Destination,
}

impl Layout {
    /// The layout of NServiceBus' RabbitMQ transport, version 2 of its delays (7.0 and newer).
    #[must_use]
    pub const fn nservicebus() -> Self {
        Self(Kind::NServiceBus)
    }

    /// The layout of NServiceBus' RabbitMQ transport, version 1 of its delays (4.3 to 6): classic queues.
    /// Newer versions do not move its messages, and leave it where it is.
    #[must_use]
    pub const fn nservicebus_v1() -> Self {
        Self(Kind::OldNServiceBus)
    }

    /// The layout of kombu and Celery, with kombu's prefix for the names if it has one.
    #[must_use]
    pub fn celery(prefix: Option<&str>) -> Self {
        Self(Kind::Celery(prefix.filter(|prefix| !prefix.is_empty()).map(str::to_owned)))
    }

    /// These layouts in their order, without duplicates.
    pub fn distinct(layouts: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut distinct = Vec::new();
        for layout in layouts {
            if !distinct.contains(&layout) {
                distinct.push(layout);
            }
        }
        distinct
    }

    /// Whether it is a layout of NServiceBus.
    #[must_use]
    pub fn is_nservicebus(&self) -> bool {
        !matches!(self.0, Kind::Celery(_))
    }

    /// The name of the exchange and of the queue of a level.
    #[must_use]
    pub fn level(&self, level: Level) -> String {
        match &self.0 {
            Kind::NServiceBus => format!("nsb.v2.delay-level-{level:02}"),
            Kind::OldNServiceBus => format!("nsb.delay-level-{level:02}"),
            Kind::Celery(prefix) => {
                prefixed(prefix.as_deref(), &format!("celery_delayed_{}", level.number()))
            }
        }
    }

    /// The exchange behind level 0. Destinations are bound to it.
    #[must_use]
    pub fn delivery(&self) -> String {
        match &self.0 {
            Kind::NServiceBus => "nsb.v2.delay-delivery".into(),
            Kind::OldNServiceBus => "nsb.delay-delivery".into(),
            Kind::Celery(prefix) => prefixed(prefix.as_deref(), "celery_delayed_delivery"),
        }
    }

    /// All its exchanges: those of the levels from the highest on, and the exchange behind them.
    #[must_use]
    pub fn exchanges(&self) -> Vec<String> {
        Level::all().rev().map(|level| self.level(level)).chain([self.delivery()]).collect()
    }

    /// The level whose exchange and queue have this name.
    #[must_use]
    pub fn level_of(&self, name: &str) -> Option<Level> {
        Level::all().find(|level| self.level(*level) == name)
    }

    /// The exchange and the queue for unroutable messages, once a guard is set.
    #[must_use]
    pub fn kept(&self) -> String {
        match &self.0 {
            Kind::NServiceBus => "delayline.guard.nservicebus".into(),
            Kind::OldNServiceBus => "delayline.guard.nservicebus.v1".into(),
            Kind::Celery(None) => "delayline.guard.celery".into(),
            Kind::Celery(Some(prefix)) => format!("delayline.guard.celery.{prefix}"),
        }
    }

    /// Reads a routing key.
    ///
    /// # Errors
    /// The fault in the key.
    pub fn read<'a>(&self, key: &'a str) -> Result<ForeignKey<'a>, ForeignKeyError> {
        let (bits, mut destination) = key.split_at_checked(HEAD).ok_or_else(|| match key.len() < HEAD {
            true if is_bits(&format!("{key}.")) && key.len() + 1 == HEAD => ForeignKeyError::Destination,
            _ => ForeignKeyError::Bits,
        })?;
        if !is_bits(bits) {
            return Err(ForeignKeyError::Bits);
        }
        // kombu up to 5.6.2 puts the bits of each retry before those of the last one, and binds `#.QUEUE`.
        if matches!(self.0, Kind::Celery(_)) {
            while let Some((_, rest)) = destination.split_at_checked(HEAD).filter(|(bits, _)| is_bits(bits)) {
                destination = rest;
            }
        }
        if destination.is_empty() {
            return Err(ForeignKeyError::Destination);
        }
        let units =
            bits.bytes().filter(|byte| *byte != b'.').fold(0, |sum, bit| sum * 2 + u64::from(bit - b'0'));
        Ok(ForeignKey { delay: Delay::from_seconds(units).map_err(|_| ForeignKeyError::Bits)?, destination })
    }

    /// The routing key of a message with this delay for a destination.
    #[must_use]
    pub fn key(&self, delay: Delay, destination: &str) -> String {
        let bit = |level: Level| if delay.seconds() & level.units() == 0 { "0." } else { "1." };
        Level::all().rev().map(bit).collect::<String>() + destination
    }

    /// Whether a message that is due for a destination matches a binding of the exchange
    /// behind level 0.
    #[must_use]
    pub fn delivers(&self, binding_key: &str, destination: &str) -> bool {
        topic_matches(binding_key, &self.key(Delay::ZERO, destination))
    }
}

fn prefixed(prefix: Option<&str>, name: &str) -> String {
    prefix.map_or_else(|| name.to_owned(), |prefix| format!("{prefix}_{name}"))
}

/// Whether it consists only of bits, each followed by a dot.
fn is_bits(text: &str) -> bool {
    text.as_bytes().chunks(2).all(|pair| matches!(pair, [b'0' | b'1', b'.']))
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::NServiceBus => f.write_str("nservicebus"),
            Kind::OldNServiceBus => f.write_str("nservicebus:v1"),
            Kind::Celery(None) => f.write_str("celery"),
            Kind::Celery(Some(prefix)) => write!(f, "celery:{prefix}"),
        }
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        match text.split_once(':') {
            None if text == "nservicebus" => Ok(Self::nservicebus()),
            Some(("nservicebus", "v1")) => Ok(Self::nservicebus_v1()),
            None if text == "celery" => Ok(Self::celery(None)),
            Some(("celery", prefix)) if !prefix.is_empty() => Ok(Self::celery(Some(prefix))),
            _ => Err(LayoutError { found: text.into() }),
        }
    }
}

impl Serialize for Layout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_libraries() {
        let (nsb, celery) = (Layout::nservicebus(), Layout::celery(None));
        let level = Level::try_from(7).unwrap();
        assert_eq!(
            (nsb.level(level).as_str(), celery.level(level).as_str()),
            ("nsb.v2.delay-level-07", "celery_delayed_7")
        );
        assert_eq!(nsb.exchanges().len(), 29);
        assert_eq!(nsb.exchanges()[0], "nsb.v2.delay-level-27");
        assert_eq!(nsb.exchanges()[28], "nsb.v2.delay-delivery");
        let old = Layout::nservicebus_v1();
        assert_eq!(old.exchanges()[0], "nsb.delay-level-27");
        assert_eq!(old.exchanges()[28], "nsb.delay-delivery");
        assert_eq!((old.level_of("nsb.v2.delay-level-07"), old.is_nservicebus()), (None, true));
        let prefixed = Layout::celery(Some("eu"));
        assert_eq!(prefixed.level(level), "eu_celery_delayed_7");
        assert_eq!(prefixed.delivery(), "eu_celery_delayed_delivery");
        assert_eq!(prefixed.level_of("eu_celery_delayed_27"), Some(Level::TOP));
        assert_eq!(prefixed.level_of("celery_delayed_27"), None);
    }

    #[test]
    fn is_read_and_written_by_name() {
        for text in ["nservicebus", "nservicebus:v1", "celery", "celery:eu"] {
            assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
        }
        for text in ["", "celery:", "nservicebus:a", "masstransit"] {
            assert!(text.parse::<Layout>().unwrap_err().to_string().contains("nservicebus"), "{text}");
        }
    }

    #[test]
    fn a_key_is_28_bits_and_a_destination() {
        let layout = Layout::nservicebus();
        for (delay, destination) in [(0, "Sales"), (5, "Company.Sales"), (268_435_455, "a")] {
            let delay = Delay::from_seconds(delay).unwrap();
            let key = layout.key(delay, destination);
            assert_eq!(layout.read(&key), Ok(ForeignKey { delay, destination }), "{key}");
        }
        let bits = "0.".repeat(28);
        assert_eq!(layout.read(&bits), Err(ForeignKeyError::Destination));
        assert_eq!(layout.read(&bits[..55]), Err(ForeignKeyError::Destination));
        for wrong in
            [&bits[..50], "Sales", "", &format!("{}2.a", &bits[2..]), &format!("{}é.Sales", &bits[..54])]
        {
            assert_eq!(layout.read(wrong), Err(ForeignKeyError::Bits), "{wrong}");
        }
    }

    #[test]
    fn the_bits_of_earlier_retries_are_no_part_of_the_destination() {
        let (celery, delay) = (Layout::celery(None), Delay::from_seconds(5).unwrap());
        let once = celery.key(delay, "tasks");
        let thrice = celery.key(delay, &celery.key(Delay::from_seconds(9).unwrap(), &once));
        for key in [&once, &thrice] {
            assert_eq!(celery.read(key), Ok(ForeignKey { delay, destination: "tasks" }), "{key}");
        }
        assert!(celery.delivers("#.tasks", celery.read(&thrice).unwrap().destination));
        // NServiceBus writes the address of an endpoint once.
        assert_eq!(Layout::nservicebus().read(&thrice).unwrap().destination, &thrice[HEAD..]);
    }

    #[test]
    fn a_binding_may_catch_more_than_its_own() {
        let layout = Layout::celery(None);
        assert!(layout.delivers("#.orders", "orders") && layout.delivers("#.orders", "eu.orders"));
        assert!(!layout.delivers("#.orders", "myorders"));
    }
}
