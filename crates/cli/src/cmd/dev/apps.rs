//! The file that lists the applications of a private broker.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use toml::Table;

use delayline_admin::{AppRequest, AppSpec};
use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::AppKey,
    topology::{Rejected, Topology},
};
use delayline_settings::read_text;

use delayline_term::Failure;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    apps: BTreeMap<String, Table>,
}

/// The password of an application's user, which a platform file has no place for.
const PASSWORD: &str = "password";

/// An application to register, and its password.
pub(crate) struct App {
    pub(crate) spec: AppSpec,
    pub(crate) user: String,
    pub(crate) password: String,
}

/// The applications of a file.
pub(crate) fn read(file: &Path, topology: &Topology) -> Result<Vec<App>, Failure> {
    let unusable = |reason: String| Failure::usage(format!("{}: {reason}", file.display()));
    let text = read_text(file).map_err(|error| unusable(error.to_string()))?;
    parse(&text, topology).map_err(unusable)
}

fn parse(text: &str, topology: &Topology) -> Result<Vec<App>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.apps.is_empty() {
        return Err("it has no application; write a table such as [apps.billing]".into());
    }
    let app = |(key, mut table): (String, Table)| {
        let app = || {
            let password = table.remove(PASSWORD).map(|it| it.try_into::<String>()).transpose();
            let password = password.map_err(|error| format!("{PASSWORD}: {error}"))?;
            let request = table.try_into::<AppRequest>().map_err(|error| error.to_string())?;
            self::app(key.clone(), request, password, topology)
        };
        app().map_err(|reason| format!("[apps.{key}]: {}", reason.trim_end()))
    };
    file.apps.into_iter().map(app).collect()
}

/// An application that only has a name.
pub(crate) fn plain(app: &AppKey, topology: &Topology) -> Result<App, Failure> {
    self::app(app.to_string(), AppRequest::default(), None, topology).map_err(Failure::usage)
}

/// The request, with retries by default, and with a user.
fn app(
    key: String,
    mut request: AppRequest,
    password: Option<String>,
    topology: &Topology,
) -> Result<App, String> {
    let app = AppKey::new(&key).map_err(|error| error.to_string())?;
    if request.no_user {
        return Err("every application here has a user; leave out no_user".into());
    }
    request.retry = request.retry.or((!request.publish_only).then_some(Rejected::Retried));
    let user = request.user.clone().unwrap_or(key);
    let password = password.unwrap_or_else(|| user.clone());
    let spec = request.spec(app, Some(Secret::new(&password))).map_err(|error| error.to_string())?;
    spec.check(topology).map_err(|error| error.to_string())?;
    Ok(App { spec, user, password })
}

#[cfg(test)]
mod tests {
    use delayline_core::topology::TopologySettings;

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
            ("[apps.billing]\nqueue = 'q'\npublish_only = true", "Leave one out"),
        ] {
            let error = parsed(text).err().unwrap();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
