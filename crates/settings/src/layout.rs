//! The delays of others, as data: names, keys and headers of layouts that delayline did not
//! make. Pure.
//!
//! NServiceBus' transport and kombu (Celery's library) build the same cascade of 28 levels: an
//! exchange and a queue for each, keys of one bit to a word, and one exchange behind level 0.
//! None of their exchanges has an alternate, so what nobody is bound for goes nowhere.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use delayline_core::{
    codec::{Delay, Level},
    topology::topic_matches,
};

/// The bits of a key, each with the dot behind it.
const HEAD: usize = 2 * 28;

/// A layout of delays that somebody else's library declares, one in a vhost.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout(Kind);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    NServiceBus,
    /// With the prefix that kombu was told to use, if any.
    Celery(Option<String>),
}

/// Why a text names no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is no layout; use `nservicebus`, `celery`, or `celery:PREFIX` for one that kombu declared with a \
     prefix", found.escape_debug()
)]
pub struct LayoutError {
    found: String,
}

/// What a routing key of a layout says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignKey<'a> {
    /// The whole delay, in units of the layout: seconds.
    pub delay: Delay,
    /// Who receives the message: the rest of the key.
    pub destination: &'a str,
}

/// Why a routing key is none of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignKeyError {
    /// It does not begin with 28 bits.
    #[error("the routing key does not begin with 28 words that are 0 or 1")]
    Bits,
    /// Nothing follows the bits.
    #[error("the routing key names no destination after its 28 bits")]
    Destination,
}

impl Layout {
    /// That of NServiceBus' RabbitMQ transport, version 2 of its delays (7.0 and newer).
    #[must_use]
    pub const fn nservicebus() -> Self {
        Self(Kind::NServiceBus)
    }

    /// That of kombu and Celery, with kombu's prefix for the names if there is one.
    #[must_use]
    pub fn celery(prefix: Option<&str>) -> Self {
        Self(Kind::Celery(prefix.filter(|prefix| !prefix.is_empty()).map(str::to_owned)))
    }

    /// These layouts in their order, each once.
    pub fn distinct(layouts: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut distinct = Vec::new();
        for layout in layouts {
            if !distinct.contains(&layout) {
                distinct.push(layout);
            }
        }
        distinct
    }

    /// Whether it is that of NServiceBus.
    #[must_use]
    pub fn is_nservicebus(&self) -> bool {
        self.0 == Kind::NServiceBus
    }

    /// The name of the exchange and of the queue of a level.
    #[must_use]
    pub fn level(&self, level: Level) -> String {
        match &self.0 {
            Kind::NServiceBus => format!("nsb.v2.delay-level-{level:02}"),
            Kind::Celery(prefix) => {
                prefixed(prefix.as_deref(), &format!("celery_delayed_{}", level.number()))
            }
        }
    }

    /// The exchange behind level 0, which destinations are bound to.
    #[must_use]
    pub fn delivery(&self) -> String {
        match &self.0 {
            Kind::NServiceBus => "nsb.v2.delay-delivery".into(),
            Kind::Celery(prefix) => prefixed(prefix.as_deref(), "celery_delayed_delivery"),
        }
    }

    /// All its exchanges: those of the levels from the highest on, and the one behind them.
    #[must_use]
    pub fn exchanges(&self) -> Vec<String> {
        Level::all().rev().map(|level| self.level(level)).chain([self.delivery()]).collect()
    }

    /// The level whose exchange and queue have this name.
    #[must_use]
    pub fn level_of(&self, name: &str) -> Option<Level> {
        Level::all().find(|level| self.level(*level) == name)
    }

    /// The exchange and the queue that keep what nobody is bound for, once a guard is set.
    #[must_use]
    pub fn kept(&self) -> String {
        match &self.0 {
            Kind::NServiceBus => "delayline.guard.nservicebus".into(),
            Kind::Celery(None) => "delayline.guard.celery".into(),
            Kind::Celery(Some(prefix)) => format!("delayline.guard.celery.{prefix}"),
        }
    }

    /// The queue of a canary with this slot.
    #[must_use]
    pub fn canary(&self, slot: u8) -> String {
        self.kept().replacen("guard", "canary", 1) + &format!(".{slot}")
    }

    /// Reads a routing key.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read<'a>(&self, key: &'a str) -> Result<ForeignKey<'a>, ForeignKeyError> {
        let (bits, destination) = key.split_at_checked(HEAD).ok_or_else(|| match key.len() < HEAD {
            true if is_bits(&format!("{key}.")) && key.len() + 1 == HEAD => ForeignKeyError::Destination,
            _ => ForeignKeyError::Bits,
        })?;
        if !is_bits(bits) {
            return Err(ForeignKeyError::Bits);
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

/// Whether it is nothing but bits, each with a dot behind it.
fn is_bits(text: &str) -> bool {
    text.as_bytes().chunks(2).all(|pair| matches!(pair, [b'0' | b'1', b'.']))
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::NServiceBus => f.write_str("nservicebus"),
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
        let prefixed = Layout::celery(Some("eu"));
        assert_eq!(prefixed.level(level), "eu_celery_delayed_7");
        assert_eq!(prefixed.delivery(), "eu_celery_delayed_delivery");
        assert_eq!(prefixed.level_of("eu_celery_delayed_27"), Some(Level::TOP));
        assert_eq!(prefixed.level_of("celery_delayed_27"), None);
    }

    #[test]
    fn is_read_and_written_by_name() {
        for text in ["nservicebus", "celery", "celery:eu"] {
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
    fn a_binding_may_catch_more_than_its_own() {
        let layout = Layout::celery(None);
        assert!(layout.delivers("#.orders", "orders") && layout.delivers("#.orders", "eu.orders"));
        assert!(!layout.delivers("#.orders", "myorders"));
    }
}
