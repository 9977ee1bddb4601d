//! The levels in which messages wait.

use std::fmt;

use super::{LEVELS, WORD_BITS};

/// One of the 28 levels, 0 to 27: in level n a message waits 2^n units.
///
/// ```
/// use delayline::codec::Level;
///
/// let level = Level::try_from(6)?;
/// assert_eq!(level.units(), 64);
/// assert!(Level::try_from(28).is_err());
/// # Ok::<(), delayline::codec::LevelError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(into = "u8", try_from = "u8"))]
pub struct Level(u8);

/// Why a number is not a [`Level`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no level {number}; use 0 to {}", LEVELS - 1)]
pub struct LevelError {
    number: u8,
}

impl Level {
    /// Level 0, with the shortest wait: one unit.
    pub const LOWEST: Self = Self(0);
    /// Level 27, with the longest wait: 2^27 units, about 4.3 years. Its exchange is the entry.
    pub const TOP: Self = Self(LEVELS - 1);

    /// All levels, from 0 to 27.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..LEVELS).map(Self)
    }

    /// Its number, 0 to 27.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its number, for lists of all levels.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// How long a message waits in it, in units of the set: 2^n.
    #[must_use]
    pub const fn units(self) -> u32 {
        1 << self.0
    }

    /// The level of a bit, 0 to 3, of a word, 0 to 6; both from the lowest.
    pub(crate) const fn of(word: u8, bit: u8) -> Self {
        debug_assert!(bit < WORD_BITS && word * WORD_BITS + bit < LEVELS);
        Self(word * WORD_BITS + bit)
    }

    /// The word of a routing key that its bit is in, 0 to 6 from the last.
    #[must_use]
    pub const fn word(self) -> u8 {
        self.0 / WORD_BITS
    }

    /// The level below; none below level 0.
    #[must_use]
    pub fn below(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

impl TryFrom<u8> for Level {
    type Error = LevelError;

    fn try_from(number: u8) -> Result<Self, LevelError> {
        if number < LEVELS { Ok(Self(number)) } else { Err(LevelError { number }) }
    }
}

impl From<Level> for u8 {
    fn from(level: Level) -> Self {
        level.0
    }
}

impl PartialEq<u8> for Level {
    fn eq(&self, number: &u8) -> bool {
        self.0 == *number
    }
}

impl fmt::Display for Level {
    /// The number; `{:02}` is how names have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_28_of_them() {
        let all: Vec<_> = Level::all().collect();
        assert_eq!((all.len(), all[0], all[27]), (28, Level::LOWEST, Level::TOP));
        assert_eq!(all.iter().map(|level| level.units()).sum::<u32>(), (1 << 28) - 1);
        assert!(Level::try_from(27).is_ok() && Level::try_from(28).is_err() && Level::try_from(255).is_err());
        assert_eq!((Level::LOWEST.below(), Level::TOP.below()), (None, Some(all[26])));
        assert_eq!(format!("{:02}", all[3]), "03");
    }
}
