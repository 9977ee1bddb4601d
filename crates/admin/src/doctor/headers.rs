//! Headers that no publisher should send.

use std::collections::BTreeMap;

use delayline::topology::Topology;

use crate::doctor::{FindingCode, HealthFinding, facts::Facts};

/// Which publishers send headers that make a quorum queue of a coming version hold messages
/// back, as far as such messages are unroutable or parked. Delivered messages are not
/// examined.
pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<HealthFinding> {
    let names = topology.names();
    let unroutable = facts.unroutable.iter().flat_map(|report| &report.groups);
    let unroutable =
        unroutable.map(|group| (&group.diagnosis.app, names.unroutable(), group.group.held_back));
    let parked = facts.parked.iter().flat_map(|report| &report.groups);
    let parked = parked.map(|group| (&group.cause.app, names.parked(), group.group.held_back));
    let mut carriers: BTreeMap<_, BTreeMap<_, u64>> = BTreeMap::new();
    for (app, queue, count) in unroutable.chain(parked).filter(|(.., count)| *count > 0) {
        *carriers.entry(app.as_deref()).or_default().entry(queue).or_default() += count;
    }
    carriers
        .into_iter()
        .map(|(app, queues)| {
            let places: Vec<_> =
                queues.iter().map(|(queue, count)| format!("{count} in `{queue}`")).collect();
            let subject =
                app.map_or_else(|| "messages without an app key".into(), |app| format!("app key `{app}`"));
            HealthFinding::new(
                FindingCode::DeliveryTimeHeader,
                subject,
                format!(
                    "messages have a header `x-opt-delivery-time` or `x-opt-delivery-delay` (at least {}), \
                     which makes quorum queues of a coming RabbitMQ version hold a message back in every \
                     level",
                    places.join(" and ")
                ),
                "have its publishers leave the header out before the broker is upgraded: the routing key \
                 says the delay. The router, the retry service and replays remove it from what they send",
            )
            .about(app)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Diagnosis, ParkedCause, ParkedGroup, ParkedReport, Reason, UnroutableGroup, UnroutableReport,
        holding::Group,
    };
    use delayline::topology::TopologySettings;

    fn group(held_back: u64) -> Group {
        Group { count: 9, held_back, ..Group::default() }
    }

    #[test]
    fn each_application_is_named_once_with_where_its_messages_are() {
        let unroutable = [("billing", 2), ("mail", 0), ("billing", 1)].map(|(app, count)| UnroutableGroup {
            diagnosis: Diagnosis { app: Some(app.into()), reason: Reason::NobodyBound, detail: None },
            bound: None,
            group: group(count),
        });
        let parked = [(Some("billing"), 4), (None, 5)].map(|(app, count)| ParkedGroup {
            cause: ParkedCause { app: app.map(str::to_owned), reason: "age".into(), failure: None },
            group: group(count),
        });
        let (waiting, examined, other, withheld, failure) = (9, 9, None, 0, None);
        let facts = Facts {
            unroutable: Some(UnroutableReport {
                waiting,
                examined,
                groups: unroutable.into(),
                other: other.clone(),
                unseen: Vec::new(),
                withheld,
                failure: failure.clone(),
            }),
            parked: Some(ParkedReport { waiting, examined, groups: parked.into(), other, withheld, failure }),
            ..Facts::default()
        };
        let topology = Topology::new(TopologySettings::default());
        let findings = check(&topology, &facts);
        let found: Vec<_> = findings.iter().map(|it| (it.subject.as_str(), it.apps.as_slice())).collect();
        let apps = ["billing".to_owned()];
        assert_eq!(found, [("messages without an app key", &[][..]), ("app key `billing`", &apps[..])]);
        assert!(
            findings[1].what.contains("4 in `delay.parked` and 3 in `delay.unroutable`"),
            "{findings:#?}"
        );
        assert_eq!(check(&topology, &Facts::default()), []);
    }
}
