//! Collectives as text: those of one tape, and those of a capture's ranks.

use std::fmt::Write;

use memtape_core::snapshot::{CollectiveGroup, Collectives};
use memtape_proto::api;

use crate::clock::utc;
use crate::output::clean;
use crate::render::units::table;

/// What a tape says: one line where nothing is known.
pub(crate) fn text(of: &Collectives) -> String {
    let mut text = String::new();
    if of.look_wall_ns == 0 {
        let why = of.source.why_not().unwrap_or("the flight recorder has not answered yet");
        let _ = writeln!(text, "{:<12}not known: {why}{}", "collectives", since(of));
    } else {
        let _ = writeln!(text, "\nCollectives at {} UTC{}", utc(of.look_wall_ns), changed(of));
        let titles = [">group", "name", "for", ">ranks", ">enqueued", ">started", ">completed"];
        let mut titles = titles.to_vec();
        titles.push("since (UTC)");
        text.push_str(&table(&titles, of.groups.iter().map(row).collect()));
        if of.groups_lost > 0 {
            let _ = writeln!(text, "{} more groups are not on the tape", of.groups_lost);
        }
    }
    if of.asked_wall_ns != 0 {
        let at = utc(of.asked_wall_ns);
        let _ = writeln!(text, "the flight recorder was asked at {at} UTC and had not answered");
    }
    text
}

/// Since when nothing is known, where that is known.
fn since(of: &Collectives) -> String {
    match of.source_since_ns {
        0 => String::new(),
        ns => format!(", since {} UTC", utc(ns)),
    }
}

/// Why there was no look since, where there is a reason.
fn changed(of: &Collectives) -> String {
    let why = of.source.why_not();
    why.map_or(String::new(), |why| format!("; none since, as {why}{}", since(of)))
}

fn row(group: &CollectiveGroup) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or("–".to_string(), |n| n.to_string());
    let text = |text: &str| if text.is_empty() { "?".to_string() } else { clean(text) };
    vec![
        group.id.to_string(),
        text(&group.name),
        text(&group.desc),
        if group.size == 0 { "?".to_string() } else { group.size.to_string() },
        number(group.enqueued),
        number(group.started),
        number(group.completed),
        utc(group.since_wall_ns),
    ]
}

/// What a coordinator says of a capture's ranks; nothing from one that does not say it.
pub(crate) fn of_capture(answer: &api::Collectives) -> String {
    let mut text = String::new();
    for sentence in &answer.sentences {
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
    fn what_is_not_known_has_its_reason() {
        let off = Collectives { source: CollectiveSource::Off, ..Collectives::default() };
        let text = super::text(&off);
        assert!(text.starts_with("collectives not known: the flight recorder is off"), "{text}");
        assert_eq!(text.lines().count(), 1);
        assert!(api::RankCollectives::from(&off).unknown.is_some());

        let hung = Collectives { asked_wall_ns: 5, source: CollectiveSource::Making, ..known() };
        let text = super::text(&hung);
        assert!(text.contains("; none since, as an NCCL communicator is being made"), "{text}");
        assert!(text.contains("had not answered"), "{text}");
    }

    #[test]
    fn a_captures_sentences_are_shown_and_an_older_coordinator_has_none() {
        let sentences = ["group 0: one", "rank 3:\u{1b}not known"].map(str::to_string);
        let answer =
            api::Collectives { sentences: sentences.to_vec(), ..api::Collectives::default() };
        assert_eq!(
            of_capture(&answer),
            "\nCollectives\n  group 0: one\n  rank 3:\u{fffd}not known\n"
        );
        assert_eq!(of_capture(&api::Collectives::default()), "");
    }
}
