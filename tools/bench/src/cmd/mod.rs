//! One file per command: parse, call, print.

pub(super) mod conformance;
pub(super) mod plan;
pub(super) mod probe;
pub(super) mod run;
