//! Behaviour that a broker decides, against nodes that these tests start.

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod cluster;
mod delivery;
mod express;
mod faults;
mod garbage;
mod holding;
mod install;
mod message;
mod pika;
mod refusals;
mod retry;
mod suitable;
mod tls;
mod uninstall;
mod verify;
mod versions;
