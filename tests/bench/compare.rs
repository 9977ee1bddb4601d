//! `delayline-bench compare` in its smallest form: every layout delays messages, and each confirmed
//! message arrives once and not early. No rates are measured.

use std::time::Duration;

use delayline_bench::compare::{Scale, Site, WAYS, measure};
use delayline_node::{NodeOptions, PrivateNode};
use predicates::str::contains;

use crate::{bench, json};

#[test]
fn every_layout_delivers() {
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    let scale = Scale {
        unit_ms: 10,
        delays: Vec::new(),
        count: 60,
        rate: 200.0,
        time: Duration::from_millis(200),
        times: 1,
    };
    for way in &WAYS {
        let mut sites = [(Site::new(&node, scale.unit_ms).unwrap(), way)];
        let measured = &measure(&mut sites, &scale, || ())[0];
        assert_eq!(measured.failure, None, "{}: {measured:?}", way.id);
        assert_eq!((measured.lost, measured.twice, measured.early), (0, 0, 0), "{}: {measured:?}", way.id);
    }
}

#[test]
fn the_output_matches_its_schema() {
    let mut run = bench();
    run.args(["compare", "--quick", "--layouts", "straight", "--prefetch", "64", "--json"]);
    let report = json(&mut run);
    assert_eq!((&report["layouts"][0]["lost"], &report["prefetch"]), (&0.into(), &64.into()), "{report}");
    let mut run = bench();
    run.args(["compare", "--layouts", "plugin"])
        .assert()
        .code(2)
        .stderr(contains("use message-ttl, ttl-queues"));
}
