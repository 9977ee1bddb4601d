//! The objects of a vhost, and their counts.

use std::collections::BTreeMap;

use super::{
    BindingInfo, ChannelInfo, ConnectionInfo, ExchangeInfo, ManagementApi, ManagementError, PlacedQueue,
    QueueInfo,
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

    /// All queues of a vhost. Counts are up to 10 s old. A broker without statistics reports messages of
    /// the queues that the answering node leads, and no consumers.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queues(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        self.counted(vhost, self.get(&format!("queues/{}", segment(vhost)))?)
    }

    /// Queues without any statistics get their totals, if the broker keeps none.
    fn counted(&self, vhost: &str, mut queues: Vec<QueueInfo>) -> Result<Vec<QueueInfo>, ManagementError> {
        for queue in &mut queues {
            // Only queues that can have some report their number.
            queue.messages_dlx = queue.messages_dlx.or_else(|| queue.gone());
        }
        if queues.is_empty() || queues.iter().any(|queue| queue.reductions.is_some()) {
            return Ok(queues);
        }
        let overview = self.overview()?;
        if overview.disable_stats {
            let totals = self.queue_totals(vhost)?;
            let totals: BTreeMap<_, _> = totals.iter().map(|queue| (queue.name.as_str(), queue)).collect();
            for queue in &mut queues {
                let totals = totals.get(queue.name.as_str()).copied();
                queue.take_totals(totals, &overview.node);
            }
        }
        Ok(queues)
    }

    /// All queues of a vhost, with their names and counts and nothing else.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queue_counts(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "name,messages,messages_ready,messages_unacknowledged,messages_dlx,consumers,reductions,\
                       message_stats.publish";
        self.counted(vhost, self.get(&format!("queues/{}?columns={columns}", segment(vhost)))?)
    }

    /// All queues of a vhost with their message counts, bypassing the statistics, which are up to 5 s
    /// older. Queues whose leader is on another node than the answering one have no counts.
    ///
    /// # Errors See [`ManagementError`].
    pub fn queue_totals(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "name,messages,messages_ready,messages_unacknowledged,members,leader";
        let options = "disable_stats=true&enable_queue_totals=true";
        self.get(&format!("queues/{}?{options}&columns={columns}", segment(vhost)))
    }

    /// The quorum queues of all vhosts that the user may see.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn quorum_queues(&self) -> Result<Vec<PlacedQueue>, ManagementError> {
        let queues: Vec<Json> = self.get("queues?disable_stats=true&columns=name,vhost,type")?;
        let quorum =
            queues.into_iter().filter(|queue| queue["type"].as_str().unwrap_or("").contains("quorum"));
        Ok(quorum.filter_map(|queue| serde_json::from_value(queue).ok()).collect())
    }

    /// The most queues that a vhost may have; `None` without a limit.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn most_queues(&self, vhost: &str) -> Result<Option<u64>, ManagementError> {
        let limits: Vec<serde_json::Value> = self.get(&format!("vhost-limits/{}", segment(vhost)))?;
        Ok(limits.iter().find_map(|limits| limits["value"]["max-queues"].as_u64()))
    }

    /// One exchange of a vhost; `None` if there is none of this name.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn exchange(&self, vhost: &str, name: &str) -> Result<Option<ExchangeInfo>, ManagementError> {
        let found = self.find(&format!("exchanges/{}/{}", segment(vhost), segment(name)));
        match found {
            // 3.10 without statistics fails here, but not in the list.
            Err(ManagementError::Unexpected { .. }) => {
                Ok(self.exchanges(vhost)?.into_iter().find(|exchange| exchange.name == name))
            }
            found => found,
        }
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

    /// One queue with the number of its messages and its work over the last `age` seconds; `None` if there
    /// is none of this name.
    ///
    /// # Errors See [`ManagementError`].
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

    /// The messages published into each queue, and to each exchange, of a vhost over the last `age`
    /// seconds, with one sample every ten. The answers also contain names and where exchanges lead, and
    /// nothing else.
    ///
    /// # Errors See [`ManagementError`].
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

    /// All connections of a vhost. Needs the tag `monitoring`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn connections(&self, vhost: &str) -> Result<Vec<ConnectionInfo>, ManagementError> {
        self.get(&format!("vhosts/{}/connections?columns=user,frame_max", segment(vhost)))
    }

    /// All channels of a vhost. Needs the tag `monitoring`.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn channels(&self, vhost: &str) -> Result<Vec<ChannelInfo>, ManagementError> {
        self.get(&format!("vhosts/{}/channels", segment(vhost)))
    }
}
