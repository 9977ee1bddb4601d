//! Percent-encoding of one part of a URL: a path segment, a user or a password.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

/// Decodes a part of a URL; `None` if the result is not UTF-8.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

/// Encodes a text as one part of a path, or as a user or a password.
#[must_use]
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_its_own_encoding() {
        for text in ["", "plain", "a b", "a+b", "a&b=c", "a/b%2Fc", "ü\n\0", "%", "=&=", "a;b"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
            assert!(!encode(text).contains(['/', ' ', '+', '&', '?', '#']), "{text}");
        }
    }

    #[test]
    fn keeps_plus_signs_and_refuses_other_encodings() {
        assert_eq!(decode("a+b&c=d%2B%20").as_deref(), Some("a+b&c=d+ "));
        assert_eq!(decode("100%").as_deref(), Some("100%"));
        assert_eq!(decode("%ff"), None);
    }
}
