//! Behaviour that a broker decides, against nodes that these tests start.

#[path = "../common/mod.rs"]
mod common;

mod apps;
mod bench;
mod bulkhead;
mod canary;
mod cluster;
mod delivery;
mod doctor;
mod express;
mod faults;
mod garbage;
mod holding;
mod hostile;
mod install;
mod message;
mod node;
mod picture;
mod pika;
mod quotas;
mod refusals;
mod retry;
mod roles;
mod suitable;
mod tenant;
mod tls;
mod uninstall;
mod verify;
mod versions;
