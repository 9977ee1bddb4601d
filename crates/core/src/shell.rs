//! Text for commands that a user may paste into a shell.

use std::sync::OnceLock;

/// Flags that each command for the user of this process repeats.
static REPEATED: OnceLock<Vec<[String; 2]>> = OnceLock::new();

/// A word, quoted for a shell if necessary.
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Words as one line of a shell, each quoted if necessary.
pub fn joined<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Makes [`command`] repeat the flags with which this process found its broker and its set, so that
/// printed commands work for its user. Only the first call counts.
pub fn repeat(flags: Vec<[String; 2]>) {
    let _ = REPEATED.set(flags);
}

/// A command for the user of this process to paste: its words, quoted, and the flags of [`repeat`].
/// For a known set, see [`SetName::command`](crate::topology::SetName::command).
///
/// ```
/// use delayline_core::shell::command;
///
/// assert_eq!(command(&["app", "add", "$(reboot)"]), "delayline app add '$(reboot)'");
/// ```
#[must_use]
pub fn command(words: &[&str]) -> String {
    with_flags(words, &[])
}

/// The same with other values of some flags.
pub(crate) fn with_flags(words: &[&str], others: &[[&str; 2]]) -> String {
    let repeated = REPEATED.get().into_iter().flatten().map(|flag| flag.each_ref().map(String::as_str));
    let given = |name: &str| words.contains(&name) || others.iter().any(|other| other[0] == name);
    let flags = repeated.filter(|flag| !given(flag[0])).chain(others.iter().copied()).flatten();
    joined(["delayline"].into_iter().chain(words.iter().copied()).chain(flags))
}
