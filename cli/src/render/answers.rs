//! Answers of the API as text for a terminal. Pure functions; the tests are examples.
//!
//! Everything that came from a training process (names, paths, commands) is cleaned of control
//! characters. States are words, never only colours.

use std::fmt::Write;

use memtape_core::capture::Reason;
use memtape_core::detector::Layer;
use memtape_core::diagnosis::Class;
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::paging::left_of_plan;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{
    Action, Actions, Alternative, Answer, Capture, Captures, Incident, Incidents, Job, Jobs,
    MissingShard, Outcome, Part,
};
use memtape_proto::api::{AuditEntry, Token};

use crate::clock::{age, utc};
use crate::output::{clean, shell_word};
use crate::render::palette::{self, Meaning};
use crate::render::ranks::count_of_trouble;
use crate::render::sections::{section, table_section};
use crate::render::table::{Cell, Table};
use crate::render::threads;
use crate::render::units::{bytes, counted, duration, frame, grown, two_digits};

/// The jobs, and how long ago each began.
pub(crate) fn jobs(of: &Jobs, now_ns: i64) -> String {
    let none = match of.missing_shards.is_empty() {
        true => "no job that you may see: start one with  memtape run -- torchrun …".to_string(),
        false => no("job", &of.missing_shards),
    };
    job_table(&of.jobs, now_ns).text_or(&none)
}

/// Says that a list is empty, and whether that is known of all shards.
fn no(what: &str, missing: &[MissingShard]) -> String {
    let shards = if missing.is_empty() { "" } else { " in the shards that answered" };
    format!("no {what}{shards}")
}

/// The jobs, one row each.
pub(crate) fn job_table<'a>(
    jobs: impl IntoIterator<Item = &'a Job>,
    now_ns: i64,
) -> Table<'a, Job> {
    let world = |job: &Job| if job.world_size == 0 { job.ranks } else { job.world_size };
    let steps = |job: &Job| match job.step_min == job.step_max {
        true => job.step_max.to_string(),
        false => format!("{}-{}", job.step_min, job.step_max),
    };
    Table::of(jobs)
        .column("job", |job| Cell::new(&job.job, Meaning::Strong))
        .column("owner", owner)
        .column(">attempt", |job| job.attempt)
        .column("state", |job| Cell::new(job.state_in_words(), palette::of_job(&job.state)))
        .column(">alive", |job| format!("{}/{}", job.ranks_alive, world(job)))
        .column(">step", |job| counted(&job.clock, &steps(job)))
        .column(">open incidents", |job| count_of_trouble(job.incidents_open.into()))
        .column(">started", |job| age(job.started_wall_ns, now_ns))
        .column_if_any("ends", |job| planned_end(job, now_ns))
        .column("nodes", |job| job.nodes.join(","))
}

/// Planned end of a job that runs: `in 2.5 h`, `at step 5000`, or the earlier of both.
fn planned_end(job: &Job, now_ns: i64) -> Option<String> {
    let &Job { ends_at_wall_ns, total_steps, .. } = job;
    let planned = PlannedEnd { ends_at_wall_ns, total_steps };
    let steps = || (job.clock.known().unwrap_or_default() == Clock::Steps).then_some(job.step_min);
    let (time, steps) = left_of_plan(planned, now_ns, steps);
    let time = time.map(|left_ns| match left_ns {
        ..=0 => format!("should have ended {}", age(now_ns + left_ns, now_ns)),
        _ => format!("in {}", duration(left_ns.unsigned_abs())),
    });
    let step = steps.map(|left| format!("at step {}", job.step_min + left));
    let ends: Vec<String> = time.into_iter().chain(step).collect();
    (job.ended_wall_ns.is_none() && !ends.is_empty()).then(|| ends.join(" or "))
}

/// User id of a job's owner, with the namespace in Kubernetes.
fn owner(job: &Job) -> String {
    match (job.owner_uid, job.namespace.as_str()) {
        (None, _) => "?".to_string(),
        (Some(uid), "") => uid.to_string(),
        (Some(uid), namespace) => format!("{uid} in {namespace}"),
    }
}

