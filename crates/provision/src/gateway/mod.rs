//! Gateways for messages with the header `x-delay`: their objects, added and removed. Nothing is stored
//! elsewhere: the objects on the broker are the registration.

mod add;
mod remove;

pub(crate) use add::plan;
pub use add::{GatewayAdded, add_gateway};
pub use remove::remove_gateway;

use delayline_broker::ManagementApi;
use delayline_settings::Settings;

use delayline_messages::error::AdminError;

/// The management API, which alone can list the objects.
fn api(settings: &Settings) -> Result<ManagementApi, AdminError> {
    delayline_messages::error::api(settings, "lists queues")
}
