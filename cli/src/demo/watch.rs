//! The demo's requests to the coordinator, and the lines that it prints about the answers.
//!
//! With `--json` these lines go to stderr, so that stdout holds one object.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::bail;
use memtape_proto::api::{
    Capture, CaptureState, Incident, IncidentState, Incidents, Job, JobState, Jobs, Named,
};
use memtape_proto::snapshot::{self, Bounds};
use serde_json::{Value, json};

use crate::client::{Client, parse};
use crate::output;
use crate::render::units::{duration, frame, plural};

use super::children::Children;

/// Time between two requests.
pub(crate) const POLL_TIME: Duration = Duration::from_millis(200);

/// Longest time between an incident and its diagnosis. Longer than the coordinator's deadline for
/// captures, after which the diagnosis is made.
const DIAGNOSIS_TIME_MAX: Duration = Duration::from_secs(40);

/// Time between two lines about the time that is left.
const COUNTDOWN_TIME: Duration = Duration::from_secs(10);

/// Steps between two lines about a healthy job.
const STEPS_BETWEEN_LINES: u64 = 100;

/// Polls the coordinator and prints what changed.
#[derive(Debug)]
pub(crate) struct Watch {
    json: bool,
    interrupted: Receiver<()>,
    was_interrupted: bool,
    begin: Instant,
    /// State and step of the job in the last line about it.
    shown: (Named<JobState>, u64),
}

/// The incident the demo waits for, and its capture.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) incident: Incident,
    pub(crate) capture: Option<Capture>,
}

impl Watch {
    /// `interrupted` receives once, when the user wants to stop.
    pub(crate) fn new(json: bool, interrupted: Receiver<()>) -> Self {
        let (begin, shown) = (Instant::now(), Default::default());
        Self { json, interrupted, was_interrupted: false, begin, shown }
    }

    /// Prints one line with the time since the start.
    pub(crate) fn say(&self, line: &str) {
        let seconds = self.begin.elapsed().as_secs_f64();
        self.write(&format!("[{seconds:5.1} s] {}", output::clean(line)));
    }

    fn write(&self, text: &str) {
        if self.json {
            eprintln!("{text}");
        } else {
            // A closed stdout does not end the demo.
            let _ = output::print(text);
        }
    }

