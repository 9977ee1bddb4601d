//! The body of a measured message: its number, and its due time.

use std::time::{Duration, Instant};

use delayline_core::ledger::Ledger;

/// The length of a mark, in bytes: the shortest body.
pub(super) const MARK: usize = 16;

/// A body of `size` bytes, at least [`MARK`].
pub(crate) fn body(number: u64, due: Duration, size: usize) -> Vec<u8> {
    let mut body = vec![b'.'; size.max(MARK)];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body[8..MARK].copy_from_slice(&micros(due).to_le_bytes());
    body
}

/// Reads a mark back; `None` if it is not ours.
fn read(body: &[u8]) -> Option<(u64, u64)> {
    let number = |part: &[u8]| Some(u64::from_le_bytes(part.try_into().ok()?));
    Some((number(body.get(..8)?)?, number(body.get(8..MARK)?)?))
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The messages of one measurement. Times count from `epoch`, on the monotonic clock, in µs.
#[derive(Debug)]
pub(crate) struct Account {
    epoch: Instant,
    first: u64,
    /// How long before its time a message does not count as early.
    grain: i64,
    pub(crate) ledger: Ledger,
}

/// The broker counts in whole milliseconds and rounds down at every level: a message may
/// leave each level that much before its time.
const CLOCK: i64 = 1_000;

/// More messages than any measurement has: a higher number is not ours.
const MOST: u64 = 1_000_000_000;

impl Account {
    /// An account of messages that are numbered from `first` and pass through so many levels
    /// at most.
    pub(crate) fn new(epoch: Instant, first: u64, levels: u32) -> Self {
        let grain = CLOCK * i64::from(levels.max(1));
        Self { epoch, first, grain, ledger: Ledger::default() }
    }

    /// Notes an arrival. Returns its lateness in µs, if it is the first with its number and
    /// belongs to this account.
    pub(crate) fn note(&mut self, body: &[u8], now: Instant) -> Option<u64> {
        let (number, due) = read(body)?;
        if !(self.first..self.first.saturating_add(MOST)).contains(&number) {
            return None;
        }
        let now = micros(now.saturating_duration_since(self.epoch));
        let ticks = |time| i64::try_from(time).unwrap_or(i64::MAX);
        self.ledger.promise(number, ticks(due), self.grain);
        self.ledger.arrive(number, ticks(now)).then(|| now.saturating_sub(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_counts_once_and_never_before_its_time() {
        let epoch = Instant::now();
        let mut account = Account::new(epoch, 100, 3);
        let at = |ms| epoch + Duration::from_millis(ms);
        let mark = |number, ms| body(number, Duration::from_millis(ms), 64);
        assert_eq!(mark(7, 5).len(), 64);
        assert_eq!(account.note(&mark(100, 50), at(53)), Some(3_000));
        assert_eq!(account.note(&mark(102, 50), at(50)), Some(0));
        assert_eq!(account.note(&mark(100, 50), at(60)), None);
        assert_eq!(account.note(&mark(99, 50), at(60)), None);
        assert_eq!(account.note(b"garbage", at(60)), None);
        let sums = account.ledger.summary();
        assert_eq!((account.ledger.arrived(), sums.duplicated, sums.early), (2, 1, 0));
        assert_eq!(account.note(&mark(101, 50), at(47)), Some(0));
        assert_eq!(account.ledger.summary().early, 0, "within the broker's clock");
        account.note(&mark(103, 50), at(40));
        assert_eq!(account.ledger.summary().early, 1);
    }
}
