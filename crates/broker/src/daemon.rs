//! The rights of the daemon's user.

use delayline_core::{codec::WORDS, topology::Names};

use crate::{
    exact::{NOTHING, any_of, exactly},
    management::{Permission, TopicPermission},
    names::CANARY_APP,
    pattern::escape,
};

/// The work of a daemon that goes beyond its set.
#[derive(Debug, Clone, Copy, Default)]
pub struct Duties<'a> {
    /// The gateways whose messages it delays.
    pub gateways: &'a [String],
    /// The queues and exchanges of the applications that it may pause; `None` if it may pause none.
    pub pausing: Option<&'a [String]>,
}

/// The rights of the daemon's user: only the necessary ones.
#[must_use]
pub fn daemon_rights(names: &Names, duties: Duties<'_>, user: &str) -> (Permission, TopicPermission) {
    let entry = names.entry();
    let set = escape(&entry);
    // Retries, gateways and canaries publish to the entry exchange, for any application. Canaries bind
    // their own queues. Sweeping unbinds recalls, and notes each in a second binding. Schedules are kept in
    // streams of the set, and their messages are recalled. The index reads journals.
    let mut own = vec!["parked", r"schedules(-of\..+)?", r"canary\..+", r"recalled\..+"];
    let mut readable = vec![
        "retry",
        "dispatch",
        r"schedules(\.turn|-of\..+)?",
        r"canary\..+",
        r"journal\..+",
        r"recall\..+",
        r"gateway(-due)?\..+",
    ];
    let mut keys = format!(r"{}\.\d+", any_of([CANARY_APP]));
    let mut others: Vec<_> = duties.gateways.iter().map(|gateway| exactly(gateway)).collect();
    if let Some(targets) = duties.pausing {
        // Pausing replaces an application's binding, by way of two exchanges. The broker lets only a user
        // that may publish to an exchange declare a queue that dead-letters there, or an exchange that has it
        // as its alternate.
        own.extend([r"paused\..+", r"moving(-from)?\..+", "unroutable"]);
        readable.extend([r"paused\..+", r"moving(-from)?\..+", r"through\..+"]);
        keys = r"[^*#]+".into();
        others.push(exactly("amq.default"));
        others.extend(targets.iter().map(|target| exactly(target)));
    }
    let own = format!(r"{set}(\.({}))?", own.join("|"));
    let write: Vec<_> = std::iter::once(own).chain(others).collect();
    let permission = Permission {
        user: user.into(),
        configure: configure(names, duties.pausing.is_some()).into(),
        write: format!(r"^({})\z", write.join("|")).into(),
        read: format!(r"^{set}\.({})\z", readable.join("|")).into(),
    };
    let topic = TopicPermission {
        user: user.into(),
        exchange: names.dispatch(),
        write: NOTHING.into(),
        read: format!(r"^delay(\.\*){{{WORDS}}}\.{keys}\z").into(),
    };
    (permission, topic)
}

/// The names that no other user may declare: the queues of canaries and of paused applications.
fn configure(names: &Names, pausing: bool) -> String {
    let entry = names.entry();
    let set = escape(&entry);
    match pausing {
        true => format!(r"^{set}\.(canary|paused|moving(-from)?)\..+\z"),
        false => format!(r"^{set}\.canary\..+\z"),
    }
}

/// Whether these are the permissions of a daemon's user.
#[must_use]
pub fn is_of_daemon(names: &Names, permission: &Permission) -> bool {
    permission.configure == *configure(names, false) || may_pause(names, permission)
}

/// Whether these are the permissions of a daemon's user that may pause applications.
#[must_use]
pub fn may_pause(names: &Names, permission: &Permission) -> bool {
    permission.configure == *configure(names, true)
}