    /// Waits for [`POLL_TIME`], or until the user interrupts.
    pub(crate) fn pause(&mut self) {
        if self.was_interrupted {
            return;
        }
        match self.interrupted.recv_timeout(POLL_TIME) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => self.was_interrupted = true,
        }
    }

    /// True once the user wants to stop.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.was_interrupted
    }

    /// The last state of the job, for an error.
    pub(crate) fn last_seen(&self) -> String {
        match &self.shown {
            (state, _) if state.as_str().is_empty() => "no agent has reported a rank".to_string(),
            (state, step) => format!("the job was {state} at step {step}"),
        }
    }

    /// Waits for an incident of the job and its diagnosis. Returns none when the user
    /// interrupted or the time is over.
    /// Fails when a process of the demo has ended.
    pub(crate) fn incident(
        &mut self,
        client: &Client,
        job: &str,
        limit: Option<Duration>,
        children: &mut Children,
    ) -> anyhow::Result<Option<Found>> {
        let begin = Instant::now();
        let mut opened: Option<Instant> = None;
        while !self.was_interrupted {
            check_running(children)?;
            self.show_progress(client, job);
            if let Some(found) = first_incident(client, job) {
                let since = *opened.get_or_insert_with(|| {
                    self.say(&format!(
                        "incident {}: {}",
                        found.incident.id, found.incident.sentence
                    ));
                    Instant::now()
                });
                if found.is_explained() || since.elapsed() > DIAGNOSIS_TIME_MAX {
                    return Ok(Some(found));
                }
            }
            if opened.is_none() && limit.is_some_and(|limit| begin.elapsed() > limit) {
                return Ok(None);
            }
            self.pause();
        }
        Ok(None)
    }

    fn show_progress(&mut self, client: &Client, job: &str) {
        let Some(state) = job_state(client, job) else { return };
        let (shown_state, shown_step) = &self.shown;
        if *shown_state != state.state || state.step_min >= shown_step + STEPS_BETWEEN_LINES {
            self.say(&format!(
                "job {job}: {}, step {}, {}",
                plural(u64::from(state.ranks_alive), "rank"),
                state.step_min,
                state.state
            ));
            self.shown = (state.state, state.step_min);
        }
    }

    /// Prints the incident, and its URLs if the coordinator keeps running (`base`).
    pub(crate) fn show_incident(&self, found: &Found, base: Option<&str>) {
        let incident = &found.incident;
        let culprit = incident.culprit.as_ref().map_or("no culprit".to_string(), frame);
        self.say(&format!("{}: {}", incident.class, incident.sentence));
        self.say(&format!("culprit: {culprit}"));
        if let Some(capture) = &found.capture {
            self.say(&format!(
                "capture {}: {} of {} at the end of step {}",
                capture.id,
                capture.aligned,
                plural(u64::from(capture.ranks), "rank"),
                capture.step
            ));
        }
        if let Some(base) = base {
            self.say(&format!("page: {base}/#/incident/{}", incident.id));
            self.say(&format!("API:  {base}/api/v1/incidents/{}", incident.id));
        }
    }

    /// Prints commands that the user may try while the demo runs.
    pub(crate) fn show_commands_to_try(&self, found: &Found, base: &str, rank_pid: Option<u32>) {
        let id = &found.incident.id;
        let program = this_program();
        let mut text = format!(
            "\nThe demo runs until Ctrl-C. Try in another terminal:\n  \
             export MEMTAPE_COORDINATOR={base}\n  \
             {program} show {id}\n  \
             {program} ranks\n  \
             {program} capture {} --wait\n  \
             {program} export {id} -o leak.pickle      # opens in pytorch.org/memory_viz\n",
            found.incident.job
        );
        if let Some(pid) = rank_pid {
            text.push_str(&format!(
                "  kill -9 {pid}; {program} ranks   # the tape of a killed rank stays readable\n"
            ));
        }
        self.write(&text);
    }

    /// Prints commands that show the state in which a rank ended.
    fn show_after_end(&self, name: &str) {
        let program = this_program();
        self.write(&format!(
            "\nThe tape of {name} outlives the process:\n  \
             {program} ranks         # how it ended, beside the others\n  \
             {program} captures      # the state of all ranks at that moment\n  \
             {program} incidents     # the incident that was opened before\n"
        ));
    }

    /// Prints changes of the job and the ends of processes until the user interrupts.
    pub(crate) fn until_interrupted(
        &mut self,
        client: &Client,
        job: &str,
        children: &mut Children,
    ) -> anyhow::Result<()> {
        let (mut counted, mut has_ended) = (None::<Instant>, false);
        while !self.was_interrupted {
            for (name, status, line) in children.ended() {
                self.say(&format!("{name} ended ({status}): {line}"));
                if !has_ended && first_incident(client, job).is_some_and(|it| it.is_of(&name)) {
                    self.show_after_end(&name);
                    has_ended = true;
                }
            }
            if !has_ended
                && counted.is_none_or(|at| at.elapsed() >= COUNTDOWN_TIME)
                && let Some(line) = time_left(client, job)
            {
                self.say(&line);
                counted = Some(Instant::now());
            }
            if let Some(state) = job_state(client, job)
                && state.state != self.shown.0
            {
                self.say(&format!("job {job}: {} ranks alive, {}", state.ranks_alive, state.state));
                self.shown.0 = state.state;
            }
            self.pause();
        }
        self.say("stopping");
        Ok(())
    }
}

impl Found {
    /// True when the capture is closed and the diagnosis is stored.
    fn is_explained(&self) -> bool {
        let closed =
            self.capture.as_ref().is_some_and(|capture| capture.state != CaptureState::Collecting);
        let diagnosed = self.incident.culprit.is_some() || !self.incident.evidence.is_empty();
        closed && diagnosed && self.incident.stored
    }

    /// Is it about the demo's process of this name?
    fn is_of(&self, name: &str) -> bool {
        name == format!("rank-{}", self.incident.rank)
    }

    /// Compares the incident, the capture and the leaking rank's snapshot with what a restarted
    /// coordinator answers. The onset may differ: later steps refine the estimate.
    /// The error says what is missing or different.
    pub(crate) fn read_back(&self, client: &Client) -> anyhow::Result<()> {
        let incident = &self.incident;
        let again: Incident = parse(&client.get(&["incidents", &incident.id], &[])?)?;
        let before = (incident.rank, &incident.class, &incident.culprit, &incident.capture_id);
        let stored = (again.rank, &again.class, &again.culprit, &again.capture_id);
        if stored != before {
            bail!("incident {} was {before:?} and is {stored:?}", incident.id);
        }
        let Some(capture) = &self.capture else { return Ok(()) };
        let again: Capture = parse(&client.get(&["captures", &capture.id], &[])?)?;
        let before = (&capture.state, capture.step, capture.aligned);
        let stored = (&again.state, again.step, again.aligned);
        if stored != before {
            bail!("capture {} was {before:?} and is {stored:?}", capture.id);
        }
        let snapshot =
            snapshot::decode(&client.snapshot(&capture.id, incident.rank)?, Bounds::default())?;
        if snapshot.identity.rank != incident.rank {
            bail!("capture {} has another rank's snapshot for rank {}", capture.id, incident.rank);
        }
        Ok(())
    }

