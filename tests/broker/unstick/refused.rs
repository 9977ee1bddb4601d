//! What a queue has refused, since it was full or not up: no policy hurries the broker before its
//! time is over, a command on the node does, and nothing is lost.

use super::*;

/// Makes the workers believe that their last attempt was long ago.
const LONG_AGO: &str = "
    [catch sys:replace_state(W, fun(S) ->
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
        end || P <- tuple_to_list(S)])
    end) || {_, W, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup), is_pid(W)], ok.";

#[test]
fn what_was_refused_is_offered_again_once_its_time_is_over() {
    let settings = installed();
    let mut session = Session::open(&settings.broker).unwrap();
    queue(&mut session, "small", &[("x-max-length", 1.into()), ("x-overflow", "reject-publish".into())]);
    let landing = landing(&settings, &mut session, "small");
    // One after the other: a queue takes some more than it has room for from several at once.
    send(&settings, "app", 0..60, 1);
    let refused = eventually_seen(
        "the rest is refused",
        || {
            let ready = u64::from(session.queue_depth("small").unwrap().unwrap().ready);
            (ready, dead_letters(&settings, &landing.name))
        },
        |&(taken, stuck)| taken > 0 && taken + stuck == 60,
    );
    // An application comes that takes all there is.
    let settings_of = settings.clone();
    let consumer = session.consume("small", 1_000).unwrap();
    let mut arrived = BTreeSet::new();
    let mut take = |patience| {
        while let delayline::amqp::Next::Delivery(delivery) = consumer.next(patience) {
            arrived.insert(delivery.properties.message_id.clone().unwrap());
            consumer.ack(delivery).unwrap();
        }
        arrived.len()
    };
    assert!(take(Duration::from_secs(3)) < 60, "{refused:?}");
    let look = UnstickOptions { wait: Duration::from_secs(12), ..options(Unstick::Set) };
    let report = unstick(&settings_of, &look).unwrap();
    assert!(report.touched[0].left > Some(0), "{report:#?}");
    // Once the broker's time is over, each attempt hands on what it had in hand.
    for _ in 0..60 {
        let output = node().ctl(&["eval", LONG_AGO]).unwrap();
        assert!(output.status.success(), "{output:?}");
        let all = UnstickOptions { all: true, wait: Duration::ZERO, ..options(Unstick::Set) };
        unstick(&settings_of, &all).unwrap();
        if take(Duration::from_secs(2)) == 60 {
            return;
        }
    }
    panic!("{} of 60", take(Duration::ZERO));
}

/// The command in the document that starts the workers anew that have something in hand.
fn anew() -> &'static str {
    let document = include_str!("../../../docs/doctor.md");
    let (_, rest) = document.split_once("if the worker that hands them on starts anew").expect("the advice");
    let (_, rest) = rest.split_once("rabbitmqctl eval '").expect("the command");
    rest.split_once('\'').unwrap().0
}

fn eval(code: &str) -> String {
    let output = node().ctl(&["eval", code]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_was_offered_to_a_queue_that_was_not_up_goes_when_the_worker_starts_anew() {
    let settings = installed();
    let inbox = Inbox::open(&settings, "app");
    // As while a broker starts: level 1 hands on before level 0 is there.
    let level = |what: &str| {
        let vhost = &settings.broker.vhost;
        eval(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"delay.level.00\">>)),
             ok = ra:{what}(quorum_queues, amqqueue:get_pid(Q))."
        ))
    };
    level("stop_server");
    send(&settings, "app", 0..60, 3);
    // One that is not stuck: its worker is left alone.
    send(&settings, "app", 60..61, 0);
    stuck(&settings, "delay.level.01", 60);
    level("restart_server");
    let report =
        unstick(&settings, &UnstickOptions { wait: Duration::from_secs(12), ..options(Unstick::Set) });
    let report = report.unwrap();
    assert!(report.touched[0].left > Some(0), "{report:#?}");
    // In this vhost alone: what is stuck for other tests on the node is to stay.
    let here = format!("element(2, element(2, S)) =:= <<\"{}\">>,", settings.broker.vhost);
    let told = eval(&anew().replace("element(1, S) =:= state,", &format!("element(1, S) =:= state, {here}")));
    assert!(told.contains("delay.level.01") && !told.contains("delay.level.00"), "{told}");
    all_arrive(&inbox, 0..61);
}