/// Incidents, one row each.
pub(crate) fn incidents(list: &Incidents, now_ns: i64) -> String {
    let urgency = |of: &Incident| Cell::new(of.urgency.as_str(), palette::of_incident(of));
    Table::of(&list.incidents)
        .column("incident", |of| of.id.clone())
        .column("state", |of| of.state.to_string())
        .column("urgency", urgency)
        .column("class", |of| of.class.to_string())
        .column_if_any("thread", threads::words)
        .column(">opened", |of| age(of.opened_wall_ns, now_ns))
        .column("what", |of| of.sentence.clone())
        .text_or(&no("incident", &list.missing_shards))
}

/// Captures, one row each.
pub(crate) fn captures(list: &Captures, now_ns: i64) -> String {
    let mut text = Table::of(&list.captures)
        .column("capture", |of| of.id.clone())
        .column("state", |of| of.state.to_string())
        .column("job", |of| of.job.clone())
        .column(">step", |of| if of.step > 0 { of.step.to_string() } else { "–".into() })
        .column(">aligned", |of| format!("{}/{}", of.aligned, of.ranks))
        .column("trigger", |of| of.trigger.clone())
        .column(">requested", |of| age(of.requested_wall_ns, now_ns))
        .text_or(&no("capture", &list.missing_shards));
    if list.captures.iter().any(|capture| is_baseline(&capture.trigger)) {
        let _ = writeln!(text, "baseline: {BASELINE}");
    }
    text
}

/// Actions on jobs and nodes, one row each.
pub(crate) fn actions(list: &Actions, now_ns: i64) -> String {
    let what = |of: &Action| {
        // A dry run has no other outcome than that it is one, and its decision says so.
        let outcome = if of.dry_run { &of.why } else { &of.outcome };
        let texts = [&of.proof, outcome, &of.why];
        texts.into_iter().find(|text| !text.is_empty()).cloned().unwrap_or_default()
    };
    Table::of(&list.actions)
        .column("action", |of| of.id.clone())
        .column("job or node", |of| if of.node.is_empty() { &of.job } else { &of.node }.clone())
        .column("decision", |of| of.decision.clone())
        .column("verdict", |of| of.verdict.clone())
        .column(">decided", |of| age(of.wall_ns, now_ns))
        .column("what came of it", what)
        .text_or(&no("action", &list.missing_shards))
}

/// A row for each token.
pub(crate) fn tokens(tokens: &[Token], now_ns: i64) -> String {
    let state = |token: &Token| match (token.valid, token.revoked_wall_ns) {
        (true, _) => "valid",
        (false, Some(_)) => "revoked",
        (false, None) => "expired",
    };
    let reach = |token: &Token| {
        let uids = token.uids.iter().map(ToString::to_string);
        let reach: Vec<String> = uids.chain(token.namespaces.iter().cloned()).collect();
        if reach.is_empty() { "all".to_string() } else { reach.join(",") }
    };
    Table::of(tokens)
        .column("token", |token| token.id.clone())
        .column("name", |token| token.name.clone())
        .column("role", |token| token.role.to_string())
        .column("jobs of", reach)
        .column("state", state)
        .column("expires", |token| utc(token.expires_wall_ns))
        .column("made by", |token| token.created_by.clone())
        .column(">made", |token| age(token.created_wall_ns, now_ns))
        .text_or("no token")
}

/// A row for each entry of the audit.
pub(crate) fn audit(entries: &[AuditEntry]) -> String {
    Table::of(entries)
        .column(">number", |of| of.number)
        .column("when", |of| utc(of.wall_ns))
        .column("who", |of| of.who.clone())
        .column("from", |of| of.from.clone())
        .column("action", |of| of.action.clone())
        .column("subject", |of| of.subject.clone())
        .text_or("no entry")
}

/// Purpose of a capture that no fault has triggered.
const BASELINE: &str = "no incident was open when it was taken: kept to compare later states with";

fn is_baseline(trigger: &str) -> bool {
    trigger == Reason::Baseline.as_str()
}

