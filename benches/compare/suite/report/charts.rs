//! Which figures go into which chart.

use super::{
    super::results::{Lateness, Run},
    svg::{Panel, Plot, Series, Shape, lines, rows},
};

/// Ours stand out from the others.
fn is_ours(layout: &str) -> bool {
    layout == "delayline"
}

/// The files and what is in them.
pub fn all(runs: &[Run]) -> Vec<(&'static str, String)> {
    vec![
        ("rates.svg", rates(runs)),
        ("lateness.svg", lateness(runs)),
        ("hops.svg", hops(runs)),
        ("waiting.svg", waiting(runs)),
        ("memory.svg", memory(runs)),
    ]
}

fn untuned(runs: &[Run]) -> impl Iterator<Item = &Run> {
    runs.iter().filter(|run| run.conditions.prefetch.is_none())
}

fn panels(runs: &[Run], shapes: impl Fn(&Run, &str) -> Vec<Shape>) -> Vec<Panel> {
    let panel = |run: &Run| Panel {
        title: format!("RabbitMQ {}", run.name()),
        rows: run
            .layouts
            .iter()
            .map(|layout| (layout.title.clone(), shapes(run, &layout.id)))
            .filter(|(_, shapes)| !shapes.is_empty())
            .collect(),
    };
    untuned(runs).map(panel).collect()
}

fn rates(runs: &[Run]) -> String {
    let shapes = |run: &Run, layout: &str| {
        let cell = run.cell(layout, "equal");
        let rates = [
            (cell.and_then(|cell| cell.publish_rate), if is_ours(layout) { "a" } else { "a faint" }),
            (cell.and_then(|cell| cell.drain_rate), if is_ours(layout) { "b" } else { "b faint" }),
        ];
        rates.into_iter().filter_map(|(rate, class)| rate.map(|value| Shape::Bar { value, class })).collect()
    };
    let legend = [("publishing", "a"), ("draining, one hop", "b")];
    rows("Messages per second, one short delay", "/s", &legend, false, &panels(runs, shapes))
}

fn lateness(runs: &[Run]) -> String {
    let shapes = |run: &Run, layout: &str| {
        let lateness = run.cell(layout, "mixed").and_then(|cell| cell.lateness);
        let class = if is_ours(layout) { "a" } else { "b" };
        let values = |lateness: Lateness| {
            let Lateness { p50, p90, p99, max, .. } = lateness;
            // Nothing is later than nothing on a logarithmic axis.
            [p50, p90, p99, max].map(|ms| ms.max(0.1)).to_vec()
        };
        lateness.map(|lateness| Shape::Span { values: values(lateness), class }).into_iter().collect()
    };
    let title = "How late, with mixed delays of 1 to 60 units: p50, p90, p99 and the latest";
    rows(title, "ms", &[("delayline", "a"), ("others", "b")], true, &panels(runs, shapes))
}

/// Lines of the two layouts of which series were measured, for each version.
fn plots(runs: &[Run], points: impl Fn(&Run, &str) -> Vec<(f64, f64)>) -> Vec<Plot> {
    let plot = |plain: &Run| {
        let same = |run: &&Run| run.conditions.rabbitmq == plain.conditions.rabbitmq;
        let series = runs.iter().filter(same).flat_map(|run| {
            [("nservicebus", "b"), ("delayline", "a")].map(|(layout, class)| Series {
                class,
                is_dashed: run.conditions.prefetch.is_some(),
                points: points(run, layout),
            })
        });
        Plot {
            title: format!("RabbitMQ {}", plain.conditions.rabbitmq),
            series: series.filter(|series| !series.points.is_empty()).collect(),
        }
    };
    untuned(runs).map(plot).collect()
}

const LEGEND: [(&str, &str); 2] = [("delayline", "a"), ("NServiceBus' layout", "b")];

fn hops(runs: &[Run]) -> String {
    let points = |run: &Run, layout: &str| {
        let lines = run.hops.iter().filter(|line| line.layout == layout);
        lines.map(|line| (f64::from(line.hops), line.drain_rate)).collect()
    };
    let title = "Draining by number of hops (dashed: larger prefetch)";
    lines(title, "hops", "messages per second", &LEGEND, &plots(runs, points))
}

fn waiting(runs: &[Run]) -> String {
    let points = |run: &Run, layout: &str| {
        let lines = run.waiting.iter().filter(|line| line.layout == layout);
        lines.map(|line| (line.waiting as f64, line.lateness.p99)).collect()
    };
    let title = "How late others come while many messages wait (p99)";
    lines(title, "messages that wait", "ms", &LEGEND, &plots(runs, points))
}

fn memory(runs: &[Run]) -> String {
    let points = |run: &Run, layout: &str| {
        let lines = run.waiting.iter().filter(|line| line.layout == layout);
        lines.map(|line| (line.waiting as f64, line.memory as f64 / 1e6)).collect()
    };
    let title = "What the broker's memory grows by while many messages wait";
    lines(title, "messages that wait", "MB", &LEGEND, &plots(runs, points))
}
