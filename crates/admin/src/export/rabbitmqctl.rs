//! Commands for a shell on the broker's machine.

use serde_json::Value as Json;

use delayline_core::shell::quoted;

use super::Export;

impl Export {
    /// The commands, line by line. `rabbitmqctl` cannot declare exchanges, queues or bindings,
    /// so they are imported as definitions. The password of a new user comes from the file
    /// named by the variable `APP_PASSWORD_FILE`; if there are several users, from the file of
    /// the user's name in the directory named by `APP_PASSWORDS`.
    #[must_use]
    pub fn rabbitmqctl(&self) -> Vec<String> {
        let vhost = &self.vhost;
        let mut lines = vec!["set -e".to_owned()];
        let mut routes = self.routes();
        if let Json::Object(parts) = &mut routes {
            parts.retain(|_, part| part.as_array().is_some_and(|part| !part.is_empty()));
            if !parts.is_empty() {
                lines.push("rabbitmqctl import_definitions <<'END_OF_DEFINITIONS'".into());
                lines.push(routes.to_string());
                lines.push("END_OF_DEFINITIONS".into());
            }
        }
        for user in &self.users {
            let name = quoted(user);
            let file = match self.users.len() {
                1 => "\"${APP_PASSWORD_FILE:?names the file with the password of the new user}\"".to_owned(),
                _ => format!(
                    "\"${{APP_PASSWORDS:?names the directory with a password file for each user}}\"/{name}"
                ),
            };
            lines.push(format!(
                "rabbitmqctl -q list_users | cut -f 1 | grep -qxF -e {name} || rabbitmqctl add_user {name} <{file}"
            ));
        }
        let mut command = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            lines.push(format!("rabbitmqctl {}", words.join(" ")));
        };
        // These come first: they restrict what the permission then allows.
        for it in &self.topics {
            command(&["set_topic_permissions", "-p", vhost, &it.user, &it.exchange, &it.write, &it.read]);
        }
        for it in &self.permissions {
            command(&["set_permissions", "-p", vhost, &it.user, &it.configure, &it.write, &it.read]);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Export,
        tests::{spec, topology},
    };

    #[test]
    fn commands_are_quoted() {
        let text = Export::new("/").with_app(&topology(), &spec()).rabbitmqctl().join("\n");
        assert!(text.contains(r"rabbitmqctl add_user 'it'\''s' <"), "{text}");
        assert!(
            text.contains(
                r"set_topic_permissions -p / 'it'\''s' delay '^delay(\.[01]{4}){7}\.billing\z' '^$'"
            )
        );
        assert!(text.starts_with("set -e\n"), "{text}");
        let permissions = text.lines().last().unwrap();
        assert!(permissions.starts_with("rabbitmqctl set_permissions"), "{permissions}");
    }

    #[test]
    fn each_of_several_users_has_a_password_of_its_own() {
        let mut other = spec();
        other.user.as_mut().unwrap().name = "svc orders".into();
        let text = Export::new("/").with_app(&topology(), &spec()).with_app(&topology(), &other);
        let text = text.rabbitmqctl().join("\n");
        assert!(!text.contains("APP_PASSWORD_FILE"), "{text}");
        for file in [r"/'it'\''s'", "/'svc orders'"] {
            assert!(text.contains(&format!("each user}}\"{file}")), "{text}");
        }
    }
}
