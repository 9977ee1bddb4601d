//! The answers to messages, for tasks, for callbacks and for many at a time.

use std::{
    pin::pin,
    sync::mpsc,
    task::{Context, Poll, Wake, Waker},
};

use super::*;

/// Wakes a thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future as a runtime does: polls it only when it was woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_confirmation_is_a_future_and_can_go_to_another_thread() {
    let broker = Scripted::new(|_, tag, body| if body == b"silent" { vec![] } else { ack(tag) });
    // A confirm in time must not depend on how busy the machine is.
    let (patient, hasty) = (broker.router(LONG, 10), broker.router(SHORT, 10));
    let answers = thread::spawn(move || {
        let both = [patient.send(message("a")), hasty.send(message("silent"))];
        both.map(block_on)
    });
    let [confirmed, late] = answers.join().unwrap();
    assert_eq!(confirmed.unwrap().publishes, 1);
    let error = late.unwrap_err();
    assert_eq!(error.cause(), &Cause::Unconfirmed { waited: SHORT });
    assert_eq!(error.into_message(), message("silent"));
}

#[test]
fn a_callback_gets_the_answer_whenever_it_is_left() {
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let router = broker.router(LONG, 10);
    let (sender, answers) = mpsc::channel();
    // The router survives a callback that panics.
    let late = sender.clone();
    router.send(message("a")).on_answer(move |answer| {
        late.send(answer.is_ok()).unwrap();
        panic!("on purpose");
    });
    assert!(answers.recv().unwrap());
    let early = sender.clone();
    router.send(message("b")).on_answer(move |answer| early.send(answer.is_ok()).unwrap());
    assert!(answers.recv().unwrap());
    let mut invalid = message("c");
    invalid.properties.message_id = Some("x".repeat(256));
    router.send(invalid).on_answer(move |answer| sender.send(answer.is_ok()).unwrap());
    assert!(!answers.recv().unwrap());
}

#[test]
fn a_callback_may_have_the_last_handle_of_a_router() {
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let router = broker.router(LONG, 10);
    let (sender, receipts) = mpsc::channel();
    let again = router.clone();
    router.send(message("a")).on_answer(move |_| {
        again.send(message("b")).on_answer(move |answer| sender.send(answer).unwrap());
    });
    drop(router);
    assert!(receipts.recv().unwrap().is_ok());
    assert_eq!(broker.bodies(), ["a", "b"]);
}

#[test]
fn the_answers_to_all_messages_come_in_their_order() {
    // The second message is confirmed later than the third.
    let broker = Scripted::new(|_, tag, _| match tag {
        2 => vec![],
        3 => vec![Event::Ack { tag: 3, multiple: false }, Event::Ack { tag: 2, multiple: false }],
        _ => ack(tag),
    });
    let router = broker.router(LONG, 3);
    let ids = ["a", "b", "c", "d", "e"].map(|id| message(id).with_id(id.parse().unwrap()));
    let receipts = router.publish_all(ids).into_iter().map(|answer| answer.unwrap().handle.unwrap());
    assert_eq!(receipts.map(|handle| handle.id().to_string()).collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_message_that_is_not_waited_for_is_sent_nevertheless() {
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let router = broker.router(LONG, 10);
    drop(router.send(message("a")));
    router.close(LONG).unwrap();
    assert_eq!(broker.bodies(), ["a"]);
}

#[test]
fn no_answer_ends_at_the_deadline_in_doubt() {
    let broker = Scripted::new(|_, _, _| vec![]);
    let mut errors = std::iter::repeat_with(|| broker.router(SHORT, 10).publish(message("a")).unwrap_err());
    // On a busy machine, the time can be over before it is written.
    let error = errors.find(|_| !broker.bodies().is_empty()).unwrap();
    assert_eq!(error.cause(), &Cause::Unconfirmed { waited: SHORT });
    assert!(error.maybe_delivered() && error.to_string().contains("may still arrive"));
}

#[test]
fn a_closed_router_gives_messages_back() {
    let router = Scripted::new(|_, tag, _| ack(tag)).router(LONG, 10);
    let clone = router.clone();
    assert_eq!(router.status(), Status::Connected);
    router.close(LONG).unwrap();
    assert_eq!(clone.status(), Status::Closed);
    let error = clone.publish(message("a")).unwrap_err();
    assert_eq!((error.cause(), error.maybe_delivered()), (&Cause::Closed, false));
    assert_eq!(clone.close(LONG), Ok(()));
}

#[test]
fn the_status_says_why_nothing_is_sent() {
    let mut broker = Scripted::new(|_, _, _| vec![Event::Blocked("low on memory".into())]);
    let blocked = broker.router(SHORT, 10);
    blocked.publish(message("a")).unwrap_err();
    assert_eq!(blocked.status(), Status::Blocked { reason: "low on memory".into() });
    broker.refuse = |_| true;
    let unreachable = broker.router(SHORT, 10);
    unreachable.publish(message("a")).unwrap_err();
    // On a busy machine, the deadline of the message may pass before the first attempt to connect.
    while !matches!(unreachable.status(), Status::NotConnected { reason } if reason.contains("down")) {
        thread::sleep(SHORT);
    }
}

/// A broker that takes longer to connect to than anybody waits.
#[test]
fn deadlines_hold_while_the_router_connects() {
    let (hold, held) = mpsc::sync_channel::<()>(0);
    let held = Arc::new(Mutex::new(held));
    let mut broker = Scripted::new(|_, _, _| vec![Event::Ended]);
    broker.connecting = Some(held);
    let router = broker.start_later(builder().publish_timeout(SHORT));
    let error = router.publish(message("a")).unwrap_err();
    assert!(matches!(error.cause(), Cause::NotConnected { .. }), "{error}");
    assert_eq!(router.close(LONG), Ok(()));
    drop(hold);
}

#[test]
fn what_is_never_confirmed_has_an_outcome_for_who_does_not_wait_too() {
    let mut broker = Scripted::new(|_, _, _| vec![]);
    for refuses in [false, true] {
        broker.refuse = if refuses { |_| true } else { |_| false };
        let router = broker.router(SHORT, 10);
        let mut pipeline = router.pipeline();
        let mut outcomes = Vec::new();
        let mut note = |outcome: Outcome<_>| outcomes.push((outcome.tag, outcome.result.is_err()));
        for tag in ["a", "b"] {
            pipeline.push(tag, message(tag)).into_iter().for_each(&mut note);
        }
        let until = Instant::now() + LONG;
        while pipeline.in_flight() > 0 && Instant::now() < until {
            pipeline.try_next().into_iter().for_each(&mut note);
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(outcomes, [("a", true), ("b", true)]);
        assert_eq!(pipeline.in_flight(), 0);
    }
}

/// The logged lines about frames.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        if text.contains("frame limit") {
            LOGGED.lock().unwrap().push(text);
        }
    }

    fn flush(&self) {}
}

