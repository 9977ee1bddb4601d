//! Dead letters on their way from one queue to the next.

use crate::{
    doctor::{
        DoctorOptions, ended,
        facts::Facts,
        walk::{Route, refuses},
    },
    finding::{Finding, FindingCode},
    handover::{PREFETCH, Sign, stands_still},
    management::PolicyKind,
    unstick::NAME,
};
use delayline_core::topology::Topology;

pub(super) fn check(
    topology: &Topology,
    facts: &Facts,
    targets: &[Route<'_>],
    options: &DoctorOptions,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut backlog, mut unexplained) = (None, Vec::new());
    let mut streams: Vec<_> = targets.iter().filter_map(Route::stream).map(|it| it.name.as_str()).collect();
    streams.sort_unstable();
    streams.dedup();
    for (queue, looks) in &facts.dead_letters {
        // Where a message can end all dead-lettering, that nothing leaves is believed sooner.
        if !streams.is_empty() && stands_still(looks) {
            unexplained.push(queue.as_str());
        }
        let (count, rising) = match Sign::of(looks) {
            Sign::Passing => continue,
            Sign::Backlog(count) => {
                backlog = backlog.max(Some((count, queue)));
                continue;
            }
            Sign::Stuck(count) => (count, false),
            Sign::Rising(count) => (count, true),
        };
        let holder = Holder::find(topology, facts, queue, targets);
        if holder.blocked.is_empty() && !unexplained.contains(&queue.as_str()) {
            unexplained.push(queue.as_str());
        }
        findings.push(stuck(queue, count, rising, &holder));
    }
    findings.extend(ended::check(facts, &unexplained, &streams));
    findings.extend(prefetch(topology, facts, backlog, options));
    findings
}

/// What is known about why a queue's dead letters are stuck.
struct Holder {
    /// The application whose landing queue it is.
    landing: Option<String>,
    /// The applications that cannot accept messages now, and why.
    blocked: Vec<(String, String)>,
    /// Whether another queue gets the same messages as one of these.
    shared: bool,
    /// Whether the broker is one that can forget deliveries in progress.
    forgets: bool,
}

impl Holder {
    fn find(topology: &Topology, facts: &Facts, queue: &str, targets: &[Route<'_>]) -> Self {
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
        let forgets = facts.about.version.as_ref().is_some_and(|version| version.starts_with("3."));
        Self { landing: landing.map(str::to_owned), blocked, shared, forgets }
    }

    fn apps(&self) -> Vec<&String> {
        self.landing.iter().chain(self.blocked.iter().map(|(app, _)| app)).collect()
    }

    fn text(&self) -> String {
        match (&self.blocked[..], &self.landing) {
            ([], None) => "no bound queue is known to refuse messages".into(),
            ([], Some(app)) => format!("what is bound for `{app}` does not accept them"),
            (blocked, _) => {
                let all: Vec<_> = blocked.iter().map(|(app, why)| format!("`{app}` ({why})")).collect();
                format!("as far as can be seen they are for {}", all.join(", "))
            }
        }
    }

    fn advice(&self) -> String {
        if self.shared {
            return "make the queue accept messages again, and do not unbind it before it does: another one \
                    has taken the same messages, and if this one goes, the broker never lets go of them \
                    (docs/doctor.md says what helps then). Then run delayline unstick, or wait for the \
                    broker, which tries again every 3 minutes; no message is lost"
                .into();
        }
        if !self.blocked.is_empty() {
            return "make it accept messages again, or unbind it: then its messages go to the unroutable \
                    queue. Then run delayline unstick, or wait for the broker, which tries again every 3 \
                    minutes; no message is lost"
                .into();
        }
        if self.landing.is_some() {
            return "look at the exchange it dead-letters to, and at what is bound there; once that is right, \
                    run delayline unstick; no message is lost"
                .into();
        }
        let mut advice =
            "run delayline unstick, which makes the queue try again at once; after a restart of \
                          the broker that is usually all it takes. If it does not help, a queue may have been \
                          deleted while they were handed to it: docs/doctor.md has a command that shows their \
                          keys and the queue that refuses them, and what makes them go at once"
                .to_owned();
        if self.forgets {
            advice += ". On RabbitMQ 3.x, messages passed on while a node of the cluster was starting can \
                       stay stuck until then, and messages that an application published again with the \
                       header `x-death` that they came with stay for good: the command shows their app key, \
                       and docs/doctor.md what makes them arrive; no message is lost";
        }
        advice
    }
}

fn stuck(queue: &str, count: u64, rising: bool, holder: &Holder) -> Finding {
    let them = if count == 1 { "1 dead letter goes".to_owned() } else { format!("{count} dead letters go") };
    let mut effect = match holder.landing {
        Some(_) => "only this application waits for them",
        None if count >= PREFETCH => "nothing leaves this level any more, for any application",
        None => "with 32 of them, nothing would leave this level any more",
    };
    if rising && holder.blocked.is_empty() {
        effect = "their number keeps growing: either nothing moves, or more falls due than can be passed on";
    }
    Finding::new(
        FindingCode::StuckDeadLetters,
        format!("queue `{queue}`"),
        format!("{them} nowhere, and {effect}; {}", holder.text()),
        holder.advice(),
    )
    .about(holder.apps())
}

/// Policies of ours that an interrupted run left behind.
pub(super) fn left_behind(facts: &Facts) -> Vec<Finding> {
    let finding = |kind: &PolicyKind| {
        Finding::new(
            FindingCode::PolicyLeftBehind,
            format!("{kind} `{NAME}`"),
            "delayline unstick sets it for a moment and was interrupted before it deleted it; it does no harm",
            "run delayline unstick, which deletes it; delayline serve does so too when it starts",
        )
    };
    facts.left_behind.iter().map(finding).collect()
}

fn prefetch(
    topology: &Topology,
    facts: &Facts,
    backlog: Option<(u64, &String)>,
    options: &DoctorOptions,
) -> Option<Finding> {
    let entry = topology.names().entry();
    let rate = facts.observed.exchanges.iter().find(|exchange| exchange.name == entry)?.publish_rate();
    let reason = match backlog {
        Some((count, queue)) => {
            format!("`{queue}` had {count} or more dead letters waiting to be passed on all the time")
        }
        None if rate > 0.0 && rate >= options.busy_rate => format!("{rate:.0} messages per second come in"),
        None => return None,
    };
    Some(Finding::new(
        FindingCode::DeadLetterPrefetch,
        "broker",
        format!(
            "{reason}, and a queue passes on {PREFETCH} at a time unless \
             dead_letter_worker_consumer_prefetch says otherwise (no API shows it)"
        ),
        "in advanced.config of every node: [{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}]. Then \
         restart the nodes one by one, and ignore this finding from then on (--ignore dead-letter-prefetch)",
    ))
}
