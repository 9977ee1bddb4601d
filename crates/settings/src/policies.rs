//! The file of retry policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use delayline_core::{
    codec::{AppKey, Delay, Tolerance, ToleranceError},
    retry::{Backoff, Jitter, Policies, Policy},
};
use serde::Deserialize;

use crate::text::read_text;

/// The default window of hop-aware jitter: 10 %.
const WINDOW: Tolerance = Tolerance::Relative(1_000);

/// Why a file of policies cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoliciesError {
    /// The file cannot be read.
    #[error("{file}: {reason}")]
    File {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// It is not valid TOML, or has an unknown key or a value of the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// A value that is not possible.
    #[error("[{table}] `{key}`: {reason}")]
    Value {
        /// The table.
        table: String,
        /// The key.
        key: &'static str,
        /// The fault, and a correct value.
        reason: String,
    },
    /// The name of a table is not an app key.
    #[error("[apps.{name:?}]: {reason}")]
    App {
        /// The name.
        name: String,
        /// The fault in it.
        reason: String,
    },
}

/// A file in its raw form.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    default: Rule,
    #[serde(default)]
    apps: BTreeMap<String, Rule>,
}

/// A table of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    fixed: Option<String>,
    exponential: Option<Exponential>,
    list: Option<Vec<String>>,
    jitter: Option<JitterName>,
    window: Option<String>,
    attempts: Option<u32>,
    max_age: Option<String>,
    #[serde(default)]
    reasons: BTreeMap<String, Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exponential {
    base: String,
    factor: f64,
    cap: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum JitterName {
    None,
    Full,
    Equal,
    HopAware,
}

/// Reads policies from a TOML file.
///
/// # Errors
/// The fault, with the file's name.
pub fn load_policies(file: &Path) -> Result<Policies, PoliciesError> {
    let failed = |reason: String| PoliciesError::File { file: file.display().to_string(), reason };
    let text = read_text(file).map_err(|error| failed(error.to_string()))?;
    parse_policies(&text).map_err(|error| failed(error.to_string()))
}

/// Reads policies from TOML.
///
/// An application's table overrides the default, key by key, and the table of a reason
/// overrides the table around it:
///
/// ```
/// use delayline_core::codec::AppKey;
///
/// let policies = delayline_settings::parse_policies(r#"
///     [default]
///     exponential = { base = "10s", factor = 2, cap = "1h" }
///     attempts = 8
///
///     [apps.billing]
///     list = ["1m", "5m", "15m"]
///
///     [apps.billing.reasons.expired]
///     attempts = 0
/// "#)?;
/// let billing = AppKey::new("billing")?;
/// assert_eq!(policies.get(&billing, "rejected").attempts, 3);
/// assert_eq!(policies.get(&billing, "expired").attempts, 0);
/// assert_eq!(policies.get(&AppKey::new("mail")?, "rejected").attempts, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The fault, with its line or its table and key.
pub fn parse_policies(text: &str) -> Result<Policies, PoliciesError> {
    let syntax = |error: toml::de::Error| PoliciesError::Syntax(error.to_string().trim_end().into());
    // A platform file contains the policies next to its sets.
    if let Ok(WithPolicies { policies: Some(table), .. }) = toml::from_str(text) {
        return policies_of(table);
    }
    checked(&toml::from_str(text).map_err(syntax)?)
}

/// Reads policies from a table of another file. The table has the form of a file of policies.
///
/// # Errors
/// The fault, with its table and key.
pub fn policies_of(table: toml::Table) -> Result<Policies, PoliciesError> {
    let written = table.try_into();
    checked(&written.map_err(|error: toml::de::Error| PoliciesError::Syntax(error.message().into()))?)
}

/// A platform file, reduced to its policies.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WithPolicies {
    policies: Option<toml::Table>,
    #[serde(rename = "sets")]
    _sets: serde::de::IgnoredAny,
    #[serde(rename = "defaults", default)]
    _defaults: serde::de::IgnoredAny,
}

fn checked(written: &Written) -> Result<Policies, PoliciesError> {
    let default = [("default", &written.default)];
    let mut policies = Policies::new(merge(&default, None)?);
    for reason in reasons(&default) {
        policies = policies.with_reason(None, reason, merge(&default, Some(reason))?);
    }
    for (name, rule) in &written.apps {
        let app = AppKey::new(name.as_str())
            .map_err(|error| PoliciesError::App { name: name.clone(), reason: error.to_string() })?;
        let table = format!("apps.{name}");
        let layers = [("default", &written.default), (table.as_str(), rule)];
        policies = policies.with_app(app.clone(), merge(&layers, None)?);
        for reason in reasons(&layers) {
            policies = policies.with_reason(Some(&app), reason, merge(&layers, Some(reason))?);
        }
    }
    Ok(policies)
}

