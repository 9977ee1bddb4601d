//! Reading a journal.

use std::sync::atomic::AtomicBool;

use delayline_admin::AdminError;

use crate::{Failure, Output, ending::Looking, output::at};

/// Reads a journal with a progress bar, until it is read or somebody ends that. `work` is given
/// the flag that says so, and whom to tell how many messages it has read, and of how many.
pub(super) fn reading<T>(
    output: &Output,
    work: impl FnOnce(&AtomicBool, &mut dyn FnMut(u64, u64)) -> Result<T, AdminError>,
) -> Result<T, Failure> {
    output.following("reading the journal", |bar| {
        let looking = Looking::begin(output.json, Some(bar.clone()))?;
        Ok(work(&looking.stop, &mut |read, all| at(bar, read, all))?)
    })
}
