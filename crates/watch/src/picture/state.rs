//! The state of [`Live`](super::Live): the latest picture, and the next queue to examine.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::debug;

use delayline_admin::Kept;
use delayline_amqp::Line;

use super::{KeptView, Picture, Verdict, head::Head};

/// How long a look may take before the broker counts as silent.
const SILENT: Duration = Duration::from_secs(5);

/// How often kept messages may be examined, however many ask for it.
const PEEK: Duration = Duration::from_secs(5);

/// The latest picture, and what to examine next.
#[derive(Debug)]
pub(super) struct State {
    pub(super) picture: Picture,
    /// The connection of the picture.
    pub(super) line: Option<Line>,
    /// When the look in progress began.
    pub(super) looking: Option<(Instant, Timestamp)>,
    pub(super) asked: Option<Instant>,
    pub(super) kept: BTreeMap<Kept, Peek>,
}

/// The state of a queue that keeps messages.
#[derive(Debug, Default)]
pub(super) struct Peek {
    /// Whether a reader has asked for its contents.
    pub(super) wanted: bool,
    ended: Option<Instant>,
    pub(super) report: Option<KeptView>,
    /// The known facts about its first message, if they are wanted.
    head: Option<Head>,
}

/// The part to examine of a queue that keeps messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Its contents.
    All,
    /// The first message.
    First,
}

impl State {
    /// With `ages`, also finds out how long the oldest messages have been there.
    pub(super) fn new(picture: Picture, ages: bool) -> Self {
        let peek = || Peek { head: ages.then(Head::default), ..Peek::default() };
        let kept = Kept::ALL.map(|which| (which, peek()));
        Self { picture, line: None, looking: None, asked: None, kept: kept.into() }
    }

    /// The picture as it is at this moment.
    pub(super) fn current(&self) -> Picture {
        let mut picture = self.picture.clone();
        let silent = self.looking.filter(|(began, _)| began.elapsed() > SILENT);
        let gone = match (silent, self.is_lost()) {
            (Some((_, at)), _) => Some((at, "it does not answer")),
            (None, true) => Some((Timestamp::now(), "the connection to it was lost a moment ago")),
            (None, false) => None,
        };
        if let Some((since, problem)) = gone.filter(|_| picture.broker.reachable) {
            picture.broker.reachable = false;
            picture.broker.since = Some(since);
            picture.broker.problem = Some(problem.into());
            picture.verdict = Verdict::of(&picture);
        }
        picture.unroutable_oldest = self.oldest(&Kept::Unroutable);
        picture.parked_oldest = self.oldest(&Kept::Parked);
        picture
    }

    /// Whether the connection that the picture came over is known to be gone.
    pub(super) fn is_lost(&self) -> bool {
        self.line.as_ref().is_some_and(|line| !line.stands())
    }

    fn oldest(&self, which: &Kept) -> Option<Timestamp> {
        self.kept.get(which)?.head.as_ref()?.since()
    }

    /// Takes in the depths of a new picture that can be trusted.
    pub(super) fn note_depths(&mut self, trusted: impl Fn(&Kept) -> bool) {
        let Picture { at, unroutable, parked, .. } = self.picture;
        for (which, depth) in [(Kept::Unroutable, unroutable), (Kept::Parked, parked)] {
            let head = self.kept.get_mut(&which).and_then(|peek| peek.head.as_mut());
            if let (Some(head), Some(depth)) = (head, depth.filter(|_| trusted(&which))) {
                head.note(depth, at);
            }
        }
    }

    /// The queue to examine now. A look at the contents includes the first message.
    pub(super) fn task(&self, now: Instant) -> Option<(Kept, Task)> {
        let rested =
            |peek: &Peek| peek.ended.is_none_or(|ended| now.saturating_duration_since(ended) >= PEEK);
        let mut peeks = self.kept.iter().filter(|(_, peek)| rested(peek));
        let all = peeks.clone().find(|(_, peek)| peek.wanted).map(|(which, _)| (which.clone(), Task::All));
        let due = |peek: &Peek| peek.head.as_ref().is_some_and(|head| head.is_due(now));
        all.or_else(|| {
            // No answer is possible while the broker is away.
            let (which, _) = peeks.find(|(_, peek)| self.picture.broker.reachable && due(peek))?;
            Some((which.clone(), Task::First))
        })
    }
}

