//! Collectives as text and JSON: those of one tape, and those of a capture's ranks.

use std::fmt::Write;

use memtape_core::snapshot::{CollectiveGroup, Collectives};
use serde_json::{Value, json};

use crate::clock::utc;
use crate::output::clean;
use crate::render::table;

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

/// The same as JSON; a number that is not known is null.
pub(crate) fn json(of: &Collectives) -> Value {
    let time = |ns: i64| (ns != 0).then_some(ns);
    let group = |group: &CollectiveGroup| {
        json!({
            "id": group.id, "key": format!("{:016x}", group.key), "name": group.name,
            "desc": group.desc, "size": group.size, "enqueued": group.enqueued,
            "started": group.started, "completed": group.completed,
            "since_wall_ns": group.since_wall_ns,
        })
    };
    json!({
        "unknown": of.source.why_not(), "source_since_ns": time(of.source_since_ns),
        "look_wall_ns": time(of.look_wall_ns), "look_took_ns": of.look_took_ns,
        "asked_wall_ns": time(of.asked_wall_ns), "groups_lost": of.groups_lost,
        "groups": of.groups.iter().map(group).collect::<Vec<_>>(),
    })
}

/// What a coordinator says of a capture's ranks; nothing from one that does not say it.
pub(crate) fn of_capture(answer: &Value) -> String {
    let sentences = answer["sentences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut text = String::new();
    for sentence in sentences.iter().filter_map(Value::as_str) {
        let heading = if text.is_empty() { "\nCollectives\n" } else { "" };
        let _ = writeln!(text, "{heading}  {}", clean(sentence));
    }
    text
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::CollectiveSource;

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
        let shown = json(&known());
        assert_eq!(shown["groups"][0]["started"], Value::Null);
        assert_eq!((&shown["unknown"], &shown["asked_wall_ns"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn what_is_not_known_has_its_reason() {
        let off = Collectives { source: CollectiveSource::Off, ..Collectives::default() };
        let text = super::text(&off);
        assert!(text.starts_with("collectives not known: the flight recorder is off"), "{text}");
        assert_eq!(text.lines().count(), 1);
        assert!(json(&off)["unknown"].is_string() && json(&off)["look_wall_ns"].is_null());

        let hung = Collectives { asked_wall_ns: 5, source: CollectiveSource::Making, ..known() };
        let text = super::text(&hung);
        assert!(text.contains("; none since, as an NCCL communicator is being made"), "{text}");
        assert!(text.contains("had not answered"), "{text}");
    }

    #[test]
    fn a_captures_sentences_are_shown_and_an_older_coordinator_has_none() {
        let answer = json!({ "sentences": ["group 0: one", "rank 3:\u{1b}not known"] });
        assert_eq!(
            of_capture(&answer),
            "\nCollectives\n  group 0: one\n  rank 3:\u{fffd}not known\n"
        );
        assert_eq!(of_capture(&Value::Null), "");
    }
}
