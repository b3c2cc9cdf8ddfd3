//! `/incidents` and `/actions`: what was found, what people do about it, and what was decided about
//! restarts.

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Json;
use memtape_core::action::ActionKind;
use memtape_core::diagnosis::{self, Diagnosis, Fate};
use memtape_core::incident::answers::{Context, RankContext};
use memtape_core::incident::{self, Entry, ThreadRefused, ThreadRequest, Tracked, Until};
use memtape_core::limits::ROWS_LISTED_MAX;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{
    Action, Actions, Alternative, Answers, Incident, IncidentState, Incidents, JobQuery, Remedy,
    Restart, Silence, Thread, ThreadEntry,
};
use tokio::sync::oneshot;

use crate::http::asking::Asking;
use crate::http::job_routes::count;
use crate::http::request::{Answer, IdPath, PathOf, Problem, QueryOf, Sent, shared};
use crate::http::route_list::Routes;
use crate::ingest::event::Event;
use crate::state::actions::holder;
use crate::state::effects::ThreadNotChanged;
use crate::state::visible::Visible;
use memtape_store::records::ActionRecord;

/// Memory of a list of incidents, as values and as JSON.
const LIST_BYTES: u64 = 16 << 20;

pub(crate) fn add(routes: Routes) -> Routes {
    routes
        .get("/incidents", "The newest incidents.", list)
        .get("/incidents/{id}", "One incident.", one)
        .post(
            "/incidents/{id}/thread",
            "Acknowledges, silences or assigns an incident, or adds a note to it.",
            change_thread,
        )
        .get("/actions", "The newest decisions about jobs and nodes.", actions)
}

async fn list(asking: Asking, query: QueryOf<JobQuery>) -> Answer<Incidents> {
    let Query(query) = query?;
    asking.reserve(LIST_BYTES).await?;
    let incidents = asking.ask(move |view| {
        let newest = view.incidents().rev();
        let of_job = newest.filter(|known| query.has(&known.incident().job)).collect();
        let listed = shared(of_job, ROWS_LISTED_MAX, Tracked::holder);
        listed.into_iter().map(|known| without_entries(incident(view, known))).collect()
    });
    Ok(Json(Incidents { incidents: incidents.await?, ..Incidents::default() }))
}

async fn one(asking: Asking, path: PathOf<IdPath>) -> Answer<Incident> {
    let Path(IdPath { id }) = path?;
    let found = asking.ask(move |view| {
        let known = view.incident(&id).map(|known| incident(view, known));
        known.ok_or_else(|| Problem::unknown("incident", id))
    });
    found.await?.map(Json)
}

/// A list has room for the incidents, and not for all their notes.
fn without_entries(mut incident: Incident) -> Incident {
    incident.thread.entries = Vec::new();
    incident
}

async fn change_thread(asking: Asking, path: PathOf<IdPath>, Sent(body): Sent) -> Answer<Incident> {
    let Path(IdPath { id }) = path?;
    let request: ThreadRequest = match body.trim_ascii() {
        [] => ThreadRequest::default(),
        body => serde_json::from_slice(body)?,
    };
    let (of, who, asked) = (id.clone(), asking.caller.name.clone(), request.clone());
    let checked = asking.ask(move |view| {
        let known = view.incident(&of).map(|known| known.incident());
        let known = known.ok_or_else(|| Problem::unknown("incident", of))?;
        let known = &*view.newest(known);
        let refused = known.thread_after(view.now().wall_ns, &who, &asked).err();
        Ok::<_, Problem>((view.may_act_on(known), refused))
    });
    let (may_act, refused) = checked.await??;
    if !may_act {
        return Err(asking.lacks("operator of that job"));
    }
    if let Some(why) = refused {
        return Err(not_changed(&why.into()));
    }
    asking.audit("incident", format!("{id}: {request}")).await?;
    let (reply, changed) = oneshot::channel();
    let (of, who, request) = (id.clone(), asking.caller.name.clone(), Box::new(request));
    let event = Event::ThreadChanged { id: of, who, request, reply };
    asking.api.requests.send(event).await.map_err(|_| Problem::stopping())?;
    let changed = changed.await.map_err(|_| Problem::stopping())?;
    changed.map_err(|why| not_changed(&why))?;
    one(asking, Ok(Path(IdPath { id }))).await
}

