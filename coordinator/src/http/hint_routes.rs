//! `/jobs/{job}/hints`: what could be changed in a job so that it takes less memory, and the effect
//! of the settings applied at its last starts.
//!
//! The hints are about one device of one rank, the fullest: its steps and its newest snapshot are
//! read from the store, a block and a snapshot at a time.

use axum::extract::Path;
use axum::response::Json;
use memtape_core::action::PROOF_STEPS;
use memtape_core::action::Verdict;
use memtape_core::hints::proof::{Outcome, Window, verdict};
use memtape_core::hints::{Captured, Setting, suggest, to_apply};
use memtape_proto::api::{AppliedHints, Hints};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, attempt_of};
use crate::http::route_list::Routes;
use crate::state::actions::of_row;
use crate::state::hints::{Against, Gathered, Trial, gather};
use crate::work::blocking::Client;
use crate::work::decoding::Snapshots;
use memtape_store::records::{SeriesKey, StepRecord};
use memtape_store::{Found, Store};

/// Memory of an answer, and of the records that are read for it.
const ANSWER_BYTES: u64 = 2 << 20;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get(
        "/jobs/{job}/hints",
        "What could be changed in a job so that it takes less memory, and the effect of the \
         settings applied at its last start.",
        hints,
    )
}

async fn hints(asking: Asking, path: PathOf<JobPath>) -> Answer<Hints> {
    let Path(JobPath { job }) = path?;
    asking.reserve(ANSWER_BYTES).await?;
    let gathered = asking.ask(move |view| {
        let job = &attempt_of(view, &job, None)?.record.job;
        gather(view, job).ok_or_else(|| Problem::unknown("job", job))
    });
    let mut gathered = gathered.await??;
    read_capture(&asking.api.snapshots, &mut gathered).await;
    let store = asking.api.store.clone();
    let read = asking.work(move |client| answer(&Steps { store, client }, gathered));
    read.await?.map_err(Problem::broken).map(Json)
}

/// Reads the newest snapshot of the fullest device.
async fn read_capture(snapshots: &Snapshots, gathered: &mut Gathered) {
    let (Some((capture, hash)), Some(SeriesKey { device, .. })) =
        (gathered.snapshot.take(), gathered.series)
    else {
        return;
    };
    let name = capture.clone();
    let captured = move |snapshot, _| Captured::of(&name, &snapshot, device);
    match snapshots.read(hash, snapshots.bounds(), captured).await {
        Ok(captured) => gathered.facts.capture = captured,
        Err(why) => {
            gathered.facts.unreadable = Some(format!("{capture} cannot be read: {why}"));
        }
    }
}

/// Reads the steps, and makes the answer. Blocks.
fn answer(steps: &Steps<'_>, gathered: Gathered) -> memtape_store::Result<Hints> {
    let Gathered { mut facts, mut answer, series, has_steps, trials, applied, .. } = gathered;
    if let Some(key) = series {
        let mut newest = None;
        let window = steps.window(key, u64::MAX, &mut newest)?;
        facts.reserved_bytes = facts.reserved_bytes.max(window.memory.reserved_bytes);
        facts.step = facts.step.or(newest.filter(|_| has_steps).map(|row| of_row(&row)));
    }
    let mut is_newest = true;
    for trial in trials {
        let (shown, not_helpful) = proof(steps, &trial)?;
        facts.tried.extend(not_helpful);
        if std::mem::take(&mut is_newest) {
            answer.applied = Some(shown);
        }
    }
    let suggested = suggest(&facts);
    answer.reserved_bytes = facts.reserved_bytes;
    answer.settings = Setting::join(&to_apply(&applied, &facts.tried, &suggested.hints));
    answer.hints = suggested.hints;
    answer.missing.extend(suggested.missing);
    Ok(answer)
}

/// The effect of the settings of one attempt; and the settings that are known not to help. A
/// setting that the earlier attempt had, too, is not judged. Blocks.
fn proof(steps: &Steps<'_>, trial: &Trial) -> memtape_store::Result<(AppliedHints, Vec<Setting>)> {
    let mut shown = AppliedHints {
        attempt: trial.attempt.0,
        attempt_ordinal: trial.attempt.1,
        settings: Setting::join(&trial.settings),
        ..AppliedHints::default()
    };
    let Some((against, whole)) = earlier(steps, trial)? else {
        shown.proof = format!(
            "no earlier attempt without these settings made {PROOF_STEPS} steps and recorded its \
             own settings, on a rank that has them now"
        );
        return Ok((shown, Vec::new()));
    };
    let next = steps.window(against.after, u64::MAX, &mut None)?;
    let count = whole.steps().min(next.steps());
    let before = steps.window(against.before, whole.step_after(count), &mut None)?;
    let after = steps.window(against.after, next.step_after(count), &mut None)?;
    let outcome = Outcome { steps: whole.steps(), ..against.outcome };
    let next_outcome = Outcome { steps: next.steps(), ..trial.outcome };
    let found = verdict((&before, &outcome), (&after, &next_outcome));
    shown.settings = Setting::join(&against.settings);
    shown.judged = Setting::join(&against.judged);
    shown.compared_with = Some(against.attempt.0);
    shown.compared_with_ordinal = Some(against.attempt.1);
    (shown.rank, shown.device) = (Some(against.before.rank), Some(against.before.device));
    (shown.before, shown.after) = (Some(before.memory), Some(after.memory));
    let mut not_helpful = Vec::new();
    match &found {
        Some(found) => {
            shown.verdict = found.as_str().to_string();
            shown.proof = found.why().to_string();
            if matches!(found, Verdict::NoEffect(_) | Verdict::Worse(_)) {
                not_helpful.clone_from(&against.judged);
            }
        }
        None => {
            shown.proof = format!("{count} of the {PROOF_STEPS} steps that a verdict needs");
        }
    }
    Ok((shown, not_helpful))
}

/// The newest of the earlier attempts that made enough steps, and its steps. Blocks.
fn earlier<'a>(
    steps: &Steps<'_>,
    trial: &'a Trial,
) -> memtape_store::Result<Option<(&'a Against, Window)>> {
    for against in &trial.against {
        let whole = steps.window(against.before, u64::MAX, &mut None)?;
        if whole.steps() >= PROOF_STEPS {
            return Ok(Some((against, whole)));
        }
    }
    Ok(None)
}

/// The stored steps, as long as a client waits for them.
struct Steps<'a> {
    store: Store,
    client: &'a Client,
}

impl Steps<'_> {
    /// The steps of a device up to one; and its newest record of all. Blocks.
    fn window(
        &self,
        key: SeriesKey,
        step_max: u64,
        newest: &mut Option<StepRecord>,
    ) -> memtape_store::Result<Window> {
        let mut window = Window::default();
        self.store.series_each(key, &mut |found| {
            match found {
                Found::Rows(rows) => {
                    for row in rows {
                        window.add(step_max, &of_row(&row));
                        if newest.is_none_or(|of| row.last_step >= of.last_step) {
                            *newest = Some(row);
                        }
                    }
                }
                Found::Forgotten => (window, *newest) = (Window::default(), None),
            }
            self.client.waits()
        })?;
        Ok(window)
    }
}
