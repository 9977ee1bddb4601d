//! The rights of the daemon's user.

use delayline_core::{codec::WORDS, topology::Names};

use crate::{
    exact::{NOTHING, any_of, exactly},
    management::{Permission, TopicPermission},
    names::CANARY_APP,
    pattern::escape,
};

/// The rights of the daemon's user: only the necessary ones.
#[must_use]
pub fn daemon_rights(names: &Names, gateways: &[String], user: &str) -> (Permission, TopicPermission) {
    let entry = names.entry();
    let set = escape(&entry);
    // Retries, gateways and canaries publish to the entry exchange, for any application. Canaries bind
    // their own queues. Sweeping unbinds recalls, and notes each in a second binding. Schedules are kept in
    // a stream of the set, and their messages are recalled.
    let mut write = vec![format!(r"{set}(\.(parked|schedules|canary\..+|recalled\..+))?")];
    write.extend(gateways.iter().map(|gateway| exactly(gateway)));
    let write = format!(r"^({})\z", write.join("|"));
    let read =
        format!(r"^{set}\.(retry|dispatch|schedules(\.turn)?|canary\..+|recall\..+|gateway(-due)?\..+)\z");
    let permission = Permission {
        user: user.into(),
        configure: configure(names).into(),
        write: write.into(),
        read: read.into(),
    };
    let topic = TopicPermission {
        user: user.into(),
        exchange: names.dispatch(),
        write: NOTHING.into(),
        read: format!(r"^delay(\.\*){{{WORDS}}}\.{}\.\d+\z", any_of([CANARY_APP])).into(),
    };
    (permission, topic)
}

/// The queues that no other user may declare: those of canaries.
fn configure(names: &Names) -> String {
    format!(r"^{}\.canary\..+\z", escape(&names.entry()))
}

/// Whether these are the permissions of a daemon's user.
#[must_use]
pub fn is_of_daemon(names: &Names, permission: &Permission) -> bool {
    permission.configure == *configure(names)
}
