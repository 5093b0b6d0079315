//! Tables for people: no borders, sentences wrapped at the terminal's width, colours for states. Pure but for the look at the terminal.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};
use owo_colors::OwoColorize;

use crate::printer;

/// Columns of sentences: on a terminal they alone are wrapped. A wrapped id or number could not be read or copied.
const SENTENCES: &[&str] = &["prompt", "result", "for example", "phases", "change"];
/// Characters that a column of sentences has on the narrowest terminal.
const SENTENCE: u16 = 16;

/// A table in the making.
pub struct Rows {
    table: Table,
}

impl Rows {
    pub fn new(header: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING);
        // Only a terminal has a width worth keeping to; in a pipe every row is one line.
        let arrangement = if table.is_tty() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        table.set_content_arrangement(arrangement);
        table.set_header(header.iter().map(|name| Cell::new(name.to_uppercase())));
        for (column, name) in table.column_iter_mut().zip(header) {
            column.set_constraint(match SENTENCES.contains(name) {
                true => ColumnConstraint::LowerBoundary(Width::Fixed(SENTENCE)),
                false => ColumnConstraint::ContentWidth,
            });
        }
        Self { table }
    }

    /// Numbers in these columns end at the same place.
    pub fn right(mut self, columns: &[&str]) -> Self {
        let header: Vec<String> =
            self.table.header().into_iter().flat_map(|row| row.cell_iter()).map(Cell::content).collect();
        for (at, name) in header.iter().enumerate() {
            if columns.iter().any(|column| column.eq_ignore_ascii_case(name))
                && let Some(column) = self.table.column_mut(at)
            {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells.into_iter().map(Cell::new));
    }

    /// The text, without blanks at the ends of lines or in front of them.
    pub fn text(&self) -> String {
        let lines: Vec<String> = self.table.lines().collect();
        let lines = lines.iter().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Prints it, or says that there is nothing.
    pub fn print(&self, nothing: &str) {
        if self.table.is_empty() {
            printer::say(nothing);
        } else {
            printer::line(self.text());
        }
    }
}

/// A state in its colour, for lines of their own (cells keep plain text: colours would spoil the widths).
pub fn coloured(state: &str) -> String {
    match state {
        "succeeded" => state.green().to_string(),
        "failed" | "dead" => state.red().to_string(),
        "cancelled" | "stopping" => state.yellow().to_string(),
        "queued" => state.dimmed().to_string(),
        _ => state.cyan().to_string(),
    }
}

pub fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_plain_text() {
        let mut rows = Rows::new(&["name", "state"]);
        rows.row(["a".to_owned(), "queued".to_owned()]);
        rows.row(["longer".to_owned(), "-".to_owned()]);
        insta::assert_snapshot!("table", rows.text());
    }
}