/// One incident: the sentence first, then the six answers, its other facts, and the evidence.
pub(crate) fn incident(incident: &Incident, capture: Option<&Capture>) -> String {
    let mut text = String::new();
    let meaning = palette::of_incident(incident);
    let _ = writeln!(text, "{}", meaning.paint(&clean(&incident.sentence)));
    // An older coordinator has no answers.
    let answers = incident.answers.six().into_iter().filter(|of| !of.title.is_empty());
    facts(&mut text, answers.map(|of| (of.title.as_str(), said(of, "; "))).collect());
    facts(&mut text, incident_facts(incident));
    section(&mut text, "Thread", threads::lines(&incident.thread));
    section(&mut text, stack_title(incident), incident.stack.iter().map(frame));
    // What a capture showed is of its step.
    let at_step = incident.capture_step.filter(|&step| step > 0);
    let at_step = at_step.map_or(String::new(), |step| format!(" (at step {step})"));
    let title = match incident.answers.evidence_title.as_str() {
        "" => "Evidence",
        title => title,
    };
    section(&mut text, &format!("{title}{at_step}"), incident.evidence.iter().cloned());
    let title = format!("Evidence against it{at_step}");
    section(&mut text, &title, incident.against.iter().cloned());
    let others = incident.alternatives.iter().flat_map(alternative);
    section(&mut text, "What else it may be", others);
    if !incident.suspects.is_empty() {
        let rows = Table::of(&incident.suspects)
            .column(">grown", |of| grown(of.grown_bytes))
            .column(">on peers", |of| grown(of.peer_bytes))
            .column(">blocks", |of| of.blocks)
            .column(">allocation steps", |of| of.allocation_steps)
            .column("line", |of| frame(&of.frame))
            .text();
        table_section(&mut text, &format!("Suspects{at_step}"), &rows, None);
    }
    if let Some(capture) = capture {
        let _ = write!(text, "\n{}", manifest(capture));
        let _ = writeln!(
            text,
            "\nFor pytorch.org/memory_viz:  memtape export {} --rank {} -o rank{}.pickle",
            shell_word(&capture.id),
            incident.rank,
            incident.rank
        );
    }
    text
}

/// Names and values, one below the other, behind an empty line; nothing where there are none.
fn facts(text: &mut String, pairs: Vec<(&str, String)>) {
    let width = pairs.iter().map(|(name, _)| name.chars().count() + 2).max().unwrap_or_default();
    for (index, (name, value)) in pairs.iter().enumerate() {
        let before = if index == 0 { "\n" } else { "" };
        let name = Meaning::Dim.paint(&format!("{:<width$}", clean(name)));
        let _ = writeln!(text, "{before}  {name}{}", clean(value));
    }
}

/// Title of an incident's stack: the request that failed, or the line that grows.
fn stack_title(incident: &Incident) -> &'static str {
    match incident.class.known() {
        Some(Class::OutOfMemory) => "Stack of the request that failed, innermost first",
        _ => "Stack, innermost first",
    }
}

/// Another class: the evidence for it and against it.
fn alternative(other: &Alternative) -> Vec<String> {
    let class = other.class.as_str().replace('_', " ");
    let standing = other.standing.as_str().replace('_', " ");
    let said = |side: &'static str, line: &String| format!("{class}, {standing}: {side}{line}");
    // A class that is ruled out has only what speaks against it.
    let against = match other.evidence.is_empty() {
        true => "",
        false => "against it, ",
    };
    let evidence = other.evidence.iter().map(|line| said("for it, ", line));
    evidence.chain(other.against.iter().map(|line| said(against, line))).collect()
}

/// An answer with what it rests on.
fn said(of: &Answer, by: &str) -> String {
    let since = of.since_wall_ns.map_or(String::new(), |at| format!(" {} UTC", utc(at)));
    let detail = if of.detail.is_empty() { "" } else { by };
    format!("{}{since}{detail}{}", of.text, of.detail)
}

/// Facts beside the six answers, a name and a value each.
fn incident_facts(incident: &Incident) -> Vec<(&str, String)> {
    let stored = if incident.stored { ", stored" } else { "" };
    let mut pairs: Vec<(&str, String)> = vec![
        ("incident", format!("{} ({}, {})", incident.id, incident.state, incident.class)),
        ("job", incident.job.clone()),
    ];
    pairs.extend(threads::facts(incident));
    let growth = incident.answers.growth.iter();
    pairs.extend(growth.map(|of| (of.title.as_str(), said(of, ", "))));
    if incident.layer != Layer::Process {
        let (onset, detected) = (incident.onset_step, incident.detected_step);
        pairs.push(("onset", format!("step {onset}, detected at step {detected}")));
    }
    pairs.push(("opened", format!("{} UTC{stored}", utc(incident.opened_wall_ns))));
    if !incident.closed_reason.is_empty() {
        pairs.push(("closed", incident.closed_reason.clone()));
    }
    pairs.extend(incident.reported_in.iter().map(|id| ("reported in", id.clone())));
    pairs.extend(incident.related_id.iter().map(|id| ("see also", id.clone())));
    pairs
}

