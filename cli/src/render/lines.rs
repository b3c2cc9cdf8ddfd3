//! The lines of a job as text: what each holds, since when, whether it grows, and on which rank.

use std::fmt::Write;

use memtape_proto::api::{Frame, Holder, Line, Lines};

use crate::output::{clean, cut};
use crate::render::table::Table;
use crate::render::units::{bytes, frame, grown, plural};
use crate::terminal;

/// Separator between a frame and its caller.
const CALLED_FROM: &str = " < ";

/// Ranks of one line that have a row of their own.
const ROWS_PER_LINE_MAX: usize = 4;

/// Notes on the columns.
const NOTES: &str = "survivors: memory of older steps, without the line's largest group of equal \
                     age; parameters have none\n\
                     kept/step: bytes that the line keeps from each step, over the steps beside \
                     it; – where it does not grow\n";

/// The table of lines; `rank` restricts it to one rank.
pub(crate) fn text(of: &Lines, rank: Option<u32>) -> String {
    of_width(of, rank, terminal::width())
}

/// The table of lines at a width; without one, a row is one line of any length.
fn of_width(of: &Lines, rank: Option<u32>, width: Option<usize>) -> String {
    if of.ranks == 0 {
        return format!("no rank has a census: {}\n", clean(&of.missing));
    }
    if of.lines.is_empty() {
        return rank.map_or_else(
            || "no live memory has a line\n".to_string(),
            |rank| format!("no line holds memory on rank {rank}\n"),
        );
    }
    let held: Vec<Held<'_>> = holders(&of.lines).collect();
    let mut text = match width {
        Some(width) => named_above(&held, width),
        None => table(&held).of_width(None),
    };
    if of.lines_left_out > 0 {
        let _ = writeln!(
            text,
            "{} with fewer survivors",
            plural(u64::from(of.lines_left_out), "more line")
        );
    }
    if of.other_blocks > 0 {
        let held = bytes(of.other_bytes);
        let _ = writeln!(
            text,
            "lines that no census has hold {held} in {}",
            plural(of.other_blocks, "block")
        );
    }
    text.push_str(NOTES);
    text
}

/// The name of each line and its median rank, and below them one row for each rank: on a terminal
/// both are too long for one row.
fn named_above(held: &[Held<'_>], width: usize) -> String {
    let table = table(held).only(&NUMBERS).of_width(None);
    let mut rows = table.lines();
    let mut text = rows.next().map_or(String::new(), |heading| format!("{heading}\n"));
    for ((line, _, is_first), row) in held.iter().zip(rows) {
        if *is_first {
            let median = line.median_bytes.map(bytes);
            let median = median.map_or(String::new(), |held| format!("; median rank {held}"));
            let name = cut(&name(line), width.saturating_sub(median.len()));
            let _ = writeln!(text, "\n{name}{median}");
        }
        let _ = writeln!(text, "{row}");
    }
    text.push('\n');
    text
}

/// Columns of the memory that a rank holds by a line.
const NUMBERS: [&str; 7] =
    [">rank", ">holds", ">blocks", ">survivors", ">since step", ">kept/step", ">over steps"];

/// A line and one rank that holds memory by it; true for the first rank of the line.
pub(crate) type Held<'a> = (&'a Line, &'a Holder, bool);

/// The ranks of each line that have a row.
fn holders(lines: &[Line]) -> impl Iterator<Item = Held<'_>> {
    lines.iter().flat_map(|line| {
        let holders = line.holders.iter().take(ROWS_PER_LINE_MAX).enumerate();
        holders.map(move |(index, holder)| (line, holder, index == 0))
    })
}

/// The rows.
pub(crate) fn table<'a, 'b>(held: &'a [Held<'b>]) -> Table<'a, Held<'b>> {
    let of_line = |text: fn(&Line) -> String, (line, _, is_first): &Held<'_>| match is_first {
        true => text(line),
        false => String::new(),
    };
    let growth = |(_, of, _): &Held<'_>| match of.growing_since_step {
        Some(_) => grown(of.growth_bytes_per_step),
        None => "–".to_string(),
    };
    let median = |line: &Line| line.median_bytes.map_or("–".to_string(), bytes);
    let since = |(_, of, _): &Held<'_>| {
        of.growing_since_step.map_or("–".to_string(), |step| step.to_string())
    };
    let over = |(_, of, _): &Held<'_>| {
        of.growth_steps.map_or("–".to_string(), |[from, to]| format!("{from} to {to}"))
    };
    Table::of(held)
        .column("line", |held| of_line(name, held))
        .column(">rank", |(_, of, _)| of.rank)
        .column(">holds", |(_, of, _)| bytes(of.bytes))
        .column(">blocks", |(_, of, _)| of.blocks)
        .column(">survivors", |(_, of, _)| bytes(of.survivor_bytes))
        .column(">oldest step", |(_, of, _)| of.oldest_step)
        .column(">since step", since)
        .column(">kept/step", growth)
        .column(">over steps", over)
        .column(">median rank", |held| of_line(median, held))
}

