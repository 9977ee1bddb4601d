//! Text for commands that somebody may paste into a shell.

/// A word, quoted for a shell if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
