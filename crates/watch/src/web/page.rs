//! A page, and its content security policy.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};

/// A page that never changes.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) html: &'static str,
    /// Its content security policy.
    pub(super) policy: String,
}

impl Page {
    pub(super) fn new(html: &'static str) -> Self {
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hashes(html, "script"),
            hashes(html, "style"),
        );
        Self { html, policy }
    }
}

/// The sources of a policy that allow the elements of this name and nothing else.
fn hashes(html: &str, element: &str) -> String {
    let (open, close) = (format!("<{element}"), format!("</{element}>"));
    let mut sources = Vec::new();
    let mut rest = html;
    while let Some((content, after)) = rest.split_once(&open).and_then(|(_, tail)| {
        let (_attributes, tail) = tail.split_once('>')?;
        tail.split_once(&close)
    }) {
        let hash = digest(&SHA256, content.as_bytes());
        sources.push(format!("'sha256-{}'", BASE64_STANDARD.encode(hash)));
        rest = after;
    }
    if sources.is_empty() { "'none'".into() } else { sources.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_and_style_is_allowed_by_its_hash() {
        let page = Page::new("<style>a{}</style><script type=\"module\">1</script><p><script>2</script>");
        // printf 1 | openssl dgst -sha256 -binary | base64
        let one = "'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='";
        let two = "'sha256-1HNeOiZeFu7gP1lxi5tdAwGcB9i2xR+Q2jpmbuwTqzU='";
        assert!(page.policy.contains(&format!("script-src {one} {two};")), "{}", page.policy);
        assert!(page.policy.contains("style-src 'sha256-"), "{}", page.policy);
        assert!(Page::new("<p>").policy.contains("script-src 'none'; style-src 'none'"));
    }
}
