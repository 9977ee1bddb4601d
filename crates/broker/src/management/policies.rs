//! Policies, and operator policies, which merge with them.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::{
    ManagementApi, ManagementError,
    client::{Change, segment},
    model::lenient,
};
use crate::pattern::Pattern;

/// The two kinds of policies. Of each kind, the policy with the highest priority whose pattern matches
/// applies to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Needs the tag `policymaker`.
    Policy,
    /// Needs the tag `administrator`; limits the settings of the other kind.
    OperatorPolicy,
}

impl PolicyKind {
    fn path(self) -> &'static str {
        match self {
            Self::Policy => "policies",
            Self::OperatorPolicy => "operator-policies",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "policy",
            Self::OperatorPolicy => "operator policy",
        })
    }
}

/// A policy: an item of `GET /api/policies/VHOST` or `GET /api/operator-policies/VHOST`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Its name.
    #[serde(deserialize_with = "lenient")]
    pub name: String,
    /// A PCRE that must match a part of the name of a queue or exchange.
    #[serde(deserialize_with = "lenient")]
    pub pattern: Pattern,
    /// `all`, `queues`, `exchanges`; from 3.12 on also `classic_queues`, `quorum_queues`
    /// and `streams`.
    #[serde(rename = "apply-to", deserialize_with = "lenient")]
    pub apply_to: String,
    /// Its settings.
    #[serde(deserialize_with = "lenient")]
    pub definition: BTreeMap<String, Json>,
    /// Of the policies that match, only the one with the highest priority applies; any
    /// number, also below 0.
    #[serde(deserialize_with = "lenient")]
    pub priority: i64,
}

impl ManagementApi {
    /// The policies of a vhost, as they are now; a queue's statistics show their effect some
    /// seconds later.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn policies(&self, kind: PolicyKind, vhost: &str) -> Result<Vec<Policy>, ManagementError> {
        self.get(&format!("{}/{}", kind.path(), segment(vhost)))
    }

    /// Sets a policy. The broker answers once it applies to all queues that have a leader.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn set_policy(&self, kind: PolicyKind, vhost: &str, policy: &Policy) -> Result<(), ManagementError> {
        let Policy { name, pattern, apply_to, definition, priority } = policy;
        let body = json!({
            "pattern": pattern, "priority": priority, "definition": definition, "apply-to": apply_to,
        });
        self.send(&path(kind, vhost, name), &Change::Put(body))
    }

    /// Deletes a policy; no error if there is none of this name.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn delete_policy(&self, kind: PolicyKind, vhost: &str, name: &str) -> Result<(), ManagementError> {
        self.send(&path(kind, vhost, name), &Change::Delete)
    }
}

fn path(kind: PolicyKind, vhost: &str, name: &str) -> String {
    format!("{}/{}/{}", kind.path(), segment(vhost), segment(name))
}
