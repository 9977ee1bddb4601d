//! The figures, as a Markdown table.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

use crate::ledger::Totals;

/// The result of a fault on a broker.
#[derive(Debug, Serialize)]
pub struct Line {
    pub broker: String,
    pub fault: String,
    #[serde(flatten)]
    pub totals: Totals,
}

impl Line {
    /// Whether the promises were kept, and without help unless this broker is known to need it.
    pub fn holds(&self) -> bool {
        let Totals { confirmed, lost, early, help, .. } = self.totals;
        let helped = help.is_none_or(|help| help.is_known_of(&self.broker));
        let recalls = self.totals.recalls.as_ref();
        let true_answers = recalls.is_none_or(|it| it.broken == 0 && it.astray == 0 && it.recalled > 0);
        lost == 0 && early == 0 && confirmed > 0 && helped && true_answers
    }

    pub fn summary(&self) -> String {
        let Totals { confirmed, lost, early, duplicated, worst_late_ms, help, .. } = &self.totals;
        let help = help.map(|help| format!(", helped by {help}")).unwrap_or_default();
        let recalls = self.totals.recalls.as_ref().map(|it| format!("; {it:?}")).unwrap_or_default();
        let broken: String = self.totals.broken.iter().map(|line| format!("\n   {line}")).collect();
        format!(
            "{confirmed} confirmed, {lost} lost, {early} early, {duplicated} twice, {worst_late_ms} ms late at \
             worst{help}{recalls}{broken}"
        )
    }
}

pub fn print(lines: &[Line]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "broker",
        "fault",
        "confirmed",
        "delivered",
        "in unroutable",
        "lost",
        "early",
        "twice",
        "handed out again",
        "not confirmed",
        "worst lateness",
        "recovery",
        "help needed",
    ]);
    for Line { broker, fault, totals: v } in lines {
        let seconds = |ms: i64| format!("{:.1} s", ms as f64 / 1_000.0);
        table.add_row([
            broker.clone(),
            fault.clone(),
            v.confirmed.to_string(),
            v.delivered.to_string(),
            v.unroutable.to_string(),
            v.lost.to_string(),
            v.early.to_string(),
            v.duplicated.to_string(),
            v.redelivered.to_string(),
            v.failed.to_string(),
            seconds(v.worst_late_ms),
            seconds(v.recovery_ms),
            v.help.map(|help| help.to_string()).unwrap_or_default(),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("\n{table}");
    recalls(lines);
}

/// Prints the results of recalls, if there were any.
fn recalls(lines: &[Line]) {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header([
        "broker",
        "fault",
        "recalled",
        "delivered despite the recall",
        "too late",
        "open",
        "of those aside",
        "in both places",
        "aside without a recall",
    ]);
    let mut any = false;
    for Line { broker, fault, totals } in lines {
        let Some(v) = &totals.recalls else { continue };
        any = true;
        table.add_row([
            broker.clone(),
            fault.clone(),
            v.recalled.to_string(),
            v.broken.to_string(),
            v.too_late.to_string(),
            v.open.to_string(),
            v.open_aside.to_string(),
            v.both.to_string(),
            v.astray.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if any {
        println!("\n{table}");
    }
}
