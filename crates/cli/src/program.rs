//! What `delayline-bench` shares with `delayline`: flags, output and exit codes.

pub use crate::{
    flags::Global, tree::parse, tree::prepared, values::delay, values::tolerance, values::whole,
};
pub use delayline_term::{
    Code, Failure, Output, ending::nobody_reads, ending::on_signal_or_without_reader, findings::unchecked,
    output::SCHEMA_VERSION, output::aside, output::counted, output::grouped, table::table,
};
