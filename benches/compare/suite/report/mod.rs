//! `docs/benchmarks.md` and its charts, from the figures alone.

mod charts;
mod svg;

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use super::{
    Fallible,
    layouts::{Description, Guarantee},
    machine::ENOUGH,
    results::{Cell, Run},
    table, targets,
    workload::Workload,
};

/// CPU seconds per second of other processes from which on a machine is not free for
/// measuring.
const BUSY: f64 = 0.1;

/// What does not depend on the figures.
const TEMPLATE: &str = include_str!("template.md");

/// Writes them, and returns the files.
pub fn write(runs: &[Run], docs: &Path) -> Fallible<Vec<PathBuf>> {
    if runs.is_empty() {
        return Err("there are no results in these files".into());
    }
    let mut runs = runs.to_vec();
    // By version, the default configuration first.
    runs.sort_by_key(|run| (version(run), run.conditions.prefetch));
    let images = docs.join("images");
    fs::create_dir_all(&images)?;
    let mut written = Vec::new();
    for (name, chart) in charts::all(&runs) {
        fs::write(images.join(name), chart)?;
        written.push(images.join(name));
    }
    let page = docs.join("benchmarks.md");
    fs::write(&page, markdown(&runs))?;
    written.push(page);
    Ok(written)
}

fn version(run: &Run) -> Vec<u32> {
    run.conditions.rabbitmq.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

fn markdown(runs: &[Run]) -> String {
    let targets = targets::targets(runs);
    let parts = [
        ("{{caution}}", caution(runs)),
        ("{{conditions}}", conditions(runs)),
        ("{{targets}}", targets::print(&targets)),
        ("{{summary}}", summary(runs)),
        ("{{layouts}}", layouts(runs)),
        ("{{cells}}", cells(runs)),
        ("{{series}}", series(runs)),
    ];
    let page =
        parts.into_iter().fold(TEMPLATE.to_owned(), |page, (name, part)| page.replace(name, part.trim_end()));
    // A part with nothing in it leaves no gap.
    page.replace("\n\n\n\n", "\n\n").replace("\n\n\n", "\n\n")
}

/// What speaks against believing these figures.
fn caution(runs: &[Run]) -> String {
    let conditions = || runs.iter().map(|run| &run.conditions);
    let mut reasons = Vec::new();
    if conditions().any(|conditions| !conditions.scale.name.starts_with("full")) {
        reasons.push("they are of a quick run");
    }
    if conditions().any(|conditions| conditions.foreign_cpu > BUSY) {
        reasons.push("the machine was busy with something else");
    }
    if conditions().any(|conditions| conditions.client.contains("unoptimised")) {
        reasons.push("the client was an unoptimised build");
    }
    let mut paragraphs = Vec::new();
    if !reasons.is_empty() {
        let reasons = reasons.join(", ");
        paragraphs
            .push(format!("> **Do not judge by the figures on this page:** {reasons}. Take them again."));
    }
    for (run, disturbed) in runs.iter().map(|run| (run, run.disturbed())) {
        if !disturbed.is_empty() {
            let (share, name, list) = (ENOUGH * 100.0, run.name(), disturbed.join(", "));
            paragraphs.push(format!(
                "> **Do not judge by these figures of RabbitMQ {name}:** {list}. The host of the virtual machine kept \
                 more than {share:.0} % of the processors in every attempt.",
            ));
        }
    }
    paragraphs.join("\n\n")
}

fn conditions(runs: &[Run]) -> String {
    let Some(first) = runs.first().map(|run| &run.conditions) else { return String::new() };
    let mut text = format!(
        "{}, {} cores shared by broker and client, Linux {}; one private node over loopback. Bodies of {} bytes, {}. \
         At most {} messages without a confirm, at most {} handed out and not acknowledged. The client: {}. Kombu {}.\n\n",
        first.cpu,
        first.cores,
        first.kernel,
        first.body_bytes,
        first.durability,
        first.window,
        first.consumer_prefetch,
        first.client,
        first.kombu.as_deref().unwrap_or("was not at hand"),
    );
    let rows = runs.iter().map(|run| {
        let conditions = &run.conditions;
        [
            run.name(),
            conditions.date.clone(),
            conditions.scale.name.clone(),
            conditions.load_before.clone(),
            conditions.load_after.clone(),
            format!("{:.0} s", conditions.seconds),
            format!("{:.2}", conditions.idle_cpu),
            format!("{:.2}", conditions.foreign_cpu),
            format!("{:.0} %", run.stolen() * 100.0),
        ]
    });
    let header = [
        "RabbitMQ",
        "when",
        "scale",
        "load before",
        "load after",
        "took",
        "CPU idle",
        "CPU of others",
        "kept by the host",
    ];
    text += &table::table(header, rows);
    text
}

fn publishing(cell: Option<&Cell>) -> String {
    cell.map_or_else(|| "–".into(), |cell| table::rate_and_share(cell.publish_rate, cell.publish_share))
}

fn draining(cell: Option<&Cell>) -> String {
    cell.map_or_else(|| "–".into(), |cell| table::rate_and_share(cell.drain_rate, cell.drain_share))
}

/// The figures most people look for, side by side.
fn summary(runs: &[Run]) -> String {
    let mut text = String::new();
    let plain: Vec<_> = runs.iter().filter(|run| run.conditions.prefetch.is_none()).collect();
    for run in plain {
        let rows = run.layouts.iter().map(|layout| {
            let (equal, mixed, real) = (
                run.cell(&layout.id, "equal"),
                run.cell(&layout.id, "mixed"),
                run.cell(&layout.id, "real-life"),
            );
            let wrong: u64 = run
                .cells
                .iter()
                .filter(|cell| cell.layout == layout.id)
                .map(|cell| cell.lost + cell.duplicated + cell.early)
                .sum();
            [
                layout.title.clone(),
                publishing(equal),
                draining(equal),
                draining(real),
                table::number(real.and_then(|cell| cell.cpu_flat_out_s_per_1000), 2),
                mixed.and_then(|cell| cell.lateness).map_or_else(|| "–".into(), |late| table::ms(late.p99)),
                mixed.map_or_else(|| "–".into(), |cell| cell.queues.to_string()),
                wrong.to_string(),
            ]
        });
        let header = [
            "layout",
            "publish",
            "drain, 1 hop",
            "drain, real-life",
            "CPU s / 1,000, real-life",
            "p99 late, mixed",
            "queues, mixed",
            "lost, twice, early",
        ];
        let _ = writeln!(text, "### RabbitMQ {}\n\n{}\n", run.name(), table::table(header, rows));
    }
    text
}

fn layouts(runs: &[Run]) -> String {
    let mut seen: Vec<&Description> = Vec::new();
    for layout in runs.iter().flat_map(|run| &run.layouts) {
        if !seen.iter().any(|other| other.id == layout.id) {
            seen.push(layout);
        }
    }
    seen.iter().fold(String::new(), |mut text, Description { title, guarantee, note, .. }| {
        let guarantee = match guarantee {
            Guarantee::AtLeastOnce => "at least once",
            Guarantee::AtMostOnce => "at most once between queues",
        };
        let _ = writeln!(text, "- **{title}** ({guarantee}). {note}");
        text
    })
}

fn cells(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        let _ = writeln!(text, "### RabbitMQ {}\n", run.name());
        for workload in Workload::all(&run.conditions.scale) {
            let Some(cell) = run.cells.iter().find(|cell| cell.workload == workload.id) else { continue };
            let Workload { id, title, .. } = workload;
            let _ = writeln!(text, "{title} (a unit is {} ms):\n\n{}\n", cell.unit_ms, table::cells(run, id));
        }
        for cell in &run.cells {
            if let Some(failure) = &cell.failure {
                let _ = writeln!(text, "{}, {}: {failure}\n", run.title(&cell.layout), cell.workload);
            }
        }
    }
    text
}

fn series(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        let parts = [
            ("by number of hops", !run.hops.is_empty(), table::hops(run)),
            ("while many wait", !run.waiting.is_empty(), table::waiting(run)),
            ("the knee", !run.knees.is_empty(), table::knees(run)),
        ];
        for failure in &run.failures {
            let _ = writeln!(text, "RabbitMQ {}, not measured: {failure}\n", run.name());
        }
        for (title, _, part) in parts.iter().filter(|(_, is_there, _)| *is_there) {
            let _ = writeln!(text, "RabbitMQ {}, {title}:\n\n{part}\n", run.name());
        }
    }
    text
}
