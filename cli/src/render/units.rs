//! Numbers with their units, frames and tables, as a terminal shows them.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{Frame, Named};

use crate::output::clean;

/// `1.50 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    match unit {
        0 => format!("{count} {name}"),
        _ if value < 10.0 => format!("{value:.2} {name}"),
        _ => format!("{value:.1} {name}"),
    }
}

/// `+1.50 MiB`, `-3 B`, `0 B`.
pub(crate) fn signed_bytes(count: i64) -> String {
    let sign = match count {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", bytes(count.unsigned_abs()))
}

/// `90 s`, `25 min`, `3.1 h`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// `train.py:36 remember`.
pub(crate) fn frame(frame: &Frame) -> String {
    clean(&format!("{}:{} {}", frame.file, frame.line, frame.function)).trim_end().to_string()
}

/// A number in a column of steps: turns are named.
pub(crate) fn counted(clock: &Named<Clock>, number: &str) -> String {
    match clock.known().unwrap_or_default() {
        Clock::Steps => number.to_string(),
        Clock::Turns => format!("{} {number}", Clock::Turns.unit()),
    }
}

/// A table without lines. Columns whose title begins with `>` are numbers, set to the right.
pub(crate) fn table(titles: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(titles.iter().map(|title| title.trim_start_matches('>').to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|cell| clean(cell)));
    }
    for (index, title) in titles.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if title.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `1 step`, `2 steps`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (count, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (2_621_440, "2.50 MiB"),
            (80 << 30, "80.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        for (count, expected) in
            [(0, "0 B"), (5, "+5 B"), (-2048, "-2.00 KiB"), (i64::MIN, "-8192.0 PiB")]
        {
            assert_eq!(signed_bytes(count), expected);
        }
        for (seconds, expected) in
            [(1.2, "1 s"), (119.0, "119 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
        {
            assert_eq!(duration(seconds), expected);
        }
    }
}
