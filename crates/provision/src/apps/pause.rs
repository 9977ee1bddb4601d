//! Pausing an application: its due messages wait in a queue of their own until it is resumed.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::{Next, Session};
use delayline_broker::{ManagementApi, Snapshot, is_of_program};
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Object, QueueType, Topology},
};
use delayline_settings::Settings;
use jiff::Timestamp;
use serde::Serialize;

use super::{AppSpecError, api};
use crate::{
    engine::AddedStep, engine::Applied, engine::Found, engine::Hands, engine::Move, engine::Plan,
    engine::Step, engine::contents::SETTLE, engine::contents::When, engine::contents::contents,
    engine::interrupted, engine::look::Users, engine::look::look,
};
use delayline_inspect::{Hold, behind};
use delayline_messages::{error::AdminError, error::connect, error::doing, examine::describe};

/// How many messages are taken at a time.
const PREFETCH: u16 = 200;

/// How long no message may come before the queue is counted.
const QUIET: Duration = Duration::from_millis(500);

/// The result of pausing or resuming an application, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct PauseReport {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// The application.
    pub app: String,
    /// The queue in which its messages wait while it is paused.
    pub queue: String,
    /// The queue or exchange that gets its messages while it is not paused; `None` if that is not known.
    pub target: Option<Endpoint>,
    /// The changes, in their order.
    pub steps: Vec<AddedStep>,
    /// The conflicts. If there are any, nothing was changed.
    pub conflicts: Vec<String>,
    /// Messages that waited and were handed on.
    pub handed_on: u64,
    /// Messages that still wait, because the target does not accept them; `None` if that is not known.
    pub waiting: Option<u64>,
    /// Whether a signal came before all messages were handed on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// Unbinds an application, while messages flow: its due messages wait in the queue `<set>.paused.<app>`.
/// Pausing again changes nothing.
///
/// # Errors If the broker refuses or is lost, or there is no management API; pausing again continues.
pub fn pause_app(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    hold: Hold,
    dry_run: bool,
) -> Result<PauseReport, AdminError> {
    let mut at = At::look(settings, topology, app)?;
    let mut report = at.report();
    let bound = at.bound();
    let paused = Endpoint::Queue(report.queue.clone());
    let is_paused = bound.iter().any(|binding| binding.destination == paused);
    let target = match bound.iter().map(|binding| &binding.destination).find(|it| **it != paused) {
        Some(target) => target.clone(),
        None if is_paused => {
            report.target = at.target();
            match at.hold() {
                Some(found) if found != hold => report.conflicts.push(format!(
                    "`{app}` is paused already, and its messages wait {}. Run `{}` first",
                    match found {
                        Hold::UntilResumed => "until it is resumed",
                        Hold::UntilAccepted => "only until its queue accepts them",
                    },
                    topology.settings().set.command(&["app", "resume", app.as_str()])
                )),
                _ => report.outcome = Applied::Unchanged,
            }
            return Ok(report);
        }
        None => {
            let set = &topology.settings().set;
            report.conflicts.push(match at.snapshot.exchanges.contains_key(&topology.names().dispatch()) {
                true => {
                    let add = set.command(&["app", "add", app.as_str()]);
                    format!("no queue is bound for `{app}`; register it with `{add}`")
                }
                false => {
                    format!("set `{set}` is not installed in this vhost ({})", set.command(&["install"]))
                }
            });
            return Ok(report);
        }
    };
    let others = bound.iter().any(|binding| ![&target, &paused].contains(&&binding.destination));
    if others || is_of_program(topology.names(), &target) {
        report.conflicts.push(match others {
            true => {
                format!("more than one queue or exchange is bound for `{app}`. Remove all bindings but one")
            }
            false => format!("{target} belongs to delayline itself"),
        });
        return Ok(report);
    }
    if topology.settings().queue_type == QueueType::Classic {
        report.conflicts.push(AppSpecError::Classic.to_string());
        return Ok(report);
    }
    let since = (hold == Hold::UntilResumed).then(|| Timestamp::now().as_millisecond());
    let queue = topology.paused_queue(app, &target, since);
    let mut steps = vec![Step::Object(Object::Queue(queue))];
    steps.extend(at.moves(&target, &paused));
    report.target = Some(target);
    at.carry_out(steps, dry_run, report)
}

