//! Percent-encoding, by way of what the `url` crate has for forms: there a space is a `+`,
//! and `&` and `=` separate.

use url::form_urlencoded::{byte_serialize, parse};

/// Decodes a part of a URL; `None` if it is not UTF-8.
#[must_use]
pub fn decode(text: &str) -> Option<String> {
    let escaped = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    let decoded: String = parse(escaped.as_bytes()).map(|(text, _)| text.into_owned()).collect();
    (!decoded.contains(char::REPLACEMENT_CHARACTER)).then_some(decoded)
}

/// Encodes a text as one part of a path, or as a user or a password.
#[must_use]
pub fn encode(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_it_encodes() {
        for text in ["", "plain", "a b", "a+b", "a&b=c", "a/b%2Fc", "ü\n\0", "%", "=&=", "a;b"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
            assert!(!encode(text).contains(['/', ' ', '+', '&', '?', '#']), "{text}");
        }
    }

    #[test]
    fn signs_that_mean_something_in_forms_mean_nothing_here() {
        assert_eq!(decode("a+b&c=d%2B%20").as_deref(), Some("a+b&c=d+ "));
        assert_eq!(decode("100%").as_deref(), Some("100%"));
        assert_eq!(decode("%ff"), None);
    }
}
