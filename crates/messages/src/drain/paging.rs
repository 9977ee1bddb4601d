//! The number of messages to take at a time: pure.
//!
//! The messages of a page can pile up in our memory and in the broker's. The size of a body is known only
//! after it arrives, since a consumer's prefetch counts messages. So a page fits the bound even if every
//! body is as large as the largest so far, and pages grow slowly. The bound is safe only if all messages of
//! the queue fit it.

/// The most messages of a page while the queue holds more than the bound. A larger page would gain little,
/// since a page costs about a millisecond. This many can arrive at once when large bodies follow small
/// ones: half a GiB of 16 MiB each.
const CAREFUL: u64 = 32;

/// Computes the sizes of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paging {
    /// The most messages of a page, from 1.
    messages: u16,
    /// The most bytes of bodies in a page, unless a single one is larger.
    bytes: u64,
    /// The bytes of bodies still in the queue, where that is known.
    rest: Option<u64>,
    largest: u64,
    /// The size of the last page.
    last: u64,
}

impl Paging {
    pub(super) fn new(messages: u16, bytes: u64) -> Self {
        Self { messages: messages.max(1), bytes, rest: None, largest: 0, last: 0 }
    }

    /// Notes how many bytes of bodies the queue holds.
    pub(super) fn of(self, rest: Option<u64>) -> Self {
        Self { rest, ..self }
    }

    /// Notes that a message arrived.
    pub(super) fn note(&mut self, body: usize) {
        self.largest = self.largest.max(body as u64);
        self.rest = self.rest.map(|rest| rest.saturating_sub(body as u64));
    }

    /// The size of the next page, with `left` messages to go.
    pub(super) fn turn(&mut self, left: u64) -> u16 {
        let most = match self.rest {
            Some(rest) if rest <= self.bytes => u64::MAX,
            _ => (self.bytes / self.largest.max(1)).min(CAREFUL).min(self.last * 2).max(1),
        };
        self.last = most.min(left).min(self.messages.into());
        u16::try_from(self.last).unwrap_or(self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn sizes(mut paging: Paging, bodies: impl Fn(usize) -> usize, pages: usize) -> Vec<u16> {
        let mut seen = 0;
        let page = |_| {
            let size = paging.turn(u64::MAX);
            for _ in 0..size {
                paging.note(bodies(seen));
                seen += 1;
            }
            size
        };
        (0..pages).map(page).collect()
    }

    #[test]
    fn a_page_grows_while_bodies_are_small() {
        let paging = Paging::new(1_000, 4 * MIB as u64);
        assert_eq!(sizes(paging, |_| 100, 8), [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(sizes(paging, |_| MIB, 5), [1, 2, 4, 4, 4]);
        assert_eq!(sizes(paging, |_| 16 * MIB, 3), [1, 1, 1]);
        // The first large ones come in a page that was made for small ones, once.
        let late = |n: usize| if n < 100 { 100 } else { 2 * MIB };
        assert_eq!(sizes(paging, late, 10), [1, 2, 4, 8, 16, 32, 32, 32, 2, 2]);
        assert_eq!(sizes(Paging::new(7, u64::MAX), |_| 0, 5), [1, 2, 4, 7, 7]);
    }

    #[test]
    fn a_page_has_full_size_once_the_rest_fits() {
        let paging = Paging::new(1_000, 10_000);
        assert_eq!(sizes(paging.of(Some(10_000)), |_| 10, 2), [1_000, 1_000]);
        assert_eq!(sizes(paging.of(Some(10_030)), |_| 10, 4), [1, 2, 1_000, 1_000]);
        let mut paging = paging.of(Some(5));
        assert_eq!((paging.turn(3), paging.turn(0)), (3, 0));
    }
}