/// Binds a paused application again, while messages flow, and hands on the messages that waited. Messages
/// that have fallen due since may arrive before these. The queue is deleted once it is empty; `patience` is
/// how long to wait for that.
///
/// # Errors If the broker refuses or is lost, or there is no management API; resuming again continues.
pub fn resume_app(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    patience: Duration,
    dry_run: bool,
    stop: &AtomicBool,
) -> Result<PauseReport, AdminError> {
    let mut at = At::look(settings, topology, app)?;
    let mut report = at.report();
    let paused = report.queue.clone();
    if !at.snapshot.queues.contains_key(&paused) {
        report.outcome = Applied::Unchanged;
        return Ok(report);
    }
    report.waiting = contents(&mut at.session, &paused, Some(&at.snapshot), When::First)?.messages;
    report.target = at.target();
    let stands = |target: &&Endpoint| match target {
        Endpoint::Queue(name) => at.snapshot.queues.contains_key(name),
        Endpoint::Exchange(name) => at.snapshot.exchanges.contains_key(name),
    };
    let Some(target) = report.target.clone().filter(|target| stands(&target)) else {
        let target = report.target.as_ref().map_or("its target".to_owned(), ToString::to_string);
        report.conflicts.push(format!("{target} does not exist. Declare it, and then resume `{app}`"));
        return Ok(report);
    };
    let steps = at.moves(&Endpoint::Queue(paused.clone()), &target).collect();
    let mut report = at.carry_out(steps, dry_run, report)?;
    if dry_run || report.outcome == Applied::Conflict {
        return Ok(report);
    }
    report.outcome = Applied::Installed;
    report.handed_on = at.hand_on(&paused, stop)?;
    // Only the management API counts messages that are being handed on, and it is late.
    let begun = Instant::now();
    loop {
        let settled = begun.elapsed() > SETTLE;
        at.snapshot = seen(&at.api, settings, topology, app)?;
        report.waiting = contents(&mut at.session, &paused, Some(&at.snapshot), When::Last)?.messages;
        report.interrupted = stop.load(Ordering::Relaxed);
        if !report.interrupted
            && at.session.queue_depth(&paused).is_ok_and(|it| it.is_some_and(|it| it.ready > Some(0)))
        {
            // A busy broker delivered nothing for a while.
            report.handed_on += at.hand_on(&paused, stop)?;
        }
        if report.interrupted || settled && (report.waiting == Some(0) || begun.elapsed() > patience) {
            break;
        }
        thread::sleep(QUIET);
    }
    if !report.interrupted && report.waiting == Some(0) {
        at.session.delete_queue(&paused).map_err(doing(format!("removing queue `{paused}`")))?;
    }
    Ok(report)
}

/// The set, with the queue of a paused application and its target, whether or not it is bound.
fn seen(
    api: &ManagementApi,
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
) -> Result<Snapshot, AdminError> {
    let also = vec![Endpoint::Queue(topology.names().paused(app))];
    Ok(look(api, &settings.broker.vhost, topology, also, Users::No)?)
}

/// An application, and what a broker has of it.
struct At<'a> {
    topology: &'a Topology,
    app: &'a AppKey,
    api: ManagementApi,
    session: Session,
    snapshot: Snapshot,
}

impl<'a> At<'a> {
    fn look(settings: &Settings, topology: &'a Topology, app: &'a AppKey) -> Result<Self, AdminError> {
        let api = api(settings)?;
        let session = connect(&settings.broker)?;
        let snapshot = seen(&api, settings, topology, app)?;
        Ok(Self { topology, app, api, session, snapshot })
    }

    fn report(&self) -> PauseReport {
        PauseReport {
            outcome: Applied::Conflict,
            app: self.app.to_string(),
            queue: self.topology.names().paused(self.app),
            target: None,
            steps: Vec::new(),
            conflicts: Vec::new(),
            handed_on: 0,
            waiting: Some(0),
            interrupted: false,
        }
    }

