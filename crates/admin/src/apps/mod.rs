//! Applications that share a set: their queue, their binding, and what their user may do.
//!
//! What an application should have is data ([`AppSpec`], and the steps made from it), which
//! adding, printing and checking all read. Nothing is stored elsewhere: the objects on the
//! broker are the registration.

mod add;
mod binding;
mod check;
mod discard;
mod list;
mod remove;
mod request;
mod rights;
mod spec;
mod steps;
mod unbound;
mod unfit;

pub use add::{AddReport, AddedStep, add_app};
pub(crate) use add::{Adding, PlannedApp};
pub use binding::AppBinding;
pub use check::{AppCheck, Probe, check_app};
pub use discard::{DiscardReport, DiscardedFrom, discard_app};
pub use list::{
    AppEntry, AppList, AppUserEntry, JournalEntry, LandingEntry, RecallEntry, list_apps, queue_of_app,
};
pub use remove::{RemoveOptions, RemoveRefusal, RemoveReport, remove_app};
pub use request::{AppRequest, AppRequestError, ByteSize, ByteSizeError};
pub use spec::{AppQueue, AppSpec, AppSpecError, AppUser, Delivery, Target};
pub(crate) use steps::{Step, steps};
pub(crate) use unbound::{Unbound, unbound};

use crate::{compare::forgery, management::ManagementApi};
use delayline_amqp::broker::Secret;
use delayline_settings::Settings;

use crate::AdminError;

/// The management API, without which permissions and bindings cannot be seen.
pub(crate) fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::api(settings, "shows bindings and permissions")
}

/// Gives a user the tag `management`: it may ask the management API about its vhosts.
///
/// # Errors
/// If the management API refuses it.
pub fn show_management(settings: &Settings, user: &str, password: &Secret) -> Result<(), AdminError> {
    Ok(api(settings)?.create_user(user, password, "management")?)
}

/// What every user can do on a broker of this version, whatever its permissions.
fn limits(version: Option<&str>, user: &str) -> Vec<String> {
    unchecked_keys(version, user).into_iter().chain(forgery(version)).collect()
}

/// The keys of a publisher that a broker does not check. Measured: 3.10.8 does not look at
/// these headers, 4.0.5 and 4.3.6 do.
fn unchecked_keys(version: Option<&str>, user: &str) -> Option<String> {
    let version = version.filter(|version| version.starts_with("3."))?;
    Some(format!(
        "RabbitMQ {version} does not check topic permissions for the headers CC and BCC: user `{user}` can \
         publish any app key with them. RabbitMQ 4 checks them (docs/security.md)"
    ))
}
