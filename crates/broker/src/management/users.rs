//! Users, and their rights in a vhost.

use serde_json::json;

use delayline_amqp::broker::Secret;

use super::{
    ManagementApi, ManagementError, Permission, TopicPermission, UserInfo,
    client::{Change, segment},
};

impl ManagementApi {
    /// All users. Needs the tag `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn users(&self) -> Result<Vec<UserInfo>, ManagementError> {
        self.get("users")
    }

    /// The user that asks.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn whoami(&self) -> Result<UserInfo, ManagementError> {
        self.get("whoami")
    }

    /// The rights of users in a vhost. Needs the tag `administrator`.
    ///
    /// # Errors See [`ManagementError`].
    pub fn permissions(&self, vhost: &str) -> Result<Vec<Permission>, ManagementError> {
        self.get(&format!("vhosts/{}/permissions", segment(vhost)))
    }

    /// The rights of users on the topic exchanges of a vhost. Needs the tag `administrator`.
    ///
    /// # Errors See [`ManagementError`].
    pub fn topic_permissions(&self, vhost: &str) -> Result<Vec<TopicPermission>, ManagementError> {
        self.get(&format!("vhosts/{}/topic-permissions", segment(vhost)))
    }

    /// Creates a user with a password and tags, separated by commas; an existing user gets this
    /// password and these tags. Needs the tag `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn create_user(&self, name: &str, password: &Secret, tags: &str) -> Result<(), ManagementError> {
        let body = json!({ "password": password.expose(), "tags": tags });
        self.send(&format!("users/{}", segment(name)), &Change::Put(body))
    }

    /// Deletes a user with all its permissions; no error if there is none of this
    /// name. Needs the tag `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn delete_user(&self, name: &str) -> Result<(), ManagementError> {
        self.send(&format!("users/{}", segment(name)), &Change::Delete)
    }

    /// Sets the rights of a user in a vhost. Needs the tag `administrator`.
    ///
    /// # Errors See [`ManagementError`].
    pub fn set_permission(&self, vhost: &str, permission: &Permission) -> Result<(), ManagementError> {
        let Permission { user, configure, write, read } = permission;
        let body = json!({ "configure": configure, "write": write, "read": read });
        self.send(&of_user("permissions", vhost, user), &Change::Put(body))
    }

    /// Removes all permissions of a user in a vhost; no error if it has none. Needs the tag
    /// `administrator`.
    ///
    /// # Errors See [`ManagementError`].
    pub fn delete_permission(&self, vhost: &str, user: &str) -> Result<(), ManagementError> {
        self.send(&of_user("permissions", vhost, user), &Change::Delete)
    }

    /// Sets which keys a user may use on one topic exchange. Needs the tag
    /// `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn set_topic_permission(&self, vhost: &str, topic: &TopicPermission) -> Result<(), ManagementError> {
        let TopicPermission { user, exchange, write, read } = topic;
        let body = json!({ "exchange": exchange, "write": write, "read": read });
        self.send(&of_user("topic-permissions", vhost, user), &Change::Put(body))
    }

    /// Deletes the topic permissions of a user on all exchanges of a vhost, which
    /// lets it use any key where it may publish or bind at all. Needs the tag
    /// `administrator`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn delete_topic_permissions(&self, vhost: &str, user: &str) -> Result<(), ManagementError> {
        self.send(&of_user("topic-permissions", vhost, user), &Change::Delete)
    }
}

fn of_user(kind: &str, vhost: &str, user: &str) -> String {
    format!("{kind}/{}/{}", segment(vhost), segment(user))
}
