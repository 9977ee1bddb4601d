//! Dead letters on their way from one queue to the next.

use std::collections::BTreeMap;

use crate::{
    doctor::DoctorOptions, doctor::ended, doctor::evidence::Evidence, finding::Finding, finding::FindingCode,
};
use delayline_broker::{
    ExchangeInfo, PREFETCH, PolicyKind, QueueInfo, Route, Stall, is_open, refuses, stands_still,
};
use delayline_core::{
    codec::{Hop, Level, Shortcut},
    shell::command,
    topology::Topology,
};
use delayline_messages::unstick::NO_LIMIT;

pub(super) fn check(
    topology: &Topology,
    evidence: &Evidence,
    targets: &[Route<'_>],
    options: &DoctorOptions,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut backlog, mut unexplained) = (None, Vec::new());
    let mut streams: Vec<_> = targets.iter().filter_map(Route::stream).map(|it| it.name.as_str()).collect();
    streams.sort_unstable();
    streams.dedup();
    for (queue, looks) in &evidence.snapshot.dead_letters {
        // Where one message can end all dead-lettering, fewer samples are enough.
        if !streams.is_empty() && stands_still(looks) {
            unexplained.push(queue.as_str());
        }
        let (count, rising) = match Stall::of(looks) {
            Stall::Passing => continue,
            Stall::Backlog(count) => {
                backlog = backlog.max(Some((count, queue)));
                continue;
            }
            Stall::Stuck(count) => (count, false),
            Stall::Rising(count) => (count, true),
        };
        let holder = Holder::find(topology, evidence, queue, targets);
        if holder.blocked.is_empty() && !unexplained.contains(&queue.as_str()) {
            unexplained.push(queue.as_str());
        }
        findings.push(stuck(queue, count, rising, &holder));
    }
    findings.extend(ended::check(evidence, &unexplained, &streams));
    // A larger prefetch and a restart do not help a queue whose messages do not move, or may not.
    let open = evidence.snapshot.dead_letters.values().any(|looks| is_open(looks));
    let backlog = backlog.filter(|_| findings.is_empty() && !open);
    let entry = evidence.snapshot.exchanges.get(&topology.names().entry());
    let rate = entry.map_or(0.0, ExchangeInfo::publish_rate);
    if let Some(reason) = busy(rate, backlog, options) {
        findings.push(prefetch(&reason));
        findings.extend(shortcuts(topology, &evidence.snapshot.queues, rate, &reason));
    }
    findings
}

/// The known reasons why a queue's dead letters are stuck.
struct Holder {
    /// The application whose landing queue it is.
    landing: Option<String>,
    /// The applications that cannot accept messages now, and why.
    blocked: Vec<(String, String)>,
    /// Whether another queue gets the same messages.
    shared: bool,
    /// Whether the broker is one that can forget deliveries in progress.
    forgets: bool,
}

impl Holder {
    fn find(topology: &Topology, evidence: &Evidence, queue: &str, targets: &[Route<'_>]) -> Self {
        let landing = topology.names().app_of_landing(queue);
        // A level waits for the first queue behind dispatch, a landing queue for the next.
        let reason = |target: &Route<'_>| match (target.landing, landing) {
            (None, None) => target.blocked(),
            (Some(first), None) => refuses(first),
            (Some(first), Some(_)) if first.name == queue => target.blocked(),
            _ => None,
        };
        let mut blocked: Vec<_> =
            targets.iter().filter_map(|target| Some((target.app.clone(), reason(target)?))).collect();
        blocked.sort();
        blocked.dedup();
        let holding = || targets.iter().filter(|target| reason(target).is_some());
        let shared =
            landing.is_none() && holding().any(|target| targets.iter().any(|other| target.shares(other)));
        let forgets =
            evidence.snapshot.about.version.as_ref().is_some_and(|version| version.starts_with("3."));
        Self { landing: landing.map(str::to_owned), blocked, shared, forgets }
    }

    fn apps(&self) -> Vec<&String> {
        self.landing.iter().chain(self.blocked.iter().map(|(app, _)| app)).collect()
    }

