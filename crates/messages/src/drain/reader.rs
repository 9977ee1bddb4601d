//! Taking messages out of a queue without acknowledging them.

use std::{
    thread,
    time::{Duration, Instant},
};

use log::debug;

use delayline_amqp::{AmqpError, Browser, Delivery, Page, Place, Session, Turned, settle};

use super::paging::Paging;

/// How long the broker may deliver nothing although messages are still to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// How many messages one command requeues. Up to this many, all brokers keep their order.
const BUNDLE: u32 = 32;

/// How many such commands are in flight at once. A broker passes about 32 to a quorum queue,
/// and handles later ones together in any order.
const BUNDLES: usize = 16;

/// How long the broker may take to requeue the messages in flight before the rest is given back without
/// waiting.
const PUT_BACK: Duration = Duration::from_secs(15);

/// How long acknowledgements wait for the rest of a page, and how long to wait for the rest of an unwanted
/// page.
const REST: Duration = Duration::from_secs(1);

/// Reads a queue page by page on one channel.
pub(super) struct Reader<'b> {
    session: Session,
    browser: &'b Browser,
    queue: String,
    paging: Paging,
    page: Option<Page<'b>>,
    /// How many messages the page holds, and how many were read.
    size: u64,
    read: u64,
    turned: Instant,
    /// Whether the page has come completely.
    ended: bool,
    /// How many pages there were.
    pages: u64,
    /// Decisions made while the page was still coming: for each acknowledged message, the
    /// broker would fill the page up again.
    forgotten: Vec<Delivery>,
    /// Where kept messages are, and how many up to there.
    kept: Vec<(Place, u32)>,
    /// The last kept message, and how many since the last entry.
    last: Option<(Place, u32)>,
    /// How many messages are still to be read.
    left: u64,
    quiet: Option<Instant>,
    withheld: u64,
    /// Whether anything was acknowledged.
    forgot: bool,
}

impl<'b> Reader<'b> {
    pub(super) fn new(
        session: Session,
        browser: &'b Browser,
        queue: String,
        paging: Paging,
        left: u64,
    ) -> Self {
        Self {
            session,
            browser,
            queue,
            paging,
            page: None,
            size: 0,
            read: 0,
            turned: Instant::now(),
            ended: true,
            pages: 0,
            forgotten: Vec::new(),
            kept: Vec::new(),
            last: None,
            left,
            quiet: None,
            withheld: 0,
            forgot: false,
        }
    }

    /// Whether all messages were read, or will not come.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// The number of messages that did not come.
    pub(super) fn withheld(&self) -> u64 {
        self.withheld
    }