/// One capture: its end, then every rank.
pub(crate) fn manifest(capture: &Capture) -> String {
    let before = match capture.before_step {
        0 => String::new(),
        step => format!(", compared with step {step}"),
    };
    let why = if is_baseline(&capture.trigger) { format!(" ({BASELINE})") } else { String::new() };
    let mut text = format!(
        "Capture {} is {}: {}{before}\n\
         trigger {}{why}, requested {} UTC\n",
        clean(&capture.id),
        capture.state,
        clean(&capture.shown),
        clean(&capture.trigger),
        utc(capture.requested_wall_ns),
    );
    // A rank whose snapshot is of another step stands in the table.
    let is_held = |rank| capture.parts.iter().any(|part| part.rank == rank && part.bytes > 0);
    for missing in capture.missing.iter().filter(|of| !is_held(of.rank)) {
        let detail =
            if missing.detail.is_empty() { String::new() } else { format!(": {}", missing.detail) };
        let line =
            format!("missing: rank {} is {}{detail}", missing.rank, missing.outcome.as_str());
        let _ = writeln!(text, "{}", clean(&line));
    }
    if capture.parts.is_empty() {
        return text;
    }
    let outcome = |part: &Part| {
        let dead = part.dead && part.outcome != Outcome::Dead;
        format!("{}{}", part.outcome.as_str(), if dead { " (dead)" } else { "" })
    };
    let microseconds = |part: &Part| {
        (part.wall_error_ns > 0)
            .then(|| format!("{} µs", two_digits(part.wall_error_ns as f64 / 1e3)))
    };
    text.push_str(
        &Table::of(&capture.parts)
            .column(">rank", |part| part.rank)
            .column("node", |part| part.node.clone())
            .column("outcome", outcome)
            .column(">step", |part| part.step)
            .column("ended (UTC)", |part| utc(part.wall_ns))
            .column_if_any(">±", microseconds)
            .column(">stored", |part| bytes(part.bytes))
            .column("detail", |part| part.detail.clone())
            .text(),
    );
    text
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::Answers;
    use serde_json::json;

    use super::*;
    use crate::client::parse;

    fn sample_answers() -> Answers {
        let answer = |title: &str, text: &str, detail: &str| Answer {
            title: title.to_string(),
            text: text.to_string(),
            since_wall_ns: None,
            detail: detail.to_string(),
        };
        let since_wall_ns = Some(1_795_244_404_000_000_000);
        Answers {
            rank: answer("Which rank", "rank 2", "device 0, n0"),
            time: Answer { since_wall_ns, ..answer("Stands still", "last step", "after step 90") },
            line: answer("Which line", "train.py:36 in remember", ""),
            kind: answer("Leak or just big", "95 % sure: a leak", "memory is kept"),
            restart: answer("A restart helps", "yes", "gives 82.5 MiB back (at step 90)"),
            remedy: answer("Try first", "detach it", "saves 82.5 MiB (at step 90)"),
            growth: vec![answer("growth", "+2.5 MiB a step", "at step 90")],
            evidence_title: "Evidence for it".to_string(),
        }
    }

    fn sample_incident() -> Incident {
        parse(&json!({
            "id": "inc-7", "job": "train-1", "rank": 2, "names_device": true, "class": "leak",
            "state": "open", "sentence": "Rank 2 keeps 2.5 MiB a step since step 41",
            "answers": sample_answers(),
            "stack": [{ "file": "train.py", "line": 36, "function": "remember" },
                { "file": "\u{1b}[31mtrain.py", "line": 80, "function": "main" }],
            "onset_step": 41, "detected_step": 74, "capture_step": 74,
            "evidence": ["allocated in 33 distinct steps"], "against": [],
            "alternatives": [{ "class": "reference_cycles", "standing": "ruled_out",
            "evidence": [], "against": ["it never gave back"] }],
            "suspects": [{ "frame": { "file": "train.py", "line": 36,
            "function": "remember" }, "grown_bytes": 86_507_520, "peer_bytes": 0, "blocks": 33,
            "allocation_steps": 33 }], "stored": true,
            "opened_wall_ns": 1_795_244_404_000_000_000_i64,
        }))
        .expect("shape")
    }

    fn sample_manifest() -> Capture {
        parse(&json!({
            "id": "cap-3", "job": "train-1", "trigger": "growth", "step": 74, "before_step": 20,
            "requested_wall_ns": 1_795_244_404_000_000_000_i64, "state": "partial", "ranks": 2,
            "aligned": 1, "shown": "1 of 2 ranks at the end of step 74",
            "missing": [{ "rank": 1, "outcome": "unreachable", "detail": "no answer" }],
            "parts": [{ "rank": 2, "node": "n0", "outcome": "aligned", "step": 74, "dead": true,
                "wall_ns": 1_795_244_404_000_000_000_i64, "wall_error_ns": 1500, "bytes": 2048 }],
        }))
        .expect("shape")
    }

    #[test]
    fn an_incident_is_a_sentence_first() {
        let text = incident(&sample_incident(), Some(&sample_manifest()));
        let expected = "\
Rank 2 keeps 2.5 MiB a step since step 41

  Which rank        rank 2; device 0, n0
  Stands still      last step 2026-11-21 07:00:04 UTC; after step 90
  Which line        train.py:36 in remember
  Leak or just big  95 % sure: a leak; memory is kept
  A restart helps   yes; gives 82.5 MiB back (at step 90)
  Try first         detach it; saves 82.5 MiB (at step 90)

  incident  inc-7 (open, leak)
  job       train-1
  growth    +2.5 MiB a step, at step 90
  onset     step 41, detected at step 74
  opened    2026-11-21 07:00:04 UTC, stored

Stack, innermost first
  train.py:36 remember
  \u{fffd}[31mtrain.py:80 main

Evidence for it (at step 74)
  allocated in 33 distinct steps

What else it may be
  reference cycles, ruled out: it never gave back

Suspects (at step 74)
      GROWN  ON PEERS  BLOCKS  ALLOCATION STEPS  LINE
  +82.5 MiB       0 B      33                33  train.py:36 remember

Capture cap-3 is partial: 1 of 2 ranks at the end of step 74, compared with step 20
trigger growth, requested 2026-11-21 07:00:04 UTC
missing: rank 1 is unreachable: no answer
RANK  NODE  OUTCOME         STEP  ENDED (UTC)               ±  STORED  DETAIL
   2  n0    aligned (dead)    74  2026-11-21 07:00:04  1.5 µs   2 KiB

For pytorch.org/memory_viz:  memtape export cap-3 --rank 2 -o rank2.pickle
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_incident_of_an_older_coordinator_has_its_other_facts() {
        let of = Incident { answers: Answers::default(), ..sample_incident() };
        let text = incident(&of, None);
        let head = "Rank 2 keeps 2.5 MiB a step since step 41\n\n  incident  inc-7 (open, leak)\n";
        assert!(text.starts_with(head) && text.contains("\nEvidence (at step 74)\n"), "{text}");
    }

    #[test]
    fn a_baseline_is_explained() {
        let of = |trigger: &str| Capture { trigger: trigger.into(), ..Capture::default() };
        let explained = "no incident was open when it was taken: kept to compare later states with";
        for (trigger, expected) in [("baseline", true), ("growth", false)] {
            assert_eq!(manifest(&of(trigger)).contains(explained), expected, "{trigger}");
            let list = Captures { captures: vec![of(trigger)], ..Captures::default() };
            assert_eq!(captures(&list, 0).contains(explained), expected, "{trigger}");
        }
    }

    #[test]
    fn empty_lists_are_reported_as_empty() {
        assert!(jobs(&Jobs::default(), 0).contains("memtape run"));
        assert_eq!(incidents(&Incidents::default(), 0), "no incident\n");
        assert_eq!(captures(&Captures::default(), 0), "no capture\n");
        assert_eq!(actions(&Actions::default(), 0), "no action\n");
    }

    /// An empty list of half a cluster is no all-clear.
    #[test]
    fn empty_lists_of_some_shards_say_so() {
        let missing_shards = || vec![MissingShard::default()];
        let jobs = jobs(&Jobs { missing_shards: missing_shards(), ..Jobs::default() }, 0);
        assert_eq!(jobs, "no job in the shards that answered\n");
        let list = Incidents { missing_shards: missing_shards(), ..Incidents::default() };
        assert_eq!(incidents(&list, 0), "no incident in the shards that answered\n");
        let list = Captures { missing_shards: missing_shards(), ..Captures::default() };
        assert_eq!(captures(&list, 0), "no capture in the shards that answered\n");
        let list = Actions { missing_shards: missing_shards(), ..Actions::default() };
        assert_eq!(actions(&list, 0), "no action in the shards that answered\n");
    }

    #[test]
    fn a_job_shows_how_far_its_ranks_are_apart() {
        let job: Job =
            parse(&json!({ "job": "j", "world_size": 8, "ranks_alive": 7, "step_min": 3,
            "step_max": 5, "step_on_tapes": 1, "state": "incident", "class": "host",
            "nodes": ["a", "b"] }))
            .expect("shape");
        let text = jobs(&Jobs { jobs: vec![job], ..Jobs::default() }, 0);
        for word in ["7/8", "3-5", "host", "a,b"] {
            assert!(text.contains(word), "{word} in {text}");
        }
        assert!(!text.contains("ENDS"), "{text}");
    }

    #[test]
    fn a_job_shows_its_planned_end_while_it_runs() {
        let hours = |hours: i64| Some(hours * 3_600 * 1_000_000_000);
        let (ends_at_wall_ns, total_steps) = (hours(5), Some(5_000));
        let both = Job { ends_at_wall_ns, total_steps, ..Job::default() };
        let steps = Job { ends_at_wall_ns: None, ..both.clone() };
        let ended = Job { ended_wall_ns: Some(1), ..both.clone() };
        let at = |minutes: i64| Job {
            ends_at_wall_ns: Some((120 + minutes) * 60 * 1_000_000_000),
            total_steps: None,
            ..both.clone()
        };
        let gone_on = Job { step_min: 5_001, ..steps.clone() };
        let found = [&both, &steps, &ended, &at(-3), &at(-10), &gone_on, &Job::default()];
        let found = found.map(|job| planned_end(job, 2 * 3_600 * 1_000_000_000));
        let found = found.each_ref().map(Option::as_deref);
        let (first, last) = ("in 3 h or at step 5000", "at step 5000");
        let late = Some("should have ended 3 min ago");
        assert_eq!(found, [Some(first), Some(last), None, late, None, None, None]);
        let list = Jobs { jobs: vec![both, ended], ..Jobs::default() };
        assert!(jobs(&list, 0).contains("in 5 h or at step 5000"));
    }

    #[test]
    fn an_action_shows_its_proof_or_its_state_before() {
        let of = |outcome: &str, proof: &str| Action {
            id: "act-1".to_string(),
            job: "train".to_string(),
            decision: "restart".to_string(),
            why: "leak".to_string(),
            outcome: outcome.to_string(),
            verdict: if proof.is_empty() { String::new() } else { "helped".to_string() },
            proof: proof.to_string(),
            ..Action::default()
        };
        let line = |action: Action| {
            let text = actions(&Actions { actions: vec![action], ..Actions::default() }, 0);
            text.lines().nth(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let expected = |text: &str| Some(format!("act-1 train restart {text}"));
        assert_eq!(line(of("", "")), expected("– leak"));
        assert_eq!(line(of("requeued job 7", "")), expected("– requeued job 7"));
        let proven = of("requeued job 7", "peak 9 GiB, then 1 GiB");
        assert_eq!(line(proven), expected("helped – peak 9 GiB, then 1 GiB"));
        let node = Action { node: "n1".to_string(), job: String::new(), ..of("drained", "") };
        assert_eq!(line(node).as_deref(), Some("act-1 n1 restart – drained"));
    }
}