    fn text(&self) -> String {
        match (&self.blocked[..], &self.landing) {
            ([], None) => "no bound queue is known to refuse messages".into(),
            ([], Some(app)) => format!("the queues bound for `{app}` do not accept them"),
            (blocked, _) => {
                let all: Vec<_> = blocked.iter().map(|(app, why)| format!("`{app}` ({why})")).collect();
                format!("they are probably for {}", all.join(", "))
            }
        }
    }

    fn advice(&self) -> String {
        let unstick = command(&["unstick"]);
        if self.shared {
            return format!(
                "make the queue accept messages again, and do not unbind it before it does: another queue \
                 has taken the same messages, and without this one the broker keeps them forever \
                 (docs/runbook/stuck.md has a remedy). The broker tries again 3 minutes after the last \
                 refusal, and `{unstick}` has no effect before. No message is lost"
            );
        }
        if !self.blocked.is_empty() {
            let pause = command(&["app", "pause", &self.blocked[0].0]);
            let or = match self.landing {
                Some(_) => String::new(),
                None => format!(", or pause it (`{pause}`): then its messages wait elsewhere"),
            };
            return format!(
                "make it accept messages again{or}. The broker tries again 3 minutes after the last refusal, \
                 and `{unstick}` has no effect before. No message is lost"
            );
        }
        if self.landing.is_some() {
            return format!(
                "check the exchange it dead-letters to, and the bindings of that exchange. Then run \
                 `{unstick}`. No message is lost"
            );
        }
        let mut advice = format!(
            "run `{unstick}`, which makes the queue try again at once; after a restart of the broker that \
             is usually enough. If a queue refused them less than 3 minutes ago, it has no effect yet: wait. \
             If it does not help later, a queue may have been deleted while they were passed to it. A command in docs/runbook/stuck.md shows their keys, the queue that refuses them and \
             the remedy"
        );
        if self.forgets {
            advice += ". On RabbitMQ 3.x, messages passed on while a node of the cluster was starting can \
                       stay stuck until then. Messages that an application published again with their \
                       header `x-death` stay for good: the command shows their app key, and \
                       docs/runbook/stuck.md the remedy. No message is lost";
        }
        advice
    }
}

fn stuck(queue: &str, count: u64, rising: bool, holder: &Holder) -> Finding {
    let them = if count == 1 {
        "1 dead letter is stuck".to_owned()
    } else {
        format!("{count} dead letters are stuck")
    };
    let mut effect = match holder.landing {
        Some(_) => "only this application waits for them",
        None if count >= PREFETCH => "this level delivers nothing to any application",
        None => "with 32 of them, this level would deliver nothing to any application",
    };
    if rising && holder.blocked.is_empty() {
        effect =
            "their number keeps growing, since they do not move, or fall due faster than they are passed on";
    }
    Finding::new(
        FindingCode::StuckDeadLetters,
        format!("queue `{queue}`"),
        format!("{them}: {effect}; {}", holder.text()),
        holder.advice(),
    )
    .about(holder.apps())
}

/// Temporary policies that an interrupted run left behind.
pub(super) fn left_behind(evidence: &Evidence) -> Vec<Finding> {
    let finding = |(kind, name): &(PolicyKind, &str)| {
        let (problem, advice) = match *name {
            NO_LIMIT => (
                "`transfer` or `app discard` is running, or was interrupted and left this temporary policy \
                 behind; it does no harm",
                "if neither is running, run the interrupted one again; it deletes the policy at its end"
                    .into(),
            ),
            _ => (
                "an interrupted unstick run left this temporary policy behind; it does no harm",
                format!(
                    "run `{}`, which deletes it; `{}` also deletes it at its start",
                    command(&["unstick"]),
                    command(&["serve"])
                ),
            ),
        };
        Finding::new(FindingCode::PolicyLeftBehind, format!("{kind} `{name}`"), problem, advice)
    };
    evidence.left_behind.iter().map(finding).collect()
}

/// Why the levels may be at their limit: a backlog, or the rate of messages that come in.
fn busy(rate: f64, backlog: Option<(u64, &String)>, options: &DoctorOptions) -> Option<String> {
    match backlog {
        Some((count, queue)) => {
            Some(format!("`{queue}` always had at least {count} dead letters waiting to be passed on"))
        }
        None if rate > 0.0 && rate >= options.busy_rate => {
            Some(format!("{rate:.0} messages per second come in"))
        }
        None => None,
    }
}

