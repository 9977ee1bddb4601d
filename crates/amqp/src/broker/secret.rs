//! A password that no log, error or debug output shows.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use zeroize::Zeroizing;

/// A password. `Debug` and `Display` show `***`, and its memory is cleared when it is dropped. A
/// password from a file is read again for every login, so it may change while a program runs.
#[derive(Clone)]
pub struct Secret {
    text: Zeroizing<String>,
    file: Option<Arc<Path>>,
}

impl Secret {
    /// Wraps a password.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: Zeroizing::new(text.into()), file: None }
    }

    /// Reads a password from a file, without the byte order mark and the line ending that
    /// editors add.
    ///
    /// # Errors
    /// If the file cannot be read, or is not UTF-8.
    pub fn from_file(file: impl Into<PathBuf>) -> io::Result<Self> {
        let file = file.into();
        Ok(Self { text: read(&file)?, file: Some(file.into()) })
    }

    /// The password that the file contains now. If the file cannot be read or is empty, the last
    /// password stays: an editor may be writing the file.
    #[must_use]
    pub fn current(&self) -> Self {
        let read = self.file.as_deref().and_then(|file| read(file).ok());
        let text = read.filter(|text| !text.is_empty());
        Self { text: text.unwrap_or_else(|| self.text.clone()), file: self.file.clone() }
    }

    /// The password itself, for the code that sends it.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

fn read(file: &Path) -> io::Result<Zeroizing<String>> {
    let text = Zeroizing::new(fs::read_to_string(file)?);
    Ok(Zeroizing::new(text.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']).to_owned()))
}

impl<T: Into<String>> From<T> for Secret {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_and_an_unfinished_one_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("\u{feff}first\r\n");
        let secret = Secret::from_file(file.path()).unwrap();
        assert_eq!(secret.expose(), "first");
        write("second\n");
        let second = secret.current();
        assert_eq!((secret.expose(), second.expose()), ("first", "second"));
        write("");
        assert_eq!(second.current().expose(), "second");
        drop(file);
        assert_eq!(second.current().expose(), "second");
        assert!(!format!("{second:?} {second}").contains("second"));
    }
}