/// The innermost frame of a line, then its callers, which may be cut off.
pub(crate) fn name(line: &Line) -> String {
    // The file's own name: three whole paths do not fit on a screen.
    let short = |of: &Frame| {
        let file = of.file.rsplit('/').next().unwrap_or_default().to_string();
        frame(&Frame { file, ..of.clone() })
    };
    let frames: Vec<String> = line.frames.iter().map(short).collect();
    if frames.is_empty() { "(no stack)".to_string() } else { clean(&frames.join(CALLED_FROM)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job whose lines have long names, and a line that several ranks hold.
    fn lines() -> Lines {
        let frame = |file: &str, line, function: &str| Frame {
            file: file.into(),
            line,
            function: function.into(),
        };
        let holder = |rank, bytes: u64, growing: Option<u64>| Holder {
            rank,
            step: 2138,
            bytes,
            blocks: 2028,
            survivor_bytes: bytes / 2,
            oldest_step: 99,
            growing_since_step: growing,
            growth_bytes_per_step: growing.map_or(0, |_| 2_862_612),
            growth_steps: growing.map(|since| [since + 1_016, 2_128]),
            ..Holder::default()
        };
        let model = "/opt/venv/lib/python3.11/site-packages/transformers/modeling_llama.py";
        let leak = Line {
            frames: vec![
                frame("/app/losses.py", 32, "remember_loss"),
                frame(model, 1234, "LlamaForCausalLMWithAVeryLongNameOfItsClass.forward"),
                frame("/app/train.py", 157, "main"),
            ],
            ranks: 1,
            median_bytes: Some(0),
            holders: vec![holder(2, 5_766_000_000, Some(99))],
        };
        let shared = Line {
            frames: vec![frame(model, 77, "LlamaForCausalLMWithAVeryLongNameOfItsClass.forward")],
            ranks: 3,
            median_bytes: Some(528 << 20),
            holders: (0..3).map(|rank| holder(rank, 528 << 20, None)).collect(),
        };
        let other = Line { holders: vec![holder(3, 9, None)], ..Line::default() };
        let lines = vec![leak, shared, Line { median_bytes: Some(0), ..other }];
        Lines { ranks: 4, lines, ..Lines::default() }
    }

    #[test]
    fn a_line_shows_its_bytes_and_its_growth() {
        let text = text(&Lines { lines_left_out: 3, ..lines() }, None);
        let rows: Vec<&str> = text.lines().collect();
        let has = |row: &str, words: &[&str]| words.iter().all(|word| row.contains(word));
        assert!(has(rows[1], &["losses.py:32", "train.py:157", "5.37 GiB", "+2.73 MiB"]), "{text}");
        assert!(has(rows[3], &["528 MiB", "–"]) && !rows[3].contains("llama"), "{text}");
        assert!(rows[6].starts_with("3 more lines"), "{text}");
    }

    #[test]
    fn a_terminal_has_the_name_above_the_numbers() {
        let expected = include_str!("screens/lines_80.txt");
        assert_eq!(of_width(&lines(), None, Some(80)), expected);
    }

    #[test]
    fn one_rank_is_no_median() {
        let alone = Line { median_bytes: None, ..lines().lines.remove(0) };
        let alone = Lines { ranks: 1, lines: vec![alone], ..Lines::default() };
        assert!(of_width(&alone, None, None).lines().nth(1).is_some_and(|row| row.ends_with('–')));
        assert!(!of_width(&alone, None, Some(80)).contains("median"));
    }

    #[test]
    fn a_missing_census_is_explained() {
        assert!(text(&Lines::default(), None).contains("no rank has a census"));
        let empty = Lines { ranks: 1, ..Lines::default() };
        assert!(text(&empty, Some(3)).contains("rank 3"));
    }
}
