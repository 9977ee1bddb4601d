//! Queues that messages wait in once, and then go to the application.

use std::collections::BTreeSet;

use delayline_core::topology::{Argument, ExchangeKind};

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::broker::INBOX;

/// How long a queue that was made on demand outlives its messages, in ms.
const SPARE_MS: u64 = 10_000;

fn milliseconds(vhost: &Vhost<'_>, delay: u64) -> Argument {
    Argument::Number(i64::try_from(vhost.unit_ms * delay).unwrap_or(i64::MAX))
}

/// A classic queue that hands on to the inbox through the default exchange.
fn classic(vhost: &mut Vhost<'_>, name: &str, more: &[(&str, Argument)]) -> Fallible<()> {
    let mut arguments = vec![
        ("x-queue-type", "classic".into()),
        ("x-dead-letter-exchange", "".into()),
        ("x-dead-letter-routing-key", INBOX.into()),
    ];
    arguments.extend_from_slice(more);
    vhost.queue(name, &arguments)
}

fn to_queue(name: String) -> Address {
    Address { key: name, ..Address::default() }
}

/// One queue; every message brings its own time to live.
pub struct MessageTtl;

impl Layout for MessageTtl {
    fn install(&mut self, vhost: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        classic(vhost, "wait", &[])
    }

    fn address(&mut self, vhost: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        Ok(Address { expiration: Some((vhost.unit_ms * delay).to_string()), ..to_queue("wait".into()) })
    }

    fn first_queue(&self, _: u64) -> Option<String> {
        Some("wait".into())
    }
}

/// A queue for each delay, made when it is needed.
pub struct TtlQueues;

impl TtlQueues {
    fn name(delay: u64) -> String {
        format!("wait.{delay}")
    }
}

impl Layout for TtlQueues {
    fn install(&mut self, _: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        Ok(())
    }

    fn address(&mut self, vhost: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        let ttl = vhost.unit_ms * delay;
        let expires = i64::try_from(ttl + SPARE_MS)?;
        let arguments = [("x-message-ttl", milliseconds(vhost, delay)), ("x-expires", expires.into())];
        classic(vhost, &Self::name(delay), &arguments)?;
        Ok(to_queue(Self::name(delay)))
    }

    fn is_renewed(&self) -> bool {
        true
    }

    fn first_queue(&self, delay: u64) -> Option<String> {
        Some(Self::name(delay))
    }
}

/// The least of the steps that is no shorter than a delay; the longest if there is
/// none.
fn step(steps: &BTreeSet<u64>, delay: u64) -> u64 {
    steps.range(delay..).next().or(steps.last()).copied().unwrap_or(delay)
}

/// One application's own few queues.
#[derive(Default)]
pub struct FixedQueues {
    steps: BTreeSet<u64>,
}

impl FixedQueues {
    fn name(&self, delay: u64) -> String {
        format!("{INBOX}.wait.{}", step(&self.steps, delay))
    }
}

impl Layout for FixedQueues {
    fn install(&mut self, vhost: &mut Vhost<'_>, workload: &Workload) -> Fallible<()> {
        self.steps = workload.steps.iter().copied().collect();
        for &delay in &workload.steps {
            let ttl = milliseconds(vhost, delay);
            classic(vhost, &self.name(delay), &[("x-message-ttl", ttl)])?;
        }
        Ok(())
    }

    fn address(&mut self, _: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        Ok(to_queue(self.name(delay)))
    }

    fn first_queue(&self, delay: u64) -> Option<String> {
        Some(self.name(delay))
    }

    fn rounded(&self, delay: u64) -> u64 {
        step(&self.steps, delay)
    }
}

/// A few queues for all applications, which tell them apart by routing key.
#[derive(Default)]
pub struct SharedQueues {
    steps: BTreeSet<u64>,
}

impl SharedQueues {
    const DISPATCH: &str = "shared.dispatch";

    fn name(&self, delay: u64) -> String {
        format!("shared.wait.{}", step(&self.steps, delay))
    }
}

impl Layout for SharedQueues {
    fn install(&mut self, vhost: &mut Vhost<'_>, workload: &Workload) -> Fallible<()> {
        self.steps = workload.steps.iter().copied().collect();
        vhost.exchange(Self::DISPATCH, ExchangeKind::Topic)?;
        vhost.bind_queue(Self::DISPATCH, INBOX, INBOX)?;
        for &delay in &workload.steps {
            let name = self.name(delay);
            let arguments = [
                ("x-queue-type", "quorum".into()),
                ("x-message-ttl", milliseconds(vhost, delay)),
                ("x-dead-letter-exchange", Self::DISPATCH.into()),
                ("x-dead-letter-strategy", "at-least-once".into()),
                ("x-overflow", "reject-publish".into()),
            ];
            vhost.queue(&name, &arguments)?;
            // The routing key is the application's, so an exchange stands for the queue.
            vhost.exchange(&name, ExchangeKind::Fanout)?;
            vhost.bind_queue(&name, &name, "")?;
        }
        Ok(())
    }

    fn address(&mut self, _: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        Ok(Address { exchange: self.name(delay), key: INBOX.into(), ..Address::default() })
    }

    fn first_queue(&self, delay: u64) -> Option<String> {
        Some(self.name(delay))
    }

    fn rounded(&self, delay: u64) -> u64 {
        step(&self.steps, delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_to_the_next_step() {
        let steps = BTreeSet::from([1, 5, 15]);
        let rounded: Vec<_> = [1, 2, 5, 6, 15, 16].map(|delay| step(&steps, delay)).into();
        assert_eq!(rounded, [1, 5, 5, 15, 15, 15]);
    }
}
