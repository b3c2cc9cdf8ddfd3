//! What the demo waits for: an incident, a capture, or both; and its result.

use anyhow::bail;
use memtape_proto::api::{Capture, CaptureState, Incident};
use memtape_proto::snapshot::{self, Bounds};
use serde_json::{Value, json};

use super::answers::{Answers, Judged};
use super::scenarios::{Goal, Scenario};
use crate::client::{Client, parse};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) incident: Option<Incident>,
    /// The incident's capture; without an incident, that of the death.
    pub(crate) capture: Option<Capture>,
    /// The capture at the request that failed.
    pub(crate) oom: Option<Capture>,
    /// The rank that left a collective out, and what the capture says of it.
    pub(crate) desynchronised: Option<(u32, String)>,
}

impl Found {
    /// What there is now: the incident of the goal's class, else the first one, and its capture.
    /// None while there is nothing.
    pub(crate) fn now(answers: Answers<'_>, goal: Goal) -> Option<Self> {
        let mut incidents = answers.incidents();
        let is_it = |incident: &Incident| goal.class().is_some_and(|class| incident.class == class);
        let at = incidents.iter().position(is_it).unwrap_or(0);
        let incident = (at < incidents.len()).then(|| incidents.swap_remove(at));
        let capture = incident.as_ref().and_then(|known| answers.client.capture_of(known));
        let is_empty = incident.is_none() && capture.is_none();
        (!is_empty).then_some(Self { incident, capture, ..Self::default() })
    }

    /// True when it is what the goal says, captures are closed, and a diagnosis is stored.
    pub(crate) fn reaches(&self, goal: Goal) -> bool {
        let capture = self.capture.as_ref();
        let is_closed = capture.is_some_and(|capture| capture.state != CaptureState::Collecting);
        let is_diagnosed = self.incident.as_ref().is_some_and(|incident| {
            let has_reasons = incident.culprit.is_some() || !incident.evidence.is_empty();
            let is_class = goal.class().is_some_and(|class| incident.class == class);
            is_class && has_reasons && incident.stored
        });
        is_closed
            && match goal {
                Goal::Incident(_) | Goal::OutOfMemory(_) | Goal::Death => is_diagnosed,
                Goal::Desynchronised => self.desynchronised.is_some(),
            }
    }

    /// The rank that it is about.
    pub(crate) fn rank(&self) -> Option<u32> {
        let incident = self.incident.as_ref().map(|incident| incident.rank);
        let left_out = self.desynchronised.as_ref().map(|(rank, _)| *rank);
        incident.or(left_out).or_else(|| self.capture.as_ref()?.trigger_rank)
    }

    /// What was found, in the words of the API.
    pub(crate) fn sentence(&self) -> Option<&str> {
        let incident = self.incident.as_ref().map(|incident| incident.sentence.as_str());
        incident.or_else(|| Some(self.desynchronised.as_ref()?.1.as_str()))
    }

    /// Compares incident, captures and the snapshot of the faulty rank with what a restarted
    /// coordinator answers. The onset may differ: later steps refine the estimate.
    /// The error says what is missing or different.
    pub(crate) fn read_back(&self, client: &Client) -> anyhow::Result<()> {
        if let Some(incident) = &self.incident {
            let again: Incident = parse(&client.get(&["incidents", &incident.id], &[])?)?;
            let before = (incident.rank, &incident.class, &incident.culprit);
            let stored = (again.rank, &again.class, &again.culprit);
            if stored != before {
                bail!("incident {} was {before:?} and is {stored:?}", incident.id);
            }
        }
        for capture in self.capture.iter().chain(&self.oom) {
            self.read_capture_back(client, capture)?;
        }
        Ok(())
    }

    fn read_capture_back(&self, client: &Client, capture: &Capture) -> anyhow::Result<()> {
        let again: Capture = parse(&client.get(&["captures", &capture.id], &[])?)?;
        let before = (&capture.state, capture.step, capture.aligned);
        let stored = (&again.state, again.step, again.aligned);
        if stored != before {
            bail!("capture {} was {before:?} and is {stored:?}", capture.id);
        }
        let Some(rank) = self.rank() else { return Ok(()) };
        let snapshot = snapshot::decode(&client.snapshot(&capture.id, rank)?, Bounds::default())?;
        if snapshot.identity.rank != rank {
            bail!("capture {} has another rank's snapshot for rank {rank}", capture.id);
        }
        Ok(())
    }

