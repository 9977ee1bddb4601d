//! The faults.

use std::{thread, time::Duration};

use delayline_amqp::Session;
use delayline_core::{
    codec::{AppKey, RoutingKey},
    topology::{Binding, Endpoint, Names, Queue},
};
use delayline_settings::Settings;

use crate::{
    consumer::Consumer,
    lab::Lab,
    ledger::{Ledger, clock_ms},
    publisher::Publisher,
};

/// A fault, and its requirements.
pub struct Scenario {
    pub name: &'static str,
    pub what: &'static str,
    pub needs: Needs,
    /// Applies the fault and ends it.
    pub run: fn(&mut Stage<'_>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    Single,
    Cluster,
    /// A cluster whose nodes can be separated from each other.
    Separable,
    /// Publishers with their own clock.
    MovedClock,
    /// An application queue that refuses messages beyond a hundred.
    SmallQueue,
    /// Messages that can be recalled, and processes that recall them.
    Recall,
}

impl Needs {
    /// Whether a single node, or a cluster, meets these requirements.
    pub fn can_have(self, cluster: bool) -> bool {
        match self {
            Self::Single => !cluster,
            Self::Cluster | Self::Separable => cluster,
            Self::Nothing | Self::MovedClock | Self::SmallQueue | Self::Recall => true,
        }
    }
}

/// The objects that a scenario can change while messages are published and arrive.
pub struct Stage<'a> {
    pub ledger: &'a Ledger,
    /// The number of messages that are published.
    pub messages: u64,
    pub lab: &'a mut Lab,
    pub settings: &'a Settings,
    pub publisher: &'a mut Publisher,
    pub consumer: &'a Consumer,
    /// The file that sets the publishers' clocks.
    pub clock_file: &'a std::path::Path,
}

