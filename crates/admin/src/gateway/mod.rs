//! Gateways for messages with the header `x-delay`: what each consists of, added, listed and
//! removed. Nothing is stored elsewhere: the objects on the broker are the registration.

mod add;
mod check;
mod list;
mod remove;

pub(crate) use add::add;
pub use add::{GatewayAdded, add_gateway};
pub(crate) use check::findings;
pub use list::{GatewayEntry, GatewayList, gateway_names, list_gateways};
pub use remove::{GatewayRemoved, remove_gateway};

use crate::{compare::Observed, management::ManagementApi};
use delayline_core::topology::Object;
use delayline_settings::Settings;

use crate::AdminError;

/// The management API, which alone can list what there is.
fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    crate::api(settings, "lists queues")
}

/// Whether an object is there, whatever its arguments.
fn stands(observed: &Observed, object: &Object) -> bool {
    match object {
        Object::Binding(binding) => observed.bindings_of(&binding.source).contains(binding),
        _ => observed.has(object),
    }
}