    /// The demo's result for `--json`.
    pub(crate) fn to_json(&self, scenario: Scenario, stored: bool) -> Value {
        let incident = self.incident.as_ref().map(|incident| {
            json!({
                "id": incident.id, "rank": incident.rank, "class": incident.class,
                "culprit": incident.culprit, "onset_step": incident.onset_step,
                "detected_step": incident.detected_step,
            })
        });
        json!({
            "scenario": scenario.name(),
            "verdict": self.sentence(),
            "incident": incident,
            "capture": self.capture.as_ref().map(summary),
            "oom_capture": self.oom.as_ref().map(summary),
            "desynchronised_rank": self.desynchronised.as_ref().map(|(rank, _)| rank),
            "stored": stored,
        })
    }
}

fn summary(capture: &Capture) -> Value {
    json!({
        "id": capture.id, "trigger": capture.trigger, "trigger_rank": capture.trigger_rank,
        "step": capture.step, "ranks": capture.ranks, "aligned": capture.aligned,
        "missing": capture.missing,
    })
}

/// The result of a demo without an incident. `judged` is none where it was interrupted before.
pub(crate) fn no_incident(judged: Option<Judged>) -> Value {
    json!({
        "scenario": null, "verdict": judged.map(Judged::sentence),
        "judged": judged.map(|judged| json!({ "ranks": judged.ranks, "steps": judged.steps })),
        "incident": null, "capture": null, "oom_capture": null, "desynchronised_rank": null,
        "stored": null,
    })
}

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::Class;
    use memtape_proto::api::{Frame, Named};

    use super::*;

    const LEAK: Goal = Goal::Incident(Class::Leak);

    #[test]
    fn the_result_has_its_shape() {
        let culprit = Frame { file: "t.py".into(), line: 3, function: "f".into() };
        let found = Found {
            incident: Some(Incident {
                id: "inc-1".into(),
                rank: 5,
                class: Class::Leak.into(),
                sentence: "rank 5 keeps more".into(),
                culprit: Some(culprit),
                onset_step: 100,
                detected_step: 130,
                stored: true,
                ..Incident::default()
            }),
            capture: Some(Capture {
                id: "cap-1".into(),
                trigger: "growth".into(),
                trigger_rank: Some(5),
                step: 131,
                ranks: 8,
                aligned: 8,
                state: CaptureState::Complete.into(),
                ..Capture::default()
            }),
            ..Found::default()
        };
        assert!(found.reaches(LEAK) && !found.reaches(Goal::Incident(Class::Host)));
        let expected = json!({
            "scenario": "leak",
            "verdict": "rank 5 keeps more",
            "incident": { "id": "inc-1", "rank": 5, "class": "leak",
                "culprit": { "file": "t.py", "line": 3, "function": "f" },
                "onset_step": 100, "detected_step": 130 },
            "capture": { "id": "cap-1", "trigger": "growth", "trigger_rank": 5, "step": 131,
                "ranks": 8, "aligned": 8, "missing": [] },
            "oom_capture": null,
            "desynchronised_rank": null,
            "stored": true,
        });
        assert_eq!(found.to_json(Scenario::Leak, true), expected);
        let healthy = no_incident(Some(Judged { ranks: 4, steps: 600 }));
        assert_eq!(healthy["incident"], Value::Null);
        assert_eq!(healthy["judged"], json!({ "ranks": 4, "steps": 600 }));
    }

    #[test]
    fn without_closed_capture_and_diagnosis_the_goal_is_not_reached() {
        let found = |state: &str, evidence: &[&str], stored: bool| Found {
            incident: Some(Incident {
                class: Class::Leak.into(),
                stored,
                evidence: evidence.iter().map(|line| line.to_string()).collect(),
                ..Incident::default()
            }),
            capture: Some(Capture { state: Named::of(state), ..Capture::default() }),
            ..Found::default()
        };
        assert!(!found("collecting", &["e"], true).reaches(LEAK));
        assert!(!found("complete", &[], true).reaches(LEAK));
        assert!(!found("complete", &["e"], false).reaches(LEAK));
        assert!(found("partial", &["e"], true).reaches(LEAK));
        assert!(!Found::default().reaches(LEAK) && !Found::default().reaches(Goal::Death));
        assert!(!found("complete", &["e"], true).reaches(Goal::Death), "it is about a leak");
    }
}
