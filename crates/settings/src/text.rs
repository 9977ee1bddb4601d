//! Files that people name: `-` is standard input.

use std::{
    fs,
    io::{self, Read},
    path::Path,
};

/// Reads a file.
///
/// # Errors
/// The file cannot be read.
pub fn read_bytes(file: &Path) -> io::Result<Vec<u8>> {
    if file != Path::new("-") {
        return fs::read(file);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a text file.
///
/// # Errors
/// The file cannot be read, or is not text.
pub fn read_text(file: &Path) -> io::Result<String> {
    let no_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not a text file (UTF-8)");
    String::from_utf8(read_bytes(file)?).map_err(no_text)
}