fn prefetch(reason: &str) -> Finding {
    Finding::new(
        FindingCode::DeadLetterPrefetch,
        "broker",
        format!(
            "{reason}, and a queue passes on {PREFETCH} at a time unless \
             dead_letter_worker_consumer_prefetch is set to another number (no API shows it)"
        ),
        "in advanced.config of every node: [{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}]. Then \
         restart the nodes one by one, and ignore this finding from then on (--ignore dead-letter-prefetch)",
    )
}

/// Shortcuts that would spare messages much of their way.
fn shortcuts(topology: &Topology, queues: &Queues, rate: f64, reason: &str) -> Option<Finding> {
    let hops = Hops::estimate(topology, queues, rate).filter(|_| !topology.has_shortcuts())?;
    (hops.with_shortcuts < WORTHWHILE * hops.now).then(|| {
        Finding::new(
            FindingCode::ShortcutsSaveHops,
            "set",
            format!(
                "{reason}; a message passes about {:.1} queues, and at most {:.1} with shortcuts",
                hops.now, hops.with_shortcuts
            ),
            format!(
                "`{}` adds 44 queues, without a restart and while messages wait",
                topology.settings().set.command(&["install", "--shortcuts"])
            ),
        )
    })
}

/// The queues of the vhost, by name.
type Queues = BTreeMap<String, QueueInfo>;

/// The share of hops that must at most be left for shortcuts to be worth 44 queues.
const WORTHWHILE: f64 = 0.8;

/// How many queues a message passes, on average.
struct Hops {
    now: f64,
    /// At most.
    with_shortcuts: f64,
}

impl Hops {
    /// From the number of messages that wait in each level, and for how long; `None` if it is unknown.
    fn estimate(topology: &Topology, queues: &Queues, rate: f64) -> Option<Self> {
        let mut words = [0.0; 7];
        for level in Level::all() {
            let waiting = queues.get(&topology.names().hop(Hop::Level(level)))?.messages?;
            let wait = topology.settings().unit.wait(level);
            let passing = waiting as f64 / wait.as_secs_f64();
            // No message passes a level twice. More wait only in a backlog.
            words[usize::from(level.word())] += passing.min(rate);
        }
        let per_message = |sum: f64| sum / rate;
        let shortened = (0..).zip(words).map(|(word, passing)| match Shortcut::of(word, 0b11) {
            Some(_) => passing.min(rate),
            None => passing,
        });
        (rate > 0.0).then(|| Self {
            now: per_message(words.iter().sum()),
            with_shortcuts: per_message(shortened.sum()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn a_busy_set_whose_messages_pass_several_queues_is_told_of_shortcuts() {
        let topology = Topology::new(TopologySettings::default());
        let waiting = |delay: u64| {
            let queue = |level: Level| {
                // 100 messages a second wait in each level of this delay.
                let passed = delay & u64::from(level.units()) != 0;
                let messages = Some(if passed { 100 * u64::from(level.units()) } else { 0 });
                let name = topology.names().hop(Hop::Level(level));
                (name.clone(), QueueInfo { name, messages, ..QueueInfo::default() })
            };
            Level::all().map(queue).collect::<Queues>()
        };
        let text = |queues: &Queues, rate| shortcuts(&topology, queues, rate, "busy").map(|it| it.what);
        let found = text(&waiting(30), 100.0).unwrap();
        assert!(found.contains("about 4.0 queues, and at most 2.0 with"), "{found}");
        // A backlog, in which more messages wait than come in.
        let found = text(&waiting(30), 50.0).unwrap();
        assert!(found.contains("about 4.0 queues, and at most 2.0 with"), "{found}");
        // One hop for each word, and levels that are not known.
        assert_eq!((text(&waiting(0x1111), 100.0), text(&Queues::new(), 100.0)), (None, None));
        let settings = {
            let mut it = TopologySettings::default();
            it.shortcuts = Some(true);
            it
        };
        assert!(shortcuts(&Topology::new(settings), &waiting(30), 100.0, "busy").is_none());
    }
}
