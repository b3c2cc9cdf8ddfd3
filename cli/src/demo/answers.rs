//! The demo's job as the coordinator's API shows it.
//!
//! A request that fails has no answer: the coordinator may just be starting again.

use anyhow::bail;
use memtape_core::diagnosis::Class;
use memtape_core::identity::owner::is_called;
use memtape_core::paging::Urgency;
use memtape_proto::api::{
    Capture, CaptureState, Captures, Incident, IncidentState, Incidents, Job, Jobs, Rank,
    RankState, Ranks,
};

use crate::client::Client;
use crate::render::units::{bytes, duration, plural};

/// Asks about one job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers<'a> {
    pub(crate) client: &'a Client,
    pub(crate) job: &'a str,
}

impl Answers<'_> {
    /// The job; none before an agent has reported a rank.
    pub(crate) fn job(&self) -> Option<Job> {
        let Jobs { jobs, .. } = self.client.fetch(&["jobs"], &[]).ok()?;
        jobs.into_iter().find(|job| is_called(&job.job, self.job))
    }

    /// Ranks of the job.
    pub(crate) fn ranks(&self) -> Vec<Rank> {
        let answer = self.client.fetch::<Ranks>(&["jobs", self.job, "ranks"], &[]);
        answer.unwrap_or_default().ranks
    }

    /// Incidents of the job, oldest first.
    pub(crate) fn incidents(&self) -> Vec<Incident> {
        let answer = self.client.fetch::<Incidents>(&["incidents"], &[("job", self.job)]);
        let mut incidents = answer.unwrap_or_default().incidents;
        incidents.sort_by_key(|incident| incident.opened_wall_ns);
        incidents
    }

    /// The incident about the request that failed on a rank.
    pub(crate) fn failed_request(&self, rank: u32) -> Option<Incident> {
        let is_it = |of: &Incident| of.rank == rank && of.class == Class::OutOfMemory;
        self.incidents().into_iter().find(is_it)
    }

    /// First closed capture of the job with this trigger.
    pub(crate) fn capture(&self, trigger: &str) -> Option<Capture> {
        let Captures { captures, .. } =
            self.client.fetch(&["captures"], &[("job", self.job)]).ok()?;
        let is_it = |capture: &&Capture| {
            capture.trigger == trigger && capture.state != CaptureState::Collecting
        };
        captures.iter().filter(is_it).min_by_key(|capture| capture.requested_wall_ns).cloned()
    }

    /// What a rank holds, and when its memory ends; none when the rank is not known or has ended.
    pub(crate) fn countdown(&self, number: u32) -> Option<String> {
        let mut ranks = self.ranks().into_iter();
        let rank = ranks.find(|rank| rank.rank == number && rank.end.is_none())?;
        let device = rank.devices.first()?;
        let held = match device.device_bytes {
            0 => bytes(device.reserved_bytes),
            size => format!("{} of {}", bytes(device.reserved_bytes), bytes(size)),
        };
        let is_open = |it: &&Incident| it.rank == number && it.state == IncidentState::Open;
        let incidents = self.incidents();
        let ahead = incidents.iter().filter(is_open).find_map(time_left);
        let ahead = ahead.unwrap_or_else(|| format!("it is {}, without a forecast", rank.state));
        Some(format!("rank {number} has reserved {held} at step {}; {ahead}", rank.step))
    }

    /// The verdict on a job in which nothing grows. The error says why there is none.
    pub(crate) fn nothing_grows(&self) -> anyhow::Result<Judged> {
        let ranks = self.ranks();
        let open = self.incidents();
        if let Some(incident) = open.first() {
            bail!("incident {}: {}", incident.id, incident.sentence);
        }
        let Some(steps) = ranks.iter().map(|rank| rank.step).min() else {
            bail!("no rank has reported");
        };
        match ranks.iter().find(|rank| rank.state != RankState::Healthy) {
            Some(rank) => bail!("rank {} is {} at step {}", rank.rank, rank.state, rank.step),
            None => Ok(Judged { ranks: ranks.len() as u64, steps }),
        }
    }
}

