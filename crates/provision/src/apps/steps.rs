//! The steps of adding an application, and possible conflicts.

use std::collections::{BTreeMap, BTreeSet};

use delayline_amqp::broker::Broker;
use delayline_broker::{QueueInfo, Retention, Snapshot, escape};
use delayline_core::{
    codec::AppKey,
    shell::quoted,
    topology::{Endpoint, Object, Queue, Topology},
};

use super::{AppQueue, AppSpec, AppUser, Delivery, Target, rights::rights};
use crate::{engine::Found, engine::Step, engine::step::by_replicas};
use delayline_messages::{error::AdminError, error::doing, scheduled::lost};

/// The parts of an application, in the order in which they are made. The user comes first: if the broker
/// refuses it, nothing else was made. Topic permissions come before the permission they restrict.
pub(crate) fn steps(topology: &Topology, spec: &AppSpec) -> Vec<Step> {
    let user = spec.user.as_ref();
    let step_of_user =
        |user: &AppUser| Step::User { name: user.name.clone(), password: user.password.clone(), tags: &[] };
    let mut steps: Vec<_> = user.map(step_of_user).into_iter().collect();
    let app = &spec.app;
    let own_queue = |queue: &AppQueue| match queue.existing {
        true => Step::Stands(Endpoint::Queue(queue.name.clone())),
        false => Step::Object(Object::Queue(own(topology, app, queue))),
    };
    let landing = |exchange: &str, key: Option<&str>| {
        let queue = topology.landing_queue(app, exchange, key);
        let binding = topology.app_binding(app, &queue.name);
        [Step::Object(Object::Queue(queue)), Step::Only(binding)]
    };
    match &spec.delivery {
        Delivery::Direct(queue) => {
            steps.push(own_queue(queue));
            steps.push(Step::Only(topology.app_binding(app, &queue.name)));
        }
        Delivery::Landing(Target::Queue(queue)) => {
            steps.push(own_queue(queue));
            // The default exchange routes to the queue of that name.
            steps.extend(landing("", Some(&queue.name)));
        }
        Delivery::Landing(Target::Exchange { exchange, key, queue }) => {
            steps.push(Step::Stands(Endpoint::Exchange(exchange.clone())));
            steps.extend(queue.iter().map(|queue| Step::Stands(Endpoint::Queue(queue.clone()))));
            steps.extend(landing(exchange, key.as_deref()));
        }
        Delivery::Nothing => {}
    }
    if let Some(settings) = spec.recall
        && let Some(to) = arrives_in(topology, spec)
    {
        steps.extend(
            topology
                .recall(app, Endpoint::Queue(to), settings)
                .into_iter()
                .map(|object| step(topology, object)),
        );
    }
    if user.is_some_and(|user| user.may_schedule) {
        // A daemon must have its turn to publish.
        let objects = topology.schedules().into_iter().chain(topology.schedules_of(app));
        steps.extend(objects.map(Step::Object));
    }
    if let Some(user) = user {
        let (permission, topics) = rights(topology, spec, user);
        steps.extend(topics.into_iter().map(Step::Topic));
        steps.push(Step::Permission(permission));
    }
    steps
}

/// The queue that an application consumes, as it is declared.
fn own(topology: &Topology, app: &AppKey, queue: &AppQueue) -> Queue {
    let declared = topology.app_queue(app, &queue.name, queue.rejected);
    match queue.native_retry {
        Some(retry) => declared.with_native_retry(retry),
        None => declared,
    }
}

/// The queue in which its messages arrive from dispatch.
fn arrives_in(topology: &Topology, spec: &AppSpec) -> Option<String> {
    match &spec.delivery {
        Delivery::Direct(queue) => Some(queue.name.clone()),
        Delivery::Landing(_) => Some(topology.names().landing(&spec.app)),
        Delivery::Nothing => None,
    }
}

/// A journal has copies, so another queue may be bound like it.
fn step(topology: &Topology, object: Object) -> Step {
    match object {
        Object::Binding(binding) if !topology.is_journal_binding(&binding) => Step::Only(binding),
        object => Step::Object(object),
    }
}

/// The queues and exchanges that a description names.
pub(crate) fn named(spec: &AppSpec) -> impl Iterator<Item = Endpoint> {
    let exchange = match &spec.delivery {
        Delivery::Landing(Target::Exchange { exchange, .. }) => Some(exchange),
        _ => None,
    };
    let queue = spec.queue_name().map(|queue| Endpoint::Queue(queue.to_owned()));
    queue.into_iter().chain(exchange.cloned().map(Endpoint::Exchange))
}

/// The result of a step for an application. With `replace`, permissions are overwritten.
pub(super) fn judge(
    topology: &Topology,
    broker: &Broker,
    snapshot: &Snapshot,
    replace: bool,
    step: &Step,
    found: Found,
) -> Result<Found, AdminError> {
    if let Step::Object(Object::Queue(queue)) = step
        && let Some(reason) = lost_journal(topology, broker, snapshot, queue)?
    {
        return Ok(Found::Blocked(reason));
    }
    Ok(match (step, found) {
        (Step::Object(Object::Queue(queue)), Found::Conflict(conflict)) => {
            let as_the_set = || conflict.is_of_replicas() && has_other_replicas(topology, snapshot);
            match keeps_as_wanted(queue, snapshot, topology) || as_the_set() {
                true => Found::Same,
                false => Found::Blocked(format!("{conflict}; {}", remedy(queue, snapshot, topology))),
            }
        }
        (step, Found::Blocked(conflict)) if step.is_permission() => match replace {
            true => Found::Replaced(conflict),
            false => Found::Blocked(format!("{conflict} (--replace-permissions overwrites it)")),
        },
        (_, found) => found,
    })
}

