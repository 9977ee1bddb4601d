//! The file that says which applications a private broker has.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use delayline::{broker::Secret, codec::AppKey, topology::Topology};
use delayline_admin::{AppQueue, AppSpec, AppUser, Delivery};

use crate::Failure;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    apps: BTreeMap<String, Entry>,
}

/// What a file says about an application.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    /// Its RabbitMQ user; the app key by default.
    user: Option<String>,
    /// The password of its user; the user's name by default.
    password: Option<String>,
    /// The queue it consumes; the app key by default.
    queue: Option<String>,
    /// Whether it consumes nothing.
    publish_only: bool,
    /// The other applications whose keys it may publish.
    may_publish: Vec<String>,
    /// Whether it may publish to the retry and parked exchanges itself.
    may_retry: bool,
}

/// An application to register, and its password.
#[derive(Debug)]
pub(super) struct App {
    pub(super) spec: AppSpec,
    pub(super) user: String,
    pub(super) password: String,
}

/// The applications of a file.
pub(super) fn read(file: &Path, topology: &Topology) -> Result<Vec<App>, Failure> {
    let unusable = |reason: String| Failure::usage(format!("{}: {reason}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    parse(&text, topology).map_err(unusable)
}

fn parse(text: &str, topology: &Topology) -> Result<Vec<App>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.apps.is_empty() {
        return Err("it has no application; write a table such as [apps.billing]".into());
    }
    let app = |(key, entry)| {
        let named = format!("[apps.{key}]");
        self::app(key, entry, topology).map_err(|reason| format!("{named}: {reason}"))
    };
    file.apps.into_iter().map(app).collect()
}

/// An application that only has a name.
pub(super) fn plain(app: &AppKey, topology: &Topology) -> Result<App, Failure> {
    self::app(app.to_string(), Entry::default(), topology).map_err(Failure::usage)
}

fn app(key: String, entry: Entry, topology: &Topology) -> Result<App, String> {
    let read = |key: &String| AppKey::new(key).map_err(|error| error.to_string());
    let app = read(&key)?;
    if entry.publish_only && entry.queue.is_some() {
        return Err("it has a queue and is publish_only; keep one of them".into());
    }
    let user = entry.user.unwrap_or_else(|| key.clone());
    let password = entry.password.unwrap_or_else(|| user.clone());
    let queue = AppQueue { retry: true, ..AppQueue::new(entry.queue.unwrap_or(key)) };
    let spec = AppSpec {
        recall: None,
        app,
        delivery: if entry.publish_only { Delivery::Nothing } else { Delivery::Direct(queue) },
        user: Some(AppUser {
            name: user.clone(),
            password: Some(Secret::new(&password)),
            may_publish: entry.may_publish.iter().map(read).collect::<Result<_, _>>()?,
            may_retry: entry.may_retry,
            ..AppUser::default()
        }),
    };
    spec.check(topology).map_err(|error| error.to_string())?;
    Ok(App { spec, user, password })
}

#[cfg(test)]
mod tests {
    use delayline::topology::TopologySettings;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<App>, String> {
        parse(text, &Topology::new(TopologySettings::default()))
    }

    #[test]
    fn what_a_file_leaves_out_follows_from_the_name() {
        let apps =
            parsed("[apps.billing]\n[apps.\"eu.shop\"]\npublish_only = true\nmay_publish = ['billing']")
                .unwrap();
        let names: Vec<_> = apps
            .iter()
            .map(|app| (app.user.as_str(), app.password.as_str(), app.spec.queue_name()))
            .collect();
        assert_eq!(names, [("billing", "billing", Some("billing")), ("eu.shop", "eu.shop", None)]);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, words) in [
            ("", "apps"),
            ("[apps]", "[apps.billing]"),
            ("[apps.billing]\nqeue = 'x'", "qeue"),
            ("[apps.\"a b\"]", "[apps.a b]"),
            ("[apps.billing]\nmay_publish = ['#']", "[apps.billing]"),
            ("[apps.billing]\nqueue = 'delay.retry'", "belongs to the set"),
            ("[apps.billing]\nqueue = 'q'\npublish_only = true", "keep one"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
