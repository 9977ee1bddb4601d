//! Dead letters on their way between two queues.

use crate::topology::Topology;

use super::{
    DoctorOptions, FindingCode, HealthFinding, ended,
    facts::Facts,
    walk::{Target, refuses},
};

/// How many a queue hands on at a time by default.
const DEFAULT_PREFETCH: u64 = 32;

/// How many samples in a row say something; there is one every 5 s.
const ENOUGH: usize = 4;

/// What the counts of one queue over time mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// They come and go, or have not been there for long.
    Passing,
    /// So many go nowhere.
    Stuck(u64),
    /// There were more each time. Either nothing goes on, or less than comes.
    Rising(u64),
    /// They move, but there are always more than can be handed on at a time.
    Backlog(u64),
}

/// Those that are stuck keep a count from falling below theirs, and it comes back to
/// that time and again; those that move make it rise and fall.
fn sign(counts: &[u64]) -> Sign {
    let begin = counts.iter().rposition(|&count| count == 0).map_or(0, |zero| zero + 1);
    let counts = &counts[begin..];
    let (Some(&least), Some(&most)) = (counts.iter().min(), counts.iter().max()) else {
        return Sign::Passing;
    };
    let often = counts.iter().filter(|&&count| count == least).count() * 2 >= counts.len();
    let never_falls = counts.is_sorted();
    match least {
        _ if counts.len() < ENOUGH => Sign::Passing,
        _ if often => Sign::Stuck(if never_falls { most } else { least }),
        DEFAULT_PREFETCH.. if never_falls => Sign::Rising(most),
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
    let (mut backlog, mut unexplained) = (None, Vec::new());
    for (queue, counts) in &facts.dead_letters {
        let (count, rising) = match sign(counts) {
            Sign::Passing => continue,
            Sign::Backlog(count) => {
                backlog = backlog.max(Some((count, queue)));
                continue;
            }
            Sign::Stuck(count) => (count, false),
            Sign::Rising(count) => (count, true),
        };
        let holder = Holder::find(topology, facts, queue, targets);
        if holder.blocked.is_empty() {
            unexplained.push(queue.as_str());
        }
        findings.push(stuck(queue, count, rising, &holder));
    }
    findings.extend(ended::check(facts, &unexplained));
    findings.extend(prefetch(topology, facts, backlog, options));
    findings
}

/// What is known of what keeps the dead letters of a queue.
struct Holder {
    /// The application whose landing queue it is.
    landing: Option<String>,
    /// The applications that cannot take messages now, and why.
    blocked: Vec<(String, String)>,
    /// Whether the broker is one that can leave hand-overs behind.
    forgets: bool,
}

impl Holder {
    fn find(topology: &Topology, facts: &Facts, queue: &str, targets: &[Target<'_>]) -> Self {
        let landing = topology.names().app_of_landing(queue);
        // A level waits for the first queue behind dispatch, a landing queue for the next.
        let reason = |target: &Target<'_>| match (target.landing, landing) {
            (None, None) => target.blocked(),
            (Some(first), None) => refuses(first),
            (Some(first), Some(_)) if first.name == queue => target.blocked(),
            _ => None,
        };
        let mut blocked: Vec<_> =
            targets.iter().filter_map(|target| Some((target.app.clone(), reason(target)?))).collect();
        blocked.sort();
        blocked.dedup();
        let forgets = facts.about.version.as_ref().is_some_and(|version| version.starts_with("3."));
        Self { landing: landing.map(str::to_owned), blocked, forgets }
    }

    fn apps(&self) -> Vec<&String> {
        self.landing.iter().chain(self.blocked.iter().map(|(app, _)| app)).collect()
    }

    fn text(&self) -> String {
        match (&self.blocked[..], &self.landing) {
            ([], None) => "nothing that is bound is known to refuse".into(),
            ([], Some(app)) => format!("what `{app}` receives with does not take them"),
            (blocked, _) => {
                let all: Vec<_> = blocked.iter().map(|(app, why)| format!("`{app}` ({why})")).collect();
                format!("as far as it can be seen they are for {}", all.join(", "))
            }
        }
    }

    fn advice(&self) -> String {
        if !self.blocked.is_empty() {
            return "make that take messages again, or unbind it: then its messages are kept as unroutable. The \
                    broker tries again every 3 minutes; none is lost"
                .into();
        }
        if self.landing.is_some() {
            return "look at the exchange it dead-letters to, and at what is bound there; none is lost"
                .into();
        }
        let mut advice =
            "docs/doctor.md has a command that names their keys and the queue that refuses".to_owned();
        if self.forgets {
            advice += ". On RabbitMQ 3.x, what was handed over while a node of the cluster was starting can stay \
                       until the queue has a new leader: rabbitmq-upgrade drain, then revive, on the node that \
                       leads it, or restart that node; none is lost";
        }
        advice
    }
}

fn stuck(queue: &str, count: u64, rising: bool, holder: &Holder) -> HealthFinding {
    let them = if count == 1 { "1 dead letter goes".to_owned() } else { format!("{count} dead letters go") };
    let mut effect = match holder.landing {
        Some(_) => "only this application waits for them",
        None if count >= DEFAULT_PREFETCH => "nothing leaves this level any more, for any application",
        None => "with 32 of them, nothing would leave this level any more",
    };
    if rising && holder.blocked.is_empty() {
        effect =
            "there are more all the time: either nothing goes on, or more falls due than can be handed on";
    }
    HealthFinding::new(
        FindingCode::StuckDeadLetters,
        format!("queue `{queue}`"),
        format!("{them} nowhere, and {effect}; {}", holder.text()),
        holder.advice(),
    )
    .about(holder.apps())
}

fn prefetch(
    topology: &Topology,
    facts: &Facts,
    backlog: Option<(u64, &String)>,
    options: &DoctorOptions,
) -> Option<HealthFinding> {
    let entry = topology.names().entry();
    let rate = facts.observed.exchanges.iter().find(|exchange| exchange.name == entry)?.publish_rate();
    let reason = match backlog {
        Some((count, queue)) => {
            format!("`{queue}` had {count} or more dead letters waiting to be handed on all the time")
        }
        None if rate > 0.0 && rate >= options.busy_rate => format!("{rate:.0} messages per second come in"),
        None => return None,
    };
    Some(HealthFinding::new(
        FindingCode::DeadLetterPrefetch,
        "broker",
        format!(
            "{reason}, and a queue hands on {DEFAULT_PREFETCH} at a time unless \
             dead_letter_worker_consumer_prefetch says otherwise (no API tells it)"
        ),
        "in advanced.config of every node: [{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}]. \
         Then restart the nodes one by one, and leave this finding out from now on (--ignore dead-letter-prefetch)",
    ))
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
            (&[7, 7, 7], Sign::Passing),
            (&[7, 7, 7, 0], Sign::Passing),
            (&[0, 7, 7, 7, 7], Sign::Stuck(7)),
            (&[0, 7, 9, 7, 7], Sign::Stuck(7)),
            (&[20, 31, 20, 23, 20, 20], Sign::Stuck(20)),
            (&[1, 1, 1, 200], Sign::Stuck(200)),
            (&[5, 3, 9, 4], Sign::Passing),
            (&[200, 210, 230, 231], Sign::Rising(231)),
            (&[3, 4, 5, 6], Sign::Passing),
            (&[900, 400, 2_000, 60], Sign::Backlog(60)),
            (&[900, 400, 2_000, 0], Sign::Passing),
        ] {
            assert_eq!(sign(counts), expected, "{counts:?}");
        }
    }
}
