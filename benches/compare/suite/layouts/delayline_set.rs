//! A set of delayline.

use delayline_admin as admin;
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::headers,
    topology::{Names, Topology},
};

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::broker::INBOX;

pub struct DelaylineSet;

impl DelaylineSet {
    fn names() -> Names {
        Names::new(delayline_core::topology::SetName::default())
    }
}

impl Layout for DelaylineSet {
    fn install(&mut self, vhost: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        let topology = Topology::new(vhost.settings.topology.clone());
        admin::install(&vhost.settings, &topology, false, || {})?;
        let pattern = RoutingKey::binding_pattern(&AppKey::new(INBOX)?);
        vhost.bind_queue(&Self::names().dispatch(), INBOX, &pattern)
    }

    fn address(&mut self, _: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        let delay = Delay::from_seconds(delay)?;
        let key = RoutingKey::new(delay, AppKey::new(INBOX)?).encode();
        // The header that the router adds.
        let due_header = Some(headers::DUE);
        Ok(Address { exchange: Self::names().entry(), key, due_header, ..Address::default() })
    }

    fn first_queue(&self, delay: u64) -> Option<String> {
        let level = Delay::from_seconds(delay).ok()?.levels().next()?;
        Some(Self::names().level_queue(level))
    }
}
