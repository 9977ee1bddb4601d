//! What measures a set of delayline on a broker ([`mod@bench`]), and what reckons without one what a
//! set carries ([`capacity`]).

pub mod bench;
pub mod capacity;
