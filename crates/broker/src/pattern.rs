//! The broker's patterns, which are PCRE: policies and permissions have them.

use std::{borrow::Cow, fmt, ops::Deref, sync::OnceLock};

use fancy_regex::Regex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A pattern, compiled when it is first matched, and once.
#[derive(Clone, Default)]
pub struct Pattern {
    text: String,
    /// `None` if it cannot be compiled here.
    compiled: OnceLock<Option<Regex>>,
}

/// A pattern with syntax that cannot be read here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read `{0}`")]
pub struct Unreadable(pub String);

impl Pattern {
    /// Whether it matches a part of a name.
    ///
    /// # Errors
    /// If it cannot be read here, or gives up on this name.
    pub fn matches(&self, name: &str) -> Result<bool, Unreadable> {
        let compiled = self.compiled.get_or_init(|| Regex::new(&self.text).ok());
        let matched = compiled.as_ref().and_then(|regex| regex.is_match(name).ok());
        matched.ok_or_else(|| Unreadable(self.text.clone()))
    }

    /// Whether it can be read here.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.matches("").is_ok()
    }
}

/// A pattern that matches this text.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    fancy_regex::escape(text)
}

impl Deref for Pattern {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl<T: Into<String>> From<T> for Pattern {
    fn from(text: T) -> Self {
        Self { text: text.into(), compiled: OnceLock::new() }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl PartialEq<str> for Pattern {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}

impl PartialEq<&str> for Pattern {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl schemars::JsonSchema for Pattern {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        String::deserialize(input).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_read_as_pcre() {
        for (pattern, name, expected) in [
            ("lay", "delay", Ok(true)),
            ("^lay", "delay", Ok(false)),
            (r"^delay\z", "delay\n", Ok(false)),
            ("^(?!amq\\.)", "amq.topic", Ok(false)),
            ("^(?!amq\\.)", "delay", Ok(true)),
            ("(", "delay", Err(Unreadable("(".into()))),
        ] {
            assert_eq!(Pattern::from(pattern).matches(name), expected, "{pattern}");
        }
        assert!(Pattern::from("a").is_readable() && !Pattern::from("[").is_readable());
    }
}
