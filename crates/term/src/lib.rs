//! Input from a terminal, and output to it.

pub mod change;
pub mod code;
pub mod consent;
pub mod draw;
pub mod ending;
pub mod failure;
pub mod findings;
pub mod logging;
pub mod looking;
pub mod output;
pub mod table;
pub mod text;
pub mod time;

pub use code::Code;
pub use failure::Failure;
pub use output::Output;
