//! Reading a journal.

use std::sync::atomic::AtomicBool;

use delayline_admin::AdminError;

use delayline_term::{Failure, Output, looking::Looking, output::at};

/// Reads a journal with a progress bar, until it is read or a signal stops it. `work` gets the flag
/// of that signal, and a callback for the number of messages read and of all messages.
pub(crate) fn reading<T>(
    output: &Output,
    work: impl FnOnce(&AtomicBool, &mut dyn FnMut(u64, u64)) -> Result<T, AdminError>,
) -> Result<T, Failure> {
    output.following("reading the journal", |bar| {
        let looking = Looking::begin(output.json, Some(bar.clone()))?;
        Ok(work(&looking.stop, &mut |read, all| at(bar, read, all))?)
    })
}
