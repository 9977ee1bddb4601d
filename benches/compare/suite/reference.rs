//! The limit, beside every measurement.

use super::{
    Fallible,
    broker::Broker,
    layouts::Straight,
    phase::PhaseFigures,
    runs::{drain, publish},
    scale::Scale,
    stand::Stand,
    workload::Workload,
};

/// The limit, to measure in turns with every layout: machines get faster and slower
/// within minutes.
pub struct Reference<'b> {
    stand: Stand<'b>,
}

impl<'b> Reference<'b> {
    pub fn new(broker: &'b Broker, workload: &Workload) -> Fallible<Self> {
        Ok(Self { stand: Stand::new(broker, &mut Straight, workload)? })
    }

    pub fn publish(&mut self, scale: &Scale) -> Fallible<f64> {
        let rate = publish(&mut self.stand.vhost, &mut Straight, &|_| 1, scale)?;
        self.stand.vhost.empty_inbox()?;
        Ok(rate)
    }

    pub fn drain(&mut self, count: u64, scale: &Scale) -> Fallible<PhaseFigures> {
        drain(&mut self.stand.vhost, &mut Straight, 1, count, scale.patience)
    }
}
