//! Measures what a set of delayline does on a broker ([`mod@bench`]), and estimates without a
//! broker what a set can carry ([`capacity`]). Whatever sends messages and waits for them keeps
//! a [`ledger`].

pub mod bench;
pub mod capacity;
pub mod ledger;
