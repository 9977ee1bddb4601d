//! No delay at all: the limit of client and broker.

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::broker::INBOX;

pub struct Straight;

impl Layout for Straight {
    fn install(&mut self, _: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        Ok(())
    }

    fn address(&mut self, _: &mut Vhost<'_>, _: u64) -> Fallible<Address> {
        Ok(Address { key: INBOX.into(), ..Address::default() })
    }

    fn first_queue(&self, _: u64) -> Option<String> {
        None
    }

    fn rounded(&self, _: u64) -> u64 {
        0
    }
}
