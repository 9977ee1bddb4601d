//! How late messages were, as histograms.

use std::{
    io::Write,
    time::{Duration, SystemTime},
};

use hdrhistogram::{
    Histogram,
    serialization::{
        V2DeflateSerializer,
        interval_log::{IntervalLogWriterBuilder, Tag},
    },
};
use serde::{Deserialize, Serialize};

/// How late messages were, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Late {
    /// Half of them at most.
    pub p50: f64,
    /// Nine in ten at most.
    pub p90: f64,
    /// 99 in 100 at most.
    pub p99: f64,
    /// 999 in 1,000 at most.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

/// A longer lateness counts as this one: a day.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Lateness in µs, from 1 µs to [`LONGEST`], to three digits.
pub(super) fn empty() -> Histogram<u64> {
    let longest = u64::try_from(LONGEST.as_micros()).expect("a day");
    Histogram::new_with_bounds(1, longest, 3).expect("these bounds are possible")
}

impl From<&Histogram<u64>> for Late {
    fn from(histogram: &Histogram<u64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "three digits are known")]
        let ms = |micros: u64| micros as f64 / 1_000.0;
        let at = |quantile| ms(histogram.value_at_quantile(quantile));
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: ms(histogram.max()) }
    }
}

/// The histograms of all measurements, by name.
#[derive(Debug, Default)]
pub struct Histograms {
    all: Vec<(String, Duration, Histogram<u64>)>,
    start: Option<SystemTime>,
}

impl Histograms {
    /// Adds one, of messages that arrived `took` after they were due.
    pub(super) fn add(&mut self, name: impl Into<String>, took: Duration, histogram: Histogram<u64>) {
        self.start.get_or_insert_with(|| SystemTime::now() - took);
        self.all.push((name.into(), took, histogram));
    }

    /// Writes them as an HdrHistogram log, the format that HdrHistogram's tools of
    /// every language read: one line for each measurement, with its name as the
    /// tag. Values are µs, and the log's maxima ms.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &mut impl Write) -> std::io::Result<()> {
        let mut text = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let start = self.start.unwrap_or(SystemTime::UNIX_EPOCH);
        let mut log = IntervalLogWriterBuilder::new()
            .with_start_time(start)
            .with_base_time(start)
            .with_max_value_divisor(1_000.0)
            .begin_log_with(&mut text, &mut serializer)?;
        log.write_comment(concat!("delayline ", env!("CARGO_PKG_VERSION"), ": lateness of messages, in µs"))?;
        let mut at = Duration::ZERO;
        for (name, took, histogram) in &self.all {
            log.write_histogram(histogram, at, *took, Tag::new(name))
                .map_err(|error| std::io::Error::other(format!("{error:?}")))?;
            at += *took;
        }
        drop(log);
        file.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn percentiles_are_milliseconds() {
        let mut histogram = empty();
        for micros in 1..=1_000 {
            histogram.record(micros * 1_000).unwrap();
        }
        let late = Late::from(&histogram);
        for (found, expected) in
            [(late.p50, 500.0), (late.p99, 990.0), (late.p999, 999.0), (late.max, 1_000.0)]
        {
            assert!((found - expected).abs() <= expected * 0.002, "{found} {expected}");
        }
        // Messages that fall due together can be late by hours, and are recorded like this.
        histogram.saturating_record(7_200_000_000);
        assert!((Late::from(&histogram).max / 7_200_000.0 - 1.0).abs() <= 0.002);
    }

    #[test]
    fn the_file_can_be_read_again() {
        let mut histograms = Histograms::default();
        for name in ["drain-1", "steady"] {
            let mut histogram = empty();
            histogram.record(1_234).unwrap();
            histograms.add(name, Duration::from_secs(2), histogram);
        }
        let mut file = Vec::new();
        histograms.write(&mut file).unwrap();
        let tags: Vec<_> = IntervalLogIterator::new(&file)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(interval) => Some(interval.tag().unwrap().as_str().to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(tags, ["drain-1", "steady"]);
    }
}
