//! What is in a vhost, compared with what should be there. Nothing is changed.

pub mod examine;
pub mod finding;
pub mod inspect;
