//! What storing costs: a broker whose directory is on this machine's disk, and one whose
//! directory is in memory, side by side and in turns.
//!
//!     cargo bench --bench disk                     about ten minutes
//!     cargo bench --bench disk -- 512              with this prefetch of dead-lettering
//!     RABBITMQ_ROOT=… cargo bench --bench disk     for another version
//!
//! Memory is as fast as a disk can become. A broker in production is somewhere between the
//! two, so this is what a faster disk gives at most, on a machine with so many processors.

#[path = "common/prefetch.rs"]
mod prefetch;

use std::{path::Path, process::Command, sync::atomic::AtomicBool, time::Duration};

use delayline_measure::bench::{self, BenchPlan, Report, Way};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use prefetch::Prefetch;

const MEMORY: &str = "/dev/shm";

/// Odd, so that there is one in the middle.
const ROUNDS: usize = 3;

/// A figure of one run: what it is called, where it is, and what it is in.
type Figure = (&'static str, fn(&Report) -> Option<f64>, &'static str);

const FIGURES: [Figure; 7] = [
    ("published through the entry", |report| report.published(Way::Entry), "/s"),
    ("published straight into a queue", |report| report.published(Way::Queue), "/s"),
    ("drained through 1 level", |report| report.drained(1), "/s"),
    ("drained through 3 levels", |report| report.drained(3), "/s"),
    ("steady 1,000/s, late in the middle", |report| Some(report.steady.as_ref()?.late_ms.p50), "ms"),
    ("steady 1,000/s, late in 99 of 100", |report| Some(report.steady.as_ref()?.late_ms.p99), "ms"),
    ("knee", |report| Some(f64::from(report.knee.as_ref()?.rate)), "/s"),
];

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let disk = filesystem(&std::env::temp_dir());
    assert_ne!(disk, "tmpfs", "temporary files are in memory; set TMPDIR to a place on disk");
    assert_eq!(filesystem(Path::new(MEMORY)), "tmpfs", "{MEMORY} is not in memory");
    let prefetch = Prefetch::asked();
    let nodes = [None, Some(MEMORY.into())].map(|place| {
        let options = NodeOptions { rabbit: prefetch.settings(), place, ..NodeOptions::default() };
        PrivateNode::start(options).expect("a private node")
    });
    let [mut on_disk, mut in_memory] = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (node, reports) in nodes.iter().zip([&mut on_disk, &mut in_memory]) {
            reports.push(run(&node.settings().build().unwrap()));
        }
    }
    println!(
        "{}, {prefetch}, the disk has {disk}; the middle of {ROUNDS} rounds (least, most):",
        on_disk[0].broker_name()
    );
    println!("{:36} {:>26} {:>26} {:>7}", "", "on disk", "in memory", "ratio");
    for (what, of, unit) in FIGURES {
        let [disk, memory] = [&on_disk, &in_memory].map(|reports| spread(reports.iter().filter_map(of)));
        let show = |[least, middle, most]: [f64; 3]| match unit {
            "ms" => format!("{middle:.1} {unit} ({least:.1}, {most:.1})"),
            _ => format!("{middle:.0}{unit} ({least:.0}, {most:.0})"),
        };
        println!("{what:36} {:>26} {:>26} {:>7.2}", show(disk), show(memory), memory[1] / disk[1]);
    }
}

/// What kind of file system a directory is on.
fn filesystem(place: &Path) -> String {
    let output = Command::new("df").arg("--output=fstype").arg(place).output().expect("df");
    String::from_utf8_lossy(&output.stdout).lines().nth(1).unwrap_or_default().trim().to_owned()
}

fn run(settings: &Settings) -> Report {
    let mut plan = BenchPlan::default();
    (plan.hops, plan.duration, plan.knee) = (vec![1, 3], Duration::from_secs(20), true);
    let plan = plan.checked().unwrap();
    bench::run(settings, &plan, None, &AtomicBool::new(false), &mut |_| ()).unwrap().0
}

/// The least, the one in the middle, and the most.
fn spread(figures: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    assert_eq!(figures.len(), ROUNDS, "every round has every figure");
    [figures[0], figures[ROUNDS / 2], figures[ROUNDS - 1]]
}
