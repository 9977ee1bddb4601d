//! The layout of Celery, declared by its own library.

use std::{
    collections::HashMap,
    io::Write,
    process::{Command, Stdio},
};

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::broker::INBOX;

const SCRIPT: &str = include_str!("celery.py");

/// The name of Celery's exchange for the top level.
const ENTRY: &str = "celery_delayed_27";

#[derive(Default)]
pub struct Celery {
    keys: HashMap<u64, String>,
}

impl Layout for Celery {
    fn install(&mut self, vhost: &mut Vhost<'_>, workload: &Workload) -> Fallible<()> {
        self.keys = run(vhost, &workload.all_delays())?;
        Ok(())
    }

    fn address(&mut self, _: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        let key = self.keys.get(&delay).ok_or("a delay that kombu was not asked about")?;
        Ok(Address { exchange: ENTRY.into(), key: key.clone(), ..Address::default() })
    }

    fn first_queue(&self, delay: u64) -> Option<String> {
        Some(format!("celery_delayed_{}", delay.checked_ilog2().unwrap_or(0)))
    }
}

/// Has kombu declare everything. Returns its routing key for each delay.
fn run(vhost: &Vhost<'_>, delays: &[u64]) -> Fallible<HashMap<u64, String>> {
    let python = std::env::var("TEST_PYTHON")
        .map_err(|_| "kombu is missing: run scripts/compare, or set TEST_PYTHON to a Python that has it")?;
    let mut child = Command::new(python)
        .args(["-c", SCRIPT, &vhost.url(), &vhost.unit_ms.to_string(), INBOX])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(serde_json::to_string(delays)?.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err("kombu could not declare its layout; see above".into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
