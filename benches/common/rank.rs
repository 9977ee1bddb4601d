//! Percentiles of a handful of figures, exactly: no histogram, no interpolation.

/// The least value that so many per cent are not above (the nearest rank). `None` of
/// nothing.
pub(crate) fn at<T: Copy>(sorted: &[T], per_cent: f64) -> Option<T> {
    // Without the last digits, which 99.9 / 100 does not have exactly.
    let rank = (per_cent / 100.0 * sorted.len() as f64 - 1e-6).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}
