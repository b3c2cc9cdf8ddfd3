//! The lines of a job as text: what each holds, since when, whether it grows, and on which rank.

use std::fmt::Write;

use memtape_proto::api::{Frame, Holder, Line, Lines};

use crate::output::clean;
use crate::render::units::{bytes, frame, plural, signed_bytes, table};

/// Ranks of one line that have a row of their own.
const ROWS_PER_LINE_MAX: usize = 4;

/// What the columns mean.
const NOTES: &str = "survivors: memory of older steps, without the line's largest group of equal \
                     age; parameters have none\n\
                     kept/step: bytes that the line keeps from each step; – where it does not \
                     grow\n";

/// The table of lines; `rank` is the only one that was asked for.
pub(crate) fn text(of: &Lines, rank: Option<u32>) -> String {
    if of.ranks == 0 {
        let why = "no census is known: the ranks have just begun, or their agents are older\n";
        return why.to_string();
    }
    if of.lines.is_empty() {
        return rank.map_or_else(
            || "no live memory has a line\n".to_string(),
            |rank| format!("no line holds memory on rank {rank}\n"),
        );
    }
    let titles = [
        "line",
        ">rank",
        ">holds",
        ">blocks",
        ">survivors",
        ">oldest step",
        ">kept/step",
        ">since step",
        ">median rank",
    ];
    let rows = of.lines.iter().flat_map(|line| {
        let holders = line.holders.iter().take(ROWS_PER_LINE_MAX).enumerate();
        holders.map(|(index, holder)| row(line, holder, index == 0))
    });
    let mut text = table(&titles, rows.collect());
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

fn row(line: &Line, holder: &Holder, is_first: bool) -> Vec<String> {
    let growth = i64::try_from(holder.growth_bytes_per_step).unwrap_or(i64::MAX);
    let growing = holder.growing_since_step;
    vec![
        if is_first { name(line) } else { String::new() },
        holder.rank.to_string(),
        bytes(holder.bytes),
        holder.blocks.to_string(),
        bytes(holder.survivor_bytes),
        holder.oldest_step.to_string(),
        growing.map_or("–".to_string(), |_| signed_bytes(growth)),
        growing.map_or("–".to_string(), |step| step.to_string()),
        if is_first { bytes(line.median_bytes) } else { String::new() },
    ]
}

/// The line to look at, and the lines that it was called from.
pub(crate) fn name(line: &Line) -> String {
    // The file's own name: three whole paths do not fit on a screen.
    let short = |of: &Frame| {
        let file = of.file.rsplit('/').next().unwrap_or_default().to_string();
        frame(&Frame { file, ..of.clone() })
    };
    let frames: Vec<String> = line.frames.iter().map(short).collect();
    if frames.is_empty() { "(no stack)".to_string() } else { clean(&frames.join(" < ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak() -> Lines {
        let frame = |line| Frame { file: "/app/train.py".into(), line, function: "step".into() };
        let holder = |rank, survivor_bytes| Holder {
            rank,
            step: 300,
            bytes: 400 << 20,
            blocks: 200,
            survivor_bytes,
            oldest_step: 96,
            growing_since_step: (survivor_bytes > 0).then_some(96),
            growth_bytes_per_step: 2 << 20,
            ..Holder::default()
        };
        let line = Line {
            frames: vec![frame(36), frame(80)],
            ranks: 2,
            holders: vec![holder(2, 380 << 20), holder(1, 0)],
            ..Line::default()
        };
        Lines { ranks: 4, lines: vec![line], lines_left_out: 3, ..Lines::default() }
    }

    #[test]
    fn a_line_says_what_it_holds_and_whether_it_grows() {
        let text = text(&leak(), None);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 5, "{text}");
        let has = |row: &str, words: &[&str]| words.iter().all(|word| row.contains(word));
        assert!(has(rows[1], &["train.py:36", "train.py:80", "400 MiB", "200", "96"]), "{text}");
        assert!(has(rows[1], &["+2 MiB"]), "{text}");
        assert!(has(rows[2], &["–"]) && !rows[2].contains("train.py"), "{text}");
        assert!(rows[3].starts_with("3 more lines"), "{text}");
    }

    #[test]
    fn without_a_census_it_says_why() {
        assert!(text(&Lines::default(), None).contains("no census"));
        let empty = Lines { ranks: 1, ..Lines::default() };
        assert!(text(&empty, Some(3)).contains("rank 3"));
    }
}
