//! Examining a set and its applications before a change.

use delayline_broker::{Grants, ManagementApi, ManagementError, Scope, Snapshot};
use delayline_core::topology::{Endpoint, Topology};

/// Whether the users of a vhost are read, which needs an administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Users {
    No,
    IfVisible,
    Required,
}

/// Asks the broker for a set, its applications, and the queues and exchanges `also`.
pub(crate) fn look(
    api: &ManagementApi,
    vhost: &str,
    topology: &Topology,
    mut also: Vec<Endpoint>,
    users: Users,
) -> Result<Snapshot, ManagementError> {
    // Adding an application sets rights last, so they are read first.
    let grants = match users {
        Users::No => None,
        Users::Required => Some(Grants::fetch(api, vhost)?),
        Users::IfVisible => match Grants::fetch(api, vhost) {
            Err(ManagementError::Refused { .. }) => None,
            grants => Some(grants?),
        },
    };
    also.extend(grants.iter().flat_map(Grants::names_read).map(Endpoint::Queue));
    let mut snapshot = Snapshot::fetch(api, vhost, Scope::Set(topology, &also))?;
    snapshot.grants = grants;
    Ok(snapshot)
}
