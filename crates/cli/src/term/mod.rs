//! Input from a terminal, and output to it.

pub(crate) mod again;
pub(crate) mod change;
pub(crate) mod code;
pub(crate) mod consent;
pub(crate) mod ending;
pub(crate) mod failure;
pub(crate) mod findings;
pub(crate) mod logging;
pub(crate) mod looking;
pub(crate) mod output;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;

pub use code::Code;
pub use failure::Failure;
pub use output::Output;