impl Peek {
    /// Notes the result of a look at its messages.
    pub(super) fn found(
        &mut self,
        report: Option<Result<KeptView, String>>,
        first: Result<Option<Timestamp>, String>,
        now: Instant,
    ) {
        self.ended = Some(now);
        if let Some(report) = report {
            self.wanted = false;
            let last = self.report.take();
            self.report = Some(report.unwrap_or_else(|reason| KeptView::failed(last, reason)));
        }
        match (&mut self.head, first) {
            (Some(head), Ok(came)) => head.found(came, now),
            (Some(head), Err(reason)) => {
                debug!("the oldest message could not be examined: {reason}");
                head.failed(now);
            }
            (None, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::sample;

    fn state(ages: bool) -> State {
        let mut picture = sample::nothing();
        picture.broker.reachable = true;
        (picture.unroutable, picture.parked) = (Some(7), Some(0));
        let mut state = State::new(picture, ages);
        state.note_depths(|_| true);
        state
    }

    #[test]
    fn nothing_is_taken_out_of_a_queue_for_nobody() {
        assert_eq!(state(false).task(Instant::now()), None);
        assert_eq!(state(false).current().unroutable_oldest, None);
    }

    #[test]
    fn one_look_at_a_time_and_whoever_looks_at_all_sees_the_first() {
        let (mut state, now) = (state(true), Instant::now());
        assert_eq!(state.task(now), Some((Kept::Unroutable, Task::First)));
        for which in [Kept::Unroutable, Kept::Parked] {
            state.kept.get_mut(&which).unwrap().wanted = true;
        }
        assert_eq!(state.task(now), Some((Kept::Unroutable, Task::All)));
        let peek = state.kept.get_mut(&Kept::Unroutable).unwrap();
        peek.wanted = false;
        let came = Timestamp::from_second(3).unwrap();
        peek.found(None, Ok(Some(came)), now);
        assert_eq!(state.task(now), Some((Kept::Parked, Task::All)));
        state.kept.get_mut(&Kept::Parked).unwrap().wanted = false;
        assert_eq!(state.task(now + PEEK), None);
        assert_eq!(state.current().unroutable_oldest, Some(came));
        // Some have gone.
        state.picture.unroutable = Some(6);
        state.note_depths(|_| false);
        assert_eq!(state.task(now + PEEK), None, "they are in our own hands");
        state.note_depths(|_| true);
        assert_eq!(state.task(now), None, "not again at once");
        assert_eq!(state.task(now + PEEK), Some((Kept::Unroutable, Task::First)));
        state.picture.broker.reachable = false;
        assert_eq!(state.task(now + PEEK), None);
    }

    #[test]
    fn a_broker_whose_connection_is_gone_is_gone_before_the_next_look() {
        let mut state = state(false);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (hold, line) = Line::on(&socket).unwrap();
        state.line = Some(line);
        assert!(!state.is_lost() && state.current().broker.reachable);
        drop(hold);
        let picture = state.current();
        assert!(state.is_lost() && !picture.broker.reachable && picture.broker.since.is_some());
        assert_eq!(picture.verdict.headline, "The broker cannot be reached.");
        assert_eq!(picture.at, state.picture.at, "there was no new look");
    }

    #[test]
    fn a_broker_that_has_answered_is_not_silent() {
        let mut state = state(false);
        state.picture.at = Timestamp::now();
        let long_ago = Instant::now().checked_sub(SILENT * 2).expect("the machine is up for ten seconds");
        state.looking = Some((long_ago, Timestamp::now()));
        assert!(!state.current().broker.reachable);
        state.looking = None;
        assert!(state.current().broker.reachable);
    }
}
