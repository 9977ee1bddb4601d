//! Which message makes the broker end a connection: pure.
//!
//! The broker does not name the message. So all that were in flight become suspects, which are
//! sent one at a time: the message that was in flight alone is the one. A crash of the broker
//! (541) and a connection that ends without a reason can also have another cause, so one
//! such end alone proves nothing.

use std::{collections::VecDeque, time::Duration};

use delayline_amqp::CRASH;

use super::{
    Cause,
    ticket::{Job, Unconfirmed},
};

/// After this many crashes of the broker with a message in flight, the last time alone, the
/// message caused them.
const CRASHES: u32 = 2;

/// A connection that a message ends is lost this soon after the message was written.
const SOON: Duration = Duration::from_secs(5);

/// After this many such losses, a message is sent alone.
const LOSSES: u32 = 3;

/// After this many losses while it was alone, a message caused them: if the broker confirmed
/// others in between, and if not. In the latter case the network or the broker may be down,
/// although there was a connection each time.
const LOSSES_ALONE: (u32, u32) = (3, 6);

/// The code of a connection that ended without one.
pub(super) const NO_CODE: u16 = 0;

/// What speaks against a message.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// Whether it is sent alone.
    pub(super) is_suspect: bool,
    crashes: u32,
    losses: u32,
    alone: u32,
    /// How many answers the broker had given when it was lost alone for the first time.
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
    /// Records that the message was in flight at the end of a channel; `alone` after so many
    /// answers of the broker, or with others. Returns whether the message is to blame.
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

/// What becomes of the messages that were in flight when a channel ended.
pub(super) struct Judged {
    /// The message that caused it, and the reason for its publisher.
    pub(super) guilty: Option<(Job, Cause)>,
    /// Those that are sent again at once.
    pub(super) again: VecDeque<Job>,
    /// A message that is sent after all others: if the broker confirms these, the network works.
    pub(super) last: Option<Job>,
}

/// Decides about the messages that were in flight when a channel ended: with an error of the
/// broker, or lost without a reason, or neither. `alone` holds the number of answers so far if
/// the broker can mean one message only.
pub(super) fn judge(
    sent: impl Iterator<Item = Unconfirmed>,
    error: Option<&(u16, String)>,
    is_lost: bool,
    alone: Option<u64>,
) -> Judged {
    let mut judged = Judged { guilty: None, again: VecDeque::new(), last: None };
    for Unconfirmed { mut job, at } in sent {
        let end = match error {
            Some((code, _)) => Some(End::Error(*code)),
            None => is_lost.then(|| End::Lost(at.elapsed())),
        };
        match error {
            Some(_) => job.mark_suspected(),
            None => job.mark_in_doubt(),
        }
        if end.is_some_and(|end| job.suspicion.is_to_blame(end, alone)) {
            let (code, text) = error.cloned().unwrap_or_else(|| (NO_CODE, job.suspicion.reason()));
            judged.guilty = Some((job, Cause::Rejected { code, text }));
        } else if alone.is_some() && error.is_none() && is_lost {
            judged.last = Some(job);
        } else {
            judged.again.push_back(job);
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
