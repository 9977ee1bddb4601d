//! Policies, and operator policies, which merge with them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::{
    ManagementApi, ManagementError,
    client::{Change, segment},
};

/// The two kinds of policies. Of each, one applies to a queue: the one with the highest
/// priority whose pattern matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    /// Needs the tag `policymaker`.
    Policy,
    /// Needs the tag `administrator`; limits what the other kind sets.
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

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// A policy for queues.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Which queues it is for: a regular expression.
    pub pattern: String,
    /// The highest one applies; any number, also below 0.
    pub priority: i64,
    /// What it sets.
    pub definition: Json,
}

impl ManagementApi {
    /// The names of the policies of a vhost.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn policy_names(&self, kind: PolicyKind, vhost: &str) -> Result<Vec<String>, ManagementError> {
        let all: Vec<Named> = self.get(&format!("{}/{}", kind.path(), segment(vhost)))?;
        Ok(all.into_iter().map(|policy| policy.name).collect())
    }

    /// Sets a policy for queues. The broker answers once it holds for all of them that
    /// have a leader.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn set_policy(
        &self,
        kind: PolicyKind,
        vhost: &str,
        name: &str,
        policy: &Policy,
    ) -> Result<(), ManagementError> {
        let Policy { pattern, priority, definition } = policy;
        let body = json!({
            "pattern": pattern, "priority": priority, "definition": definition, "apply-to": "queues",
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
