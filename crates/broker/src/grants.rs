//! The rights of users in a vhost, as the broker interprets its permissions.

use std::collections::{BTreeMap, HashMap};

use crate::{
    exact::names_in,
    management::{ManagementApi, ManagementError, Permission, TopicPermission, UserInfo},
    pattern::{Pattern, Unreadable},
};

/// An app key that no application has: a pattern that permits it permits any.
pub const ANY_APP: &str = "delayline-any-app";

/// All users, and their permissions in a vhost.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// The permission of each user that has one.
    pub permissions: BTreeMap<String, Permission>,
    users: HashMap<String, UserInfo>,
    /// The topic permissions of each user, each with its patterns as they apply to that user.
    topics: HashMap<String, Vec<(TopicPermission, Rule)>>,
}

/// The patterns for keys that one user may use on one exchange.
#[derive(Debug, Clone)]
struct Rule {
    write: Pattern,
    read: Pattern,
}

impl Grants {
    /// Asks the broker, which answers only administrators.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn fetch(api: &ManagementApi, vhost: &str) -> Result<Self, ManagementError> {
        let (users, permissions) = (api.users()?, api.permissions(vhost)?);
        Ok(Self::new(vhost, users, permissions, api.topic_permissions(vhost)?))
    }

    /// The permissions of a vhost.
    #[must_use]
    pub fn new(
        vhost: &str,
        users: Vec<UserInfo>,
        permissions: Vec<Permission>,
        topics: Vec<TopicPermission>,
    ) -> Self {
        let mut grants = Self {
            permissions: permissions.into_iter().map(|it| (it.user.clone(), it)).collect(),
            users: users.into_iter().map(|user| (user.name.clone(), user)).collect(),
            topics: HashMap::new(),
        };
        for topic in topics {
            // The broker inserts names unescaped, so they count as part of the pattern.
            let own = |pattern: &Pattern| match pattern.contains('{') {
                true => pattern.replace("{username}", &topic.user).replace("{vhost}", vhost).into(),
                false => pattern.clone(),
            };
            let rule = Rule { write: own(&topic.write), read: own(&topic.read) };
            grants.topics.entry(topic.user.clone()).or_default().push((topic, rule));
        }
        grants
    }

    /// The names of queues and exchanges in permissions that name what their user may read.
    #[must_use]
    pub fn names_read(&self) -> Vec<String> {
        self.permissions.values().filter_map(|permission| names_in(&permission.read)).flatten().collect()
    }

    /// The user of this name, if it exists.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&UserInfo> {
        self.users.get(name)
    }

    /// Whether a user has a tag. False for an unknown user.
    #[must_use]
    pub fn has_tag(&self, user: &str, tag: &str) -> bool {
        self.user(user).is_some_and(|user| user.has_tag(tag))
    }

    /// The topic permissions of a user.
    pub fn topics(&self, user: &str) -> impl Iterator<Item = &TopicPermission> {
        self.topics.get(user).into_iter().flatten().map(|(topic, _)| topic)
    }

    /// The topic permission of a user on an exchange.
    #[must_use]
    pub fn topic(&self, user: &str, exchange: &str) -> Option<&TopicPermission> {
        self.topics(user).find(|topic| topic.exchange == exchange)
    }

    /// Whether a user may publish with a key to a topic exchange that it may publish to at all.
    /// Without a topic permission it may use any key.
    ///
    /// # Errors
    /// If the pattern cannot be read here.
    pub fn may_publish_key(&self, user: &str, exchange: &str, key: &str) -> Result<bool, Unreadable> {
        self.rule(user, exchange).map_or(Ok(true), |rule| permits(&rule.write, key))
    }

    /// Whether a user may bind with a key to a topic exchange that it may bind to at all.
    ///
    /// # Errors
    /// If the pattern cannot be read here.
    pub fn may_bind_key(&self, user: &str, exchange: &str, key: &str) -> Result<bool, Unreadable> {
        self.rule(user, exchange).map_or(Ok(true), |rule| permits(&rule.read, key))
    }

    fn rule(&self, user: &str, exchange: &str) -> Option<&Rule> {
        self.topics.get(user)?.iter().find(|(topic, _)| topic.exchange == exchange).map(|(_, rule)| rule)
    }
}

/// Whether a permission's pattern permits a name. It must match a part of the name, and an empty pattern
/// matches no name.
///
/// # Errors If the pattern cannot be read here.
pub fn permits(pattern: &Pattern, name: &str) -> Result<bool, Unreadable> {
    if pattern.is_empty() { Ok(name.is_empty()) } else { pattern.matches(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_patterns_as_the_broker_does() {
        assert_eq!(permits(&"".into(), "delay"), Ok(false));
        assert_eq!(permits(&"lay".into(), "delay"), Ok(true));
        assert_eq!(permits(&"^delay(?!x)".into(), "delay"), Ok(true));
        assert_eq!(permits(&"(".into(), "delay"), Err(Unreadable("(".into())));
        let rule = TopicPermission {
            user: "a.b".into(),
            exchange: "delay".into(),
            write: r"^{vhost}\.{username}\z".into(),
            read: "".into(),
        };
        let grants = Grants::new("v", Vec::new(), Vec::new(), vec![rule]);
        assert_eq!(grants.may_publish_key("a.b", "delay", "v.a.b"), Ok(true));
        assert_eq!(grants.may_publish_key("a.b", "delay", "v.axb"), Ok(true));
        assert_eq!(grants.may_publish_key("a.b", "delay", "v.a.c"), Ok(false));
        assert_eq!(grants.may_bind_key("a.b", "delay", "any"), Ok(false));
        assert_eq!(grants.may_bind_key("a.b", "other", "any"), Ok(true));
        assert_eq!(grants.may_bind_key("c", "delay", "any"), Ok(true));
    }
}