fn not_changed(why: &ThreadNotChanged) -> Problem {
    let status = match why {
        ThreadNotChanged::Refused(ThreadRefused::Unknown) => StatusCode::NOT_FOUND,
        ThreadNotChanged::Refused(ThreadRefused::ManyNotes | ThreadRefused::Closed) => {
            StatusCode::CONFLICT
        }
        ThreadNotChanged::Refused(_) => StatusCode::BAD_REQUEST,
        ThreadNotChanged::NotStored(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, why.to_string())
}

async fn actions(asking: Asking) -> Answer<Actions> {
    let actions = asking.ask(|view| {
        let listed = shared(view.actions().rev().collect(), ROWS_LISTED_MAX, holder);
        listed.into_iter().map(action).collect::<Vec<_>>()
    });
    Ok(Json(Actions { actions: actions.await?, ..Actions::default() }))
}

/// What became of the ranks of an incident's attempt; empty for growth, and where the attempt is no
/// longer known.
fn fates(view: &Visible<'_>, incident: &incident::Incident) -> Vec<Fate> {
    let attempt = view.attempt_of(incident.serial).filter(|_| incident.failure.is_some());
    attempt.map_or_else(Vec::new, |attempt| {
        let watch = view.watch(attempt);
        attempt.ranks.values().map(|rank| watch.fate(rank)).collect()
    })
}

/// When an open standstill that is a notice pages, to follow its sentence; empty for others.
fn pages_at(view: &Visible<'_>, of: &incident::Incident) -> String {
    let attempt = view.attempt_of(of.serial).filter(|_| of.growth.is_standstill());
    let due = attempt
        .and_then(|attempt| view.watch(attempt).ranks(attempt).pages_in_ns(view.now().wall_ns, of));
    due.map_or(String::new(), |due_in_ns| {
        let at = (view.now().wall_ns.unsigned_abs() + due_in_ns) / 1_000_000_000 % 86_400;
        let (hour, minute, second) = (at / 3_600, at / 60 % 60, at % 60);
        format!("; it pages at {hour:02}:{minute:02}:{second:02} UTC unless the job goes on")
    })
}

/// An incident, of what core knows of it and nothing else.
fn incident(view: &Visible<'_>, tracked: &Tracked) -> Incident {
    let incident = view.newest(tracked.incident());
    // What is over has no forecast.
    let is_open = incident.is_open();
    let forecast = incident.growth.forecast.filter(|_| is_open);
    let capture = incident.capture_id.as_ref().and_then(|id| view.capture(id));
    let capture_step = capture.map(|capture| capture.record.step);
    let growth = incident.growth;
    let (bytes_per_step, grown_bytes) = growth.bytes().unwrap_or_default();
    let (count_per_step, grown_count) = growth.count().unwrap_or_default();
    let state = match is_open {
        true => IncidentState::Open,
        false => IncidentState::Closed,
    };
    let facts = Incident {
        id: incident.id.clone(),
        job: incident.job.clone(),
        attempt: incident.attempt,
        rank: growth.rank,
        device: growth.device,
        names_device: growth.layer.names_device(),
        scope: growth.scope.into(),
        layer: growth.layer.into(),
        class: incident.class().into(),
        state: state.into(),
        sentence: incident.sentence_with(&fates(view, &incident)) + &pages_at(view, &incident),
        answers: answers(view, &incident, capture_step),
        clock: incident.clock.into(),
        onset_step: incident.onset_step(),
        detected_step: growth.detected_step,
        last_step: growth.last_step,
        paused_since_step: growth.paused_since_step.filter(|_| is_open),
        bytes_per_step,
        grown_bytes,
        count_per_step,
        grown_count,
        steps_to_oom: growth.steps_to_oom.filter(|_| is_open),
        steps_to_oom_p10: forecast.map(|forecast| forecast.p10),
        steps_to_oom_p90: forecast.map(|forecast| forecast.p90),
        seconds_to_oom: incident.seconds_to_oom.filter(|_| is_open),
        peers: growth.peers,
        ranks: growth.ranks,
        evidence: incident.evidence(),
        against: incident.against(),
        urgency: incident.urgency.into(),
        capture_id: incident.capture_id.clone(),
        capture_step,
        stored: tracked.is_stored(),
        opened_wall_ns: incident.opened_wall_ns,
        updated_wall_ns: incident.updated_wall_ns,
        closed_wall_ns: incident.closed.map(|closed| closed.wall_ns),
        closed_reason: incident.closed_reason(),
        related_id: incident.related.clone(),
        reported_in: incident.reported_in.clone(),
        thread: thread(view, &incident),
        ..Incident::default()
    };
    match &incident.diagnosis {
        Some(diagnosis) => diagnosed(facts, diagnosis, &incident),
        None => facts,
    }
}

/// The answers, with what is known of the rank now.
fn answers(view: &Visible<'_>, of: &incident::Incident, capture_step: Option<u64>) -> Answers {
    let rank = view.attempt_of(of.serial).and_then(|attempt| attempt.ranks.get(&of.growth.rank));
    let rank = rank.map(|rank| RankContext {
        step: rank.step,
        step_wall_ns: rank.step_wall_ns,
        has_ended: rank.record.end.is_some(),
        node: &rank.record.node,
        is_sized: rank.totals.iter().any(|totals| totals.device_bytes > 0),
        limitations: &rank.record.limitations,
    });
    let related = of.related.as_ref().and_then(|id| view.incident(id));
    of.answers(&Context {
        rank,
        capture_step,
        related: related.map(Tracked::incident),
        is_silenced: of.is_silenced(view.now().wall_ns),
    })
}

fn thread(view: &Visible<'_>, of: &incident::Incident) -> Thread {
    let thread = &of.thread;
    let silence = |silence: &incident::Silence| {
        let (until_wall_ns, until_step) = ends(Some(silence.until));
        let (who, since_wall_ns) = (silence.who.clone(), silence.since_wall_ns);
        let holds = of.is_silenced(view.now().wall_ns);
        Silence { holds, until_wall_ns, until_step, who, since_wall_ns }
    };
    let entry = |of: &Entry| {
        let (until_wall_ns, until_step) = ends(of.until);
        let Entry { who, wall_ns, deed, text, .. } = of.clone();
        ThreadEntry { who, wall_ns, deed: deed.into(), text, until_wall_ns, until_step }
    };
    Thread {
        acknowledged: thread.acknowledged.clone(),
        silence: thread.silence.as_ref().map(silence),
        assignee: thread.assignee.clone(),
        entries: thread.entries.iter().map(entry).collect(),
        entries_left_out: thread.entries_left_out,
        notes_total: count(thread.notes().count()),
        may_change: view.may_act_on(of),
    }
}

/// The end of a silence: a time or a step.
fn ends(until: Option<Until>) -> (Option<i64>, Option<u64>) {
    match until {
        Some(Until::WallNs(end)) => (Some(end), None),
        Some(Until::Step(end)) => (None, Some(end)),
        None => (None, None),
    }
}

/// What a diagnosis adds.
fn diagnosed(facts: Incident, diagnosis: &Diagnosis, of: &incident::Incident) -> Incident {
    let ratio = |ppm: u32| f64::from(ppm) / 1e6;
    let clock = of.clock;
    let restart = diagnosis.restart_now(&of.growth, of.is_open());
    let (explained_bytes, unexplained_bytes) = diagnosis.explained_now(&of.growth);
    Incident {
        culprit: diagnosis.culprit.clone(),
        stack: diagnosis.stack.clone(),
        explained_ratio: ratio(diagnosis.explained_ppm),
        allocation_steps: diagnosis.allocation_steps,
        advice: clock.in_words(&diagnosis.advice),
        confidence: ratio(diagnosis.confidence_ppm),
        explained_bytes,
        unexplained_bytes,
        remedy: Remedy {
            cause: diagnosis.remedy.cause.as_str().to_string(),
            is_guess: diagnosis.remedy.is_guess,
            saves_bytes: diagnosis.saves_bytes_now(&of.growth),
        },
        restart: Restart {
            helps: restart.answer.helps(),
            freed_bytes: restart.gives_back_bytes,
            lasts_steps: restart.lasts_steps,
            ends_after_steps: restart.ends_after_steps,
            why: clock.in_words(&restart.to_string()),
        },
        alternatives: diagnosis
            .alternatives
            .iter()
            .skip(1)
            .map(|of| alternative(of, clock))
            .collect(),
        age_profile: diagnosis.histogram.course.as_str().to_string(),
        age_buckets: diagnosis.histogram.buckets.clone(),
        suspects: diagnosis.suspects.clone(),
        ..facts
    }
}

fn alternative(other: &diagnosis::Alternative, clock: Clock) -> Alternative {
    let in_words = |lines: &[String]| lines.iter().map(|line| clock.in_words(line)).collect();
    Alternative {
        class: other.class.into(),
        standing: other.standing.into(),
        evidence: in_words(&other.evidence),
        against: in_words(&other.against),
    }
}

fn action(record: &ActionRecord) -> Action {
    let gain = record.gain().unwrap_or_default();
    let is_of_node = record.kind == ActionKind::KeepOut;
    Action {
        id: record.id.clone(),
        incident_id: record.incident_id.clone(),
        job: record.job.clone(),
        node: if is_of_node { record.node.clone() } else { String::new() },
        attempt: record.attempt,
        kind: record.target.into(),
        decision: record.decision(),
        dry_run: record.dry_run,
        why: record.why.clone(),
        wall_ns: record.wall_ns,
        outcome: record.outcome.to_string(),
        checkpoint: record.checkpoint.clone(),
        verdict: record.verdict.map(|it| it.as_str().to_string()).unwrap_or_default(),
        verdict_wall_ns: record.verdict_wall_ns,
        proof: record.proof().unwrap_or_default(),
        steps_lost: gain.steps_lost,
        saved_seconds: gain.saved_ns.map(|saved_ns| saved_ns / 1_000_000_000),
    }
}
