//! All tests that need RabbitMQ nodes, which the tests start themselves. They are a single program,
//! which is linked once and whose tests share nodes and sets.

mod common;

#[path = "broker/main.rs"]
mod broker;
#[path = "browser/main.rs"]
mod browser;
#[path = "cli/main.rs"]
mod cli;
#[path = "faults/judged.rs"]
mod judged;

// Helpers that several modules use.
use broker::{for_teams, others, proxy, tenant, tls, uncarried, unstick};
use cli::{daemon, delayline, document, exit_codes, json, on, schemas, secrets, stdout, terminal};
use judged::{help, ledger};
