//! What shortcuts cost while nothing waits, on one node and on three.

use std::{
    thread,
    time::{Duration, Instant},
};

use delayline_admin as admin;
use delayline_node::{ClusterOptions, PrivateCluster, PrivateNode};

use crate::common::{eventually, install, topology};

/// How long a broker rests, and for how long it is watched afterwards.
const REST: Duration = Duration::from_secs(30);

#[test]
#[ignore = "measures for ten minutes: scripts/test --test system what_shortcuts_cost -- --ignored --nocapture"]
fn what_shortcuts_cost() {
    println!("nodes,shortcuts,install_s,memory_mb,idle_cpu_percent,restart_s");
    for size in [1, 3] {
        for shortcuts in ["false", "true"] {
            let (restarts, mut cluster) = (3, start(size));
            let settings = cluster.settings(0).set("shortcuts", shortcuts).build().unwrap();
            let began = Instant::now();
            install(&settings);
            let installed = began.elapsed();
            thread::sleep(REST);
            let sum = |of: fn(&PrivateNode) -> f64| cluster.nodes().iter().map(of).sum::<f64>();
            let cpu = || sum(|node| node.cpu_seconds().unwrap());
            let before = cpu();
            thread::sleep(REST);
            let cpu = (cpu() - before) / REST.as_secs_f64() * 100.0;
            #[expect(clippy::cast_precision_loss, reason = "megabytes are enough")]
            let memory = sum(|node| node.resident_memory().unwrap() as f64) / 1e6;
            let began = Instant::now();
            for _ in 0..restarts {
                cluster.node(0).stop().unwrap();
                cluster.node(0).restart().unwrap();
                eventually("each queue has its replicas and a leader", || {
                    admin::verify(&settings, &topology(&settings))
                        .is_ok_and(|report| report.findings.is_empty())
                });
            }
            let restart = began.elapsed() / restarts;
            println!(
                "{size},{shortcuts},{:.2},{memory:.0},{cpu:.1},{:.1}",
                installed.as_secs_f64(),
                restart.as_secs_f64()
            );
        }
    }
}

fn start(size: usize) -> PrivateCluster {
    PrivateCluster::start(&ClusterOptions { size, ..ClusterOptions::default() }).unwrap()
}
