//! The platform file: pure, except for reading it and its password files.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::{NonZeroU8, NonZeroU32},
    path::{Path, PathBuf},
};

use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::AppKey,
    retry::Policies,
    topology::{ExchangeKind, QueueType, SetName, Topology, TopologySettings},
};
use delayline_schedules::{ScheduleName, Spec};
use delayline_settings::{policies_of, read_text};
use serde::Deserialize;

use super::schedules;
use crate::{apps::AppRequest, apps::AppSpec};

/// The wanted contents of a vhost.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Platform {
    /// Its sets, by name.
    pub sets: Vec<PlatformSet>,
    /// The retry policies, if it has any. They are not part of the broker: the retry service reads them.
    pub policies: Option<Policies>,
}

/// A set and its applications.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PlatformSet {
    /// The set.
    pub topology: Topology,
    /// Its applications, by app key.
    pub apps: Vec<AppSpec>,
    /// Its gateways, by name, and the kind of the exchange that consumers are bound to.
    pub gateways: Vec<(String, ExchangeKind)>,
    /// Its recurring schedules. The objects for them are part of its topology if it has any.
    pub schedules: Vec<(ScheduleName, Spec)>,
}

/// Why a platform file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlatformError {
    /// A file cannot be read.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// It is not valid TOML, or has a key that is unknown or of the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// An invalid table.
    #[error("[{table}]: {reason}")]
    Table {
        /// The table.
        table: String,
        /// The fault, and the remedy.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sets: BTreeMap<String, WrittenSet>,
    policies: Option<toml::Table>,
    #[serde(default)]
    defaults: toml::Table,
    #[serde(default)]
    schedules: Vec<toml::Table>,
}

/// The keys that `[defaults]` may have: those of applications that receive messages, and those of users.
const OF_RECEIVERS: [&str; 7] =
    ["landing", "retry", "recall", "keep_recalled", "max_recalled", "journal", "journal_bytes"];
const OF_USERS: [&str; 2] = ["max_delay", PASSWORD_FILE];
const PASSWORD_FILE: &str = "password_file";