/// Whether the queues of the set have another number of replicas, too: that is reported once, for the set.
fn has_other_replicas(topology: &Topology, snapshot: &Snapshot) -> bool {
    let differs = |object| matches!(by_replicas(object, snapshot), Some(Found::Conflict(_)));
    topology.objects().iter().any(differs)
}

/// The fault of a lost journal, and the remedy.
fn lost_journal(
    topology: &Topology,
    broker: &Broker,
    snapshot: &Snapshot,
    Queue { name, .. }: &Queue,
) -> Result<Option<String>, AdminError> {
    if topology.names().app_of_journal(name).is_none() {
        return Ok(None);
    }
    // RabbitMQ 4.0 does not list a lost journal.
    let unlisted = QueueInfo { name: name.clone(), ..QueueInfo::default() };
    let journal = snapshot.queues.get(name).unwrap_or(&unlisted);
    let lost = lost::lost(broker, journal).map_err(doing(format!("examining queue `{name}`")))?;
    Ok(lost.map(|_| {
        let way_out = lost::way_out(name, &snapshot.vhost);
        format!("queue `{name}`: {}. {way_out} and then add the application again", lost::WHAT)
    }))
}

/// Whether a policy gives this journal the wanted limits.
fn keeps_as_wanted(queue: &Queue, snapshot: &Snapshot, topology: &Topology) -> bool {
    journal(queue, snapshot, topology)
        .is_some_and(|found| Retention::effective(found) == Retention::wanted(queue))
}

/// The existing journal of this name, if its retention differs.
fn journal<'a>(queue: &Queue, snapshot: &'a Snapshot, topology: &Topology) -> Option<&'a QueueInfo> {
    const RETENTION: [&str; 3] = ["x-max-age", "x-max-length-bytes", "x-stream-max-segment-size-bytes"];
    topology.names().app_of_journal(&queue.name)?;
    let found = snapshot.queues.get(&queue.name)?;
    let wanted = serde_json::to_value(&queue.arguments).unwrap_or_default();
    let names: BTreeSet<_> = queue.arguments.keys().chain(found.arguments.keys()).collect();
    let same =
        |name: &&String| RETENTION.contains(&name.as_str()) || wanted.get(name) == found.arguments.get(*name);
    names.iter().all(same).then_some(found)
}

/// The remedy for a queue that has other arguments.
fn remedy(queue: &Queue, snapshot: &Snapshot, topology: &Topology) -> String {
    const EXCHANGE: &str = "x-dead-letter-exchange";
    if journal(queue, snapshot, topology).is_some() {
        return format!(
            "only a policy can change the retention of a journal: {}, and then add the application again",
            Retention::wanted(queue).policy(&queue.name, &snapshot.vhost)
        );
    }
    let anew = format!("let `{}` run empty, delete it and add the application again", queue.name);
    if topology.owns_queue(&queue.name) {
        return anew;
    }
    let found = snapshot.queues.get(&queue.name);
    let as_it_is = "use it as it is with --existing";
    let lacks = |argument: &str| {
        let wanted = queue.arguments.contains_key(argument);
        wanted && found.is_some_and(|info| !info.arguments.contains_key(argument))
    };
    match found {
        Some(info) if lacks(EXCHANGE) || Queue::NATIVE_RETRY.iter().any(|argument| lacks(argument)) => {
            format!("{}; or {anew}", give_it_retries(queue, info, &snapshot.vhost))
        }
        _ => format!("{as_it_is}, or {anew}"),
    }
}

/// How to get retries for a queue that exists: its arguments cannot be changed, but a policy
/// has the same effect.
pub(super) fn give_it_retries(wanted: &Queue, found: &QueueInfo, vhost: &str) -> String {
    let quorum = found.kind.contains("quorum");
    let by_policy = wanted.arguments.iter().filter_map(|(argument, value)| {
        let key = argument.strip_prefix("x-")?;
        let for_both = ["dead-letter-exchange", "dead-letter-routing-key"].contains(&key);
        let for_quorum = ["dead-letter-strategy", "overflow"].contains(&key)
            || Queue::NATIVE_RETRY.contains(&argument.as_str());
        let missing = !found.arguments.contains_key(argument);
        (missing && (for_both || quorum && for_quorum)).then_some((key, value))
    });
    let definition = serde_json::json!(by_policy.collect::<BTreeMap<_, _>>());
    let queue = &wanted.name;
    format!(
        "to retry its messages without declaring the queue again: rabbitmqctl set_policy -p {} --apply-to \
         queues --priority 1 {} {} {} (only one policy applies to a queue: add the settings of its current \
         policy), and then add the application with --existing",
        quoted(vhost),
        quoted(&format!("retry-{queue}")),
        quoted(&format!("^{}$", escape(queue))),
        quoted(&definition.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn the_broker_can_refuse_a_user_before_anything_is_made() {
        let user = AppUser { name: "svc".into(), ..AppUser::default() };
        let delivery = Delivery::Direct(AppQueue::new("billing"));
        let spec = AppSpec { user: Some(user), ..AppSpec::new(AppKey::new("billing").unwrap(), delivery) };
        let steps = steps(&Topology::new(TopologySettings::default()), &spec);
        assert!(matches!(&steps[0], Step::User { name, .. } if name == "svc"), "{steps:?}");
    }
}