#[test]
fn headers_that_some_consumers_cannot_receive_are_reported_once_and_sent() {
    log::set_logger(&Logger).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let broker = Scripted::new(|_, tag, _| ack(tag));
    let router = broker.router(LONG, 10);
    let with = |seconds: u64, bytes: usize| {
        let delay = Delay::from_seconds(seconds).unwrap();
        let mut message = Message::after(AppKey::new("app").unwrap(), delay, "a");
        message.headers.insert("text".into(), "x".repeat(bytes).into());
        message
    };
    router.publish(with(8_191, 100)).unwrap();
    assert_eq!(LOGGED.lock().unwrap().len(), 0);
    for _ in 0..3 {
        router.publish(with(8_191, 1_900)).unwrap();
    }
    let logged = LOGGED.lock().unwrap();
    assert!(logged.len() == 1 && logged[0].contains("entries of `x-death`"), "{logged:?}");
}

#[test]
fn large_bodies_limit_messages_in_flight_too() {
    let broker = Scripted::new(|_, tag, _| vec![Event::Ack { tag, multiple: false }]);
    let router = broker.router(LONG, 1_000);
    let mut pipeline = router.pipeline();
    let body = "b".repeat(Pipeline::<u32>::MAX_BYTES / 4);
    let mut tags = Vec::new();
    for tag in 0..6 {
        tags.extend(pipeline.push(tag, message(&body)).map(|outcome| outcome.tag));
        assert!(pipeline.bytes() <= Pipeline::<u32>::MAX_BYTES);
    }
    // A message above the limit goes alone.
    let huge = "b".repeat(Pipeline::<u32>::MAX_BYTES + 1);
    tags.extend(pipeline.push(6, message(&huge)).map(|outcome| outcome.tag));
    assert_eq!(pipeline.bytes(), huge.len());
    tags.extend(pipeline.map(|outcome| outcome.tag));
    assert_eq!(tags, (0..7).collect::<Vec<_>>());
}

#[test]
fn a_nack_of_a_due_message_gives_it_back_at_once() {
    let broker = Scripted::new(|_, tag, _| vec![Event::Nack { tag, multiple: false }]);
    let due = || Message::after(AppKey::new("app").unwrap(), Delay::ZERO, "mine");
    let error = broker.router(LONG, 10).publish(due()).unwrap_err();
    assert_eq!(error.cause(), &Cause::Nacked);
    assert!(!error.maybe_delivered());
    assert_eq!(error.into_message(), due());
    assert_eq!(broker.bodies().len(), 1);
}
