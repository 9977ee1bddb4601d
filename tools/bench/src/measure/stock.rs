//! The cost of waiting messages, from the management API.

use std::{
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use delayline_broker::{ManagementApi, ManagementError, NodeInfo, QueueInfo};
use delayline_settings::{Management, NO_MANAGEMENT};

use super::{BenchError, Broker, Stock, check};

/// How long the API may take to count messages and memory; it collects every 5 s, and on a busy
/// broker later.
const PATIENCE: Duration = Duration::from_secs(60);

/// The message if it does not.
const UNKNOWN: &str = "the management API reports no waiting message, or not how much memory they take";

/// How often it is asked.
const TICK: Duration = Duration::from_millis(500);

/// The broker's memory and disk, seen from outside.
pub(super) struct Observer {
    api: ManagementApi,
    vhost: String,
}

impl Observer {
    /// `Err` contains the reason why nothing can be observed.
    pub(super) fn new(management: Option<&Management>, vhost: &str) -> Result<Self, String> {
        let settings = management.ok_or(NO_MANAGEMENT)?;
        let api = ManagementApi::new(settings).map_err(|error| error.to_string())?;
        Ok(Self { api, vhost: vhost.into() })
    }

    /// The broker's version and size.
    pub(super) fn broker(&self, broker: &mut Broker) -> Result<(), ManagementError> {
        let nodes = self.api.nodes()?;
        let least = |value: fn(&NodeInfo) -> Option<u64>| nodes.iter().filter_map(value).min();
        broker.nodes = Some(nodes.len());
        broker.processors = least(|node| node.processors);
        broker.memory_limit = least(|node| node.mem_limit);
        broker.disk_free =
            least(|node| Some(node.disk_free?.saturating_sub(node.disk_free_limit.unwrap_or(0))));
        Ok(())
    }

    /// The memory of all nodes together, once every node has reported.
    pub(super) fn memory(&self) -> Result<Option<u64>, ManagementError> {
        Ok(self.api.nodes()?.iter().map(|node| node.mem_used).sum())
    }

    /// The memory that a queue with `count` messages takes for each, once the API has counted
    /// them all.
    pub(super) fn stock(
        &self,
        queue: &str,
        count: u64,
        before: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Result<Stock, String>, BenchError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            check(stop)?;
            let late = Instant::now() >= deadline;
            let (info, memory) = match self.look(queue) {
                Ok(seen) => seen,
                Err(reason) => return Ok(Err(reason)),
            };
            match stock(&info, before.zip(memory)) {
                // On a busy broker the count lags behind: then the counted messages must suffice.
                Some(stock) if late || stock.messages >= count => return Ok(Ok(stock)),
                None if late => return Ok(Err(UNKNOWN.into())),
                _ => thread::sleep(TICK),
            }
        }
    }

    fn look(&self, queue: &str) -> Result<(QueueInfo, Option<u64>), String> {
        let info = self.api.queue(&self.vhost, queue).map_err(|error| error.to_string())?;
        let memory = self.memory().map_err(|error| error.to_string())?;
        Ok((info.unwrap_or_default(), memory))
    }
}

/// `None` as long as the API knows of no messages, or not how much memory the queue takes:
/// brokers count the two apart, and give the memory as none or as 0 until then.
#[expect(clippy::cast_precision_loss, reason = "sizes to look at")]
fn stock(info: &QueueInfo, memory: Option<(u64, u64)>) -> Option<Stock> {
    let taken = info.memory.filter(|bytes| *bytes > 0)?;
    let messages = info.messages.filter(|messages| *messages > 0)?;
    let each = |bytes: u64| bytes as f64 / messages as f64;
    Some(Stock {
        messages,
        memory_each: each(taken),
        fresh_each: memory.map(|(before, after)| each(after.saturating_sub(before))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_yet_is_no_number() {
        let seen = |messages, memory| {
            let mut info = QueueInfo::default();
            (info.messages, info.memory) = (Some(messages), memory);
            stock(&info, Some((1_000, 3_000)))
        };
        assert_eq!(seen(0, Some(80_000)), None);
        assert_eq!(seen(1_000, None), None);
        assert_eq!(seen(1_000, Some(0)), None);
        let known = Stock { messages: 1_000, memory_each: 80.0, fresh_each: Some(2.0) };
        assert_eq!(seen(1_000, Some(80_000)), Some(known));
    }
}
