//! Finds the message that makes the broker end a connection. Pure.
//!
//! The broker does not name the message. So all messages in flight become suspects, which are sent
//! one at a time: the message that was in flight alone is to blame. A crash of the broker (541) and
//! a connection that ends without a reason can also have another cause, so a single end proves
//! nothing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use delayline_amqp::CRASH;

use super::{Cause, in_flight::InFlight};

/// After this many crashes with a message in flight, the last time alone, the message is to blame.
const CRASHES: u32 = 2;

/// A connection that a message ends is lost within this time after the message was written.
const SOON: Duration = Duration::from_secs(5);

/// After this many such losses, a message is sent alone.
const LOSSES: u32 = 3;

/// After this many losses while it was alone, a message is to blame. The first number applies if
/// the broker confirmed others in between, the second if not. In the second case the network or the
/// broker may be down, although each connection was established.
const LOSSES_ALONE: (u32, u32) = (3, 6);

/// The code of a connection that ended without a code.
pub(super) const NO_CODE: u16 = 0;

/// The evidence against a message.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// Whether it is sent alone.
    pub(super) is_suspect: bool,
    crashes: u32,
    losses: u32,
    alone: u32,
    /// How many answers the broker had given when the message was first lost alone.
    answers: u64,
}

/// How a channel or connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// With an error of the broker.
    Error(u16),
    /// Without a reason, after the message had been in flight for so long.
    Lost(Duration),
}

impl Suspicion {
    /// Records that the message was in flight at the end of a channel. `alone` is the number of
    /// answers so far if it was alone. Returns whether the message is to blame.
    fn is_to_blame(&mut self, end: End, alone: Option<u64>) -> bool {
        match end {
            End::Error(CRASH) => {
                self.crashes += 1;
                self.is_suspect = true;
                alone.is_some() && self.crashes >= CRASHES
            }
            End::Error(_) => {
                self.is_suspect = true;
                alone.is_some()
            }
            End::Lost(after) if after > SOON => false,
            End::Lost(_) => {
                self.losses += 1;
                self.is_suspect |= self.losses >= LOSSES;
                let Some(answers) = alone else { return false };
                if self.alone == 0 {
                    self.answers = answers;
                }
                self.alone += 1;
                let (working, silent) = LOSSES_ALONE;
                self.alone >= if answers > self.answers { working } else { silent }
            }
        }
    }

    /// The reason for a message that ended connections without one.
    fn reason(&self) -> String {
        format!(
            "the connection ended {} times in a row without a reason while this message was alone on it",
            self.alone
        )
    }
}

/// The next step for each message that was in flight when a channel ended.
#[derive(Default)]
pub(super) struct Judged {
    /// The message that caused it, and the reason for its publisher.
    pub(super) guilty: Option<(Box<InFlight>, Cause)>,
    /// Messages that are sent again at once.
    pub(super) again: VecDeque<Box<InFlight>>,
    /// A message that is sent after all others: if the broker confirms these, the network works.
    pub(super) last: Option<Box<InFlight>>,
}

/// Decides about the messages that were in flight when a channel ended: with an error of the
/// broker, or lost without a reason, or neither. `alone` holds the number of answers so far if the
/// broker can mean only one message.
pub(super) fn judge(
    sent: impl Iterator<Item = Box<InFlight>>,
    error: Option<&(u16, String)>,
    is_lost: bool,
    alone: Option<u64>,
) -> Judged {
    let mut judged = Judged::default();
    let now = Instant::now();
    for mut message in sent {
        let end = match error {
            Some((code, _)) => Some(End::Error(*code)),
            None => is_lost.then(|| End::Lost(message.age(now))),
        };
        message.mark_unanswered(error.is_some());
        if end.is_some_and(|end| message.suspicion.is_to_blame(end, alone)) {
            let (code, text) = error.cloned().unwrap_or_else(|| (NO_CODE, message.suspicion.reason()));
            judged.guilty = Some((message, Cause::Rejected { code, text }));
        } else if alone.is_some() && error.is_none() && is_lost {
            judged.last = Some(message);
        } else {
            judged.again.push_back(message);
        }
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: End = End::Lost(Duration::ZERO);

    fn blamed(ends: &[(End, bool, u64)]) -> Vec<bool> {
        let mut suspicion = Suspicion::default();
        ends.iter()
            .map(|&(end, alone, answers)| suspicion.is_to_blame(end, alone.then_some(answers)))
            .collect()
    }

    #[test]
    fn an_error_over_one_message_alone_is_its_own_unless_it_is_a_crash() {
        assert_eq!(blamed(&[(End::Error(403), true, 0)]), [true]);
        assert_eq!(blamed(&[(End::Error(403), false, 0), (End::Error(403), true, 0)]), [false, true]);
        assert_eq!(blamed(&[(End::Error(CRASH), true, 0), (End::Error(CRASH), true, 0)]), [false, true]);
        assert_eq!(blamed(&[(End::Error(CRASH), false, 0), (End::Error(CRASH), true, 0)]), [false, true]);
        assert_eq!(blamed(&[(End::Error(CRASH), false, 0); 3]), [false; 3]);
    }

    #[test]
    fn a_loss_is_a_messages_fault_only_after_several_in_a_row() {
        assert_eq!(blamed(&[(NOW, true, 7); 6]), [false, false, false, false, false, true]);
        let others_go_on = [(NOW, true, 7), (NOW, true, 8), (NOW, true, 9)];
        assert_eq!(blamed(&others_go_on), [false, false, true]);
        assert_eq!(blamed(&[(NOW, false, 0); 20]), [false; 20]);
        assert_eq!(blamed(&[(End::Lost(SOON * 2), true, 0); 20]), [false; 20]);
    }

    #[test]
    fn a_message_becomes_a_suspect_by_an_error_or_by_several_losses() {
        let suspects = |end: End| {
            let mut suspicion = Suspicion::default();
            [(); 3].map(|()| {
                suspicion.is_to_blame(end, None);
                suspicion.is_suspect
            })
        };
        assert_eq!(suspects(End::Error(CRASH)), [true; 3]);
        assert_eq!(suspects(NOW), [false, false, true]);
        assert_eq!(suspects(End::Lost(SOON * 2)), [false; 3]);
    }
}
