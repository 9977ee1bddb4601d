//! The archived plugin `rabbitmq_delayed_message_exchange`.

use delayline_core::message::{Headers, Value};

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::broker::INBOX;

const EXCHANGE: &str = "delayed";

pub struct Plugin;

impl Layout for Plugin {
    fn install(&mut self, vhost: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        vhost.delayed_exchange(EXCHANGE)?;
        vhost.bind_queue(EXCHANGE, INBOX, INBOX)
    }

    fn address(&mut self, vhost: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        let milliseconds = i32::try_from(vhost.unit_ms * delay)?;
        Ok(Address {
            exchange: EXCHANGE.into(),
            key: INBOX.into(),
            headers: Headers::from([("x-delay".into(), Value::I32(milliseconds))]),
            ..Address::default()
        })
    }

    /// It waits in a table of the plugin, in no queue.
    fn first_queue(&self, _: u64) -> Option<String> {
        None
    }
}
