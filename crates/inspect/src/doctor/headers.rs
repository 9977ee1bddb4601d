//! Headers that no publisher should send, and consumers that many of them disconnect.

use std::collections::BTreeMap;

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_core::{codec::AppKey, message::SMALLEST_FRAME_LIMIT, topology::Topology};
use delayline_messages::{drain::Group, held::KeptGroup};

/// The publishers that send headers for which a quorum queue of a coming version holds messages back. Only
/// unroutable and parked messages are examined, delivered ones are not.
pub(super) fn check(topology: &Topology, evidence: &Evidence) -> Vec<Finding> {
    carriers(topology, evidence, |group| group.held_back)
        .into_iter()
        .map(|(app, places)| {
            let subject =
                app.map_or_else(|| "messages without an app key".into(), |app| format!("app key `{app}`"));
            Finding::new(
                FindingCode::DeliveryTimeHeader,
                subject,
                format!(
                    "messages have a header `x-opt-delivery-time` or `x-opt-delivery-delay` (at least \
                     {places}), which makes quorum queues of a coming RabbitMQ version hold a message back in \
                     every level"
                ),
                "have its publishers leave the header out before the broker is upgraded: the routing key \
                 contains the delay. The router, the retry service and replays remove it from the messages \
                 they send",
            )
            .about(app)
        })
        .collect()
}

/// The applications with a journal that get messages which it cannot store.
pub(super) fn unjournalled<'a>(topology: &Topology, evidence: &'a Evidence) -> Vec<Finding> {
    let with_journal = |app: &'a str| {
        let journal = topology.names().journal(&AppKey::new(app).ok()?);
        evidence.snapshot.queues.contains_key(&journal).then_some((app, journal))
    };
    carriers(topology, evidence, |group| group.crashing)
        .into_iter()
        .filter_map(|(app, places)| Some((with_journal(app?)?, places)))
        .map(|((app, journal), places)| {
            Finding::new(
                FindingCode::JournalRefuses,
                format!("queue `{journal}`"),
                format!(
                    "it cannot store messages of `{app}` (at least {places}): the broker closes the connection \
                     of whoever sends them, such as their publisher"
                ),
                "have the publisher send such headers as text, and leave out `x-amqp-1.0-…` headers and the type \
                 `amqp-1.0`; or remove the journal",
            )
            .about([app])
        })
        .collect()
}

/// Counts kept messages by application, and tells how many each queue has.
fn carriers<'a>(
    topology: &Topology,
    evidence: &'a Evidence,
    count: impl Fn(&Group) -> u64,
) -> Vec<(Option<&'a str>, String)> {
    let mut carriers: BTreeMap<_, BTreeMap<_, u64>> = BTreeMap::new();
    let groups =
        evidence.kept.iter().flat_map(|(kept, report)| report.groups.iter().map(move |it| (kept, it)));
    for (kept, KeptGroup { cause, group, .. }) in groups.filter(|(_, it)| count(&it.group) > 0) {
        let places = carriers.entry(cause.app.as_deref()).or_default();
        *places.entry(kept.queue(topology).name).or_default() += count(group);
    }
    let places = |queues: BTreeMap<String, u64>| {
        let places: Vec<_> = queues.iter().map(|(queue, count)| format!("{count} in `{queue}`")).collect();
        places.join(" and ")
    };
    carriers.into_iter().map(|(app, queues)| (app, places(queues))).collect()
}

/// The users whose clients lose their connection at each delivery of a message with many hops and headers.
pub(super) fn small_frames(evidence: &Evidence) -> Option<Finding> {
    let users: Vec<_> = evidence.small_frames.iter().map(|user| format!("`{user}`")).collect();
    (!users.is_empty()).then(|| {
        Finding::new(
            FindingCode::SmallFrames,
            "connections",
            format!(
                "clients of {} have a frame limit of {SMALLEST_FRAME_LIMIT} bytes. A message that passes 13 \
                 levels and has 1,500 bytes of headers of its own does not fit, and ends such a connection at \
                 each delivery",
                users.join(", ")
            ),
            "raise the client's frame limit to 131072 (amqplib: `?frameMax=131072` in its address), or upgrade \
             amqplib to 0.10.6 or newer",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_broker::QueueInfo;
    use delayline_core::topology::TopologySettings;
    use delayline_messages::{held::Kept, held::KeptReport};

    fn groups(held_back: &[(Option<&str>, u64)]) -> KeptReport {
        let group = |held_back| Group { count: 9, held_back, ..Group::default() };
        let groups = held_back.iter().map(|(app, count)| KeptGroup::new(*app, "age", group(*count)));
        KeptReport::new((9, 9), groups.collect())
    }

    #[test]
    fn each_application_is_named_once_with_its_queues() {
        let unroutable = groups(&[(Some("billing"), 2), (Some("mail"), 0), (Some("billing"), 1)]);
        let parked = groups(&[(Some("billing"), 4), (None, 5)]);
        let kept = [(Kept::Unroutable, unroutable), (Kept::Parked, parked)].into();
        let evidence = Evidence { kept, ..Evidence::default() };
        let topology = Topology::new(TopologySettings::default());
        let findings = check(&topology, &evidence);
        let found: Vec<_> = findings.iter().map(|it| (it.subject.as_str(), it.apps.as_slice())).collect();
        let apps = ["billing".to_owned()];
        assert_eq!(found, [("messages without an app key", &[][..]), ("app key `billing`", &apps[..])]);
        assert!(
            findings[1].what.contains("4 in `delay.parked` and 3 in `delay.unroutable`"),
            "{findings:#?}"
        );
        assert_eq!(check(&topology, &Evidence::default()), []);
    }

    #[test]
    fn only_an_application_with_a_journal_can_send_what_it_cannot_store() {
        let group =
            |app| KeptGroup::new(Some(app), "age", Group { count: 9, crashing: 2, ..Group::default() });
        let kept = [(Kept::Parked, KeptReport::new((9, 9), vec![group("billing"), group("mail")]))].into();
        let mut evidence = Evidence { kept, ..Evidence::default() };
        let topology = Topology::new(TopologySettings::default());
        assert_eq!(unjournalled(&topology, &evidence), []);
        let journal = QueueInfo { name: "delay.journal.billing".into(), ..QueueInfo::default() };
        evidence.snapshot.enter([], [journal], []);
        let found = unjournalled(&topology, &evidence);
        assert!(found.len() == 1 && found[0].apps == ["billing"], "{found:#?}");
        assert!(found[0].what.contains("2 in `delay.parked`"), "{found:#?}");
    }
}
