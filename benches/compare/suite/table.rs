//! The figures on the terminal.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};

use super::results::{Cell, Run};

/// A table whose columns after the first hold numbers.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// A rate, with no more digits than it deserves.
pub fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".into(),
        Some(rate) => {
            let number = format!("{rate:.0}");
            let (head, tail) = number.split_at(number.len().saturating_sub(3));
            if head.is_empty() { format!("{tail}/s") } else { format!("{head},{tail}/s") }
        }
    }
}

/// Milliseconds.
pub fn ms(ms: f64) -> String {
    match ms {
        ms if ms >= 10_000.0 => format!("{:.0} s", ms / 1_000.0),
        ms if ms >= 1_000.0 => format!("{:.1} s", ms / 1_000.0),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |value| format!("{value:.digits$}"))
}

/// All cells of a workload.
pub fn cells(run: &Run, workload: &str) -> String {
    let header = [
        "layout",
        "publish",
        "drain",
        "p50",
        "p99",
        "max",
        "early",
        "lost",
        "unfinished",
        "twice",
        "queues",
        "bindings",
        "CPU s / 1,000",
        "flat out",
        "header B",
    ];
    let cells = run.cells.iter().filter(|cell| cell.workload == workload);
    table(header, cells.map(|cell| row(run, cell)))
}

fn row(run: &Run, cell: &Cell) -> [String; 15] {
    let late = |of: fn(&super::results::Lateness) -> f64| {
        cell.lateness.as_ref().map_or_else(|| "–".into(), |lateness| ms(of(lateness)))
    };
    let behind =
        cell.achieved_rate.zip(cell.offered_rate).filter(|(achieved, offered)| *achieved < 0.95 * offered);
    let title = match (&cell.failure, behind) {
        (Some(_), _) => format!("{} (failed)", run.title(&cell.layout)),
        (None, Some((achieved, _))) => format!("{} (took {})", run.title(&cell.layout), rate(Some(achieved))),
        (None, None) => run.title(&cell.layout).to_owned(),
    };
    [
        title,
        rate_and_share(cell.publish_rate, cell.publish_share),
        rate_and_share(cell.drain_rate, cell.drain_share),
        late(|lateness| lateness.p50),
        late(|lateness| lateness.p99),
        late(|lateness| lateness.max),
        cell.early.to_string(),
        cell.lost.to_string(),
        cell.unfinished.to_string(),
        cell.duplicated.to_string(),
        cell.queues.to_string(),
        cell.bindings.to_string(),
        number(cell.cpu_s_per_1000, 2),
        number(cell.cpu_flat_out_s_per_1000, 2),
        number(cell.header_bytes, 0),
    ]
}

/// Such as "12,346/s (0.31)": the rate and its share of the limit.
pub fn rate_and_share(figure: Option<f64>, share: Option<f64>) -> String {
    rate(figure) + &share.map_or_else(String::new, |share| format!(" ({share:.2})"))
}

pub fn hops(run: &Run) -> String {
    let rows = run.hops.iter().map(|line| {
        [
            run.title(&line.layout).to_owned(),
            line.hops.to_string(),
            rate(Some(line.drain_rate)),
            number(Some(line.cpu_s_per_1000), 2),
            number(Some(line.header_bytes), 0),
        ]
    });
    table(["layout", "hops", "drain", "CPU s / 1,000", "header B"], rows)
}

pub fn waiting(run: &Run) -> String {
    let rows = run.waiting.iter().map(|line| {
        [
            run.title(&line.layout).to_owned(),
            line.waiting.to_string(),
            ms(line.lateness.p50),
            ms(line.lateness.p99),
            format!("{:.0} MB", line.memory as f64 / 1e6),
            rate(line.fill_rate),
        ]
    });
    table(["layout", "waiting", "p50", "p99", "more memory", "came in at"], rows)
}

pub fn knees(run: &Run) -> String {
    let rows = run.knees.iter().map(|knee| {
        let best = knee.steps.iter().filter(|step| step.holds && step.rate <= knee.rate);
        let p99 = best.max_by(|a, b| a.rate.total_cmp(&b.rate)).map_or(0.0, |step| step.p99_ms);
        let found = (knee.rate > 0.0).then_some(knee.rate);
        [
            run.title(&knee.layout).to_owned(),
            rate(found),
            ms(p99),
            knee.steps.len().to_string(),
            format!("{:.0} %", knee.stolen() * 100.0),
        ]
    });
    table(["layout", "sustained", "p99 there", "attempts", "kept by the host"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([rate(Some(5.0)), rate(Some(950.4)), rate(Some(12_345.6))], ["5/s", "950/s", "12,346/s"]);
        assert_eq!([ms(1.26), ms(432.1), ms(2_345.0), ms(59_000.0)], ["1.3 ms", "432 ms", "2.3 s", "59 s"]);
    }
}
