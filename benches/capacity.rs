//! A broker with the dead-letter prefetch it is shipped with and with the one that is
//! recommended, and how far the capacity model is off on it.
//!
//!     cargo bench --bench capacity                   about six minutes
//!     cargo bench --bench capacity -- 512            with this prefetch only
//!     RABBITMQ_ROOT=… cargo bench --bench capacity   for another version
//!
//! For each mix of delays, the rate that the model says the broker is full at, from
//! the figures of one `bench`, stands beside the knee that was measured: the highest
//! steady rate at which 99 in 100 messages are at most 50 ms late. Once from bursts
//! alone, and once with the knee of the first mix, as `bench --knee` adds it.

#[path = "common/prefetch.rs"]
mod prefetch;

use std::{sync::atomic::AtomicBool, time::Duration};

use delayline_core::{codec::Tolerance, topology::Unit};
use delayline_measure::{
    bench::{self, BenchPlan, Report, Way},
    capacity::{Figures, Knee, Load, Outlook},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use prefetch::Prefetch;

/// A few queues, one, and what retries and reminders look like.
const MIXES: [&str; 3] = ["uniform:1s..60s", "fixed:32s", "mix:1s=30%,5s=25%,30s=20%,1m=10%,5m=10%,15m=5%"];

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let prefetches = match Prefetch::asked() {
        Prefetch(None) => vec![Prefetch(None), Prefetch(Some(512))],
        asked => vec![asked],
    };
    for prefetch in prefetches {
        let options = NodeOptions { rabbit: prefetch.settings(), ..NodeOptions::default() };
        let node = PrivateNode::start(options).expect("a private node");
        let settings = node.settings().build().unwrap();
        let report = run(&settings, &BenchPlan::default());
        println!("\n{}, {prefetch}", report.broker_name());
        show(&report);
        println!(
            "  {:55} {:>9} {:>9} {:>7} {:>11} {:>7}",
            "full at", "measured", "model", "error", "with knee", "error"
        );
        let bursts = report.figures();
        let mut knee = None;
        for mix in MIXES {
            let measured = measure(&settings, mix);
            knee = knee.or(Some(measured));
            let full = |figures: &Figures| {
                let load = Load::new(1_000.0, &mix.parse().unwrap(), Tolerance::NONE);
                let rate = Outlook::new(&load, 256.0, figures).full_rate;
                (rate, (rate / measured.rate - 1.0) * 100.0)
            };
            let (model, error) = full(&bursts);
            let mut scaled = bursts.clone();
            scaled.knee = knee;
            let (with_knee, better) = full(&scaled);
            println!(
                "  {mix:55} {:>7.0}/s {model:>7.0}/s {error:>+6.0}% {with_knee:>9.0}/s {better:>+6.0}%",
                measured.rate
            );
        }
    }
}

fn run(settings: &Settings, plan: &BenchPlan) -> Report {
    let plan = plan.clone().checked().unwrap();
    bench::run(settings, &plan, None, &AtomicBool::new(false), &mut |_| ()).unwrap().0
}

fn show(report: &Report) {
    let limit = report.published(Way::Queue).unwrap();
    for published in &report.publish {
        let (way, rate) = (format!("{:?}", published.way), published.per_second);
        println!("  published by {way:10} {rate:>8.0}/s   {:.2} of the limit", rate / limit);
    }
    for drained in &report.drain {
        let late = drained.late_ms;
        println!(
            "  drained, {} levels      {:>8.0}/s   {:.2} of the limit, p99 {:.0} ms late",
            drained.hops,
            drained.per_second,
            drained.per_second / limit,
            late.p99
        );
    }
    if let Some(steady) = &report.steady {
        let late = steady.late_ms;
        println!(
            "  steady {:>8.0}/s        p50 {:.1} ms, p99 {:.1} ms, at most {:.1} ms; lost {}, twice {}, early {}",
            steady.per_second, late.p50, late.p99, late.max, steady.lost, steady.duplicates, steady.early
        );
    }
}

/// The knee of a mix of delays.
fn measure(settings: &Settings, mix: &str) -> Knee {
    let mut plan = BenchPlan::default();
    plan.count = 100;
    plan.hops = vec![];
    plan.delays = mix.parse().unwrap();
    plan.duration = Duration::from_secs(2);
    // A quarter of an hour in nine seconds.
    plan.unit = Unit::from_millis(10).unwrap();
    plan.knee = true;
    run(settings, &plan).figures().knee.expect("a rate was tried")
}
