//! Who may send requests.

use std::net::IpAddr;

use base64::{Engine, prelude::BASE64_STANDARD};
use delayline_amqp::broker::Secret;
use delayline_core::codec::AppKey;
use hyper::{HeaderMap, Uri, header};
use ring::{
    digest::{SHA256, digest},
    hmac,
};
use subtle::ConstantTimeEq;

/// The shortest token.
const MIN_TOKEN: usize = 16;

/// Who may send requests to a server.
#[derive(Debug, Default)]
pub enum PageAccess {
    /// Every user of this machine. Requests for another host name are refused: they come from a page in
    /// a browser whose name pretends to be ours.
    #[default]
    Local,
    /// Every holder of the token. A holder of an application's token may ask about that application.
    Token(Token),
}

/// A shared secret. It comes in the `Authorization` header, as `Bearer` token or as the password
/// of `Basic` with any user name.
#[derive(Debug, Clone)]
pub struct Token(Secret);

/// The beginning of an application's token, which its app key follows.
const OF_APP: &str = "app:";

/// Not a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Too short to be safe from guessing.
    #[error("it has {0} characters; use {MIN_TOKEN} or more, for example from `openssl rand -hex 32`")]
    Short(usize),
    /// It contains characters that a header cannot carry.
    #[error("it must not contain white space, control characters or non-ASCII characters")]
    Letters,
}

impl Token {
    /// Takes a token: 16 or more visible ASCII characters. One from a file is read again for
    /// every visitor.
    ///
    /// # Errors
    /// It is shorter, or has others.
    pub fn new(secret: impl Into<Secret>) -> Result<Self, TokenError> {
        let secret = secret.into();
        let text = secret.expose();
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Letters);
        }
        if text.len() < MIN_TOKEN {
            return Err(TokenError::Short(text.len()));
        }
        Ok(Self(secret))
    }

    /// The token of an application, which follows from this one: it is valid as long as this one is.
    #[must_use]
    pub fn of_app(&self, app: &AppKey) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.current().expose().as_bytes());
        let tag = hmac::sign(&key, format!("{OF_APP}{app}").as_bytes());
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{OF_APP}{app}:{hex}")
    }

    /// The application whose token this is.
    fn app_of(&self, presented: &[u8]) -> Option<AppKey> {
        let current = Self::new(self.0.current()).ok()?;
        let (app, _) = std::str::from_utf8(presented).ok()?.strip_prefix(OF_APP)?.rsplit_once(':')?;
        let app = AppKey::new(app).ok()?;
        let right: bool = current.of_app(&app).as_bytes().ct_eq(presented).into();
        right.then_some(app)
    }

    /// Takes the same time wherever the difference is: hashes are compared in full.
    fn is(&self, presented: &[u8]) -> bool {
        let hash = |bytes: &[u8]| digest(&SHA256, bytes);
        // A file that no longer holds a token, for example an unfinished file, admits no client.
        let Ok(Self(current)) = Self::new(self.0.current()) else { return false };
        hash(presented).as_ref().ct_eq(hash(current.expose().as_bytes()).as_ref()).into()
    }
}

/// The admission on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    Allowed,
    /// It may ask about this application.
    App(AppKey),
    /// It has no token, or not the right one.
    Unauthorized,
    /// It is for another host.
    WrongHost,
}

impl PageAccess {
    pub(super) fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Admission {
        match self {
            Self::Local if is_local(uri, headers) => Admission::Allowed,
            Self::Local => Admission::WrongHost,
            Self::Token(token) => match presented(headers) {
                Some(presented) if token.is(&presented) => Admission::Allowed,
                Some(presented) => token.app_of(&presented).map_or(Admission::Unauthorized, Admission::App),
                None => Admission::Unauthorized,
            },
        }
    }
}

