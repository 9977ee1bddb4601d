//! Everything that is tested on RabbitMQ nodes that the tests start themselves, as one program:
//! it is linked once, and its tests share nodes and sets.

mod common;

#[path = "broker/main.rs"]
mod broker;
#[path = "browser/main.rs"]
mod browser;
#[path = "cli/main.rs"]
mod cli;
#[path = "compare/main.rs"]
mod compare;
#[path = "faults/judged.rs"]
mod judged;

// Helpers of one part that its modules, and other parts, use.
use broker::{for_teams, others, proxy, tenant, tls, uncarried, unstick};
use cli::{daemon, delayline, document, exit_codes, json, on, schemas, secrets, stdout, terminal};
use compare::suite;
use judged::{help, ledger};
