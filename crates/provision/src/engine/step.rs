//! The single steps that make the wanted state.

use std::fmt;

use delayline_amqp::{Session, broker::Secret};
use delayline_broker::{
    ManagementApi, Permission, Policy, PolicyKind, Snapshot, TopicPermission, only_replicas,
};
use delayline_core::{
    shell::joined,
    topology::{Binding, Endpoint, Object},
};

use super::moving::Move;
use delayline_messages::{
    error::AdminError, error::doing, examine, examine::Conflict, examine::ObjectState, examine::describe,
};

/// An item that a broker should have.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A queue or exchange of another owner that must exist already.
    Stands(Endpoint),
    /// An exchange, a queue, or a binding beside which there may be others.
    Object(Object),
    /// A binding that another one has replaced.
    Unbound(Binding),
    /// A binding that is the only one with its key: a second one would deliver copies.
    Only(Binding),
    /// A binding that takes the place of another one, while messages flow.
    Moved(Move),
    /// A user, the password to create it with, and the tags it needs.
    User { name: String, password: Option<Secret>, tags: &'static [&'static str] },
    /// The keys a user may use on an exchange.
    Topic(TopicPermission),
    /// What a user may do.
    Permission(Permission),
    /// A policy.
    Policy(Policy),
    /// A policy of ours that is no longer needed.
    NoPolicy(String),
}

/// The state of a step on the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is to be made.
    Missing,
    /// It is as it should be.
    Same,
    /// It has another value, which is overwritten.
    Replaced(String),
    /// It is unknown whether it exists. It is made, which changes nothing if it exists.
    Unknown,
    /// An exchange or queue has other arguments.
    Conflict(Conflict),
    /// Another object is in the way. The text describes it.
    Blocked(String),
    /// It would be created, but there is no password for it.
    NoPassword(String),
}

impl Found {
    /// The conflict, if there is one.
    pub(crate) fn in_the_way(&self) -> Option<String> {
        match self {
            Self::Conflict(conflict) => Some(conflict.to_string()),
            Self::Blocked(reason) | Self::NoPassword(reason) => Some(reason.clone()),
            Self::Missing | Self::Same | Self::Replaced(_) | Self::Unknown => None,
        }
    }

    /// Whether there is something to make.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Missing | Self::Replaced(_) | Self::Unknown)
    }
}

impl Step {
    /// Examines the broker, and changes nothing. Without a snapshot, AMQP shows only exchanges and queues.
    pub(crate) fn examine(
        &self,
        snapshot: Option<&Snapshot>,
        session: &mut Session,
        is_ours: impl Fn(&Binding) -> bool,
    ) -> Result<Found, AdminError> {
        let of = |stands: bool| if stands { Found::Same } else { Found::Missing };
        let Some(snapshot) = snapshot else {
            return match self {
                Self::Object(object) => on_amqp(object, session),
                _ => Ok(Found::Unknown),
            };
        };
        Ok(match self {
            Self::Stands(end) => {
                let stands = match end {
                    Endpoint::Queue(name) => snapshot.queues.contains_key(name),
                    Endpoint::Exchange(name) => snapshot.exchanges.contains_key(name),
                };
                match stands {
                    true => Found::Same,
                    false => Found::Blocked(format!("{end} should already exist, but does not")),
                }
            }
            Self::Object(object @ Object::Binding(_)) => of(snapshot.has(object)),
            Self::Unbound(binding) => of(snapshot.bindings().binary_search(binding).is_err()),
            // Asking over AMQP for a missing object writes an error into the broker's log, which would
            // mislead an operator.
            Self::Object(object) if !snapshot.has(object) => Found::Missing,
            Self::Object(object) => match by_replicas(object, snapshot) {
                Some(found) => found,
                None => on_amqp(object, session)?,
            },
            Self::Only(binding) => only(binding, snapshot, is_ours),
            Self::Moved(_) => Found::Missing,
            Self::User { name, password, tags } => user(name, tags, password.is_some(), snapshot),
            Self::Topic(wanted) => {
                let found = snapshot.grants.as_ref().and_then(|it| it.topic(&wanted.user, &wanted.exchange));
                self.compare(found, wanted, |it| format!("write `{}`, read `{}`", it.write, it.read))
            }
            Self::Permission(wanted) => {
                let found = snapshot.grants.as_ref().and_then(|it| it.permissions.get(&wanted.user));
                self.compare(found, wanted, |it| {
                    format!("configure `{}`, write `{}`, read `{}`", it.configure, it.write, it.read)
                })
            }
            Self::Policy(policy) => of(snapshot.policies.user.as_ref().is_ok_and(|it| it.contains(policy))),
            Self::NoPolicy(_) => Found::Missing,
        })
    }

    fn compare<T: PartialEq>(&self, found: Option<&T>, wanted: &T, show: impl Fn(&T) -> String) -> Found {
        match found {
            None => Found::Missing,
            Some(found) if found == wanted => Found::Same,
            Some(found) => {
                Found::Blocked(format!("{self} should be {}, but is {}", show(wanted), show(found)))
            }
        }
    }

    /// Whether this is a permission, which may be overwritten.
    pub(crate) fn is_permission(&self) -> bool {
        matches!(self, Self::Topic(_) | Self::Permission(_))
    }
}

/// The result for a queue that differs at most in its number of replicas.
pub(crate) fn by_replicas(object: &Object, snapshot: &Snapshot) -> Option<Found> {
    let Object::Queue(wanted) = object else { return None };
    Some(match only_replicas(wanted, snapshot.queues.get(&wanted.name)?)? {
        (Some(asked), present) if asked != present => {
            Found::Conflict(Conflict::of_replicas(describe(object), asked, present))
        }
        _ => Found::Same,
    })
}

