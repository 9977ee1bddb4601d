//! The objects of a vhost, and their counts.

use super::{
    BindingInfo, ChannelInfo, ExchangeInfo, ManagementApi, ManagementError, QueueInfo,
    client::{properties_key, segment},
};
use delayline_core::topology::{Binding, Endpoint};
use serde_json::Value as Json;

impl ManagementApi {
    /// All exchanges of a vhost.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn exchanges(&self, vhost: &str) -> Result<Vec<ExchangeInfo>, ManagementError> {
        self.get(&format!("exchanges/{}", segment(vhost)))
    }

    /// All queues of a vhost. Counts are up to 10 s old.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queues(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        self.get(&format!("queues/{}", segment(vhost)))
    }

    /// All queues of a vhost, with their names and counts and nothing else.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queue_counts(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "name,messages,messages_ready,messages_unacknowledged,messages_dlx,consumers,reductions,\
                       message_stats.publish";
        self.get(&format!("queues/{}?columns={columns}", segment(vhost)))
    }

    /// All queues of a vhost with their message counts, bypassing the statistics, which are
    /// up to 5 s older; queues whose leader is on another node than the one that answers have
    /// no counts.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queue_totals(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "name,messages,messages_ready,messages_unacknowledged,members";
        let options = "disable_stats=true&enable_queue_totals=true";
        self.get(&format!("queues/{}?{options}&columns={columns}", segment(vhost)))
    }

    /// One exchange of a vhost; `None` if there is none of this name.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn exchange(&self, vhost: &str, name: &str) -> Result<Option<ExchangeInfo>, ManagementError> {
        self.find(&format!("exchanges/{}/{}", segment(vhost), segment(name)))
    }

    /// One queue of a vhost; `None` if there is none of this name.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queue(&self, vhost: &str, name: &str) -> Result<Option<QueueInfo>, ManagementError> {
        self.find(&format!("queues/{}/{}", segment(vhost), segment(name)))
    }

    /// All bindings of a vhost.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings(&self, vhost: &str) -> Result<Vec<BindingInfo>, ManagementError> {
        self.get(&format!("bindings/{}", segment(vhost)))
    }

    /// The keys and arguments of the bindings from an exchange of a vhost to a queue, one by one,
    /// since there may be very many; none if either is missing. With all columns, a broker takes
    /// several times the memory and the time (100,000 bindings: 1.4 GB and 400 MB more on 3.10.8).
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn each_binding_between(
        &self,
        vhost: &str,
        exchange: &str,
        queue: &str,
        each: impl FnMut(BindingInfo),
    ) -> Result<(), ManagementError> {
        let (vhost, exchange, queue) = (segment(vhost), segment(exchange), segment(queue));
        self.each(&format!("bindings/{vhost}/e/{exchange}/q/{queue}?columns=routing_key,arguments"), each)
    }

    /// The bindings from an exchange of a vhost; none if there is no such exchange.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings_from(&self, vhost: &str, exchange: &str) -> Result<Vec<BindingInfo>, ManagementError> {
        let (vhost, exchange) = (segment(vhost), segment(exchange));
        Ok(self.find(&format!("exchanges/{vhost}/{exchange}/bindings/source"))?.unwrap_or_default())
    }

    /// The bindings from one exchange of a vhost to another; none if either is missing.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn bindings_between(
        &self,
        vhost: &str,
        source: &str,
        destination: &str,
    ) -> Result<Vec<BindingInfo>, ManagementError> {
        let (vhost, source, destination) = (segment(vhost), segment(source), segment(destination));
        Ok(self.find(&format!("bindings/{vhost}/e/{source}/e/{destination}"))?.unwrap_or_default())
    }

    /// Whether there is this binding, without arguments.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn has_binding(&self, vhost: &str, binding: &Binding) -> Result<bool, ManagementError> {
        let (kind, destination) = match &binding.destination {
            Endpoint::Exchange(name) => ("e", name),
            Endpoint::Queue(name) => ("q", name),
        };
        let path = format!(
            "bindings/{}/e/{}/{kind}/{}/{}",
            segment(vhost),
            segment(&binding.source),
            segment(destination),
            segment(&properties_key(&binding.key))
        );
        Ok(self.find::<Json>(&path)?.is_some())
    }

    /// One queue with how many messages it had in the last `age` seconds, and how much it
    /// worked; `None` if there is none of this name.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queue_history(
        &self,
        vhost: &str,
        name: &str,
        age: u32,
    ) -> Result<Option<QueueInfo>, ManagementError> {
        // Brokers take one sample every 5 s.
        let step = (age / 60).max(5);
        let (vhost, name) = (segment(vhost), segment(name));
        let over = |what: &str| format!("{what}_age={age}&{what}_incr={step}");
        // Lengths are the counts, data rates the work of the process.
        self.find(&format!("queues/{vhost}/{name}?{}&{}", over("lengths"), over("data_rates")))
    }

    /// What was published into each queue, and to each exchange, of a vhost over the last
    /// `age` seconds, with one sample every ten. The answers contain nothing else but names
    /// and where exchanges lead.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn publish_histories(
        &self,
        vhost: &str,
        age: u32,
    ) -> Result<(Vec<QueueInfo>, Vec<ExchangeInfo>), ManagementError> {
        let (vhost, over) = (segment(vhost), format!("msg_rates_age={age}&msg_rates_incr=10"));
        // In this order: a message is published before it enters a queue.
        let queues = self.get(&format!(
            "queues/{vhost}?columns=name,message_stats.publish,message_stats.publish_details&{over}"
        ))?;
        Ok((queues, self.get(&format!("exchanges/{vhost}?{over}"))?))
    }

    /// How fast messages of each queue of a vhost were redelivered and acknowledged over the last
    /// `age` seconds. The answers contain nothing else but names.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn redeliveries(&self, vhost: &str, age: u32) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "name,message_stats.redeliver_details,message_stats.ack_details";
        let over = format!("msg_rates_age={age}&msg_rates_incr=5");
        self.get(&format!("queues/{}?columns={columns}&{over}", segment(vhost)))
    }

    /// All channels of a vhost. Needs the tag `monitoring`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn channels(&self, vhost: &str) -> Result<Vec<ChannelInfo>, ManagementError> {
        self.get(&format!("vhosts/{}/channels", segment(vhost)))
    }
}
