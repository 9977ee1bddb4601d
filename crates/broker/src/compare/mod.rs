//! A set, compared with the wanted one: each [`Difference`], and its text. Pure.

mod difference;
mod earlier;
mod harm;
mod journals;
mod keys;
mod recalls;
mod set;
mod shovels;
mod suitable;

pub use difference::{Difference, earlier_remedy};
pub use keys::is_judged;
pub use set::{REPLACED, is_federated, only_replicas};
pub use suitable::unsuitable;
