//! Policies by application and reason.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use crate::codec::AppKey;

use super::Policy;

/// The policy for each application and each reason of failure.
///
/// ```
/// use delayline::{codec::AppKey, retry::{Backoff, Policies, Policy}};
///
/// let patient = Policy::new(Backoff::List(vec!["1m".parse()?, "5m".parse()?, "15m".parse()?]));
/// let billing = AppKey::new("billing")?;
/// let policies = Policies::new(Policy::default())
///     .with_app(billing.clone(), patient)
///     .with_reason(Some(&billing), "expired", Policy::NEVER);
/// assert_eq!(policies.get(&billing, "rejected").attempts, 3);
/// assert_eq!(policies.get(&billing, "expired").attempts, 0);
/// assert_eq!(policies.get(&AppKey::new("mail")?, "rejected").attempts, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policies {
    default: ByReason,
    apps: BTreeMap<AppKey, ByReason>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct ByReason {
    otherwise: Policy,
    reasons: BTreeMap<String, Policy>,
}

impl Policies {
    /// One policy for everything.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { default: ByReason { otherwise: policy, reasons: BTreeMap::new() }, apps: BTreeMap::new() }
    }

    /// Sets another policy for an application. The reasons' policies of the default do not apply to
    /// it, only its own.
    #[must_use]
    pub fn with_app(mut self, app: AppKey, policy: Policy) -> Self {
        self.apps.entry(app).or_default().otherwise = policy;
        self
    }

    /// Sets another policy for a reason: of one application, or of all without their own policy. An
    /// application that was not named before otherwise keeps the default policy.
    #[must_use]
    pub fn with_reason(mut self, app: Option<&AppKey>, reason: impl Into<String>, policy: Policy) -> Self {
        let rules = match app {
            None => &mut self.default,
            Some(app) => self.apps.entry(app.clone()).or_insert_with(|| self.default.clone()),
        };
        rules.reasons.insert(reason.into(), policy);
        self
    }

    /// The policy for an application's messages that failed for this reason.
    #[must_use]
    pub fn get(&self, app: &AppKey, reason: &str) -> &Policy {
        let rules = self.of(app);
        rules.reasons.get(reason).unwrap_or(&rules.otherwise)
    }

    /// The reasons with their own policy for an application.
    pub fn reasons(&self, app: &AppKey) -> impl Iterator<Item = (&str, &Policy)> {
        self.of(app).reasons.iter().map(|(reason, policy)| (reason.as_str(), policy))
    }

    /// Whether an application has its own table.
    #[must_use]
    pub fn names(&self, app: &AppKey) -> bool {
        self.apps.contains_key(app)
    }

    /// The applications with their own table, in order.
    pub fn apps(&self) -> impl Iterator<Item = &AppKey> {
        self.apps.keys()
    }

    fn of(&self, app: &AppKey) -> &ByReason {
        self.apps.get(app).unwrap_or(&self.default)
    }
}

/// Policies that can be replaced while they are in use.
#[derive(Debug, Clone, Default)]
pub struct SharedPolicies(Arc<RwLock<Arc<Policies>>>);

impl SharedPolicies {
    /// Starts with these policies.
    #[must_use]
    pub fn new(policies: Policies) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(policies))))
    }

    /// The current policies.
    #[must_use]
    pub fn current(&self) -> Arc<Policies> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them for every decision from now on.
    pub fn replace(&self, policies: Policies) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policies);
    }
}

impl From<Policies> for SharedPolicies {
    fn from(policies: Policies) -> Self {
        Self::new(policies)
    }
}

impl From<Policy> for SharedPolicies {
    /// One policy for everything.
    fn from(policy: Policy) -> Self {
        Policies::new(policy).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempts(attempts: u32) -> Policy {
        Policy { attempts, ..Policy::default() }
    }

    #[test]
    fn an_application_has_its_own_reasons_or_the_defaults() {
        let [a, b, c] = ["a", "b", "c"].map(|app| AppKey::new(app).unwrap());
        let policies = Policies::new(attempts(1))
            .with_reason(None, "expired", attempts(2))
            .with_app(a.clone(), attempts(3))
            .with_reason(Some(&a), "maxlen", attempts(4))
            .with_reason(Some(&b), "maxlen", attempts(5));
        for (app, reason, expected) in [
            (&a, "rejected", 3),
            (&a, "expired", 3),
            (&a, "maxlen", 4),
            (&b, "rejected", 1),
            (&b, "expired", 2),
            (&b, "maxlen", 5),
            (&c, "rejected", 1),
            (&c, "expired", 2),
        ] {
            assert_eq!(policies.get(app, reason).attempts, expected, "{app} {reason}");
        }
        assert!(policies.names(&a) && policies.names(&b) && !policies.names(&c));
    }
}