/// The reasons in any of the tables.
fn reasons<'a>(layers: &[(&str, &'a Rule)]) -> BTreeSet<&'a str> {
    layers.iter().flat_map(|(_, rule)| rule.reasons.keys()).map(String::as_str).collect()
}

/// Merges tables, the later over the earlier, for one reason or for all others.
fn merge(layers: &[(&str, &Rule)], reason: Option<&str>) -> Result<Policy, PoliciesError> {
    let mut policy = Policy::default();
    for (table, rule) in layers {
        rule.apply(&mut policy, table)?;
        if let Some((reason, rule)) = reason.and_then(|reason| rule.reasons.get_key_value(reason)) {
            let table = format!("{table}.reasons.{reason}");
            if !rule.reasons.is_empty() {
                let reason = "a reason cannot have reasons of its own; remove this table".into();
                return Err(PoliciesError::Value { table, key: "reasons", reason });
            }
            rule.apply(&mut policy, &table)?;
        }
    }
    Ok(policy)
}

impl Rule {
    fn apply(&self, policy: &mut Policy, table: &str) -> Result<(), PoliciesError> {
        let wrong = |key, reason: String| PoliciesError::Value { table: table.into(), key, reason };
        let delay = |key, text: &str| text.parse::<Delay>().map_err(|error| wrong(key, error.to_string()));
        let said = [
            ("fixed", self.fixed.is_some()),
            ("exponential", self.exponential.is_some()),
            ("list", self.list.is_some()),
        ];
        let mut said = said.iter().filter(|(_, said)| *said);
        if let (Some((one, _)), Some((other, _))) = (said.next(), said.next()) {
            return Err(wrong(other, format!("`{one}` is also set; keep one of them")));
        }
        if let Some(text) = &self.fixed {
            policy.backoff = Backoff::Fixed(delay("fixed", text)?);
        }
        if let Some(Exponential { base, factor, cap }) = &self.exponential {
            let (base, cap) = (delay("exponential", base)?, delay("exponential", cap)?);
            let fault = match () {
                () if base == Delay::ZERO => "`base` is 0 and would stay 0; use 1s or more".into(),
                () if cap < base => format!("`cap` ({cap}) is below `base` ({base}); swap or raise it"),
                () if !(1.0..=100.0).contains(factor) => format!("`factor` is {factor}; use 1 to 100"),
                () => String::new(),
            };
            if !fault.is_empty() {
                return Err(wrong("exponential", fault));
            }
            policy.backoff = Backoff::Exponential { base, factor: *factor, cap };
        }
        if let Some(texts) = &self.list {
            let delays: Vec<_> = texts.iter().map(|text| delay("list", text)).collect::<Result<_, _>>()?;
            if delays.is_empty() {
                return Err(wrong(
                    "list",
                    "it is empty; give one delay or more, or use `attempts = 0`".into(),
                ));
            }
            // As many attempts as delays, unless `attempts` says otherwise.
            policy.attempts = u32::try_from(delays.len()).unwrap_or(u32::MAX);
            policy.backoff = Backoff::List(delays);
        }
        policy.jitter = match (self.jitter, &self.window, policy.jitter) {
            (Some(JitterName::HopAware), window, _) | (None, window @ Some(_), Jitter::HopAware(_)) => {
                Jitter::HopAware(match window {
                    Some(text) => {
                        text.parse().map_err(|error: ToleranceError| wrong("window", error.to_string()))?
                    }
                    None => WINDOW,
                })
            }
            (_, Some(_), _) => {
                return Err(wrong("window", "only `jitter = \"hop-aware\"` has a window; add that".into()));
            }
            (Some(JitterName::None), None, _) => Jitter::None,
            (Some(JitterName::Full), None, _) => Jitter::Full,
            (Some(JitterName::Equal), None, _) => Jitter::Equal,
            (None, None, inherited) => inherited,
        };
        policy.attempts = self.attempts.unwrap_or(policy.attempts);
        if policy.attempts > Policy::MAX_ATTEMPTS {
            let most = Policy::MAX_ATTEMPTS;
            let found = policy.attempts;
            return Err(wrong("attempts", format!("{found} is too many; use 0 (park at once) to {most}")));
        }
        if let Some(text) = &self.max_age {
            policy.max_age = Some(delay("max_age", text)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(text: &str, app: &str, reason: &str) -> Policy {
        parse_policies(text).unwrap().get(&AppKey::new(app).unwrap(), reason).clone()
    }

    #[test]
    fn layers_override_key_by_key() {
        let text = r#"
            [default]
            fixed = "30s"
            attempts = 4
            max_age = "1h"
            [default.reasons.expired]
            attempts = 1
            [apps."eu.orders"]
            jitter = "hop-aware"
            window = "5%"
            [apps."eu.orders".reasons.timeout]
            list = ["1s", "2s"]
            window = "1s"
        "#;
        let orders = get(text, "eu.orders", "rejected");
        assert_eq!(orders.backoff, Backoff::Fixed("30s".parse().unwrap()));
        assert_eq!((orders.attempts, orders.max_age), (4, Some("1h".parse().unwrap())));
        assert_eq!(orders.jitter, Jitter::HopAware("5%".parse().unwrap()));
        assert_eq!(get(text, "eu.orders", "expired").attempts, 1);
        let timeout = get(text, "eu.orders", "timeout");
        assert_eq!((timeout.attempts, timeout.jitter), (2, Jitter::HopAware("1s".parse().unwrap())));
        assert_eq!(get(text, "other", "expired").attempts, 1);
        assert_eq!(get("", "other", "rejected"), Policy::default());
    }

    #[test]
    fn an_applications_policy_beats_the_defaults_reasons() {
        let text = "[default.reasons.expired]\nattempts = 0\n[apps.a]\nattempts = 7\n";
        assert_eq!(get(text, "a", "expired").attempts, 7);
    }

    #[test]
    fn errors_name_the_place_and_the_remedy() {
        for (text, words) in [
            ("fixed = 1", ["fixed", "line 1"]),
            ("[default]\nfixd = \"1s\"", ["fixd", "line 2"]),
            ("[default]\nfixed = \"soon\"", ["[default] `fixed`", "90s"]),
            ("[apps.a]\nfixed = \"1s\"\nlist = [\"1s\"]", ["[apps.a] `list`", "keep one"]),
            ("[apps.a]\nlist = []", ["[apps.a] `list`", "empty"]),
            ("[apps.a]\nattempts = 1001", ["[apps.a] `attempts`", "1000"]),
            ("[apps.a]\nattempts = -1", ["attempts", "line 2"]),
            ("[apps.a]\nwindow = \"5%\"", ["[apps.a] `window`", "hop-aware"]),
            ("[apps.a]\njitter = \"full\"\nwindow = \"5%\"", ["[apps.a] `window`", "hop-aware"]),
            ("[apps.a]\njitter = \"some\"", ["some", "hop-aware"]),
            ("[apps.a.reasons.x]\nmax_age = \"1mo\"", ["[apps.a.reasons.x] `max_age`", "days"]),
            ("[apps.a.reasons.x.reasons.y]", ["[apps.a.reasons.x] `reasons`", "remove"]),
            ("[apps.\"a b\"]", ["a b", "white space"]),
            (
                "[default]\nexponential = { base = \"0s\", factor = 2, cap = \"1s\" }",
                ["`exponential`", "`base`"],
            ),
            (
                "[default]\nexponential = { base = \"2s\", factor = 2, cap = \"1s\" }",
                ["`exponential`", "`cap`"],
            ),
            (
                "[default]\nexponential = { base = \"1s\", factor = 0.5, cap = \"1s\" }",
                ["`exponential`", "`factor`"],
            ),
            (
                "[default]\nexponential = { base = \"1s\", factor = nan, cap = \"1s\" }",
                ["`exponential`", "`factor`"],
            ),
            ("[default]\nexponential = { base = \"1s\" }", ["factor", "line 2"]),
        ] {
            let error = parse_policies(text).expect_err(text).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-z\\[\\]={}\"'. 0-9\n-]{0,120}") {
            let _ = parse_policies(&text);
        }
    }

    #[test]
    fn a_platform_file_can_contain_them() {
        let text = "[defaults]\nretry = true\n[sets.delay]\nreplicas = 3\n[policies.apps.billing]\nlist = ['1m', '5m']";
        assert_eq!(get(text, "billing", "rejected").attempts, 2);
        let wrong = parse_policies("[sets.delay]\n[policies.aps.billing]\nlist = ['1m']").unwrap_err();
        assert!(wrong.to_string().contains("aps"), "{wrong}");
        // Without policies, it is not a file of policies.
        assert!(parse_policies("[sets.delay]\nreplicas = 3").is_err());
    }

    #[test]
    fn the_sample_file_can_be_used() {
        parse_policies(include_str!("../../../examples/policies.toml")).unwrap();
    }

    #[test]
    fn a_file_is_named() {
        let error = load_policies(Path::new("/nowhere/policies.toml")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/policies.toml: "), "{error}");
    }
}
