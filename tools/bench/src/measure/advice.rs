//! The meaning of the figures, in words.

use delayline_broker::series;

use crate::capacity::SAFE_LOAD;

use super::{Report, Way};

/// How many messages of a level are on their way to the next at any time, with RabbitMQ's
/// default setting.
const DEFAULT_PREFETCH: u32 = 32;

/// The setting beyond which more gains nothing.
const PREFETCH: u32 = 512;

impl Report {
    /// The conclusions about capacity, in sentences.
    #[must_use]
    pub fn meaning(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(level) = self.drained(1) {
            lines.push(format!(
                "Level 0 drains at about {}/s. Every odd delay passes through it, which is half of all \
                 messages if delays are spread evenly: it is full at {}/s of these.",
                number(level),
                number(level * 2.0),
            ));
        }
        let figures = self.figures();
        if let Some(steady) = self.steady.as_ref().filter(|_| !figures.drain.is_empty()) {
            let full = figures.work(steady.hops).recip();
            lines.push(format!(
                "Of messages with delays like {} ({:.1} queues on average), all levels together take {}/s at \
                 most{}. Plan for {}/s ({:.0}% of that).",
                steady.delays,
                steady.hops,
                number(full),
                if figures.knee.is_some() {
                    " in time"
                } else {
                    ", estimated from bursts; --knee finds how many they take in time, which can be half of it"
                },
                number(full * SAFE_LOAD),
                SAFE_LOAD * 100.0,
            ));
        }
        let (_, each) = figures.costs();
        if each > 0.0 && self.drain.iter().filter(|drained| drained.hops > 0).count() > 1 {
            lines.push(format!(
                "Each further queue costs {:.0} µs of the broker's time: a message through 5 queues takes {:.1} times \
                 the work of one through 1, publishing included. Rounding delays (--tolerance) saves queues.",
                each * 1e6,
                figures.work(5.0) / figures.work(1.0),
            ));
        }
        if let Some(drained) = self.drain.iter().find(|drained| drained.hops == 1) {
            lines.push(format!(
                "A burst above that rate is late: the last of {} messages that fell due within {} was {} \
                 late.",
                drained.messages,
                milliseconds(self.filled_in(drained.messages)),
                milliseconds(drained.late_ms.max),
            ));
        }
        if let Some(stock) = &self.stock {
            let mut line = format!(
                "A waiting message takes about {:.0} bytes of memory while it waits: {} for a million.",
                stock.memory_each,
                bytes(stock.memory_each * 1e6),
            );
            if let Some(fresh) = stock.fresh_each {
                let more = (fresh - stock.memory_each).max(0.0);
                line +=
                    &format!(" The newest take {more:.0} more, until the write-ahead log is written out.");
            }
            lines.push(line);
        }
        lines
    }

    /// How long it takes to publish so many messages at full speed, in ms: they fall due
    /// within the same time.
    fn filled_in(&self, messages: u64) -> f64 {
        let rate = self.published(Way::Entry).unwrap_or(1.0);
        #[expect(clippy::cast_precision_loss, reason = "a duration to look at")]
        let messages = messages as f64;
        1_000.0 * messages / rate.max(1.0)
    }

