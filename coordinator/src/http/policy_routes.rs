//! `/jobs/{job}/policy`: the action that the policy would take on a job now, and why; and the
//! approval of a restart by a person.

use axum::extract::Path;
use axum::response::Json;
use memtape_core::limits::ROWS_LISTED_MAX;
use memtape_core::policy::{Explanation, Mode};
use memtape_proto::api::{Approved, ExplainedIncident, ExplainedPolicy, ExplainedRemedy};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, IdPath, PathOf, Problem, attempt_of};
use crate::http::route_list::Routes;
use crate::ingest::event::Event;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/policy", "What would be done about a job now, and why.", explain).post(
        "/incidents/{id}/approve",
        "Approves a restart because of an incident.",
        approve,
    )
}

async fn explain(asking: Asking, path: PathOf<JobPath>) -> Answer<ExplainedPolicy> {
    let Path(JobPath { job }) = path?;
    let explained = asking.ask(move |view| {
        let job = attempt_of(view, &job, None)?.record.job.clone();
        let open = view.incidents().map(|known| known.incident());
        let open = open.filter(|incident| incident.job == job && incident.is_open());
        let open: Vec<_> = open.collect();
        // The same for all of them.
        let proved = view.proved(&job);
        let left_out = open.len().saturating_sub(ROWS_LISTED_MAX) as u64;
        let incidents = open
            .into_iter()
            .take(ROWS_LISTED_MAX)
            .map(|incident| {
                let explanation = view.explain(incident, &proved);
                explained(&incident.id, incident.class().as_str(), &explanation)
            })
            .collect();
        Ok(ExplainedPolicy { job, incidents, left_out })
    });
    explained.await?.map(Json)
}

fn explained(incident: &str, class: &str, explanation: &Explanation) -> ExplainedIncident {
    let remedies = explanation.remedies.iter().map(|(remedy, objection)| ExplainedRemedy {
        remedy: remedy.as_str().to_string(),
        objection: objection.as_ref().map(ToString::to_string).unwrap_or_default(),
    });
    ExplainedIncident {
        incident_id: incident.to_string(),
        class: class.to_string(),
        rule_line: explanation.line.and_then(|line| u32::try_from(line).ok()),
        mode: explanation.mode.as_str().to_string(),
        decision: explanation.decision.to_string(),
        remedies: remedies.collect(),
    }
}

async fn approve(asking: Asking, path: PathOf<IdPath>) -> Answer<Approved> {
    let Path(IdPath { id }) = path?;
    let incident = id.clone();
    let known = asking.ask(move |view| {
        let known = view.incident(&incident).map(|known| known.incident());
        let known = known.filter(|incident| incident.is_open());
        let known = known.ok_or_else(|| Problem::unknown("open incident", incident))?;
        let may_operate = view.attempt_of(known.serial).is_some_and(|of| view.may_operate(of));
        let explained = view.explain(known, &view.proved(&known.job));
        let is_needed = explained.needs_approval && explained.mode != Mode::Off;
        Ok::<_, Problem>((may_operate, is_needed))
    });
    let (may_operate, is_needed) = known.await??;
    if !may_operate {
        return Err(asking.lacks("operator of that job"));
    }
    asking.audit("approve", id.clone()).await?;
    let approved = Event::Approved { incident: id.clone() };
    asking.api.requests.send(approved).await.map_err(|_| Problem::stopping())?;
    Ok(Json(Approved { incident_id: id, is_needed }))
}
