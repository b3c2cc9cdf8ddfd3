//! What sets a run apart from another one, as text: accounts, lines of code and traits.

use memtape_core::account::Unit;
use memtape_core::differences::Kind;
use memtape_proto::api::{Difference, Differences, Group};

use crate::output::clean;
use crate::render::sections::table_section;
use crate::render::table::Table;
use crate::render::units::{bytes, frame, plural, signed_bytes};

/// Both runs, and tables of what differs.
pub(crate) fn text(found: &Differences) -> String {
    let mut text = format!("A: {}\nB: {}\n", run(&found.baseline), run(&found.chosen));
    let of = |kinds: fn(Kind) -> bool| -> Vec<&Difference> {
        let is_of = |of: &&Difference| of.kind.known().is_some_and(kinds);
        found.differences.iter().filter(is_of).collect()
    };
    let mut section = |title: &str, rows: String, rest: Option<String>| {
        if !rows.is_empty() {
            table_section(&mut text, title, &rows, rest);
        }
    };
    section("By account", table(&of(|kind| kind == Kind::Account)), None);
    let rest = |count: u32, which: &str| (count > 0).then(|| format!("… and {count} more {which}"));
    let lines = rest(found.lines_left_out, "with smaller differences");
    section("By line", table(&of(|kind| kind == Kind::Line)), lines);
    let more = rest(found.traits_left_out, "with smaller parts");
    section("Ranks", traits(&of(|kind| !matches!(kind, Kind::Account | Kind::Line))), more);
    if found.chosen.counted_ranks == 0 || found.baseline.counted_ranks == 0 {
        text.push_str("\nlines are not compared: no rank of a run was counted\n");
    }
    text
}

/// A run, its ranks, its steps, and those at which its lines were counted.
fn run(of: &Group) -> String {
    let steps = match (of.first_step, of.last_step) {
        (Some(first), Some(last)) => format!("steps {first} to {last}"),
        _ => "no step is kept".to_string(),
    };
    let cut = if of.is_cut { ", older ones left out" } else { "" };
    let counted = match (of.counted_first_step, of.counted_last_step) {
        (Some(first), Some(last)) if first == last => format!(", lines as of step {last}"),
        (Some(first), Some(last)) => format!(", lines as of steps {first} to {last}"),
        _ => String::new(),
    };
    let ranks = plural(of.ranks.into(), "rank");
    format!("{}, attempt {}, {ranks}, {steps}{cut}{counted}", clean(&of.job), of.attempt)
}

/// The word of an account, the place of a line, or the value of a trait.
pub(crate) fn name(of: &Difference) -> String {
    match of.kind.known() {
        Some(Kind::Line) => of.frames.first().map_or("(no stack)".to_string(), frame),
        Some(Kind::DeviceSize) => of.name.parse().map_or(clean(&of.name), bytes),
        _ => clean(&of.name),
    }
}

/// A value in the unit of a difference.
pub(crate) fn value(of: &Difference, value: u64) -> String {
    match of.unit.known() {
        Some(Unit::Bytes) => bytes(value),
        Some(Unit::Nanoseconds) => milliseconds(value),
        _ => value.to_string(),
    }
}

/// Three digits: `8.25 ms`, `120 ms`.
fn milliseconds(nanoseconds: u64) -> String {
    let ms = nanoseconds as f64 / 1e6;
    let digits = if ms >= 100.0 {
        0
    } else if ms >= 10.0 {
        1
    } else {
        2
    };
    format!("{ms:.digits$} ms")
}

/// How much more the run has, in its unit and in percent.
fn change(of: &Difference, run: u64, baseline: u64) -> String {
    let more = i64::try_from(i128::from(run) - i128::from(baseline)).unwrap_or(i64::MAX);
    let amount = match of.unit.known() {
        Some(Unit::Bytes) => signed_bytes(more),
        _ if more < 0 => format!("−{}", value(of, more.unsigned_abs())),
        _ => format!("+{}", value(of, more.unsigned_abs())),
    };
    match baseline {
        _ if more == 0 => "0".to_string(),
        0 => amount,
        _ => format!("{amount} ({:+.1} %)", more as f64 / baseline as f64 * 100.0),
    }
}

fn table(rows: &[&Difference]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    Table::of(rows.iter().copied())
        .column("what", name)
        .column(">median in A", |of| value(of, of.baseline.median))
        .column(">in B", |of| value(of, of.chosen.median))
        .column(">change", |of| change(of, of.chosen.median, of.baseline.median))
        .column(">highest in A", |of| value(of, of.baseline.highest))
        .column(">highest in B", |of| value(of, of.chosen.highest))
        .column(">of rank", |of| {
            of.chosen.highest_rank.map_or("–".to_string(), |of| of.to_string())
        })
        .text()
}

fn traits(rows: &[&Difference]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    Table::of(rows.iter().copied())
        .column("what", |of| of.kind.as_str().replace('_', " "))
        .column("value", name)
        .column(">ranks in A", |of| of.baseline.ranks)
        .column(">ranks in B", |of| of.chosen.ranks)
        .text()
}

#[cfg(test)]
mod tests {
    use memtape_core::differences::Level;
    use memtape_proto::api::Frame;

    use super::*;

    #[test]
    fn runs_stand_beside_each_other() {
        let level = |median, highest| Level { ranks: 4, median, highest, highest_rank: Some(2) };
        let row = |kind: Kind, name: &str, unit: Unit, chosen, baseline| Difference {
            kind: kind.into(),
            name: name.to_string(),
            unit: unit.into(),
            chosen,
            baseline,
            ..Difference::default()
        };
        let (low, high) = (level(1 << 30, 2 << 30), level(1 << 30, 3 << 30));
        let group = |job: &str, attempt| Group {
            job: job.to_string(),
            attempt,
            ranks: 4,
            counted_ranks: 4,
            counted_first_step: Some(190 + u64::from(attempt)),
            counted_last_step: Some(191),
            first_step: Some(1),
            last_step: Some(200),
            ..Group::default()
        };
        let ranks = |ranks| Level { ranks, ..Level::default() };
        let line = Frame { file: "/app/train.py".into(), line: 36, function: "step".into() };
        let found = Differences {
            chosen: group("train@0", 1),
            baseline: group("train@0", 0),
            differences: vec![
                row(Kind::Account, "peak", Unit::Bytes, high, low),
                row(
                    Kind::Account,
                    "step_time",
                    Unit::Nanoseconds,
                    level(2_000_000_000, 0),
                    level(1_000_000_000, 0),
                ),
                Difference {
                    frames: vec![line],
                    ..row(Kind::Line, "", Unit::Bytes, high, level(0, 0))
                },
                row(Kind::Setting, "expandable_segments:True", Unit::Ranks, ranks(4), ranks(0)),
            ],
            lines_left_out: 1,
            ..Differences::default()
        };
        let shown = text(&found);
        for expected in [
            "A: train@0, attempt 0, 4 ranks, steps 1 to 200, lines as of steps 190 to 191",
            "B: train@0, attempt 1, 4 ranks, steps 1 to 200, lines as of step 191",
            "(+100.0 %)",
            "2000 ms",
            "train.py:36",
            "expandable_segments:True",
            "… and 1 more with smaller differences",
        ] {
            assert!(shown.contains(expected), "{expected}\n{shown}");
        }
    }
}
