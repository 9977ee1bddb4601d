//! Chance, for pauses that must not be the same everywhere, and for names.

use std::hash::{BuildHasher, RandomState};

/// Any number. The standard library seeds every `RandomState` anew; that is random enough for
/// jitter and for names, and for nothing that must not be guessed.
pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(())
}

/// A number from 0 up to, and without, 1.
pub(crate) fn fraction() -> f64 {
    // As many bits as a float holds.
    let bits = number() >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_spread_over_all_of_its_range() {
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            let fraction = fraction();
            assert!((0.0..1.0).contains(&fraction));
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is 0 to 9")]
            let tenth = (fraction * 10.0) as usize;
            tenths[tenth] += 1;
        }
        assert!(tenths.iter().all(|&count| count > 500), "{tenths:?}");
    }
}
