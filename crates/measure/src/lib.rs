//! Measures what a set of delayline does on a broker ([`mod@bench`]), and estimates without a
//! broker what a set can carry ([`capacity`]).

pub mod bench;
pub mod capacity;
