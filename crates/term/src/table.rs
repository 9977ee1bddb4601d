//! Tables for people.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::text::readable;

/// A table with a header; columns whose header begins with `>` are aligned to
/// the right.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let right = |index: usize| header.get(index).is_some_and(|name| name.starts_with('>'));
    let cell = |(index, text): (usize, String)| {
        let cell = Cell::new(readable(&text));
        if right(index) { cell.set_alignment(CellAlignment::Right) } else { cell }
    };
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().map(|name| name.trim_start_matches('>').to_owned()).enumerate().map(cell));
    for row in rows {
        table.add_row(row.into_iter().enumerate().map(cell).collect::<Vec<_>>());
    }
    table
}
