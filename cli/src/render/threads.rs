//! What people did about an incident, in words: who acknowledged and silenced it, whom it is
//! assigned to, and all entries of its thread.

use memtape_proto::api::{Deed, Incident, Silence, Thread, ThreadEntry};

use crate::clock::utc;
use crate::render::units::plural;

/// Is the incident silenced now?
pub(crate) fn is_silenced(incident: &Incident) -> bool {
    incident.thread.silence.as_ref().is_some_and(|silence| silence.holds)
}

/// All of it in a few words, for a list; none where no one did anything.
pub(crate) fn words(incident: &Incident) -> Option<String> {
    let thread = &incident.thread;
    let silenced = is_silenced(incident).then(|| "silenced".to_string());
    let acknowledged = thread.acknowledged.as_ref().map(|of| format!("acknowledged by {}", of.who));
    let assigned = Some(&thread.assignee).filter(|name| !name.is_empty());
    let assigned = assigned.map(|name| format!("assigned to {name}"));
    let notes = (thread.notes_total > 0).then(|| plural(thread.notes_total.into(), "note"));
    let parts: Vec<String> =
        [silenced, acknowledged, assigned, notes].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Facts of one incident, a name and a value each.
pub(crate) fn facts(incident: &Incident) -> impl Iterator<Item = (&str, String)> {
    let thread = &incident.thread;
    let acknowledged = thread
        .acknowledged
        .as_ref()
        .map(|of| ("thread", format!("acknowledged by {} at {} UTC", of.who, utc(of.wall_ns))));
    let silence = thread.silence.as_ref().map(|of| ("silenced", silence(of)));
    let assigned = Some(&thread.assignee).filter(|name| !name.is_empty());
    let assigned = assigned.map(|name| ("assigned to", name.clone()));
    [acknowledged, silence, assigned].into_iter().flatten()
}

fn silence(of: &Silence) -> String {
    let over = if of.holds { "" } else { "; it is over" };
    let until = until(of.until_step, of.until_wall_ns);
    format!("{until}, by {} at {} UTC{over}", of.who, utc(of.since_wall_ns))
}

/// The end of a silence, as `until step 5000`.
fn until(step: Option<u64>, wall_ns: Option<i64>) -> String {
    match step {
        Some(step) => format!("until step {step}"),
        None => format!("until {} UTC", utc(wall_ns.unwrap_or_default())),
    }
}

/// The lines of the thread, oldest first: when, who and what, and the text of a note set in below.
pub(crate) fn lines(thread: &Thread) -> impl Iterator<Item = String> {
    let left_out = u64::from(thread.entries_left_out);
    let head = (left_out > 0).then(|| format!("{} not shown", entries(left_out)));
    head.into_iter().chain(thread.entries.iter().flat_map(|entry| {
        let head = format!("{} UTC  {}", utc(entry.wall_ns), what(entry));
        let is_note = entry.deed == Deed::Noted;
        let text = is_note.then(|| entry.text.lines().map(|line| format!("  {line}")));
        std::iter::once(head).chain(text.into_iter().flatten())
    }))
}

fn entries(count: u64) -> String {
    if count == 1 { "1 earlier entry".into() } else { format!("{count} earlier entries") }
}

/// What was done, and who did it.
fn what(entry: &ThreadEntry) -> String {
    let ThreadEntry { who, text, .. } = entry;
    match entry.deed.known() {
        Some(Deed::Acknowledged) => format!("{who} acknowledged it"),
        Some(Deed::Unacknowledged) => format!("{who} took the acknowledgement back"),
        Some(Deed::Silenced) => {
            format!("{who} silenced it {}", until(entry.until_step, entry.until_wall_ns))
        }
        Some(Deed::SilenceEnded) => format!("{who} ended the silence"),
        Some(Deed::SilenceEndedByUrgency) => "the silence ended: it became more urgent".into(),
        Some(Deed::SilenceEndedByClass) => "the silence ended: it got another class".into(),
        Some(Deed::SilenceEndedByIncident) => {
            "the silence ended: it reports another incident".into()
        }
        Some(Deed::Assigned) if text.is_empty() => format!("{who} assigned it to no one"),
        Some(Deed::Assigned) => format!("{who} assigned it to {text}"),
        Some(Deed::Noted) => format!("{who} wrote"),
        // Of a newer coordinator.
        None => format!("{who} {} {text}", entry.deed),
    }
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::Incidents;
    use serde_json::json;

    use super::*;
    use crate::client::parse;
    use crate::render::answers;

    fn sample(holds: bool) -> Incident {
        let wall_ns = 1_795_244_404_000_000_000_i64;
        let silence = json!({ "holds": holds, "until_step": 5000, "who": "olga",
            "since_wall_ns": wall_ns });
        let entry = |deed: &str, text: &str| {
            let who = "olga";
            json!({ "who": who, "wall_ns": wall_ns, "deed": deed, "text": text })
        };
        let entries = [
            entry("assigned", "team-a"),
            entry("noted", "one\nSuspects\u{1b}[31m"),
            json!({ "who": "", "wall_ns": wall_ns, "deed": "silence_ended_by_urgency" }),
        ];
        parse(&json!({
            "id": "inc-7", "job": "train", "state": "open", "class": "leak", "urgency": "page",
            "layer": "allocated", "sentence": "rank 2 keeps memory", "thread": {
                "acknowledged": { "who": "olga", "wall_ns": wall_ns }, "silence": silence,
                "assignee": "team-a", "entries": entries, "entries_left_out": 2, "notes_total": 1,
            },
        }))
        .expect("shape")
    }

    #[test]
    fn a_thread_is_shown_in_order_with_its_notes_set_in() {
        let text = answers::incident(&sample(true), None);
        for expected in [
            "  thread       acknowledged by olga at 2026-11-21 07:00:04 UTC\n",
            "  silenced     until step 5000, by olga at 2026-11-21 07:00:04 UTC\n",
            "  assigned to  team-a\n",
            "\nThread\n  2 earlier entries not shown\n  2026-11-21 07:00:04 UTC  olga assigned it \
             to team-a\n  2026-11-21 07:00:04 UTC  olga wrote\n    one\n    Suspects\u{fffd}[31m\n",
            "07:00:04 UTC  the silence ended: it became more urgent\n",
        ] {
            assert!(text.contains(expected), "no {expected:?} in {text}");
        }
        assert!(answers::incident(&sample(false), None).contains("07:00:04 UTC; it is over\n"));
    }

    #[test]
    fn a_list_has_a_column_where_people_did_something() {
        let list = |incident: Incident| {
            answers::incidents(&Incidents { incidents: vec![incident], ..Incidents::default() }, 0)
        };
        let text = list(sample(true));
        let expected = "silenced; acknowledged by olga; assigned to team-a; 1 note";
        assert!(text.contains("THREAD") && text.contains(expected), "{text}");
        assert!(!list(sample(false)).contains("silenced"));
        assert!(!list(Incident::default()).contains("THREAD"));
    }
}
