//! Dead letters on their way between two queues.

use crate::topology::Topology;

use super::{
    DoctorOptions, FindingCode, HealthFinding,
    facts::Facts,
    targets::Target,
};

/// How many a queue hands on at a time by default.
const DEFAULT_PREFETCH: u64 = 32;

/// What the counts of one queue mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// They come and go.
    Passing,
    /// So many go nowhere.
    Stuck(u64),
    /// They move, but there are always more than can be handed on at a time.
    Backlog(u64),
}

/// Stuck ones keep a count from falling; those that move make it rise and fall.
fn sign(counts: &[u64]) -> Sign {
    let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    let never_falls = counts.windows(2).all(|pair| pair[0] <= pair[1]);
    let steady = most - least <= least / 10;
    match least {
        0 => Sign::Passing,
        // A single look says nothing.
        _ if counts.len() > 1 && (never_falls || steady) => Sign::Stuck(least),
        DEFAULT_PREFETCH.. => Sign::Backlog(least),
        _ => Sign::Passing,
    }
}

pub(super) fn check(
    topology: &Topology,
    facts: &Facts,
    targets: &[Target<'_>],
    options: &DoctorOptions,
) -> Vec<HealthFinding> {
    let mut findings = Vec::new();
    let mut backlog = None;
    for (queue, counts) in &facts.dead_letters {
        match sign(counts) {
            Sign::Passing => {}
            Sign::Stuck(count) => findings.push(stuck(topology, queue, count, targets)),
            Sign::Backlog(count) => backlog = backlog.max(Some((count, queue))),
        }
    }
    let entry = topology.names().entry();
    let rate = facts.observed.exchanges.iter().find(|exchange| exchange.name == entry);
    let rate = rate.map_or(0.0, |exchange| exchange.publish_rate());
    let reason = match backlog {
        Some((count, queue)) => {
            Some(format!("`{queue}` had {count} or more dead letters waiting to be handed on all the time"))
        }
        None if rate >= options.busy_rate => Some(format!("{rate:.0} messages per second come in")),
        None => None,
    };
    if let Some(reason) = reason {
        findings.push(HealthFinding::new(
            FindingCode::DeadLetterPrefetch,
            "broker",
            format!(
                "{reason}, and a queue hands on {DEFAULT_PREFETCH} at a time unless \
                 dead_letter_worker_consumer_prefetch says otherwise (no API tells it)"
            ),
            "in advanced.config of every node: \
             [{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}]. and restart the nodes one by one",
        ));
    }
    findings
}

fn stuck(topology: &Topology, queue: &str, count: u64, targets: &[Target<'_>]) -> HealthFinding {
    let names = topology.names();
    let landing = names.app_of_landing(queue);
    let blocked: Vec<_> = targets
        .iter()
        .filter(|target| target.landing.map(|landing| landing.name.as_str()) == landing.map(|_| queue))
        .filter_map(|target| Some((target, target.blocked()?)))
        .collect();
    let effect = match landing {
        Some(_) => "only this application waits for them",
        None if count >= DEFAULT_PREFETCH => "nothing leaves this level any more, for any application",
        None => "with 32 of them, nothing would leave this level any more",
    };
    let mut causes: Vec<_> = blocked.iter().map(|(target, why)| format!("`{}`: {why}", target.app)).collect();
    causes.dedup();
    let (held_by, advice) = match (&causes[..], landing) {
        ([], None) => (
            "nothing that is bound is known to refuse".to_owned(),
            "see the other findings; if there are none about the set, this is what a node that was killed can leave \
             behind: give the queues they go to a new leader (rabbitmq-queues rebalance quorum, or restart the node \
             that leads this queue). None is lost"
                .to_owned(),
        ),
        ([], Some(_)) => (
            "the application's exchange or queue does not take them".to_owned(),
            "look at the exchange it dead-letters to, and at what is bound there. None is lost".to_owned(),
        ),
        (causes, _) => (
            format!("as far as it can be known they are for {}", causes.join("; ")),
            "make that take messages again, or unbind the application: then its messages are kept as unroutable. \
             They go on by themselves, within three minutes. None is lost"
                .to_owned(),
        ),
    };
    let apps: Vec<_> = match landing {
        Some(app) => vec![app.to_owned()],
        None => blocked.iter().map(|(target, _)| target.app.clone()).collect(),
    };
    let them = if count == 1 { "1 dead letter goes".to_owned() } else { format!("{count} dead letters go") };
    HealthFinding::new(
        FindingCode::StuckDeadLetters,
        format!("queue `{queue}`"),
        format!("{them} nowhere, and {effect}; {held_by}"),
        advice,
    )
    .about(apps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_stuck_from_moving() {
        for (counts, expected) in [
            (&[][..], Sign::Passing),
            (&[0], Sign::Passing),
            (&[7], Sign::Passing),
            (&[7, 0], Sign::Passing),
            (&[7, 7, 7], Sign::Stuck(7)),
            (&[200, 210, 230], Sign::Stuck(200)),
            (&[200, 205, 199], Sign::Stuck(199)),
            (&[5, 3, 9], Sign::Passing),
            (&[900, 400, 2_000, 60], Sign::Backlog(60)),
            (&[900, 400, 2_000, 0], Sign::Passing),
        ] {
            assert_eq!(sign(counts), expected, "{counts:?}");
        }
    }
}