    /// The next message, if one comes in time.
    pub(super) fn next(&mut self, limit: Duration) -> Result<Option<Delivery>, AmqpError> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.read == self.size {
            self.turn_page()?;
        }
        let Some(page) = &self.page else { return Ok(None) };
        match page.next(limit) {
            Turned::Delivery(delivery) => {
                self.left -= 1;
                self.read += 1;
                self.quiet = None;
                self.paging.note(delivery.body.len());
                self.end_page()?;
                Ok(Some(delivery))
            }
            Turned::Timeout => {
                self.end_page()?;
                if !limit.is_zero() {
                    self.lose_patience();
                }
                Ok(None)
            }
            Turned::Ended(cause) => Err(cause),
        }
    }

    fn turn_page(&mut self) -> Result<(), AmqpError> {
        // Brokers requeue the messages of several consumers in any order.
        self.kept.extend(self.last.take());
        let size = self.paging.turn(self.left);
        (self.size, self.read, self.ended) = (size.into(), 0, false);
        self.pages += 1;
        self.page = Some(self.browser.page(&self.queue, size)?);
        self.turned = Instant::now();
        Ok(())
    }

    /// Ends the page if all of it has come: decisions can then be acknowledged.
    pub(super) fn end_page(&mut self) -> Result<(), AmqpError> {
        let Some(page) = &self.page else { return Ok(()) };
        if self.ended {
            return Ok(());
        }
        if self.read + page.unread() as u64 >= self.size {
            page.end()?;
            self.ended = true;
            self.acknowledge()
        } else if !self.forgotten.is_empty() && self.turned.elapsed() > REST {
            // The broker may fill the page up.
            self.size += self.forgotten.len() as u64;
            self.acknowledge()
        } else {
            Ok(())
        }
    }

    fn acknowledge(&mut self) -> Result<(), AmqpError> {
        let forgotten = std::mem::take(&mut self.forgotten);
        forgotten.into_iter().try_for_each(|delivery| self.browser.ack(delivery))
    }

    /// How many discarded or sent messages are not acknowledged yet.
    pub(super) fn unacknowledged(&self) -> usize {
        self.forgotten.len()
    }

    /// Gives up waiting after nothing came. The ready count is no evidence here: the whole page is
    /// delivered at once, and can be on its way for long.
    fn lose_patience(&mut self) {
        if self.quiet.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            self.withheld = std::mem::take(&mut self.left);
        }
    }

    /// The message that was read last stays in the queue.
    pub(super) fn keep(&mut self, place: Place) {
        let count = self.last.take().map_or(0, |(_, count)| count) + 1;
        if count < BUNDLE {
            self.last = Some((place, count));
        } else {
            self.kept.push((place, count));
        }
    }

    /// An earlier message, perhaps of an earlier page, stays in the queue.
    pub(super) fn keep_late(&mut self, place: Place) {
        self.kept.push((place, 1));
    }

    /// The queue may delete the message.
    pub(super) fn forget(&mut self, mut delivery: Delivery) -> Result<(), AmqpError> {
        self.forgot = true;
        self.end_page()?;
        if self.ended {
            return self.browser.ack(delivery);
        }
        delivery.body = Vec::new();
        self.forgotten.push(delivery);
        Ok(())
    }

    /// Gives the kept messages back. The browser must be dropped before the result is waited for: closing
    /// the channel requeues the messages of a single consumer in order.
    pub(super) fn end(mut self) -> Returned {
        let ready_before = self.give_back().unwrap_or_else(|error| {
            debug!("the broker requeues the messages that were kept: {error}");
            None
        });
        Returned { session: self.session, queue: self.queue, ready_before }
    }

    /// Requeues the kept messages, once the broker has seen the acknowledgements. If closing the channel
    /// is what requeues them, the number of messages in the queue before that.
    fn give_back(&mut self) -> Result<Option<u64>, AmqpError> {
        let deadline = Instant::now() + REST;
        while !self.ended && Instant::now() < deadline {
            self.end_page()?;
            thread::sleep(Duration::from_millis(1));
        }
        self.acknowledge()?;
        if self.forgot {
            settle();
        }
        if self.pages < 2 {
            let any = self.last.is_some() || !self.kept.is_empty();
            return any.then(|| ready(&mut self.session, &self.queue)).transpose();
        }
        if !self.ended
            && let Some(page) = &self.page
        {
            page.end()?;
        }
        self.kept.extend(self.last.take());
        self.kept.sort_unstable_by_key(|(place, _)| place.tag());
        let mut expected = ready(&mut self.session, &self.queue)?;
        let mut patient = true;
        for (index, (place, count)) in std::mem::take(&mut self.kept).into_iter().enumerate() {
            self.browser.give_back(place)?;
            expected += u64::from(count);
            // Acknowledgements can still be in flight, so the messages are returned one by one.
            if patient && (self.forgot || index % BUNDLES == 0) {
                patient = self.wait_for(expected)?;
            }
        }
        if patient {
            self.wait_for(expected)?;
        }
        Ok(None)
    }

    /// Waits until `expected` messages are ready. False on timeout.
    fn wait_for(&mut self, expected: u64) -> Result<bool, AmqpError> {
        ready_within(&mut self.session, &self.queue, expected)
    }
}

/// Kept messages on their way back to their queue.
pub(super) struct Returned {
    session: Session,
    queue: String,
    ready_before: Option<u64>,
}

impl Returned {
    /// Waits until the broker has requeued them, so that the next command finds them.
    pub(super) fn wait(mut self) {
        if let Some(before) = self.ready_before {
            let _ = ready_within(&mut self.session, &self.queue, before + 1);
        }
    }
}

/// How many messages are ready; 0 if that is unknown. It is only waited for.
fn ready(session: &mut Session, queue: &str) -> Result<u64, AmqpError> {
    Ok(session.queue_depth(queue)?.and_then(|depth| depth.ready).unwrap_or(0).into())
}

/// Waits until `expected` messages are ready. False on timeout.
fn ready_within(session: &mut Session, queue: &str, expected: u64) -> Result<bool, AmqpError> {
    let deadline = Instant::now() + PUT_BACK;
    while ready(session, queue)? < expected {
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}
