//! Why an administrative operation failed, and the first steps of every operation.

use delayline_amqp::{AmqpError, Session, broker::Broker};
use delayline_broker::{Clash, ManagementApi, ManagementError};
use delayline_core::{
    codec::AppKey,
    shell::command,
    topology::{Endpoint, Topology},
};
use delayline_schedules::ScheduleError;
use delayline_settings::{NO_MANAGEMENT, Settings};

use crate::{drain::DrainError, number::counted, number::either, number::named};

/// Why an administrative operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// There is no connection to the broker.
    #[error(transparent)]
    Connection(AmqpError),
    /// The AMQP side failed.
    #[error("{doing}: {source}")]
    Amqp {
        /// The operation, such as "declaring queue `q`".
        doing: String,
        /// The cause.
        source: AmqpError,
    },
    /// A step failed after others were done.
    #[error("{made} made before this failed, and stay. {next}. What failed: {source}")]
    Partly {
        /// The parts that were made, in words.
        made: String,
        /// How to continue, or to remove them.
        next: String,
        /// Why the next step failed.
        source: Box<AdminError>,
    },
    /// The broker did not start a queue.
    #[error(
        "{doing}: {reason}. The broker could not start this queue. Three causes are known, and it is not known \
         which applies here. The node is overloaded: repeat the command. Another vhost has a queue of the \
         same internal name, as `b_c` in vhost `a` has with `c` in vhost `a_b`: choose another name. The \
         node's dead-letter workers have given up: docs/runbook/stuck.md (dead-lettering-ended) shows how to \
         check that before you repair anything"
    )]
    NotStarted {
        /// The operation.
        doing: String,
        /// The broker's reason.
        reason: AmqpError,
    },
    /// The broker did not start a queue, because a queue of another vhost has its internal name.
    #[error(
        "{doing}: {clash}. Rename a queue or a vhost, or delete the other queue. The \
         broker's reason: {reason}"
    )]
    NameClash {
        /// The operation.
        doing: String,
        /// The two queues.
        clash: String,
        /// The broker's reason.
        reason: AmqpError,
    },
    /// The management API failed.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// A queue that keeps messages was not touched.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// The layout is not declared in this vhost.
    #[error(
        "vhost `{vhost}` has no exchange of the layout `{layout}`: a program that uses its library declares \
         them when it starts. Is this the right vhost?"
    )]
    NoLayout {
        /// The layout.
        layout: String,
        /// The vhost.
        vhost: String,
    },
    /// The user cannot set policies.
    #[error(
        "nothing was changed: user `{username}` cannot set policies. Give it the tag `policymaker` or \
         `administrator`"
    )]
    NoPolicymaker {
        /// The user.
        username: String,
    },
    /// The set to move messages to does not exist.
    #[error(
        "there is no set `{set}` in vhost `{vhost}` to move messages to; the destination must be a set: \
         create it with `{}`, or name one that is there", command(&["install", "--set", set])
    )]
    NoDestination {
        /// The name of the set.
        set: String,
        /// The vhost.
        vhost: String,
    },
    /// The layout has no guard, so no queue keeps its unroutable messages.
    #[error(
        "the layout `{layout}` has no guard in this vhost. Run `{}` first",
        command(&["guard", "add", layout])
    )]
    NoGuard {
        /// The layout.
        layout: String,
    },
    /// A journal was not read.
    #[error(transparent)]
    Journal(#[from] JournalUnread),
    /// The broker does not list the recalls of an application.
    #[error(
        "the recalls of `{app}` cannot be listed: {reason}. A recall that was bound with arguments has this \
         effect, and may be the cause. To find and remove one, see docs/how-to/recall.md (\"Bind without \
         arguments\")"
    )]
    RecallsUnlisted {
        /// The application.
        app: AppKey,
        /// The reason of the management API.
        reason: String,
    },
    /// Schedules could not be read or changed.
    #[error(transparent)]
    Schedules(#[from] ScheduleError),
    /// The operation needs the management API, and none is configured.
    #[error("this needs the management API, which alone {only}: {NO_MANAGEMENT}")]
    NotConfigured {
        /// What only the API does, as in "lists queues".
        only: &'static str,
    },
    /// The operation needs the management API, which cannot be asked.
    #[error("this needs the management API: {reason}")]
    NoManagement {
        /// Why it cannot be asked.
        reason: String,
    },
}