    /// Advice that would raise the figures, in sentences.
    #[must_use]
    pub fn advice(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b.filter(|b| *b > 0.0)?);
        let quorum = self.conditions.queue_type == "quorum";
        if quorum && ratio(self.drained(1), self.published(Way::Queue)).is_some_and(|ratio| ratio < 0.8) {
            lines.push(format!(
                "dead_letter_worker_consumer_prefetch: {PREFETCH} instead of {DEFAULT_PREFETCH}, in \
                 advanced.config ([{{rabbit, [{{dead_letter_worker_consumer_prefetch, {PREFETCH}}}]}}].), \
                 unless it is set already. On RabbitMQ 4.3, draining is 1.3 to 2.5 times as fast with it; on \
                 earlier versions it gains less.",
            ));
        }
        if self.broker.version.as_deref().and_then(series).is_some_and(|series| series < (4, 3)) {
            lines.push(
                "RabbitMQ 4.3 matches topics several times faster than earlier versions, which speeds up \
                 publishing and every hop."
                    .into(),
            );
        }
        if quorum {
            lines.push(
                "A faster disk: a message waits for it twice in each queue on its way. With all data in \
                 memory, which is the best case, messages were half as late, and draining was 1.0 to 1.4 \
                 times as fast."
                    .into(),
            );
        }
        if self.broker.nodes.is_some_and(|nodes| nodes > 1) && quorum {
            lines.push(match self.conditions.replicas {
                Some(1) => "With one replica, nothing survives the loss of a node.".into(),
                _ => "Each hop is written by every replica: fewer (--replicas) are faster and less safe. A second set \
                      spreads the levels' leaders over more nodes."
                    .into(),
            });
        } else if self.broker.processors.is_some_and(|processors| processors >= 4) {
            lines.push(
                "Each level is drained by one process: if processors are idle while a level is behind, a \
                 second set doubles what can be drained."
                    .into(),
            );
        }
        if self.broker.processors.is_some_and(|processors| processors <= 2) {
            lines
                .push("Broker and clients compete for few processors: more would raise every figure.".into());
        }
        lines
    }

    /// Problems, in sentences; there should be none.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let rates = self.steady.iter().chain(self.knee.iter().flat_map(|knee| &knee.tried));
        for steady in rates {
            for (count, what) in [(steady.lost, "were lost"), (steady.early, "came before their time")] {
                if count > 0 {
                    lines
                        .push(format!("{count} of {} messages at {}/s {what}", steady.messages, steady.rate));
                }
            }
        }
        if let Some(steady) = self.steady.as_ref().filter(|steady| !steady.kept_up() && steady.lost == 0) {
            lines.push(format!(
                "the broker accepts {:.0}/s of these messages, not {}/s",
                steady.per_second, steady.rate
            ));
        }
        lines
    }
}

