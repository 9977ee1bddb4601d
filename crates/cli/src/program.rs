//! What `delayline-bench` shares with `delayline`: flags, output and exit codes.

pub use crate::{
    flags::Global,
    term::{
        Code, Failure, Output,
        ending::{nobody_reads, on_signal_or_without_reader},
        findings::unchecked,
        output::{SCHEMA_VERSION, aside, counted, grouped},
        table::table,
    },
    tree::{parse, prepared},
    values::{delay, tolerance, whole},
};
