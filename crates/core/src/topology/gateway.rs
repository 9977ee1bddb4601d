//! The objects of a gateway for `x-delay`.

use crate::codec::AppKeyError;

use super::{
    Binding, Endpoint, Exchange, ExchangeKind, Names, Object, Topology, build::service_queue,
    object::Arguments,
};

impl Topology {
    /// The objects of a gateway with this name, in an order that is safe for declaring. The first
    /// is the exchange of its consumers, which has this kind. The two queues of its daemons follow.
    /// The exchange of its publishers is the last.
    ///
    /// The exchange of the consumers has no arguments, so that applications may continue to declare
    /// it. Unroutable messages return to the daemon.
    ///
    /// # Errors
    /// No gateway can have this name.
    pub fn gateway(&self, name: &str, kind: ExchangeKind) -> Result<Vec<Object>, AppKeyError> {
        let names = self.names();
        let (queue, due) = (names.gateway(name), names.gateway_due(name));
        let app = Names::gateway_app(name)?;
        let plain =
            |name: String, kind| Object::Exchange(Exchange { name, kind, arguments: Arguments::new() });
        let fanout = |source: &str, queue: &str| {
            Object::Binding(Binding {
                source: source.into(),
                destination: Endpoint::Queue(queue.into()),
                key: String::new(),
            })
        };
        let entry = Names::gateway_entry(name);
        Ok(vec![
            plain(name.into(), kind),
            Object::Queue(service_queue(self.settings(), due.clone(), names.unroutable())),
            plain(due.clone(), ExchangeKind::Fanout),
            fanout(&due, &due),
            Object::Binding(self.app_binding(&app, &due)),
            // A message whose `expiration` passes before a daemon takes it leaves this queue. So
            // that it is not lost, it goes to the other queue and is taken there.
            Object::Queue(service_queue(self.settings(), queue.clone(), due)),
            plain(entry.clone(), ExchangeKind::Fanout),
            fanout(&entry, &queue),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologySettings;

    #[test]
    fn a_gateway_loses_nothing_and_declares_its_entry_last() {
        let topology = Topology::new(TopologySettings::default());
        let objects = topology.gateway("orders.delayed", ExchangeKind::Direct).unwrap();
        let lines = objects.iter().map(|object| match object {
            Object::Exchange(Exchange { name, kind, .. }) => format!("exchange {name}, {}", kind.as_str()),
            Object::Queue(queue) => {
                format!("queue {}, rejects to {}", queue.name, queue.arguments["x-dead-letter-exchange"])
            }
            Object::Binding(binding) => binding.to_string(),
        });
        insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"), @"
        exchange orders.delayed, direct
        queue delay.gateway-due.orders.delayed, rejects to delay.unroutable
        exchange delay.gateway-due.orders.delayed, fanout
        binding `delay.gateway-due.orders.delayed` -> queue `delay.gateway-due.orders.delayed` with key ``
        binding `delay.dispatch` -> queue `delay.gateway-due.orders.delayed` with key `delay.*.*.*.*.*.*.*.gateway.orders.delayed`
        queue delay.gateway.orders.delayed, rejects to delay.gateway-due.orders.delayed
        exchange orders.delayed.in, fanout
        binding `orders.delayed.in` -> queue `delay.gateway.orders.delayed` with key ``
        ");
        for name in ["delay.gateway.orders.delayed", "delay.gateway-due.orders.delayed"] {
            assert!(topology.owns_queue(name) && topology.owns_exchange(name), "{name}");
        }
        assert!(!topology.owns_queue("orders.delayed"));
        assert!(topology.gateway("a b", ExchangeKind::Topic).is_err());
    }
}
