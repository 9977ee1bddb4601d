//! Optional queues in which a message waits for several bits of its delay at once.

use super::{Delay, FOUR_BITS, Level, WORD_BITS};

/// The words of a delay that have shortcuts: the lowest four, which are up to 18 hours.
const SHORTCUT_WORDS: u8 = 4;

/// A queue in which a message waits for the whole value of one word of its delay. The four lowest words have
/// one for each value with two or more set bits.
///
/// ```
/// use delayline_core::codec::Shortcut;
///
/// let shortcut = Shortcut::of(1, 0b1010).expect("it has two bits");
/// assert_eq!((shortcut.units(), shortcut.bits(), shortcut.level().number()), (160, "1010", 7));
/// assert_eq!((Shortcut::of(1, 0b1000), Shortcut::of(4, 0b1010)), (None, None));
/// assert_eq!(Shortcut::all().count(), 44);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shortcut {
    word: u8,
    value: u8,
}

impl Shortcut {
    /// All of them, the shortest wait first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..SHORTCUT_WORDS)
            .flat_map(|word| (0..1 << WORD_BITS).filter_map(move |value| Self::of(word, value)))
    }

    /// The shortcut of a value, 0 to 15, of a word, 0 to 6 from the lowest; `None` if it has none.
    #[must_use]
    pub const fn of(word: u8, value: u8) -> Option<Self> {
        let has = word < SHORTCUT_WORDS && value < 1 << WORD_BITS && value.count_ones() > 1;
        if has { Some(Self { word, value }) } else { None }
    }

    /// The level of its highest bit.
    #[must_use]
    pub const fn level(self) -> Level {
        Level::of(self.word, highest(self.value))
    }

    /// The bits of its word, as a routing key has them.
    #[must_use]
    pub const fn bits(self) -> &'static str {
        FOUR_BITS[self.value as usize]
    }

    /// How long a message waits in it, in units of the set.
    #[must_use]
    pub const fn units(self) -> u32 {
        (self.value as u32) << (self.word * WORD_BITS)
    }

    /// The level whose exchange a message reaches after it; `None` for the dispatch exchange.
    #[must_use]
    pub fn below(self) -> Option<Level> {
        (self.word * WORD_BITS).checked_sub(1).and_then(|level| Level::try_from(level).ok())
    }
}

/// The number of the highest set bit. At least one must be set.
pub(crate) const fn highest(value: u8) -> u8 {
    (u8::BITS - 1 - value.leading_zeros()) as u8
}

/// A queue in which a message waits: of a level, or a shortcut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hop {
    /// The queue of a level, for one bit.
    Level(Level),
    /// A shortcut, for the value of a word.
    Shortcut(Shortcut),
}

impl Hop {
    /// All that there can be.
    pub fn all() -> impl Iterator<Item = Self> {
        Level::all().map(Self::Level).chain(Shortcut::all().map(Self::Shortcut))
    }

    /// The queues that a message with this delay passes, in this order.
    ///
    /// ```
    /// use delayline_core::codec::{Delay, Hop};
    ///
    /// let delay = Delay::from_seconds(90)?; // 0101.1010
    /// assert_eq!((Hop::of(delay, false).count(), Hop::of(delay, true).count()), (4, 2));
    /// # Ok::<(), delayline_core::codec::DelayError>(())
    /// ```
    pub fn of(delay: Delay, shortcuts: bool) -> impl Iterator<Item = Self> {
        delay.levels().filter_map(move |level| match Self::shortcut_for(delay, level).filter(|_| shortcuts) {
            Some(shortcut) => (shortcut.level() == level).then_some(Self::Shortcut(shortcut)),
            None => Some(Self::Level(level)),
        })
    }

    /// The shortcut that a message with this delay can take instead of the levels of this one's word.
    #[must_use]
    pub const fn shortcut_for(delay: Delay, level: Level) -> Option<Shortcut> {
        let word = level.word();
        Shortcut::of(word, (delay.seconds() >> (word * WORD_BITS) & 0b1111) as u8)
    }

    /// Its level, or the level of its highest bit.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Level(level) => level,
            Self::Shortcut(shortcut) => shortcut.level(),
        }
    }

    /// How long a message waits in it, in units of the set.
    #[must_use]
    pub const fn units(self) -> u32 {
        match self {
            Self::Level(level) => level.units(),
            Self::Shortcut(shortcut) => shortcut.units(),
        }
    }

    /// How long a message with this delay still waits after it, in units of the set.
    #[must_use]
    pub const fn rest(self, delay: Delay) -> u32 {
        delay.seconds()
            & match self {
                Self::Level(level) => level.units() - 1,
                Self::Shortcut(shortcut) => (1 << (shortcut.word * WORD_BITS)) - 1,
            }
    }

    /// Whether a message with this delay can pass it.
    #[must_use]
    pub fn is_passed_by(self, delay: Delay) -> bool {
        match self {
            Self::Level(level) => delay.seconds() & level.units() != 0,
            Self::Shortcut(shortcut) => Self::shortcut_for(delay, shortcut.level()) == Some(shortcut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_passes_one_queue_for_each_word() {
        for seconds in (0..70_000).chain([1 << 20, 0xfff_ffff]) {
            let delay = Delay::from_seconds(seconds).unwrap();
            for shortcuts in [false, true] {
                let hops: Vec<_> = Hop::of(delay, shortcuts).collect();
                assert_eq!(hops.iter().map(|hop| u64::from(hop.units())).sum::<u64>(), seconds);
                assert!(hops.iter().all(|hop| hop.is_passed_by(delay)));
                let mut left = delay.seconds();
                for hop in &hops {
                    left -= hop.units();
                    assert_eq!(hop.rest(delay), left, "{seconds} {hop:?}");
                }
                assert_eq!(hops.len(), delay.hops_with(shortcuts) as usize);
            }
        }
        assert_eq!(Delay::MAX.hops_with(true), 4 + 12);
    }

    #[test]
    fn there_are_eleven_for_each_of_four_words() {
        let all: Vec<_> = Shortcut::all().collect();
        assert_eq!((all.len(), all[0].units(), all[43].units()), (44, 3, 15 << 12));
        assert!(all.is_sorted_by_key(|it| it.units()));
        assert_eq!((all[0].below(), all[11].below().map(Level::number)), (None, Some(3)));
        assert_eq!(all[43].level().number(), 15);
    }
}
