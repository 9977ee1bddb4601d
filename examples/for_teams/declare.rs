//! Declares and binds the queue.

use delayline::{
    amqp::Session,
    broker::Broker,
    codec::AppKey,
    topology::{Topology, TopologySettings},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = AppKey::new("billing")?;
    let topology = Topology::new(TopologySettings::named("delay".parse()?));
    let mut session = Session::open(&Broker::from_url(&std::env::var("AMQP_URL")?)?)?;
    // What is rejected goes to the retry service, and the broker keeps it until it is there.
    session.declare_queue(&topology.app_queue(&app, "billing-in", true))?;
    session.bind(&topology.app_binding(&app, "billing-in"))?;
    Ok(())
}
