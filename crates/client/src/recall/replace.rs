//! Sending a message in place of a waiting one.

use crate::router::{Publish, PublishError, Receipt};
use delayline_core::{
    codec::MessageId,
    message::{Handle, Message},
};

use super::{Answer, RecallError, Recaller};

/// A message that was sent in place of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replaced {
    /// The receipt of the new message.
    pub receipt: Receipt,
    /// The result of recalling the old one. Unless it is [`Answer::InTime`], both may be
    /// delivered.
    pub recalled: Answer,
}

/// Why a message does not replace another one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// This [`Recaller`] recalled the old message before, so another one may be waiting in its
    /// place. Nothing was done.
    #[error(
        "the message {handle} was recalled before, and nothing was done: replace the message that took its \
         place, or publish the new one without replacing any"
    )]
    Recalled {
        /// The handle of the old message.
        handle: Handle,
    },
    /// Messages of the old message's application cannot be recalled, or this could not be checked.
    /// Nothing was done.
    #[error("the old message cannot be recalled, and nothing was done: {0}")]
    Check(RecallError),
    /// The new message was not confirmed, and the old one was not recalled.
    #[error("{source}{}", with_id(id.as_ref()))]
    Publish {
        /// The id of the new message. If its confirm was lost, it may be delivered.
        id: Option<MessageId>,
        /// Why it is not confirmed.
        source: PublishError,
    },
    /// The new message was confirmed, but the old one may not be recalled. Unless it is, both will
    /// be delivered. Repeating the recall is safe.
    #[error(
        "the new message is confirmed{}, but recalling the old one failed: recall it once more, or both may be \
         delivered. {source}",
        handle_of(receipt)
    )]
    Recall {
        /// The receipt of the new message.
        receipt: Box<Receipt>,
        /// Why the old one is not recalled.
        source: RecallError,
    },
}

fn handle_of(receipt: &Receipt) -> String {
    receipt.handle.as_ref().map_or_else(String::new, |handle| format!(" (its handle is {handle})"))
}

fn with_id(id: Option<&MessageId>) -> String {
    id.map_or_else(String::new, |id| format!(" (the new message has the id `{id}`)"))
}

/// The same id with a fresh suffix, which no message had before. An id and a delay make one routing
/// key. A recall of that key catches every message with it, including later ones.
#[must_use]
pub fn renewed(id: &MessageId) -> MessageId {
    id.with_suffix(fastrand::u64(..))
}

impl Recaller {
    /// Publishes a message in place of another one. First the new one is confirmed, then the old
    /// one is recalled. So no fault in between loses a message. At worst, both are delivered.
    ///
    /// If the new message has an id, it is [`renewed`], so that no earlier recall catches the
    /// message. The receipt has the new handle. Keep that handle and use it for the next
    /// replacement: a handle can be replaced once. This `Recaller` refuses an old message among the
    /// last 10,000 that it recalled. It does not see the recalls of others.
    ///
    /// # Errors
    /// [`ReplaceError`] names each case and what was done before it.
    pub fn replace(
        &self,
        publisher: &impl Publish,
        old: &Handle,
        mut new: Message,
    ) -> Result<Replaced, ReplaceError> {
        if self.has_recalled(old) {
            return Err(ReplaceError::Recalled { handle: old.clone() });
        }
        new.id = new.id.as_ref().map(renewed);
        let id = new.id.clone();
        self.check(old.app()).map_err(ReplaceError::Check)?;
        let receipt = publisher.publish(new).map_err(|source| ReplaceError::Publish { id, source })?;
        match self.recall(old) {
            Ok(recalled) => Ok(Replaced { receipt, recalled }),
            Err(source) => Err(ReplaceError::Recall { receipt: Box::new(receipt), source }),
        }
    }
}