/// Adds the defaults that an application does not set itself, and that its other keys allow.
fn with_defaults(app: &AppKey, mut written: toml::Table, defaults: &toml::Table) -> toml::Table {
    let says = |key: &str| written.get(key).is_some_and(|value| *value != toml::Value::Boolean(false));
    let has_other_queue = ["existing", "to_queue", "to_exchange"].into_iter().any(says);
    let recalls = says("recall") || !written.contains_key("recall") && defaults.contains_key("recall");
    let is_out = |key: &str| {
        says("publish_only") && OF_RECEIVERS.contains(&key)
            || says("no_user") && OF_USERS.contains(&key)
            || has_other_queue && key == "retry"
            || ["to_queue", "to_exchange"].into_iter().any(says) && key == "landing"
            || !recalls && OF_RECEIVERS[3..].contains(&key)
    };
    let fits: Vec<_> = defaults.iter().filter(|(key, _)| !is_out(key)).collect();
    for (key, value) in fits {
        let value = match value {
            toml::Value::String(path) if key == PASSWORD_FILE => path.replace("{app}", app.as_str()).into(),
            value => value.clone(),
        };
        written.entry(key.clone()).or_insert(value);
    }
    written
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSet {
    queue_type: Option<QueueType>,
    replicas: Option<NonZeroU8>,
    unroutable_max_length: Option<NonZeroU32>,
    shortcuts: Option<bool>,
    #[serde(default)]
    apps: BTreeMap<String, toml::Table>,
    #[serde(default)]
    gateways: BTreeMap<String, WrittenGateway>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGateway {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct WrittenApp {
    password_file: Option<PathBuf>,
    /// All its other keys.
    #[serde(flatten)]
    request: toml::Table,
}

impl Platform {
    /// Reads a file. Settings of a set that it leaves out are as in `settings`. With `passwords`, the
    /// password files are read, too, relative to the file's directory. Without it, every user counts as
    /// having a password.
    ///
    /// # Errors The fault, with the file's name.
    pub fn load(file: &Path, settings: &TopologySettings, passwords: bool) -> Result<Self, PlatformError> {
        let failed = |file: &Path, reason: &dyn ToString| PlatformError::File {
            file: file.display().to_string(),
            reason: reason.to_string(),
        };
        let text = read_text(file).map_err(|error| failed(file, &error))?;
        let directory = file.parent().unwrap_or(Path::new(""));
        let secret = |path: &Path| match passwords {
            true => {
                let path = directory.join(path);
                Secret::from_file(&path).map_err(|error| failed(&path, &error))
            }
            false => Ok(Secret::new("")),
        };
        Self::read(&text, settings, secret, Some(directory)).map_err(|error| failed(file, &error))
    }

    /// Parses the text of a file, which names no other files.
    ///
    /// # Errors The fault, by line or by table.
    pub fn parse(text: &str, settings: &TopologySettings) -> Result<Self, PlatformError> {
        Self::read(text, settings, |_| Ok(Secret::new("")), None)
    }

    fn read(
        text: &str,
        settings: &TopologySettings,
        secret: impl Fn(&Path) -> Result<Secret, PlatformError>,
        directory: Option<&Path>,
    ) -> Result<Self, PlatformError> {
        let written: Written = toml::from_str(text).map_err(|error| syntax(text, &error))?;
        let policies = written.policies.map(policies_of).transpose();
        let policies = policies.map_err(|error| wrong("policies", &error))?;
        let written_defaults = written.defaults;
        let known = |key: &&str| OF_RECEIVERS.contains(key) || OF_USERS.contains(key);
        if let Some(key) = written_defaults.keys().map(String::as_str).find(|key| !known(key)) {
            let keys = [&OF_RECEIVERS[..], &OF_USERS].concat().join(", ");
            return Err(wrong("defaults", &format!("`{key}` has no default; only these keys have: {keys}")));
        }
        let (mut users, mut all_gateways) = (BTreeSet::new(), BTreeSet::new());
        let mut sets = Vec::new();
        for (name, written) in written.sets {
            let table = format!("sets.{name}");
            let set: SetName = name.parse().map_err(|error| wrong(&table, &error))?;
            let mut of_set = settings.clone();
            of_set.set = set;
            of_set.queue_type = written.queue_type.unwrap_or(of_set.queue_type);
            of_set.replicas = written.replicas.or(of_set.replicas);
            of_set.unroutable_max_length = written.unroutable_max_length.or(of_set.unroutable_max_length);
            of_set.shortcuts = written.shortcuts.or(of_set.shortcuts);
            let topology = Topology::new(of_set);
            let mut apps = Vec::new();
            for (key, written) in written.apps {
                let table = format!("{table}.apps.{key:?}");
                let app = AppKey::new(key).map_err(|error| wrong(&table, &error))?;
                let written: WrittenApp = with_defaults(&app, written, &written_defaults)
                    .try_into()
                    .map_err(|error: toml::de::Error| wrong(&table, &error.message()))?;
                let request: AppRequest = written
                    .request
                    .try_into()
                    .map_err(|error: toml::de::Error| wrong(&table, &error.message()))?;
                if request.no_user && written.password_file.is_some() {
                    return Err(wrong(&table, &"`no_user` and `password_file` exclude each other"));
                }
                let password = written.password_file.as_deref().map(&secret).transpose()?;
                let spec = request.spec(app, password).map_err(|error| wrong(&table, &error))?;
                spec.check(&topology).map_err(|error| wrong(&table, &error))?;
                if let Some(user) = &spec.user
                    && !users.insert(user.name.clone())
                {
                    let reason = format!(
                        "user `{}` belongs to another application of this file, and the broker keeps one \
                         set of permissions for each user and vhost. Name another user with `user`",
                        user.name
                    );
                    return Err(wrong(&table, &reason));
                }
                apps.push(spec);
            }
            let mut gateways = Vec::new();
            for (name, written) in written.gateways {
                let table = format!("{table}.gateways.{name:?}");
                let kind = kind(&written.kind).map_err(|reason| wrong(&table, &reason))?;
                topology.gateway(&name, kind).map_err(|error| wrong(&table, &error))?;
                if !all_gateways.insert(name.clone()) {
                    return Err(wrong(&table, &"another set of this file has a gateway of this name"));
                }
                gateways.push((name, kind));
            }
            sets.push(PlatformSet { topology, apps, gateways, schedules: Vec::new() });
        }
        schedules::read(written.schedules, &mut sets, directory)?;
        Ok(Self { sets, policies })
    }
}

fn kind(name: &str) -> Result<ExchangeKind, String> {
    use ExchangeKind::{Direct, Fanout, Headers, Topic};
    let all = [Direct, Fanout, Headers, Topic];
    all.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
        format!("`{name}` is not the type of an exchange; use {}", all.map(ExchangeKind::as_str).join(", "))
    })
}

pub(super) fn wrong(table: &str, reason: &dyn ToString) -> PlatformError {
    PlatformError::Table { table: table.into(), reason: reason.to_string() }
}

/// The parser's message without the quoted line, which may contain a password.
fn syntax(text: &str, error: &toml::de::Error) -> PlatformError {
    let line = error.span().map(|span| text[..span.start.min(text.len())].lines().count().max(1));
    PlatformError::Syntax(match line {
        Some(line) => format!("line {line}: {}", error.message()),
        None => error.message().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{apps::Delivery, apps::Target};

    fn parse(text: &str) -> Result<Platform, String> {
        Platform::parse(text, &TopologySettings::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_has_sets_and_applications() {
        let platform = parse(
            r#"
            [sets.delay]
            replicas = 3

            [sets.delay.apps.billing]
            landing = true
            retry = true
            max_delay = "30d"

            [sets.delay.apps."eu.orders"]
            user = "orders"
            publish_only = true
            may_publish = ["billing"]

            [sets.delay.gateways."orders.delayed"]
            type = "topic"

            [sets.reminders]
            queue_type = "classic"

            [policies.apps.billing]
            list = ["1m", "5m"]
            "#,
        )
        .unwrap();
        let [delay, reminders] = platform.sets.as_slice() else { panic!("{platform:?}") };
        assert_eq!(delay.topology.settings().replicas, NonZeroU8::new(3));
        assert_eq!(reminders.topology.settings().queue_type, QueueType::Classic);
        let [billing, orders] = delay.apps.as_slice() else { panic!("{delay:?}") };
        assert!(
            matches!(&billing.delivery, Delivery::Landing(Target::Queue(queue)) if queue.rejected.is_some())
        );
        assert_eq!((&orders.delivery, orders.app.as_str()), (&Delivery::Nothing, "eu.orders"));
        assert_eq!(delay.gateways, [("orders.delayed".to_owned(), ExchangeKind::Topic)]);
        let billing = &platform.policies.as_ref().unwrap().get(&billing.app, "rejected").attempts;
        assert_eq!(*billing, 2);
        assert_eq!(orders.user.as_ref().unwrap().may_publish, [AppKey::new("billing").unwrap()]);
    }

    #[test]
    fn applications_have_defaults_unless_their_own_keys_exclude_them() {
        let platform = parse(
            r#"
            [defaults]
            landing = true
            retry = true
            max_delay = "7d"
            recall = true
            journal = "30d"
            password_file = "pw/{app}"

            [sets.delay.apps.a]
            [sets.delay.apps.b]
            landing = false
            recall = false
            max_delay = "1h"
            [sets.delay.apps.c]
            publish_only = true
            [sets.delay.apps.d]
            no_user = true
            existing = true
            "#,
        )
        .unwrap();
        let [a, b, c, d] = platform.sets[0].apps.as_slice() else { panic!("{platform:?}") };
        let longest = |spec: &AppSpec| spec.user.as_ref().unwrap().max_delay.unwrap().seconds();
        assert!(matches!(&a.delivery, Delivery::Landing(Target::Queue(queue)) if queue.rejected.is_some()));
        assert_eq!((longest(a), a.journal().is_some()), (604_800, true));
        assert!(matches!(&b.delivery, Delivery::Direct(queue) if queue.rejected.is_some()));
        assert_eq!((longest(b), b.recall), (3_600, None));
        assert_eq!((&c.delivery, longest(c), c.recall), (&Delivery::Nothing, 604_800, None));
        assert!(matches!(&d.delivery, Delivery::Landing(Target::Queue(queue)) if queue.rejected.is_none()));
        assert!(d.user.is_none());
        let error = parse("[defaults]\nuser = \"u\"\n[sets.delay]").unwrap_err();
        assert!(error.contains("[defaults]: `user` has no default"), "{error}");

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("platform.toml");
        fs::write(&file, "[defaults]\npassword_file = \"{app}.pw\"\n[sets.delay.apps.billing]\n").unwrap();
        fs::write(directory.path().join("billing.pw"), "hunter2\n").unwrap();
        let platform = Platform::load(&file, &TopologySettings::default(), true).unwrap();
        let user = platform.sets[0].apps[0].user.clone().unwrap();
        assert_eq!(user.password.unwrap().expose(), "hunter2");
    }

    #[test]
    fn faults_are_named() {
        for (text, words) in [
            ("[set.delay]", "unknown field `set`"),
            ("[sets.\"two words\"]", "[sets.two words]"),
            ("[sets.delay]\nreplicas = 0", "line 2"),
            ("[sets.delay.apps.a]\nlandign = true", "unknown field `landign`"),
            ("[sets.delay.apps.a]\nmax_delay = \"soon\"", "soon"),
            ("[sets.delay.apps.\"a b\"]", "a b"),
            ("[sets.delay.apps.a]\nqueue = \"delay.retry\"", "belongs to the set"),
            ("[sets.delay.apps.a]\npublish_only = true\nlanding = true", "exclude each other"),
            ("[sets.delay.gateways.g]\ntype = \"x-delayed-message\"", "use direct, fanout, headers, topic"),
            ("[sets.delay.gateways.g]", "missing field `type`"),
            ("[sets.delay.gateways.\"a b\"]\ntype = \"topic\"", "a b"),
            (
                "[sets.a.gateways.g]\ntype = \"topic\"\n[sets.b.gateways.g]\ntype = \"topic\"",
                "[sets.b.gateways.\"g\"]: another set",
            ),
            ("[sets.delay]\n[policies.apps.a]\nlist = 1", "[policies]"),
            ("[sets.delay.apps.a]\nno_user = true\npassword_file = \"x\"", "`password_file`"),
            ("[sets.delay.apps.a]\nuser = \"u\"\n[sets.delay.apps.b]\nuser = \"u\"", "user `u` belongs"),
        ] {
            assert!(parse(text).unwrap_err().contains(words), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn a_password_in_the_file_is_refused_and_not_quoted() {
        for text in ["password = \"hunter2\"", "password = hunter2", "password_file = [\"hunter2\"]"] {
            let error = parse(&format!("[sets.delay.apps.a]\n{text}\n")).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn passwords_come_from_files_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("platform.toml");
        fs::write(&file, "[sets.delay.apps.billing]\npassword_file = \"pw\"\n").unwrap();
        let load = |passwords| Platform::load(&file, &TopologySettings::default(), passwords);
        assert!(load(false).is_ok());
        assert!(load(true).unwrap_err().to_string().contains("/pw: "), "{:?}", load(true));
        fs::write(directory.path().join("pw"), "hunter2\n").unwrap();
        let user = load(true).unwrap().sets[0].apps[0].user.clone().unwrap();
        assert_eq!(user.password.unwrap().expose(), "hunter2");
    }
}
