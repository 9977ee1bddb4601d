//! What is compared, how it is measured, and what comes of it.
//!
//! `layouts` are the ways to delay a message, each built as its users build it.
//! `workload` says which delays; `measure` runs a workload against a layout, with a
//! `ledger` of every message, in turns with the limit, which is `reference`; `series`
//! varies one thing at a time and `knee` searches. `results` is the JSON, which `table`,
//! `targets` and `report` read. `machine` tells when the host of a virtual machine was in
//! the way.

#![allow(unreachable_pub, reason = "nothing uses this from outside")]
#![allow(missing_docs, reason = "it is no library")]

pub mod args;
pub mod broker;
pub mod conditions;
pub mod inbox;
pub mod knee;
pub mod layouts;
pub mod ledger;
pub mod machine;
pub mod measure;
pub mod outbox;
pub mod phase;
pub mod reference;
pub mod report;
pub mod results;
pub mod runs;
pub mod scale;
pub mod series;
pub mod stand;
pub mod table;
pub mod targets;
pub mod workload;

/// What can go wrong ends the run, with a reason for people.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
