//! Tables without lines, which know the width of the terminal.
//!
//! Where stdout is no terminal, each row is one line of any length. On a terminal, cells of text
//! are wrapped and numbers never are; columns that do not fit come in a second table below, which
//! repeats the first column.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width};

use crate::output::clean;
use crate::render::palette::Meaning;
use crate::terminal;

/// Text may be wrapped down to this width.
const TEXT_WIDTH_MIN: usize = 16;

/// Columns that stay free, because sections set their tables in by as much.
const INDENT: usize = 2;

/// Spaces between two columns.
const GAP: usize = 2;

/// A cell: its text, and the meaning that gives its colour.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Cell {
    text: String,
    meaning: Meaning,
}

impl Cell {
    /// A cell with a meaning.
    pub(crate) fn new(text: impl Into<String>, meaning: Meaning) -> Self {
        Self { text: text.into(), meaning }
    }

    /// The width of the text.
    pub(crate) fn width(&self) -> usize {
        textwrap::core::display_width(&clean(&self.text))
    }
}

/// A text without a meaning.
macro_rules! cell_from {
    ($($of:ty),*) => {$(
        impl From<$of> for Cell {
            fn from(text: $of) -> Self {
                Self { text: text.to_string(), meaning: Meaning::Plain }
            }
        }
    )*};
}

cell_from!(String, &String, &str, u32, u64);

/// A table that is made column by column. A column whose title begins with `>` has numbers, set to
/// the right.
pub(crate) struct Table<'a, T> {
    rows: Vec<&'a T>,
    columns: Vec<(&'a str, Vec<Cell>)>,
}

impl<'a, T> Table<'a, T> {
    /// A table with a line for each of these.
    pub(crate) fn of(rows: impl IntoIterator<Item = &'a T>) -> Self {
        Self { rows: rows.into_iter().collect(), columns: Vec::new() }
    }

    /// The table with one more column: its title, and the cell of each row.
    pub(crate) fn column<C: Into<Cell>>(mut self, title: &'a str, cell: impl Fn(&T) -> C) -> Self {
        self.columns.push((title, self.rows.iter().map(|row| cell(row).into()).collect()));
        self
    }

    /// The same where one row at least has something to show; a dash stands in the others.
    pub(crate) fn column_if_any(self, title: &'a str, cell: impl Fn(&T) -> Option<String>) -> Self {
        match self.rows.iter().any(|row| cell(row).is_some()) {
            true => self.column(title, |row| cell(row).unwrap_or_else(|| "–".to_string())),
            false => self,
        }
    }

    /// The table with these of its columns only, in this order.
    pub(crate) fn only(self, titles: &[&str]) -> Self {
        let column = |title: &&str| self.columns.iter().find(|(of, _)| of == title).cloned();
        Self { columns: titles.iter().filter_map(column).collect(), rows: self.rows }
    }

    /// The table for the terminal. Control characters in cells are made harmless.
    pub(crate) fn text(&self) -> String {
        self.of_width(terminal::width().map(|width| width.saturating_sub(INDENT)))
    }

    /// The table; without rows, this line.
    pub(crate) fn text_or(&self, nothing: &str) -> String {
        if self.rows.is_empty() { format!("{nothing}\n") } else { self.text() }
    }

    /// The table at a width; without one, rows are lines of any length.
    pub(crate) fn of_width(&self, width: Option<usize>) -> String {
        let titles: Vec<&str> = self.columns.iter().map(|(title, _)| *title).collect();
        let cell = |(_, cells): &(&str, Vec<Cell>), row: usize| cells.get(row).cloned();
        let row = |row| self.columns.iter().filter_map(|column| cell(column, row)).collect();
        let rows: Vec<Vec<Cell>> = (0..self.rows.len()).map(row).collect();
        of_width(&titles, &rows, width, terminal::is_coloured())
    }
}

/// A table for the terminal. Columns whose title begins with `>` are numbers, set to the right.
/// Control characters in cells are made harmless.
pub(crate) fn table<C: Into<Cell>>(titles: &[&str], rows: Vec<Vec<C>>) -> String {
    let rows: Vec<Vec<Cell>> =
        rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect();
    let width = terminal::width().map(|width| width.saturating_sub(INDENT));
    of_width(titles, &rows, width, terminal::is_coloured())
}

/// The table at a width; without one, rows are lines of any length.
fn of_width(titles: &[&str], rows: &[Vec<Cell>], width: Option<usize>, coloured: bool) -> String {
    let all: Vec<usize> = (0..titles.len()).collect();
    let Some(width) = width else { return part(titles, rows, &all, None, coloured) };
    let parts = fitting(&least_widths(titles, rows), width);
    let parts: Vec<String> =
        parts.iter().map(|columns| part(titles, rows, columns, Some(width), coloured)).collect();
    parts.join("\n")
}

/// Columns of each part of the table, so that each part is at most this wide if possible.
fn fitting(least: &[usize], width: usize) -> Vec<Vec<usize>> {
    let first = least.first().copied().unwrap_or_default();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut taken = 0;
    for (index, more) in least.iter().enumerate() {
        match parts.last_mut() {
            Some(part) if taken + GAP + more <= width || part.len() < 2 => {
                part.push(index);
                taken += GAP + more;
            }
            None => {
                parts.push(vec![index]);
                taken = *more;
            }
            Some(_) => {
                parts.push(vec![0, index]);
                taken = first + GAP + more;
            }
        }
    }
    parts
}