fn presented(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, value) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let value = value.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(value.into());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(value).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = match uri.authority() {
        Some(authority) => Some(authority.host().to_owned()),
        None => headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok()?.parse::<hyper::http::uri::Authority>().ok())
            .map(|authority| authority.host().to_owned()),
    };
    // No browser leaves it out; HTTP/1.0 may.
    let Some(host) = host else { return !headers.contains_key(header::HOST) };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn judge(access: &PageAccess, name: header::HeaderName, value: &str) -> Admission {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
        access.judge(&Uri::from_static("/metrics"), &headers)
    }

    #[test]
    fn a_token_comes_as_bearer_or_as_a_password() {
        let access = PageAccess::Token(Token::new("0123456789abcdef").unwrap());
        let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
        for right in [
            "Bearer 0123456789abcdef".into(),
            "bearer  0123456789abcdef".into(),
            basic("prometheus:0123456789abcdef"),
            basic(":0123456789abcdef"),
        ] {
            assert_eq!(judge(&access, header::AUTHORIZATION, &right), Admission::Allowed, "{right}");
        }
        for wrong in [
            "Bearer 0123456789abcdeF".into(),
            "Bearer 0123456789abcde".into(),
            "Bearer 0123456789abcdef0".into(),
            "Bearer ".into(),
            "Digest 0123456789abcdef".into(),
            "0123456789abcdef".into(),
            "Basic ???".into(),
            basic("0123456789abcdef"),
            basic("0123456789abcdef:"),
            basic("a:b:0123456789abcdef"),
        ] {
            assert_eq!(judge(&access, header::AUTHORIZATION, &wrong), Admission::Unauthorized, "{wrong}");
        }
        assert_eq!(access.judge(&Uri::from_static("/"), &HeaderMap::new()), Admission::Unauthorized);
    }

    #[test]
    fn the_token_of_an_application_is_of_that_application_only() {
        let access = |token: &str| PageAccess::Token(Token::new(token).unwrap());
        let master = Token::new("0123456789abcdef").unwrap();
        let key = |text: &str| AppKey::new(text).unwrap();
        let of = |app: &str| master.of_app(&key(app));
        let judged =
            |token: &str, with: &str| judge(&access(with), header::AUTHORIZATION, &format!("Bearer {token}"));
        for app in ["billing", "eu.orders", "a:b"] {
            assert_eq!(judged(&of(app), "0123456789abcdef"), Admission::App(key(app)));
            // With another token, the old ones end.
            assert_eq!(judged(&of(app), "0123456789abcdeF"), Admission::Unauthorized);
        }
        let hex = of("billing").rsplit_once(':').unwrap().1.to_owned();
        for forged in [
            format!("app:orders:{hex}"),
            format!("app:billing:{}", &hex[..63]),
            format!("app:billing:{}", hex.to_uppercase()),
            format!("app::{hex}"),
            "app:billing:".into(),
            format!("billing:{hex}"),
            hex,
        ] {
            assert_eq!(judged(&forged, "0123456789abcdef"), Admission::Unauthorized, "{forged}");
        }
    }

    #[test]
    fn without_a_token_only_this_machine_may_ask() {
        for host in ["localhost", "localhost:15628", "LOCALHOST", "127.0.0.1:1", "127.8.8.8", "[::1]:15628"] {
            assert_eq!(judge(&PageAccess::Local, header::HOST, host), Admission::Allowed, "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "10.0.0.1", "[::]", "127.0.0.1.evil.example", "@", ""]
        {
            assert_eq!(judge(&PageAccess::Local, header::HOST, host), Admission::WrongHost, "{host}");
        }
        let elsewhere = Uri::from_static("http://evil.example/metrics");
        assert_eq!(PageAccess::Local.judge(&elsewhere, &HeaderMap::new()), Admission::WrongHost);
        assert_eq!(PageAccess::Local.judge(&Uri::from_static("/"), &HeaderMap::new()), Admission::Allowed);
    }

    #[test]
    fn a_token_is_long_and_printable_and_never_shown() {
        assert_eq!(Token::new("short").unwrap_err(), TokenError::Short(5));
        assert_eq!(Token::new("0123456789 abcdef").unwrap_err(), TokenError::Letters);
        assert_eq!(format!("{:?}", Token::new("0123456789abcdef").unwrap()), "Token(***)");
    }
}
