//! Files that people write.

use std::{fs, io, path::Path};

use delayline_amqp::broker::Secret;

/// Reads a text file.
///
/// # Errors
/// If the file cannot be read, or is not text.
pub fn read_text(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(error.kind(), "it is not a text file (UTF-8)"),
        _ => error,
    })
}

/// Reads a secret from a file, without the line ending that editors add.
///
/// # Errors
/// If the file cannot be read, or is not text.
pub fn read_secret(file: &Path) -> io::Result<Secret> {
    Ok(Secret::new(read_text(file)?.trim_end_matches(['\r', '\n'])))
}