/// Examines an exchange or queue by declaring it.
fn on_amqp(object: &Object, session: &mut Session) -> Result<Found, AdminError> {
    let examined = examine::object(session, object);
    Ok(match examined.map_err(doing(format!("examining {}", describe(object))))? {
        Some(ObjectState::Missing) => Found::Missing,
        Some(ObjectState::Same) => Found::Same,
        Some(ObjectState::Different(conflict)) => Found::Conflict(conflict),
        None => Found::Unknown,
    })
}

fn only(wanted: &Binding, snapshot: &Snapshot, is_ours: impl Fn(&Binding) -> bool) -> Found {
    let same_key = snapshot.bindings_from(&wanted.source).iter().filter(|it| it.key == wanted.key);
    let same_key: Vec<_> = same_key.filter(|binding| is_ours(binding)).collect();
    match same_key.iter().find(|binding| binding.destination != wanted.destination) {
        Some(other) => Found::Blocked(format!(
            "exchange `{}` is already bound to {}, and a second binding would deliver a copy of every message",
            wanted.source, other.destination
        )),
        None if same_key.is_empty() => Found::Missing,
        None => Found::Same,
    }
}

fn user(name: &str, tags: &[&str], has_password: bool, snapshot: &Snapshot) -> Found {
    match snapshot.grants.as_ref().and_then(|grants| grants.user(name)) {
        Some(user) if user.has_tag("administrator") => Found::Blocked(format!(
            "user `{name}` is an administrator and can give itself any permission. Use another user"
        )),
        Some(user) if !tags.iter().all(|tag| user.has_tag(tag)) => Found::Blocked(format!(
            "user `{name}` lacks one of the tags {}. Run `{}`, which replaces its tags",
            tags.iter().map(|tag| format!("`{tag}`")).collect::<Vec<_>>().join(", "),
            joined(["rabbitmqctl", "set_user_tags", name].iter().chain(tags).copied()),
        )),
        Some(user) if tags.is_empty() && user.has_tag("policymaker") => Found::Blocked(format!(
            "user `{name}` has the tag policymaker, and can set policies that drop every application's \
             messages. Use another user, or remove the tag"
        )),
        Some(_) => Found::Same,
        None if has_password => Found::Missing,
        None => Found::NoPassword(format!(
            "user `{name}` does not exist, and there is no password to create it with. Set \
             DELAYLINE_APP_PASSWORD or app_password_file{}",
            if tags.is_empty() {
                ", create it yourself, or use --no-user"
            } else {
                ", or create it yourself"
            }
        )),
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stands(end) => end.fmt(f),
            Self::Object(object) => f.write_str(&describe(object)),
            Self::Unbound(binding) => write!(f, "old {binding}"),
            Self::Only(binding) => {
                write!(f, "binding of {} to exchange `{}`", binding.destination, binding.source)
            }
            Self::Moved(it) => it.fmt(f),
            Self::User { name, .. } => write!(f, "user `{name}`"),
            Self::Topic(topic) => {
                write!(f, "topic permission of user `{}` on exchange `{}`", topic.user, topic.exchange)
            }
            Self::Permission(permission) => write!(f, "permissions of user `{}`", permission.user),
            Self::Policy(Policy { name, .. }) | Self::NoPolicy(name) => write!(f, "policy `{name}`"),
        }
    }
}

/// The means to change a broker: a session, and the management API if needed.
#[derive(Debug)]
pub(crate) struct Hands<'a> {
    /// The session.
    pub(crate) session: &'a mut Session,
    /// The management API, for users, permissions and policies.
    pub(crate) api: Option<&'a ManagementApi>,
    /// The vhost.
    pub(crate) vhost: &'a str,
}

impl Hands<'_> {
    /// Makes one item. If it exists already, that changes nothing.
    pub(crate) fn make(&mut self, step: &Step) -> Result<(), AdminError> {
        let doing_it = || doing(format!("making {step}"));
        let api = || self.api.ok_or(AdminError::NotConfigured { only: "shows bindings and permissions" });
        match step {
            Step::Stands(_) | Step::User { password: None, .. } => {}
            Step::Object(object) => declare(self.session, object).map_err(|error| match object {
                Object::Queue(queue) => error.with_clash(self.api, self.vhost, &queue.name),
                _ => error,
            })?,
            Step::Unbound(binding) => self.session.unbind(binding).map_err(doing_it())?,
            Step::Only(binding) => self.session.bind(binding).map_err(doing_it())?,
            Step::Moved(it) => it.make(self.session)?,
            Step::User { name, password: Some(password), tags } => {
                api()?.create_user(name, password, &tags.join(","))?;
            }
            Step::Topic(topic) => api()?.set_topic_permission(self.vhost, topic)?,
            Step::Permission(permission) => api()?.set_permission(self.vhost, permission)?,
            Step::Policy(policy) => api()?.set_policy(PolicyKind::Policy, self.vhost, policy)?,
            Step::NoPolicy(name) => api()?.delete_policy(PolicyKind::Policy, self.vhost, name)?,
        }
        Ok(())
    }
}

/// Declares one object. If it exists already, that changes nothing.
pub(crate) fn declare(session: &mut Session, object: &Object) -> Result<(), AdminError> {
    let declared = match object {
        Object::Exchange(exchange) => session.declare_exchange(exchange),
        Object::Queue(queue) => session.declare_queue(queue),
        Object::Binding(binding) => session.bind(binding),
    };
    declared.map_err(doing(format!("declaring {}", describe(object))))
}
