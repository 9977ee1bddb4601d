//! Inspecting a vhost: differences from the wanted state, and other faults.
//!
//! The broker is asked first. The checks are pure functions of a [`Snapshot`](delayline_broker::Snapshot)
//! and of further answers.

mod apps;
mod doctor;
mod finding;
mod foreign;
mod gateways;
pub mod guard;
mod layout;
mod verify;

pub use apps::{
    AppBinding, AppEntry, AppList, AppUserEntry, Hold, JournalEntry, LandingEntry, RecallEntry,
    apps_of_publisher, list_apps, queue_of_app,
};
pub use apps::{apps_of, behind, landing};
pub use doctor::{DoctorOptions, DoctorReport, doctor, doctor_seen};
pub use finding::{Finding, FindingCode, Severity, findings};
pub use foreign::doctor_layout;
pub use gateways::names_among;
pub use gateways::{GatewayEntry, GatewayList, gateway_names, gateways_among, list_gateways};
pub use layout::{LayoutDestination, LayoutLevel, LayoutStatus, SeenLayout, layout_status};
pub use verify::{VerifyReport, verify, verify_seen};
