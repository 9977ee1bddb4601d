//! Messages that were refused because a queue was full or not up. Policies cannot make the broker
//! retry before its time limit, but a command on the node can. No message is lost.

use super::*;
use crate::common::Counting;

/// Makes the workers of this vhost believe that their last attempt was long ago. Workers of other
/// vhosts are not changed.
pub(super) fn long_ago(settings: &Settings) {
    eval(&format!(
        "[catch sys:replace_state(W, fun
            (S) when element(2, element(2, S)) =:= <<\"{}\">> ->
                list_to_tuple([case is_map(P) of
                    true -> maps:map(fun
                        (_, M) when is_tuple(M), element(1, M) =:= pending ->
                            setelement(tuple_size(M) - 1, M, case element(tuple_size(M) - 1, M) of
                                undefined -> undefined;
                                _ -> 1
                            end);
                        (_, M) -> M
                    end, P);
                    false -> P
                end || P <- tuple_to_list(S)]);
            (S) -> S
        end) || {{_, W, _, _}} <- supervisor:which_children(rabbit_fifo_dlx_sup), is_pid(W)], ok.",
        settings.broker.vhost
    ));
}

#[test]
fn refused_messages_are_offered_again_after_the_time_limit() {
    let settings = installed();
    let mut session = Session::open(&settings.broker).unwrap();
    queue(&mut session, "small", &[("x-max-length", 1.into()), ("x-overflow", "reject-publish".into())]);
    let landing = landing(&settings, &mut session, "small");
    // The messages come one after the other, because a queue exceeds its limit if several come at
    // once.
    send(&settings, "app", 0..60, 1);
    let refused = eventually_seen(
        "the other messages are refused",
        || {
            let ready = u64::from(session.counts("small").unwrap().unwrap().ready);
            (ready, dead_letters(&settings, &landing.name))
        },
        |&(taken, stuck)| taken > 0 && taken + stuck == 60,
    );
    // A consumer takes all messages.
    let settings_of = settings.clone();
    let consumer = session.consume("small", 1_000).unwrap();
    let mut arrived = BTreeSet::new();
    let mut take = |patience| {
        while let delayline_amqp::Next::Delivery(delivery) = consumer.next(patience) {
            arrived.insert(delivery.properties.message_id.clone().unwrap());
            consumer.ack(delivery).unwrap();
        }
        arrived.len()
    };
    assert!(take(Duration::from_secs(3)) < 60, "{refused:?}");
    let look = UnstickOptions { wait: Duration::from_secs(12), ..options(Unstick::Set) };
    let report = unstick(&settings_of, &look).unwrap();
    assert!(report.touched[0].left > Some(0), "{report:#?}");
    // After the broker's time limit, each attempt hands on the messages that the worker holds.
    for _ in 0..60 {
        long_ago(&settings);
        let all = UnstickOptions { all: true, wait: Duration::ZERO, ..options(Unstick::Set) };
        unstick(&settings_of, &all).unwrap();
        if take(Duration::from_secs(2)) == 60 {
            return;
        }
    }
    panic!("{} of 60", take(Duration::ZERO));
}

/// The documented command that restarts all workers which hold messages.
pub(crate) fn anew() -> &'static str {
    let document = include_str!("../../../docs/runbook/stuck.md");
    let (_, rest) =
        document.split_once("## Refused, or offered to a queue that was not up").expect("the advice");
    let (_, rest) = rest.split_once("rabbitmqctl eval '").expect("the command");
    rest.split_once('\'').unwrap().0
}

/// The same for this vhost only, because other tests on this node have stuck messages.
fn anew_here(settings: &Settings) -> String {
    let here = format!("element(2, element(2, S)) =:= <<\"{}\">>,", settings.broker.vhost);
    anew().replace("element(1, S) =:= state,", &format!("element(1, S) =:= state, {here}"))
}

fn eval(code: &str) -> String {
    node().tell(&["eval", code]).unwrap()
}

#[test]
fn messages_for_a_queue_that_was_not_up_move_when_the_worker_restarts() {
    // With this unit, the messages of level 1 are not due in level 0 before the command runs.
    let settings = in_units_of("1000");
    let inbox = Inbox::open(&settings, "app");
    // As during a start of the broker: level 1 hands on before level 0 is available.
    let level = |what: &str| {
        let vhost = &settings.broker.vhost;
        eval(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"delay.level.00\">>)),
             ok = ra:{what}(quorum_queues, amqqueue:get_pid(Q))."
        ))
    };
    level("stop_server");
    send(&settings, "app", 0..60, 3);
    // This message is not stuck, so its worker is not restarted.
    send(&settings, "app", 60..61, 0);
    stuck(&settings, "delay.level.01", 60);
    level("restart_server");
    let report =
        unstick(&settings, &UnstickOptions { wait: Duration::from_secs(12), ..options(Unstick::Set) });
    let report = report.unwrap();
    assert!(report.touched[0].left > Some(0), "{report:#?}");
    let told = eval(&anew_here(&settings));
    assert!(told.contains("delay.level.01") && !told.contains("delay.level.00"), "{told}");
    all_arrive(&inbox, 0..61);
}

/// A queue refuses a message that another queue has taken, and is then deleted. The broker retries
/// this message for ever.
#[test]
fn a_message_of_a_deleted_queue_is_freed_by_a_new_binding_or_by_restarting_the_worker() {
    let settings = installed();
    let mut session = Session::open(&settings.broker).unwrap();
    let inbox = Inbox::open(&settings, "app");
    let binding = |queue: &str| Binding {
        source: "delay.dispatch".into(),
        destination: Endpoint::Queue(queue.into()),
        key: RoutingKey::binding_pattern(&app("app")),
    };
    let again = |wait| {
        long_ago(&settings);
        let options = UnstickOptions { wait, ..options(Unstick::Set) };
        unstick(&settings, &options).unwrap()
    };
    // The first round is for the new binding, and the second for the restarted worker.
    for ids in [0..20, 20..40] {
        refusing(&settings, "full");
        session.bind(&binding("full")).unwrap();
        send(&settings, "app", ids.clone(), 1);
        all_arrive(&inbox, ids.clone());
        stuck(&settings, "delay.level.00", 20);
        if ids.start == 0 {
            let look = || admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
            eventually_seen("doctor warns against unbinding the queue", look, |report| {
                report.findings.iter().any(|it| {
                    it.code == FindingCode::StuckDeadLetters && it.advice.contains("do not unbind it before")
                })
            });
        }
        session.unbind(&binding("full")).unwrap();
        session.delete_queue("full").unwrap();
        let report = again(Duration::from_secs(12));
        assert_eq!(report.touched[0].left, Some(20), "the broker lets go now; document that");
        if ids.start == 0 {
            queue(&mut session, "one-more", &[]);
            session.bind(&binding("one-more")).unwrap();
            let report = again(PATIENCE);
            assert_eq!(report.touched[0].left, Some(0), "{report:#?}");
            session.unbind(&binding("one-more")).unwrap();
            let copies = session.counts("one-more").unwrap().unwrap().ready;
            assert_eq!(copies, 20);
            assert_eq!(arrived(&settings, &inbox), 0, "a message came twice");
        } else {
            eval(&anew_here(&settings));
            stuck(&settings, "delay.level.00", 0);
        }
    }
}
