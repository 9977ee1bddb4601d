//! Applications that block a level are paused, and resumed when they accept messages again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delayline_admin::Unsticker;
use delayline_amqp::{Next, broker::Secret};
use delayline_broker::Survey;

use super::{refused::long_ago, *};
use crate::common::Counting;

#[test]
fn an_application_that_blocks_a_level_is_paused_until_its_queue_accepts_messages() {
    let settings = installed();
    let inbox = Inbox::open(&settings, "app");
    refusing(&settings, "greedy");
    send(&settings, "greedy", 0..60, 1);
    stuck(&settings, "delay.level.00", 60);
    let stop = Arc::new(AtomicBool::new(false));
    // With exactly the rights for this.
    let name = format!("daemon-of-{}", settings.broker.vhost);
    let who = (name.as_str(), Some(Secret::new(&*name)));
    admin::add_daemon_user(&settings, &topology(&settings), who, Some(true), false).unwrap();
    let url = format!("{}/{}", node().url(), settings.broker.vhost);
    let layers = node().settings().set("url", url).set("unit_ms", "10");
    let user = layers.set("username", &*name).set("password", &*name).build().unwrap();
    let unsticker = Unsticker::new(user.clone(), Arc::new(Survey::new(&user)), Arc::default()).pausing(1);
    let running = thread::spawn({
        let stop = Arc::clone(&stop);
        move || unsticker.run(&stop)
    });
    let is_paused = || {
        let apps = admin::list_apps(&settings, &topology(&settings)).unwrap().apps;
        apps.into_iter().find(|entry| entry.app.as_deref() == Some("greedy")).map(|entry| entry.paused)
    };
    eventually_seen("it is paused", is_paused, |paused| *paused == Some(true));
    // A broker offers refused messages again after some minutes. Here they seem to have passed.
    send(&settings, "app", 60..61, 1);
    eventually("the other application gets its message", || {
        long_ago(&settings);
        inbox.next(Duration::from_secs(2)).is_some()
    });
    let mut session = Session::open(&settings.broker).unwrap();
    let consumer = session.consume("greedy", 100).unwrap();
    let mut arrived = BTreeSet::new();
    eventually_seen(
        "all messages arrive",
        || {
            long_ago(&settings);
            while let Next::Delivery(delivery) = consumer.next(Duration::from_secs(2)) {
                arrived.extend(delivery.properties.message_id.clone());
                consumer.ack(delivery).unwrap();
            }
            arrived.len()
        },
        |&arrived| arrived == 60,
    );
    eventually_seen("it is resumed", is_paused, |paused| *paused == Some(false));
    eventually("its queue is gone", || session.counts("delay.paused.greedy").unwrap().is_none());
    stop.store(true, Ordering::Relaxed);
    running.join().unwrap();
}
