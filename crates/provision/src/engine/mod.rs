//! An engine that makes the missing parts on a broker, and an engine that removes parts.
//!
//! The wanted state is a list of [`Step`]s. A [`Plan`] is the state of each step on the broker; nothing is
//! changed until all steps were examined. [`Hands`] then make the missing parts.
//!
//! A [`Removal`] closes the entry first, waits until every message is counted, and counts again. If
//! messages are held, or a signal comes, it opens the entry again; otherwise it is completed.

pub(crate) mod contents;
pub(crate) mod look;
mod moving;
mod plan;
mod removal;
pub(crate) mod step;

pub use contents::Waiting;
pub(crate) use moving::{Move, interrupted};
pub(crate) use plan::Plan;
pub use plan::{AddedStep, Applied};
pub(crate) use removal::{Closed, Gate, Removal, Removed};
pub(crate) use step::{Found, Hands, Step};
