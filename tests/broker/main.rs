//! Behaviour that a broker decides, against nodes that these tests start.

#[path = "../common/mod.rs"]
mod common;

mod apps;
mod bench;
mod bulkhead;
mod canary;
mod cluster;
mod contract;
mod deadlines;
mod delivery;
mod doctor;
mod export;
mod faults;
mod for_teams;
mod garbage;
mod gateway;
mod handing_on;
mod held_up;
mod holding;
mod hostile;
mod install;
mod kept;
mod lapin;
mod logging;
mod message;
mod node;
mod picture;
mod pika;
mod platform;
mod policies;
mod quotas;
mod recall;
mod refusals;
mod retry;
mod returned;
mod roles;
mod suitable;
mod tenant;
mod tls;
mod uncarried;
mod uninstall;
mod unstick;
mod verify;
mod versions;