impl AdminError {
    /// The same error, with the cause if the management API shows that the name of this queue is taken.
    pub fn with_clash(self, api: Option<&ManagementApi>, vhost: &str, queue: &str) -> Self {
        let Self::NotStarted { doing, reason } = self else { return self };
        let found = api.and_then(|api| Clash::find(api, vhost, [queue]).ok());
        match found.unwrap_or_default().first() {
            Some(clash) => Self::NameClash { doing, clash: clash.to_string(), reason },
            None => Self::NotStarted { doing, reason },
        }
    }

    /// The same error after these parts were made.
    pub fn after(self, made: Vec<String>, next: &str) -> Self {
        let (next, source) = (next.to_owned(), Box::new(self));
        match made.len() as u64 {
            0 => *source,
            number => {
                let which = either(number, "was", "were");
                Self::Partly {
                    made: format!("{} ({}) {which}", counted(number, "part"), named(made)),
                    next,
                    source,
                }
            }
        }
    }
}

/// Why a journal was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalUnread {
    /// The application has none.
    #[error("`{app}` has no journal. To keep one, register it again with --journal (docs/how-to/recall.md)")]
    NoJournal {
        /// The application.
        app: String,
    },
    /// The broker stopped delivering before the end of the journal.
    #[error(
        "the broker handed out {read} messages of `{queue}` and then nothing for {seconds} s, although there are \
         more; see whether the stream has a leader (rabbitmq-queues quorum_status, rabbitmq-streams \
         stream_status {queue})"
    )]
    Withheld {
        /// The stream.
        queue: String,
        /// How many messages came.
        read: u64,
        /// How long nothing came, in seconds.
        seconds: u64,
    },
}

/// Opens a session. Its errors need no name of the operation.
pub fn connect(broker: &Broker) -> Result<Session, AdminError> {
    Session::open(broker).map_err(AdminError::Connection)
}

/// Fails if the set does not exist. Without a set, a missing object of an application does not mean that
/// the application must be registered.
pub fn refuse_without_set(session: &mut Session, topology: &Topology) -> Result<(), AdminError> {
    let entry = topology.names().entry();
    match session.exchange_exists(&entry) {
        Ok(false) => Err(DrainError::Missing { what: Endpoint::Exchange(entry) }.into()),
        // A user without the permission to see the exchange learns nothing more here.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Adds the name of the operation to an AMQP error.
pub fn doing(what: impl Into<String>) -> impl FnOnce(AmqpError) -> AdminError {
    move |source| {
        let doing = what.into();
        match source.has_not_started() {
            true => AdminError::NotStarted { doing, reason: source },
            false => AdminError::Amqp { doing, source },
        }
    }
}

/// The management API, for what only it does.
pub fn api(settings: &Settings, only: &'static str) -> Result<ManagementApi, AdminError> {
    let management = settings.management.as_ref().ok_or(AdminError::NotConfigured { only })?;
    Ok(ManagementApi::new(management)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_known_causes_when_a_queue_does_not_start() {
        let error =
            |text: &str| doing("declaring queue `q`")(AmqpError::Closed { code: 541, text: text.into() });
        let gone = error("INTERNAL_ERROR - Cannot declare a queue 'q': cluster_not_formed").to_string();
        assert!(gone.starts_with("declaring queue `q`: the broker closed the connection with 541"), "{gone}");
        assert!(gone.contains("overloaded") && gone.contains("dead-lettering-ended"), "{gone}");
        assert!(!error("INTERNAL_ERROR").to_string().contains("overloaded"));
    }
}
