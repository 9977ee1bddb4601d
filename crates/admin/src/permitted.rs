//! Permissions, and what they allow as the broker interprets them.

use regex::Regex;

use crate::management::{ManagementApi, ManagementError, Permission, TopicPermission, UserInfo};

/// All permissions in a vhost, and all users.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub(super) users: Vec<UserInfo>,
    pub(super) permissions: Vec<Permission>,
    pub(super) topics: Vec<TopicPermission>,
}

impl Grants {
    /// Asks the broker, which tells only administrators.
    pub(super) fn ask(api: &ManagementApi, vhost: &str) -> Result<Self, ManagementError> {
        Ok(Self {
            users: api.users()?,
            permissions: api.permissions(vhost)?,
            topics: api.topic_permissions(vhost)?,
        })
    }

    /// Whether a user has a tag, as far as the user is known.
    pub(super) fn has_tag(&self, user: &str, tag: &str) -> bool {
        self.users.iter().any(|known| known.name == user && known.has_tag(tag))
    }
}

/// A pattern that uses PCRE syntax we do not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreadable(pub(super) String);

/// An app key that no application has: a pattern that permits it permits any.
pub(super) const ANY_APP: &str = "delayline-any-app";

/// Whether it is allowed, or why that cannot be told.
pub(super) type May = Result<bool, Unreadable>;

/// Patterns must match a part of the name; an empty one matches no name.
pub(super) fn matches(pattern: &str, text: &str) -> May {
    if pattern.is_empty() {
        return Ok(text.is_empty());
    }
    Regex::new(pattern).map(|pattern| pattern.is_match(text)).map_err(|_| Unreadable(pattern.to_owned()))
}

/// Whether a user may use a key on a topic exchange that it may use at all. Without a topic
/// permission it may use any. The broker inserts names unescaped, so they count as part of
/// the pattern.
pub(super) fn key_matches(
    topics: &[TopicPermission],
    (user, vhost): (&str, &str),
    exchange: &str,
    key: &str,
    which: fn(&TopicPermission) -> &String,
) -> May {
    let rule = topics.iter().find(|topic| topic.user == user && topic.exchange == exchange);
    let Some(rule) = rule else { return Ok(true) };
    matches(&which(rule).replace("{username}", user).replace("{vhost}", vhost), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_patterns_as_the_broker_does() {
        assert_eq!(matches("", "delay"), Ok(false));
        assert_eq!(matches("lay", "delay"), Ok(true));
        assert_eq!(matches("^delay(?!x)", "delay"), Err(Unreadable("^delay(?!x)".into())));
        let rule = TopicPermission {
            user: "a.b".into(),
            exchange: "delay".into(),
            write: r"^{vhost}\.{username}\z".into(),
            read: String::new(),
        };
        let may = |user: &str, exchange: &str, key: &str, which: fn(&TopicPermission) -> &String| {
            key_matches(std::slice::from_ref(&rule), (user, "v"), exchange, key, which)
        };
        assert_eq!(may("a.b", "delay", "v.a.b", |rule| &rule.write), Ok(true));
        assert_eq!(may("a.b", "delay", "v.axb", |rule| &rule.write), Ok(true));
        assert_eq!(may("a.b", "delay", "v.a.c", |rule| &rule.write), Ok(false));
        assert_eq!(may("a.b", "delay", "any", |rule| &rule.read), Ok(false));
        assert_eq!(may("a.b", "other", "any", |rule| &rule.read), Ok(true));
        assert_eq!(may("c", "delay", "any", |rule| &rule.read), Ok(true));
    }
}
