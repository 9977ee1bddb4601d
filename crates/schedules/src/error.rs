//! Why an operation on schedules failed.

use delayline_amqp::AmqpError;
use delayline_broker::ManagementError;

use crate::definition::{DefinitionError, name::ScheduleName};

/// The broker's code for a missing permission.
pub(crate) const ACCESS_REFUSED: u16 = 403;

/// Why an operation on schedules failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// There is no connection to the broker.
    #[error(transparent)]
    Connection(AmqpError),
    /// The AMQP side failed.
    #[error("{doing}: {source}")]
    Amqp {
        /// The operation.
        doing: String,
        /// The cause.
        source: AmqpError,
    },
    /// The management API failed.
    #[error(transparent)]
    Management(#[from] ManagementError),
    /// A schedule is not as it must be.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// No such schedule.
    #[error("there is no schedule `{name}`; `{list}` shows all schedules")]
    Unknown {
        /// The name.
        name: ScheduleName,
        /// The command that lists them.
        list: String,
    },
    /// Its application cannot be changed.
    #[error(
        "schedule `{name}` belongs to application `{app}`. Remove it first, or choose another name: messages \
         published ahead for one application cannot become another's"
    )]
    OtherApp {
        /// The name.
        name: ScheduleName,
        /// The application.
        app: String,
    },
    /// An application's own schedule for another application.
    #[error(
        "schedule `{name}` cannot send messages to application `{app}`: its owner may only send to itself"
    )]
    ForOther {
        /// The name.
        name: ScheduleName,
        /// The application.
        app: String,
    },
    /// Too much is kept.
    #[error(
        "these schedules take {size} bytes, and may take {most}. Remove some, or send references instead \
         of bodies"
    )]
    Full {
        /// How many bytes they take.
        size: u64,
        /// How many they may take.
        most: u64,
    },
    /// There is no set.
    #[error("there is no set `{set}` in vhost `{vhost}`. Run `{install}`")]
    NoSet {
        /// Its name.
        set: String,
        /// The vhost.
        vhost: String,
        /// The command that makes it.
        install: String,
    },
    /// The application does not manage its schedules itself.
    #[error(
        "application `{app}` does not manage its schedules itself. A platform team permits that with `{add}`, and \
         the flags that the application was added with"
    )]
    NotOffered {
        /// The application.
        app: String,
        /// The command that permits it.
        add: String,
    },
    /// The user has no rights for a stream.
    #[error(
        "the user may not use `{stream}`; that of an application manages only its own schedules, which are \
         named APP/NAME (`{add}`): {source}"
    )]
    Forbidden {
        /// The stream.
        stream: String,
        /// The command that permits an application its own.
        add: String,
        /// What the broker refused.
        source: AmqpError,
    },
    /// The stream delivers nothing.
    #[error(
        "the broker delivers nothing from stream `{stream}`; see whether it has a leader (rabbitmq-streams \
         stream_status {stream})"
    )]
    Withheld {
        /// The stream.
        stream: String,
    },
}

pub(crate) fn doing(what: &str) -> impl FnOnce(AmqpError) -> ScheduleError {
    let doing = what.to_owned();
    move |source| ScheduleError::Amqp { doing, source }
}
