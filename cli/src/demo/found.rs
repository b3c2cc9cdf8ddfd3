//! Wait conditions of the demo: an incident with its capture; and the result.

use anyhow::bail;
use memtape_proto::api::{Capture, CaptureState, Incident};
use memtape_proto::snapshot::{self, Bounds};
use serde_json::{Value, json};

use super::answers::{Answers, Judged};
use super::scenarios::Scenario;
use crate::client::Client;
use memtape_core::diagnosis::Class;

/// The incident and the captures that were found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) incident: Incident,
    /// The incident's capture.
    pub(crate) capture: Option<Capture>,
    /// The capture at the request that failed.
    pub(crate) oom: Option<Capture>,
}

impl Found {
    /// Finds the incident of the awaited class, else the first one, and its capture. None while
    /// there is no incident.
    pub(crate) fn now(answers: Answers<'_>, class: Class) -> Option<Self> {
        let mut incidents = answers.incidents();
        let at = incidents.iter().position(|incident| incident.class == class).unwrap_or(0);
        let incident = (at < incidents.len()).then(|| incidents.swap_remove(at))?;
        let capture = answers.client.capture_of(&incident);
        Some(Self { incident, capture, oom: None })
    }

    /// True when an incident of this class is diagnosed and stored, and the capture is closed.
    pub(crate) fn reaches(&self, class: Class) -> bool {
        let (capture, incident) = (self.capture.as_ref(), &self.incident);
        let is_closed = capture.is_some_and(|capture| capture.state != CaptureState::Collecting);
        let has_reasons = incident.culprit.is_some() || !incident.evidence.is_empty();
        is_closed && incident.class == class && has_reasons && incident.stored
    }

    /// Compares incident, captures and the snapshot of the faulty rank with what a restarted
    /// coordinator answers. The onset may differ: later steps refine the estimate.
    /// The error says what is missing or different.
    pub(crate) fn read_back(&self, client: &Client) -> anyhow::Result<()> {
        let incident = &self.incident;
        let again: Incident = client.fetch(&["incidents", &incident.id], &[])?;
        let before = (incident.rank, &incident.class, &incident.culprit);
        let stored = (again.rank, &again.class, &again.culprit);
        if stored != before {
            bail!("incident {} was {before:?} and is {stored:?}", incident.id);
        }
        for capture in self.capture.iter().chain(&self.oom) {
            self.read_capture_back(client, capture)?;
        }
        Ok(())
    }

    fn read_capture_back(&self, client: &Client, capture: &Capture) -> anyhow::Result<()> {
        let again: Capture = client.fetch(&["captures", &capture.id], &[])?;
        let before = (&capture.state, capture.step, capture.aligned);
        let stored = (&again.state, again.step, again.aligned);
        if stored != before {
            bail!("capture {} was {before:?} and is {stored:?}", capture.id);
        }
        let rank = self.incident.rank;
        let snapshot = snapshot::decode(&client.snapshot(&capture.id, rank)?, Bounds::default())?;
        if snapshot.identity.rank != rank {
            bail!("capture {} has another rank's snapshot for rank {rank}", capture.id);
        }
        Ok(())
    }

    /// The demo's result for `--json`: incident and captures as the API has them.
    pub(crate) fn to_json(&self, scenario: Scenario, stored: bool) -> Value {
        json!({
            "scenario": scenario.name(),
            "verdict": self.incident.sentence,
            "incident": self.incident,
            "capture": self.capture,
            "oom_capture": self.oom,
            "stored": stored,
        })
    }
}

/// The result of a demo without an incident. `judged` is none where it was interrupted before.
pub(crate) fn no_incident(judged: Option<Judged>) -> Value {
    json!({
        "verdict": judged.map(Judged::sentence), "incident": null,
        "judged": judged.map(|judged| json!({ "ranks": judged.ranks, "steps": judged.steps })),
    })
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::Named;

    use super::*;

    const LEAK: Class = Class::Leak;

    #[test]
    fn without_closed_capture_and_diagnosis_the_goal_is_not_reached() {
        let found = |state: &str, evidence: &[&str], stored: bool| Found {
            incident: Incident {
                class: Class::Leak.into(),
                stored,
                evidence: evidence.iter().map(|line| line.to_string()).collect(),
                ..Incident::default()
            },
            capture: Some(Capture { state: Named::of(state), ..Capture::default() }),
            ..Found::default()
        };
        assert!(!found("collecting", &["e"], true).reaches(LEAK));
        assert!(!found("complete", &[], true).reaches(LEAK));
        assert!(!found("complete", &["e"], false).reaches(LEAK));
        assert!(found("partial", &["e"], true).reaches(LEAK));
        assert!(!Found::default().reaches(LEAK));
        assert!(!found("complete", &["e"], true).reaches(Class::Died), "it is about a leak");
    }
}