    /// The demo's result for `--json`.
    pub(crate) fn to_json(&self, stored: bool) -> Value {
        let incident = &self.incident;
        let capture = self.capture.as_ref().map(|capture| {
            json!({
                "id": capture.id, "step": capture.step, "ranks": capture.ranks,
                "aligned": capture.aligned, "missing": capture.missing,
            })
        });
        json!({
            "incident": {
                "id": incident.id, "rank": incident.rank, "class": incident.class,
                "culprit": incident.culprit, "onset_step": incident.onset_step,
                "detected_step": incident.detected_step,
            },
            "capture": capture,
            "stored": stored,
        })
    }
}

/// This program as the user called it.
fn this_program() -> String {
    let called = std::env::args_os().next();
    called.map_or("memtape".to_string(), |called| Path::new(&called).display().to_string())
}

fn check_running(children: &mut Children) -> anyhow::Result<()> {
    match children.ended().into_iter().next() {
        Some((name, status, line)) => bail!("{name} ended too early ({status}): {line}"),
        None => Ok(()),
    }
}

/// The result of a demo without an incident.
pub(crate) fn no_incident() -> Value {
    json!({ "incident": null, "capture": null, "stored": null })
}

fn job_state(client: &Client, job: &str) -> Option<Job> {
    let Jobs { jobs } = parse(&client.get(&["jobs"], &[]).ok()?).ok()?;
    jobs.into_iter().find(|state| state.job == job)
}

/// When memory ends, as the open incident says.
fn time_left(client: &Client, job: &str) -> Option<String> {
    let incident = first_incident(client, job)?.incident;
    let seconds = incident
        .seconds_to_oom
        .filter(|&seconds| incident.state == IncidentState::Open && seconds > 0)?;
    let left = duration(seconds as f64);
    Some(format!("rank {}: out of memory in {left}", incident.rank))
}

fn first_incident(client: &Client, job: &str) -> Option<Found> {
    let Incidents { incidents } = parse(&client.get(&["incidents"], &[("job", job)]).ok()?).ok()?;
    let incident = incidents.into_iter().min_by_key(|incident| incident.opened_wall_ns)?;
    let capture = client.capture_of(&incident);
    Some(Found { incident, capture })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memtape_core::diagnosis::Class;
    use memtape_proto::api::Frame;

    #[test]
    fn the_result_has_its_shape() {
        let culprit = Frame { file: "t.py".into(), line: 3, function: "f".into() };
        let found = Found {
            incident: Incident {
                id: "inc-1".into(),
                rank: 5,
                class: Class::Leak.into(),
                culprit: Some(culprit),
                onset_step: 100,
                detected_step: 130,
                stored: true,
                ..Incident::default()
            },
            capture: Some(Capture {
                id: "cap-1".into(),
                step: 131,
                ranks: 8,
                aligned: 8,
                state: CaptureState::Complete.into(),
                ..Capture::default()
            }),
        };
        assert!(found.is_explained());
        let expected = json!({
            "incident": { "id": "inc-1", "rank": 5, "class": "leak",
                "culprit": { "file": "t.py", "line": 3, "function": "f" },
                "onset_step": 100, "detected_step": 130 },
            "capture": { "id": "cap-1", "step": 131, "ranks": 8, "aligned": 8, "missing": [] },
            "stored": true,
        });
        assert_eq!(found.to_json(true), expected);
        assert_eq!(no_incident()["incident"], Value::Null);
    }

    #[test]
    fn an_incident_without_closed_capture_is_not_explained() {
        let found = |state: &str, evidence: &[&str], stored: bool| Found {
            incident: Incident {
                stored,
                evidence: evidence.iter().map(|line| line.to_string()).collect(),
                ..Incident::default()
            },
            capture: Some(Capture { state: Named::of(state), ..Capture::default() }),
        };
        assert!(!found("collecting", &["e"], true).is_explained());
        assert!(!found("complete", &[], true).is_explained());
        assert!(!found("complete", &["e"], false).is_explained());
        assert!(found("partial", &["e"], true).is_explained());
        assert!(!Found { incident: Incident::default(), capture: None }.is_explained());
    }
}
