//! Behaviour that a broker decides, against nodes that these tests start.

#[path = "../common/mod.rs"]
mod common;

mod canary;
mod cluster;
mod delivery;
mod doctor;
mod faults;
mod garbage;
mod holding;
mod install;
mod message;
mod picture;
mod pika;
mod quotas;
mod refusals;
mod retry;
mod suitable;
mod tls;
mod uninstall;
mod verify;