/// A rate with two significant digits.
fn number(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.0}");
    }
    let scale = 10_f64.powf(value.log10().floor() - 1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
    let whole = ((value / scale).round() * scale) as u64;
    let digits = whole.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn milliseconds(value: f64) -> String {
    if value >= 1_000.0 { format!("{:.1} s", value / 1_000.0) } else { format!("{value:.0} ms") }
}

fn bytes(value: f64) -> String {
    format!("{:.0} MB", value / 1e6)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        capacity,
        measure::{Broker, Conditions, Drained, Knee, Late, Published, Stock, Sustained},
    };

    pub(crate) fn report() -> Report {
        let drained = |hops, per_second| Drained {
            hops,
            messages: 20_000,
            per_second,
            late_ms: Late { max: 2_200.0, ..Late::default() },
        };
        let published = |way, per_second| Published { way, messages: 20_000, per_second };
        Report {
            delayline: "0".into(),
            at: jiff::Timestamp::UNIX_EPOCH,
            broker: Broker {
                version: Some("4.3.6".into()),
                nodes: Some(1),
                processors: Some(2),
                ..Broker::default()
            },
            conditions: Conditions {
                size: 256,
                unit_ms: 50,
                queue_type: "quorum".into(),
                replicas: None,
                shortcuts: false,
                window: 1_000,
                client_processors: 2,
            },
            publish: vec![published(Way::Entry, 20_000.0), published(Way::Queue, 33_000.0)],
            drain: vec![drained(0, 30_000.0), drained(1, 8_900.0), drained(3, 4_000.0)],
            steady: Some(Sustained {
                rate: 1_000,
                per_second: 999.0,
                delays: "uniform:1s..60s".into(),
                hops: 3.0,
                messages: 10_000,
                lost: 0,
                duplicates: 0,
                early: 0,
                late_ms: Late::default(),
            }),
            knee: None,
            stock: Some(Stock { messages: 20_000, memory_each: 80.0, fresh_each: Some(1_200.0) }),
            unchecked: vec![],
        }
    }

    #[test]
    fn says_what_the_figures_mean() {
        let meaning = report().meaning().join("\n");
        for part in [
            "Level 0 drains at about 8,900/s",
            "full at 18,000/s",
            "3,300/s at most, estimated",
            "2.2 s late",
            "80 MB",
        ] {
            assert!(meaning.contains(part), "{part}: {meaning}");
        }
        assert!(report().problems().is_empty());
        let meaning = with_knee(1_000, &[1_000, 2_000, 2_000]).meaning().join("\n");
        assert!(meaning.contains("take 1,000/s at most in time. Plan for 500/s (50%"), "{meaning}");
    }

    /// With a search for the knee that tried these rates.
    fn with_knee(rate: u32, tried: &[u32]) -> Report {
        let report = report();
        let steady = report.steady.clone().unwrap();
        let tried = tried.iter().map(|&rate| Sustained { rate, ..steady.clone() }).collect();
        Report { knee: Some(Knee { limit_ms: 50.0, rate, tried }), ..report }
    }

    #[test]
    fn a_plan_gets_the_knee_or_what_it_is_below() {
        let knee = |rate, tried: &[u32]| with_knee(rate, tried).figures().knee;
        assert_eq!(knee(1_000, &[1_000, 2_000]), Some(capacity::Knee { rate: 1_000.0, hops: 3.0 }));
        assert_eq!(knee(0, &[1_000, 1_000, 500, 500]), Some(capacity::Knee { rate: 500.0, hops: 3.0 }));
        assert_eq!(knee(0, &[]), None);
    }

    #[test]
    fn advises_what_helps_here_and_nothing_else() {
        let advice = |change: fn(&mut Report)| {
            let mut report = report();
            change(&mut report);
            report.advice().join("\n")
        };
        let usual = advice(|_| ());
        assert!(["512", "faster disk", "few processors"].iter().all(|part| usual.contains(part)), "{usual}");
        assert!(!usual.contains("--replicas") && !usual.contains("RabbitMQ 4.3 matches"), "{usual}");
        let fast = advice(|report| {
            report.drain[1].per_second = 31_000.0;
            report.broker.processors = Some(16);
        });
        assert!(!fast.contains("512") && fast.contains("second set"), "{fast}");
        let old = advice(|report| report.broker.version = Some("3.10.8".into()));
        assert!(old.contains("4.3 matches topics"), "{old}");
        let cluster = advice(|report| report.broker.nodes = Some(3));
        assert!(cluster.contains("--replicas"), "{cluster}");
        let classic = advice(|report| report.conditions.queue_type = "classic".into());
        assert!(!classic.contains("512") && !classic.contains("disk"), "{classic}");
    }

    #[test]
    fn names_what_went_wrong() {
        let mut report = report();
        let steady = report.steady.as_mut().unwrap();
        (steady.lost, steady.early) = (3, 1);
        let problems = report.problems();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains("3 of 10000 messages at 1000/s were lost"), "{problems:?}");
        let steady = report.steady.as_mut().unwrap();
        (steady.lost, steady.early, steady.per_second) = (0, 0, 400.0);
        assert!(report.problems()[0].contains("400/s"), "{:?}", report.problems());
    }

    #[test]
    fn becomes_figures_for_a_plan_and_can_be_read_again() {
        let figures = report().figures();
        assert_eq!(figures.drain, [(1, 8_900.0), (3, 4_000.0)]);
        assert_eq!((figures.publish, figures.memory_per_message), (20_000.0, 80.0));
        assert_eq!(figures.broker, "RabbitMQ 4.3.6, 1 node");
        let text = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report());
    }
}