    /// The bindings that deliver its messages: from the dispatch exchange, and from the exchange for
    /// messages that were not recalled.
    fn bound(&self) -> Vec<Binding> {
        let names = self.topology.names();
        let own = self.topology.app_binding(self.app, "");
        let [by, _] = names.moving(self.app).map(Endpoint::Exchange);
        let mut bound: Vec<_> = [own.source.clone(), names.through(self.app)]
            .iter()
            .flat_map(|source| self.snapshot.bindings_from(source).iter().cloned())
            .filter(|it| it.source != own.source || it.key == own.key)
            .collect();
        bound.retain(|it| !names.listens(&it.destination));
        // An interrupted command left them on their way: where they go now.
        for binding in bound.iter_mut().filter(|it| it.destination == by) {
            let now = interrupted(self.topology, self.app, &self.snapshot);
            binding.destination = now.unwrap_or_else(|| binding.destination.clone());
        }
        bound.dedup();
        bound
    }

    /// The queue or exchange to which the queue of the paused application hands on its messages.
    fn target(&self) -> Option<Endpoint> {
        behind(self.topology, self.snapshot.queues.get(&self.topology.names().paused(self.app))?)
    }

    /// How the application is paused.
    fn hold(&self) -> Option<Hold> {
        Some(Hold::of(self.snapshot.queues.get(&self.topology.names().paused(self.app))?))
    }

    fn moves(&self, from: &Endpoint, to: &Endpoint) -> impl Iterator<Item = Step> + use<> {
        let bound = self.bound().into_iter().filter(|it| it.destination == *from);
        let moves: Vec<_> = bound
            .map(|it| {
                let to = Binding { destination: to.clone(), ..it };
                Move::new(self.topology, self.app, &self.snapshot, from.clone(), to)
            })
            .collect();
        moves.into_iter().map(Step::Moved)
    }

    fn carry_out(
        &mut self,
        steps: Vec<Step>,
        dry_run: bool,
        mut report: PauseReport,
    ) -> Result<PauseReport, AdminError> {
        let plan = Plan::examine(
            steps,
            Some(&self.snapshot),
            &mut self.session,
            |_| true,
            |step, found| {
                Ok(match (step, found) {
                    // Messages of an earlier pause are still being handed on, to another target.
                    (Step::Object(object), Found::Conflict(conflict)) => Found::Blocked(format!(
                        "{conflict}; {} is left from an earlier pause. Run `{}` first",
                        describe(object),
                        self.topology.settings().set.command(&["app", "resume", self.app.as_str()])
                    )),
                    (_, found) => found,
                })
            },
        )?;
        report.steps.extend(plan.steps());
        report.conflicts.extend(plan.conflicts());
        report.outcome = plan.outcome(dry_run);
        if report.outcome == Applied::Installed {
            let mut hands = Hands { session: &mut self.session, api: None, vhost: &self.snapshot.vhost };
            plan.apply(&mut hands, "The same command continues", |_| {})?;
        }
        Ok(report)
    }

    /// Makes the broker hand on the messages of a queue, by rejecting each. No message passes this program,
    /// so none is changed, and each stays in the queue until the target has it.
    fn hand_on(&mut self, queue: &str, stop: &AtomicBool) -> Result<u64, AdminError> {
        let doing_it = || doing(format!("handing on the messages of queue `{queue}`"));
        let consumer = self.session.consume(queue, PREFETCH).map_err(doing_it())?;
        let mut handed_on = 0;
        while !stop.load(Ordering::Relaxed) {
            match consumer.next(QUIET) {
                Next::Delivery(delivery) => {
                    consumer.reject(delivery).map_err(doing_it())?;
                    handed_on += 1;
                }
                Next::Timeout => {
                    let depth = self.session.queue_depth(queue).map_err(doing_it())?;
                    if depth.is_none_or(|depth| depth.ready <= Some(0)) {
                        break;
                    }
                }
                Next::Ended(None) => break,
                Next::Ended(Some(error)) => return Err(doing_it()(error)),
            }
        }
        consumer.finish(QUIET);
        Ok(handed_on)
    }
}