pub const SCENARIOS: [Scenario; 13] = [
    Scenario {
        name: "recall",
        what: "SIGKILL of one node after the other, each started again after 2 s, while a tenth is recalled",
        needs: Needs::Recall,
        run: |stage| {
            let mut node = 0;
            loop {
                eprintln!("   {} ms: kill", clock_ms());
                stage.lab.node(node).kill();
                seconds(2);
                stage.lab.node(node).restart().expect("the node starts again");
                eprintln!("   {} ms: it answers again", clock_ms());
                node = (node + 1) % stage.lab.size();
                // The last kill happens before the last twentieth of the messages.
                if stage.ledger.progress().0 as u64 + stage.messages / 20 >= stage.messages {
                    return;
                }
                seconds(10);
            }
        },
    },
    Scenario { name: "none", what: "no fault, to compare with", needs: Needs::Nothing, run: |_| {} },
    Scenario {
        name: "node-killed",
        what: "SIGKILL of the node, started again after 2 s",
        needs: Needs::Single,
        run: |stage| {
            stage.lab.node(0).kill();
            seconds(2);
            stage.lab.node(0).restart().expect("the node starts again");
        },
    },
    Scenario {
        name: "leader-killed",
        what: "SIGKILL of the node that leads the hottest level, started again after 5 s",
        needs: Needs::Cluster,
        run: |stage| {
            let leader = stage.lab.leader_of_the_hottest_level(stage.settings);
            stage.lab.node(leader).kill();
            seconds(5);
            stage.lab.node(leader).restart().expect("the node starts again");
        },
    },
    Scenario {
        name: "rolling-restart",
        what: "each node stopped in order and started again, one after the other",
        needs: Needs::Cluster,
        run: |stage| {
            for index in 0..stage.lab.size() {
                stage.lab.node(index).stop().expect("the node stops");
                stage.lab.node(index).restart().expect("the node starts again");
            }
        },
    },
    Scenario {
        name: "nodes-killed-in-turn",
        what: "SIGKILL of each node, started again at once, one after the other",
        needs: Needs::Cluster,
        run: |stage| {
            for index in 0..stage.lab.size() {
                stage.lab.node(index).kill();
                stage.lab.node(index).restart().expect("the node starts again");
            }
        },
    },
    Scenario {
        name: "partition",
        what: "every packet from and to one node lost for 20 s",
        needs: Needs::Separable,
        run: |stage| {
            let leader = stage.lab.leader_of_the_hottest_level(stage.settings);
            stage.lab.cluster().cut_off(leader).expect("the node can be cut off");
            seconds(20);
            stage.lab.cluster().heal(leader).expect("the node can be reconnected");
        },
    },
    Scenario {
        name: "alarms",
        what: "a memory alarm for 3 s, then a disk alarm for 3 s",
        needs: Needs::Nothing,
        run: |stage| {
            for resource in ["memory", "disk"] {
                let alarm = format!("{{resource_limit, {resource}, node()}}");
                stage.lab.eval(&format!("rabbit_alarm:set_alarm({{{alarm}, []}})."));
                seconds(3);
                stage.lab.eval(&format!("rabbit_alarm:clear_alarm({alarm})."));
            }
        },
    },
    Scenario {
        name: "connections-closed",
        what: "all connections closed by the broker, three times",
        needs: Needs::Nothing,
        run: |stage| {
            for _ in 0..3 {
                stage.lab.eval("[rabbit_networking:close_connection(P, \"test\") || P <- rabbit_networking:connections()], ok.");
                seconds(1);
            }
        },
    },
    Scenario {
        name: "node-silent",
        what: "SIGSTOP of a node for 6 s, with a heartbeat of 1 s",
        needs: Needs::Nothing,
        run: |stage| {
            stage.lab.node(0).pause();
            seconds(6);
            stage.lab.node(0).resume();
        },
    },
    Scenario {
        name: "app-queue-replaced",
        what: "the application's queue emptied and deleted, and made again after 3 s",
        needs: Needs::Nothing,
        run: replace_queue,
    },
    Scenario {
        name: "app-queue-full",
        what: "the application's queue (100 messages, reject-publish) full for 5 s",
        needs: Needs::SmallQueue,
        run: |stage| {
            stage.consumer.hold(true);
            seconds(5);
            stage.consumer.hold(false);
        },
    },
    Scenario {
        name: "publisher-killed",
        what: "SIGKILL of the publishing process, three times, and its clock set by hours",
        needs: Needs::MovedClock,
        run: |stage| {
            for offset in ["-3h", "+26h", "+0"] {
                // The running process reads the file once a second.
                std::fs::write(stage.clock_file, offset).expect("the file that sets the clock");
                seconds(2);
                stage.publisher.kill_and_restart();
            }
        },
    },
];

/// The app key of the application, and the name of its queue.
pub const APP: &str = "app";

/// Declares an application queue and binds it.
pub fn declare_app(session: &mut Session, settings: &Settings, app: &str, needs: Needs) {
    let mut arguments = vec![("x-queue-type".to_owned(), "quorum".into())];
    if needs == Needs::SmallQueue {
        arguments.push(("x-max-length".into(), 100.into()));
        arguments.push(("x-overflow".into(), "reject-publish".into()));
    }
    let queue = Queue::new(app).with_arguments(arguments);
    session.declare_queue(&queue).expect("the application's queue");
    session.bind(&binding(settings, app)).expect("its binding");
}

fn binding(settings: &Settings, app: &str) -> Binding {
    Binding {
        source: Names::new(settings.topology.set.clone()).dispatch(),
        destination: Endpoint::Queue(app.into()),
        key: RoutingKey::binding_pattern(&AppKey::new(app).expect("an app key")),
    }
}

/// Deletes the queue as a careful operator does: only once it is empty.
fn replace_queue(stage: &mut Stage<'_>) {
    let mut session = Session::open(&stage.settings.broker).expect("a session");
    session.unbind(&binding(stage.settings, APP)).expect("no binding");
    let mut quiet = 0;
    while quiet < 5 {
        thread::sleep(Duration::from_millis(200));
        let depth = session.queue_depth(APP).expect("an answer").expect("a queue");
        quiet = if depth.ready == Some(0) { quiet + 1 } else { 0 };
    }
    session.delete_queue(APP).expect("no queue");
    seconds(3);
    declare_app(&mut session, stage.settings, APP, Needs::Nothing);
}

fn seconds(number: u64) {
    thread::sleep(Duration::from_secs(number));
}
