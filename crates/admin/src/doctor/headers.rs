//! Headers that no publisher should send.

use std::collections::BTreeMap;

use crate::KeptGroup;
use delayline_core::topology::Topology;

use crate::{
    doctor::facts::Facts,
    finding::{Finding, FindingCode},
};

/// Which publishers send headers that make a quorum queue of a coming version hold messages
/// back, as far as such messages are unroutable or parked. Delivered messages are not
/// examined.
pub(super) fn check(topology: &Topology, facts: &Facts) -> Vec<Finding> {
    let mut carriers: BTreeMap<_, BTreeMap<_, u64>> = BTreeMap::new();
    let groups = facts.kept.iter().flat_map(|(kept, report)| report.groups.iter().map(move |it| (kept, it)));
    for (kept, KeptGroup { cause, group, .. }) in groups.filter(|(_, it)| it.group.held_back > 0) {
        let places = carriers.entry(cause.app.as_deref()).or_default();
        *places.entry(kept.queue(topology).name).or_default() += group.held_back;
    }
    carriers
        .into_iter()
        .map(|(app, queues)| {
            let places: Vec<_> =
                queues.iter().map(|(queue, count)| format!("{count} in `{queue}`")).collect();
            let subject =
                app.map_or_else(|| "messages without an app key".into(), |app| format!("app key `{app}`"));
            Finding::new(
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
    use crate::{Kept, KeptReport, drain::Group};
    use delayline_core::topology::TopologySettings;

    fn groups(held_back: &[(Option<&str>, u64)]) -> KeptReport {
        let group = |held_back| Group { count: 9, held_back, ..Group::default() };
        let groups = held_back.iter().map(|(app, count)| KeptGroup::new(*app, "age", group(*count)));
        KeptReport::new((9, 9), groups.collect())
    }

    #[test]
    fn each_application_is_named_once_with_where_its_messages_are() {
        let unroutable = groups(&[(Some("billing"), 2), (Some("mail"), 0), (Some("billing"), 1)]);
        let parked = groups(&[(Some("billing"), 4), (None, 5)]);
        let kept = [(Kept::Unroutable, unroutable), (Kept::Parked, parked)].into();
        let facts = Facts { kept, ..Facts::default() };
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
