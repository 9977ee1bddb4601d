//! Sending another message in the place of one that waits.

use jiff::Timestamp;

use crate::{
    message::{Handle, Message, When},
    router::{Publish, PublishError, Receipt},
};

use super::{Answer, RecallError, Recaller};

/// A message that was sent in the place of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replaced {
    /// The receipt of the new message.
    pub receipt: Receipt,
    /// What came of recalling the old one. Unless it is [`Answer::InTime`], both may be
    /// delivered.
    pub recalled: Answer,
}

/// Why a message does not take the place of another one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// Both have the same id and the same delay, and so the same routing key: recalling one
    /// would recall both. The old one was not recalled.
    #[error(
        "the new message has the id `{}` and the delay of the old one, so recalling one would recall both; \
         give it an id of its own{}", handle.id(), confirmed(receipt.as_deref())
    )]
    SameHandle {
        /// The handle that both have.
        handle: Handle,
        /// The receipt of the new message, if its delay became the same only because it
        /// waited in the router. Otherwise it was not published.
        receipt: Option<Box<Receipt>>,
    },
    /// Messages of the old one's application cannot be recalled, or nobody could tell. Nothing was
    /// done.
    #[error("the old message cannot be recalled, and nothing was done: {0}")]
    Check(RecallError),
    /// The new message was not confirmed, and the old one was not recalled.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The new message was confirmed, but nobody knows whether the old one is recalled: unless
    /// it is, both will be delivered. Recalling it once more is right in any case.
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

fn confirmed(receipt: Option<&Receipt>) -> &'static str {
    receipt.map_or("", |_| "; it is confirmed, and both will be delivered")
}

impl Recaller {
    /// Publishes a message in the place of another one: first the new one is confirmed, then
    /// the old one is recalled, so whatever happens in between, nothing is lost. At worst,
    /// both are delivered.
    ///
    /// The new message needs a routing key of its own: another id, or another delay. The key of
    /// a message that was recalled before is still recalled: a new one with the same id and
    /// delay is set aside, too, until that recall is undone or swept.
    ///
    /// # Errors
    /// [`ReplaceError`] says what was done.
    pub fn replace(
        &mut self,
        publisher: &impl Publish,
        old: &Handle,
        new: Message,
    ) -> Result<Replaced, ReplaceError> {
        let same = |handle: &Handle| handle.routing_key() == old.routing_key();
        if let When::After(delay) = new.when
            && new.handle(new.tolerance.round(delay), Timestamp::now()).is_some_and(|handle| same(&handle))
        {
            return Err(ReplaceError::SameHandle { handle: old.clone(), receipt: None });
        }
        self.check(old.app()).map_err(ReplaceError::Check)?;
        let receipt = publisher.publish(new)?;
        if receipt.handle.as_ref().is_some_and(same) {
            return Err(ReplaceError::SameHandle { handle: old.clone(), receipt: Some(Box::new(receipt)) });
        }
        match self.recall(old) {
            Ok(recalled) => Ok(Replaced { receipt, recalled }),
            Err(source) => Err(ReplaceError::Recall { receipt: Box::new(receipt), source }),
        }
    }
}
