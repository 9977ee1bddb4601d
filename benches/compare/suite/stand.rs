//! A layout, set up.

use std::{any::Any, thread, time::Duration};

use super::{
    Fallible,
    broker::{Broker, Vhost},
    layouts::Layout,
    workload::Workload,
};

/// A layout that stands in a vhost of its own.
pub struct Stand<'b> {
    // Before the vhost that it works in.
    _helper: Option<Box<dyn Any>>,
    pub vhost: Vhost<'b>,
}

impl<'b> Stand<'b> {
    /// Sets it up; a broker that was busy a moment ago gets a second chance.
    pub fn new(broker: &'b Broker, layout: &mut dyn Layout, workload: &Workload) -> Fallible<Self> {
        match Self::set_up(broker, layout, workload) {
            Ok(stand) => Ok(stand),
            Err(error) => {
                eprintln!("   once more, since: {error}");
                thread::sleep(Duration::from_secs(2));
                Self::set_up(broker, layout, workload)
            }
        }
    }

    fn set_up(broker: &'b Broker, layout: &mut dyn Layout, workload: &Workload) -> Fallible<Self> {
        let mut vhost = broker.vhost(workload.unit_ms)?;
        layout.install(&mut vhost, workload)?;
        Ok(Self { _helper: layout.helper(&vhost)?, vhost })
    }
}
