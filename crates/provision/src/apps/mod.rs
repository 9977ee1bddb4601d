//! Applications that share a set: their queue, their binding, and their user's rights.
//!
//! The description of an application is data ([`AppSpec`], and the steps made from it), which adding,
//! printing and checking all read. Nothing is stored elsewhere: the objects on the broker are the
//! registration.

mod add;
mod check;
mod moving;
mod pause;
mod remove;
mod request;
mod rights;
mod spec;
mod steps;
mod surroundings;
mod unfit;

pub use add::{AddReport, add_app};
pub(crate) use add::{Adding, PlannedApp};
pub use check::{AppCheck, Probe, check_app};
pub use pause::{PauseReport, pause_app, resume_app};
pub(crate) use remove::revoke;
pub use remove::{RemoveOptions, RemoveRefusal, RemoveReport, remove_app};
pub use request::{AppRequest, AppRequestError, ByteSize, ByteSizeError};
pub(crate) use rights::is_of_adding;
pub use spec::{AppQueue, AppSpec, AppSpecError, AppUser, Delivery, Target};
pub(crate) use steps::{named, steps};

use delayline_amqp::broker::Secret;
use delayline_broker::{ManagementApi, forgery};
use delayline_settings::Settings;

use delayline_messages::error::AdminError;

/// The management API, without which permissions and bindings cannot be seen.
pub(crate) fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    delayline_messages::error::api(settings, "shows bindings and permissions")
}

/// Gives a user the tag `management`: it may ask the management API about its vhosts.
///
/// # Errors
/// If the management API refuses it.
pub fn show_management(settings: &Settings, user: &str, password: &Secret) -> Result<(), AdminError> {
    Ok(api(settings)?.create_user(user, password, "management")?)
}

/// The rights of every user on a broker of this version, whatever its permissions.
fn limits(version: Option<&str>, user: &str) -> Vec<String> {
    unchecked_keys(version, user).into_iter().chain(forgery(version)).collect()
}

/// The keys of a publisher that a broker does not check. Measured: 3.10.8 does not check these headers,
/// 4.0.5 and 4.3.6 do.
fn unchecked_keys(version: Option<&str>, user: &str) -> Option<String> {
    let version = version.filter(|version| version.starts_with("3."))?;
    Some(format!(
        "RabbitMQ {version} does not check topic permissions for the headers CC and BCC: user `{user}` can \
         publish any app key with them. RabbitMQ 4 checks them (docs/explanation/security.md)"
    ))
}