fn least_widths(titles: &[&str], rows: &[Vec<Cell>]) -> Vec<usize> {
    let of_column = |(index, title): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let heading = textwrap::core::display_width(name(title));
        let content = cells.map(Cell::width).max().unwrap_or_default().max(heading);
        if is_number(title) { content } else { content.min(TEXT_WIDTH_MIN.max(heading)) }
    };
    titles.iter().enumerate().map(of_column).collect()
}

fn part(
    titles: &[&str],
    rows: &[Vec<Cell>],
    columns: &[usize],
    width: Option<usize>,
    coloured: bool,
) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(NOTHING).force_no_tty();
    match width {
        // The padding of the last column is cut off.
        Some(width) => table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width + GAP).unwrap_or(u16::MAX)),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    if coloured {
        table.enforce_styling();
    }
    let titles: Vec<&str> = columns.iter().filter_map(|&at| titles.get(at).copied()).collect();
    table.set_header(titles.iter().map(|title| styled(&name(title).to_uppercase(), Meaning::Dim)));
    for row in rows {
        let cells = columns.iter().filter_map(|&at| row.get(at));
        table.add_row(cells.map(|cell| styled(&clean(&cell.text), cell.meaning)));
    }
    for (index, title) in titles.iter().enumerate() {
        let Some(column) = table.column_mut(index) else { continue };
        column.set_padding((0, GAP as u16));
        if is_number(title) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if is_number(title) || index == 0 && width.is_some() && columns.len() > 1 {
            column.set_constraint(ColumnConstraint::ContentWidth);
        } else if width.is_some() {
            let least = u16::try_from(TEXT_WIDTH_MIN.min(name(title).len().max(4)) + GAP);
            let least = least.unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(&without_padding(&line));
        text.push('\n');
    }
    text
}

/// A line without the spaces at its end, also before the code that ends a colour.
fn without_padding(line: &str) -> String {
    let (mut rest, mut ends) = (line.trim_end(), Vec::new());
    while let Some((before, end)) = rest.rsplit_once("\u{1b}[") {
        let is_colour = end
            .strip_suffix('m')
            .is_some_and(|it| it.chars().all(|letter| letter.is_ascii_digit() || letter == ';'));
        if !is_colour {
            break;
        }
        ends.push(end);
        rest = before.trim_end();
    }
    let ends: String = ends.iter().rev().map(|end| format!("\u{1b}[{end}")).collect();
    format!("{rest}{ends}")
}

fn styled(text: &str, meaning: Meaning) -> comfy_table::Cell {
    let mut cell = comfy_table::Cell::new(text);
    if let Some(color) = meaning.color() {
        cell = cell.fg(color);
    }
    match meaning.attribute() {
        Some(attribute) => cell.add_attribute(attribute),
        None => cell,
    }
}

/// True for the title of a column of numbers.
pub(crate) fn is_number(title: &str) -> bool {
    title.starts_with('>')
}

/// A title without its mark.
pub(crate) fn name(title: &str) -> &str {
    title.trim_start_matches('>')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: [&str; 4] = ["job", ">step", ">held", "what"];

    fn rows() -> Vec<Vec<Cell>> {
        let row = |cells: [&str; 4]| cells.iter().map(|it| Cell::from(it.to_string())).collect();
        vec![
            row(["a", "1", "12.0 GiB", "rank 2 keeps 2 MiB more each step, allocated at train.py"]),
            row(["job-b", "12345", "1.00 MiB", "nothing"]),
        ]
    }

    #[test]
    fn without_a_terminal_a_row_is_a_line() {
        let expected = "\
JOB     STEP      HELD  WHAT
a          1  12.0 GiB  rank 2 keeps 2 MiB more each step, allocated at train.py
job-b  12345  1.00 MiB  nothing
";
        assert_eq!(of_width(&TITLES, &rows(), None, false), expected);
    }

    #[test]
    fn text_is_wrapped_at_the_width_and_numbers_are_not() {
        let expected = "\
JOB     STEP      HELD  WHAT
a          1  12.0 GiB  rank 2 keeps 2
                        MiB more each
                        step, allocated
                        at train.py
job-b  12345  1.00 MiB  nothing
";
        assert_eq!(of_width(&TITLES, &rows(), Some(40), false), expected);
    }

    #[test]
    fn columns_that_do_not_fit_come_below_with_the_first_column() {
        let expected = "\
JOB     STEP      HELD
a          1  12.0 GiB
job-b  12345  1.00 MiB

JOB    WHAT
a      rank 2 keeps 2
       MiB more each
       step, allocated
       at train.py
job-b  nothing
";
        assert_eq!(of_width(&TITLES, &rows(), Some(22), false), expected);
    }

    #[test]
    fn colours_do_not_move_columns() {
        let mut rows = rows();
        for row in &mut rows {
            row[0].meaning = Meaning::Bad;
        }
        let text = of_width(&TITLES, &rows, None, true);
        let plain: Vec<usize> = text.lines().map(textwrap::core::display_width).collect();
        let expected = of_width(&TITLES, &rows, None, false);
        let expected: Vec<usize> = expected.lines().map(textwrap::core::display_width).collect();
        assert_eq!(plain, expected, "{text:?}");
        assert!(text.contains('\u{1b}'));
    }
}
