//! The messages of a set that wait or were set aside: what they are, moved, recalled, discarded and
//! replayed; and stuck queues made to try again.

pub mod complaint;
pub mod drain;
pub mod error;
pub mod examine;
pub mod held;
pub mod number;
pub mod scheduled;
pub mod unstick;
