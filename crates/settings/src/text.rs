//! Text files that people write.

use std::{fs, io, path::Path};

/// Reads a text file.
///
/// # Errors
/// The file cannot be read, or is not text.
pub fn read_text(file: &Path) -> io::Result<String> {
    let text = match file == Path::new("-") {
        true => io::read_to_string(io::stdin()),
        false => fs::read_to_string(file),
    };
    text.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(error.kind(), "it is not a text file (UTF-8)"),
        _ => error,
    })
}
