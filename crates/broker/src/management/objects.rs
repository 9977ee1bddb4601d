//! The objects of a vhost, and their counts.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ChannelInfo, ConnectionInfo, ExchangeInfo, ManagementApi, ManagementError, PlacedQueue, QueueInfo,
    client::segment,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value as Json;

/// The most items of a page that a broker allows.
const PAGE: usize = 500;

/// One queue takes a broker as long as this many queues of a list of all (4.3.6, 10,000 queues: 5 ms for one,
/// 1.3 s for the list).
const LISTED: usize = 40;

/// A part of a list.
#[derive(Deserialize)]
struct Page<T> {
    items: Vec<T>,
    /// How many pages the matching items have.
    page_count: usize,
    /// How many items there are, whether they match or not.
    total_count: usize,
}

impl ManagementApi {
    /// All exchanges of a vhost.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn exchanges(&self, vhost: &str) -> Result<Vec<ExchangeInfo>, ManagementError> {
        self.list(&format!("exchanges/{}", segment(vhost)))
    }

    /// The same, without what the statistics add, which takes a broker several times as long.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn exchange_definitions(&self, vhost: &str) -> Result<Vec<ExchangeInfo>, ManagementError> {
        let columns = "name,type,durable,auto_delete,internal,arguments,policy";
        self.list(&format!("exchanges/{}?disable_stats=true&columns={columns}", segment(vhost)))
    }

    /// All queues of a vhost. Counts are up to 10 s old. A broker without statistics reports messages of
    /// the queues that the answering node leads, and no consumers.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queues(&self, vhost: &str) -> Result<Vec<QueueInfo>, ManagementError> {
        Ok(self.queues_matching(vhost, None)?.0)
    }

    /// The same for those whose names match a pattern, and how many queues the vhost has in all. The broker
    /// then examines no others, and takes a tenth of the time.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queues_matching(
        &self,
        vhost: &str,
        names: Option<&str>,
    ) -> Result<(Vec<QueueInfo>, usize), ManagementError> {
        let (queues, all) = self.matching(&format!("queues/{}", segment(vhost)), "", names)?;
        Ok((self.counted(vhost, queues, names)?, all))
    }

    /// A list of objects, or its part with names that match a pattern; and the length of the whole list.
    fn matching<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &str,
        names: Option<&str>,
    ) -> Result<(Vec<T>, usize), ManagementError> {
        let Some(names) = names else {
            let items: Vec<T> = self.list(&format!("{path}?{query}"))?;
            let all = items.len();
            return Ok((items, all));
        };
        let (mut items, mut number) = (Vec::new(), 1);
        loop {
            // In the order of their names. To ask for that order takes 3.10 six times as long.
            let part = format!("page={number}&page_size={PAGE}&use_regex=true&name={}", segment(names));
            let page: Page<T> = self.get(&format!("{path}?{part}&{query}"))?;
            items.extend(page.items);
            if number >= page.page_count {
                return Ok((items, page.total_count));
            }
            number += 1;
        }
    }

    /// Queues without any statistics get their totals, if the broker keeps none.
    fn counted(
        &self,
        vhost: &str,
        mut queues: Vec<QueueInfo>,
        names: Option<&str>,
    ) -> Result<Vec<QueueInfo>, ManagementError> {
        for queue in &mut queues {
            // Only queues that can have some report their number.
            queue.messages_dlx = queue.messages_dlx.or_else(|| queue.gone());
        }
        if queues.is_empty() || queues.iter().any(|queue| queue.reductions.is_some()) {
            return Ok(queues);
        }
        let overview = self.overview()?;
        if overview.disable_stats {
            let totals = self.queue_totals(vhost, names)?;
            let totals: BTreeMap<_, _> = totals.iter().map(|queue| (queue.name.as_str(), queue)).collect();
            for queue in &mut queues {
                let totals = totals.get(queue.name.as_str()).copied();
                queue.take_totals(totals, &overview.node);
            }
        }
        Ok(queues)
    }

    /// The queues of a vhost, or those whose names match a pattern, with their names and counts and nothing
    /// else.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queue_counts(&self, vhost: &str, names: Option<&str>) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "columns=name,messages,messages_ready,messages_unacknowledged,messages_dlx,consumers,\
                       reductions,message_stats.publish";
        let (queues, _) = self.matching(&format!("queues/{}", segment(vhost)), columns, names)?;
        self.counted(vhost, queues, names)
    }

    /// The same with their message counts, bypassing the statistics, which are up to 5 s
    /// older. Queues whose leader is on another node than the answering one have no counts.
    fn queue_totals(&self, vhost: &str, names: Option<&str>) -> Result<Vec<QueueInfo>, ManagementError> {
        let query = "disable_stats=true&enable_queue_totals=true\
                     &columns=name,messages,messages_ready,messages_unacknowledged,members,leader";
        Ok(self.matching(&format!("queues/{}", segment(vhost)), query, names)?.0)
    }

    /// The queues of these names: one request for each, or a list of the vhost's queues, `all` in number, if
    /// that is cheaper for the broker. Only the list has counts without statistics.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn queues_named<'a>(
        &self,
        vhost: &str,
        names: impl ExactSizeIterator<Item = &'a str>,
        all: usize,
    ) -> Result<Vec<QueueInfo>, ManagementError> {
        self.named(vhost, "", names, all)
    }

    fn named<'a>(
        &self,
        vhost: &str,
        query: &str,
        names: impl ExactSizeIterator<Item = &'a str>,
        all: usize,
    ) -> Result<Vec<QueueInfo>, ManagementError> {
        let path = format!("queues/{}", segment(vhost));
        if names.len().saturating_mul(LISTED) > all {
            let names: BTreeSet<_> = names.collect();
            let mut queues = Vec::new();
            if !names.is_empty() {
                queues = self.counted(vhost, self.list(&format!("{path}?{query}"))?, None)?;
            }
            queues.retain(|queue| names.contains(queue.name.as_str()));
            return Ok(queues);
        }
        let mut queues = Vec::new();
        for name in names {
            queues.extend(self.find::<QueueInfo>(&format!("{path}/{}?{query}", segment(name)))?);
        }
        for queue in &mut queues {
            queue.messages_dlx = queue.messages_dlx.or_else(|| queue.gone());
        }
        Ok(queues)
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

    /// The messages published into each of these queues of a vhost, and to each exchange whose name matches a
    /// pattern, or to all, over the last `age` seconds, with one sample every ten. `all` is the number of all queues.
    /// The answers also contain names and where exchanges lead, and nothing else.
    ///
    /// # Errors See [`ManagementError`].
    pub fn publish_histories<'a>(
        &self,
        vhost: &str,
        age: u32,
        (queues, all): (impl ExactSizeIterator<Item = &'a str>, usize),
        exchanges: Option<&str>,
    ) -> Result<(Vec<QueueInfo>, Vec<ExchangeInfo>), ManagementError> {
        let over = format!("msg_rates_age={age}&msg_rates_incr=10");
        let columns = "columns=name,reductions,message_stats.publish,message_stats.publish_details";
        // In this order: a message is published before it enters a queue.
        let queues = self.named(vhost, &format!("{columns}&{over}"), queues, all)?;
        Ok((queues, self.matching(&format!("exchanges/{}", segment(vhost)), &over, exchanges)?.0))
    }

    /// How fast messages of each of these queues of a vhost were redelivered and acknowledged over the last
    /// `age` seconds. `all` is the number of all queues.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn redeliveries<'a>(
        &self,
        vhost: &str,
        age: u32,
        names: impl ExactSizeIterator<Item = &'a str>,
        all: usize,
    ) -> Result<Vec<QueueInfo>, ManagementError> {
        let columns = "columns=name,reductions,message_stats.redeliver_details,message_stats.ack_details";
        self.named(vhost, &format!("{columns}&msg_rates_age={age}&msg_rates_incr=5"), names, all)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::pretend;

    /// An API that gives these answers, one after the other; and the paths that it was asked for.
    fn answering(answers: Vec<String>) -> (ManagementApi, impl FnOnce() -> Vec<String>) {
        let mut answers = answers.into_iter();
        let (api, asked) = pretend::answering(move |_| Some(answers.next().unwrap()));
        (api, move || asked.lock().unwrap().clone())
    }

    #[test]
    fn all_pages_of_a_list_are_read() {
        let page = |names: &[&str]| {
            let items: Vec<_> =
                names.iter().map(|name| serde_json::json!({ "name": name, "reductions": 1 })).collect();
            serde_json::json!({ "items": items, "page_count": 2, "total_count": 9 }).to_string()
        };
        let (api, asked) = answering(vec![page(&["a.1", "a.2"]), page(&["a.3"])]);
        let (queues, all) = api.queues_matching("/", Some(r"^a\.")).unwrap();
        assert_eq!(queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["a.1", "a.2", "a.3"]);
        assert_eq!(all, 9);
        for (number, path) in asked().iter().enumerate() {
            let part = format!("/api/queues/%2F?page={}&page_size=500&", number + 1);
            assert!(path.starts_with(&part) && path.contains("&name=%5Ea%5C."), "{path}");
        }
    }

    #[test]
    fn few_queues_are_asked_for_one_by_one_and_many_as_one_list() {
        let queue = r#"{"name": "a", "reductions": 1, "messages": 5, "messages_ready": 2, "messages_unacknowledged": 1}"#;
        let (api, asked) = answering(vec![queue.into()]);
        let found = api.queues_named("/", ["a"].into_iter(), LISTED).unwrap();
        assert_eq!((found.len(), found[0].messages_dlx), (1, Some(2)));
        assert_eq!(asked(), ["/api/queues/%2F/a?"]);
        let (api, asked) = answering(vec![format!(r#"[{queue}, {{"name": "b"}}]"#)]);
        let found = api.queues_named("/", ["a", "gone"].into_iter(), 2 * LISTED - 1).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(asked(), ["/api/queues/%2F?"]);
    }
}
