//! Collectives as text: of one tape, and of a capture's ranks.

use std::fmt::Write;

use memtape_core::snapshot::{CollectiveGroup, Collectives};
use memtape_proto::api;

use crate::clock::utc;
use crate::output::clean;
use crate::render::table::Table;
use crate::render::units::plural;

/// The collectives of one tape; one line if they are unknown.
pub(crate) fn text(of: &Collectives) -> String {
    let mut text = String::new();
    if of.look_wall_ns == 0 {
        let why = of.source.why_not().unwrap_or("the flight recorder has not answered yet");
        let _ = writeln!(text, "{:<12}unknown: {why}{}", "collectives", since(of));
    } else {
        let _ = writeln!(text, "\nCollectives at {} UTC{}", utc(of.look_wall_ns), no_newer(of));
        text.push_str(&groups(&of.groups));
        if of.groups_lost > 0 {
            let more = plural(of.groups_lost, "more group");
            let _ = writeln!(text, "{more} had no room on the tape");
        }
    }
    if of.asked_wall_ns != 0 {
        let at = utc(of.asked_wall_ns);
        let _ = writeln!(text, "the flight recorder was asked at {at} UTC and has not answered");
    }
    text
}

/// Since when the collectives are unknown, if the tape has that time.
fn since(of: &Collectives) -> String {
    match of.source_since_ns {
        0 => String::new(),
        ns => format!(", since {} UTC", utc(ns)),
    }
}

/// Why the flight recorder was not read again, if the tape has a reason.
fn no_newer(of: &Collectives) -> String {
    let why = of.source.why_not();
    why.map_or(String::new(), |why| format!("; not read again: {why}{}", since(of)))
}

fn groups(groups: &[CollectiveGroup]) -> String {
    let number = |number: Option<u64>| number.map_or("–".to_string(), |n| n.to_string());
    let text = |text: &str| if text.is_empty() { "?".to_string() } else { text.to_string() };
    Table::of(groups)
        .column(">group", |group| group.id)
        .column("name", |group| text(&group.name))
        .column("for", |group| text(&group.desc))
        .column(">ranks", |group| if group.size == 0 { "?".into() } else { group.size.to_string() })
        .column(">enqueued", |group| number(group.enqueued))
        .column(">started", |group| number(group.started))
        .column(">completed", |group| number(group.completed))
        .column("since (UTC)", |group| utc(group.since_wall_ns))
        .text()
}

/// The coordinator's sentences about a capture's ranks that are not in what was `said`; empty if it
/// is older and has none.
pub(crate) fn of_capture(answer: &api::Collectives, said: &str) -> String {
    let mut text = String::new();
    for sentence in answer.comparison.sentences.iter().filter(|of| !said.contains(of.as_str())) {
        let heading = if text.is_empty() { "\nCollectives\n" } else { "" };
        let _ = writeln!(text, "{heading}  {}", clean(sentence));
    }
    text
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::CollectiveSource;
    use serde_json::{Value, json};

    use super::*;

    fn known() -> Collectives {
        let group = CollectiveGroup {
            id: 1,
            name: "3".into(),
            size: 4,
            enqueued: Some(812),
            completed: Some(811),
            since_wall_ns: 1_700_000_000_000_000_000,
            ..CollectiveGroup::default()
        };
        Collectives {
            source: CollectiveSource::FlightRecorder,
            look_wall_ns: 1_700_000_001_000_000_000,
            groups: vec![group],
            ..Collectives::default()
        }
    }

    #[test]
    fn numbers_that_are_not_known_are_not_zero() {
        let text = text(&known());
        let row = text.lines().nth(3).expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..7], ["1", "3", "?", "4", "812", "–", "811"], "{text}");
        let shown = json!(api::RankCollectives::from(&known()));
        assert_eq!(shown["groups"][0]["started"], Value::Null);
        assert_eq!((&shown["unknown"], &shown["asked_wall_ns"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn unknown_collectives_have_a_reason() {
        let off = Collectives { source: CollectiveSource::Off, ..Collectives::default() };
        let text = super::text(&off);
        assert!(text.starts_with("collectives unknown: the flight recorder is off"), "{text}");
        assert_eq!(text.lines().count(), 1);
        assert!(api::RankCollectives::from(&off).unknown.is_some());

        let hung = Collectives { asked_wall_ns: 5, source: CollectiveSource::Making, ..known() };
        let text = super::text(&hung);
        assert!(text.contains("; not read again: an NCCL communicator is being made"), "{text}");
        assert!(text.contains("has not answered"), "{text}");
    }

    #[test]
    fn a_captures_sentences_are_shown_and_an_older_coordinator_has_none() {
        let sentences = ["group 0: one", "rank 3:\u{1b}not known"].map(str::to_string);
        let mut answer = api::Collectives::default();
        answer.comparison.sentences = sentences.to_vec();
        assert_eq!(
            of_capture(&answer, "group 7: one"),
            "\nCollectives\n  group 0: one\n  rank 3:\u{fffd}not known\n"
        );
        assert_eq!(of_capture(&api::Collectives::default(), ""), "");
        let once = of_capture(&answer, "all 4 ranks stand still; group 0: one");
        assert_eq!(once, "\nCollectives\n  rank 3:\u{fffd}not known\n");
    }
}