/// The incident of a rank whose request failed, once all is known of it: its process has ended, its
/// growth is over, and the incident is stored with that end: until then it is a notice.
pub(crate) fn end_known<'a>(
    number: u32,
    ranks: &[Rank],
    incidents: &'a [Incident],
) -> Option<&'a Incident> {
    let has_ended = ranks.iter().any(|rank| rank.rank == number && rank.end.is_some());
    let of_rank = || incidents.iter().filter(|of| of.rank == number);
    let is_failure = |of: &&Incident| of.class == Class::OutOfMemory;
    let tells_end = |of: &&Incident| of.stored && of.urgency == Urgency::Page;
    let grows = |of: &Incident| of.state == IncidentState::Open;
    let is_over = !of_rank().filter(|of| !is_failure(of)).any(|of| grows(of) || !of.stored);
    of_rank().filter(is_failure).find(tells_end).filter(|_| has_ended && is_over)
}

/// Ranks that were judged, and found healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) ranks: u64,
    pub(crate) steps: u64,
}

impl Judged {
    pub(crate) fn sentence(self) -> String {
        let (ranks, steps) = (plural(self.ranks, "rank"), plural(self.steps, "step"));
        format!("nothing grows: {ranks} judged over {steps}")
    }
}

/// Time to OOM from the newest step, with the span of the forecast; none without a forecast.
fn time_left(incident: &Incident) -> Option<String> {
    let steps = incident.steps_to_oom.filter(|&steps| steps > 0)?;
    let step_ns = incident.seconds_to_oom?.saturating_mul(1_000_000_000) / steps;
    let at = |count: u64| duration(step_ns.saturating_mul(count));
    let span = incident.steps_to_oom_p10.zip(incident.steps_to_oom_p90);
    let span = span.map(|(early, late)| format!(" ({} to {})", at(early), at(late)));
    Some(format!("out of memory in about {}{}", at(steps), span.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use memtape_core::identity::end::End;

    use super::*;

    #[test]
    fn the_time_to_oom_has_a_span() {
        let incident = |steps: u64, p10: Option<u64>| Incident {
            seconds_to_oom: Some(60),
            steps_to_oom: Some(steps),
            steps_to_oom_p10: p10,
            steps_to_oom_p90: Some(2_200),
            last_step: 500,
            ..Incident::default()
        };
        let line = |p10: Option<u64>| time_left(&incident(2_000, p10));
        let span = |text: &str| Some(format!("out of memory in about {text}"));
        assert_eq!(line(Some(1_800)), span("60 s (54 s to 66 s)"), "as the incident says it");
        assert_eq!(line(None), span("60 s"));
        assert_eq!(time_left(&incident(0, None)), None);
    }

    #[test]
    fn the_end_of_a_rank_is_known_when_its_failure_is_stored() {
        let incident = |class: Class, state: IncidentState, urgency: Urgency| Incident {
            rank: 2,
            class: class.into(),
            state: state.into(),
            stored: true,
            urgency: urgency.into(),
            ..Incident::default()
        };
        let rank = |end: Option<End>| Rank { rank: 2, end: end.map(Into::into), ..Rank::default() };
        let failed = || incident(Class::OutOfMemory, IncidentState::Open, Urgency::Page);
        let leak = |state| incident(Class::Leak, state, Urgency::Page);
        let is_known =
            |end, incidents: &[Incident]| end_known(2, &[rank(end)], incidents).is_some();
        let ended = Some(End::Failed);
        assert!(is_known(ended, &[leak(IncidentState::Closed), failed()]));
        assert!(!is_known(None, &[leak(IncidentState::Closed), failed()]));
        assert!(!is_known(ended, &[leak(IncidentState::Open), failed()]));
        assert!(!is_known(ended, &[leak(IncidentState::Closed)]));
        // Compared before the end was known.
        let lives = incident(Class::OutOfMemory, IncidentState::Open, Urgency::Notice);
        assert!(!is_known(ended, &[lives]));
        let not_stored = Incident { stored: false, ..failed() };
        assert!(!is_known(ended, &[not_stored]));
    }

    #[test]
    fn a_verdict_counts_in_words() {
        let judged = Judged { ranks: 4, steps: 1 };
        assert_eq!(judged.sentence(), "nothing grows: 4 ranks judged over 1 step");
    }
}
