//! The answers of the coordinator that the views of a report ask for, as they came.

use anyhow::Context;
use memtape_core::limits::REPORT_RANKS_MAX;
use memtape_proto::api::{Incident, Ranks};
use serde_json::{Value, json};

use crate::client::{Client, parse};
use crate::read::captures::{known, list_of};
use crate::report::Report;
use crate::report::source::excerpt;

/// Points of a series, as the page asks for them.
const SERIES_POINTS: u64 = 400;

/// The report of the incident or the capture with this id.
/// Fails when the coordinator does not answer, or does not know the id; what else is missing is
/// left out.
pub(crate) fn of_subject(client: &Client, id: &str, with_source: bool) -> anyhow::Result<Report> {
    let list = list_of(id)?;
    let view = if list == "incidents" { "incident" } else { "capture" };
    let subject = known(client, id)?;
    let job = subject["job"].as_str().context("the coordinator names no job")?.to_string();
    let attempt = subject["attempt"].as_u64().unwrap_or(0);
    let incident: Option<Incident> = (view == "incident").then(|| parse(&subject)).transpose()?;
    let capture = match &incident {
        Some(incident) => incident.capture_id.clone(),
        None => Some(id.to_string()),
    };
    let mut report = Report {
        sentences: vec![sentence(&subject)],
        start: (view, id.to_string()),
        origin: without_user(client.base()),
        ..Report::default()
    };
    report.answers.insert(format!("{list}/{id}"), subject);
    let mut asked = Asked { client, report: &mut report };
    if let Some(capture) = capture {
        asked.add(&["captures", &capture], &[]);
        asked.add(&["captures", &capture, "collectives"], &[]);
    }
    asked.lists(&job, attempt);
    asked.ranks(&job, attempt, incident.as_ref());
    let line = incident.as_ref().filter(|_| with_source);
    report.source = line.and_then(|of| {
        let culprit = of.culprit.as_ref()?;
        excerpt(&culprit.file, culprit.line, of.opened_wall_ns)
    });
    Ok(report)
}

/// An incident or a capture, in one sentence.
fn sentence(subject: &Value) -> String {
    match subject["sentence"].as_str() {
        Some(sentence) => sentence.to_string(),
        None => format!(
            "{} of {} ranks of {} at the end of step {}",
            subject["aligned"],
            subject["ranks"],
            subject["job"].as_str().unwrap_or_default(),
            subject["step"]
        ),
    }
}

/// Puts answers into a report.
struct Asked<'a> {
    client: &'a Client,
    report: &'a mut Report,
}

impl Asked<'_> {
    /// Asks once; an answer that cannot be had is left out.
    fn add(&mut self, path: &[&str], query: &[(&str, &str)]) -> Option<Value> {
        let answer = self.client.get(path, query).ok()?;
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let name = format!("{}{mark}{}", path.join("/"), query.join("&"));
        self.report.answers.insert(name, answer.clone());
        Some(answer)
    }

    /// The lists of the job's attempt, without what belongs to others: a report goes to strangers.
    fn lists(&mut self, job: &str, attempt: u64) {
        let of_job = [("job", job)];
        for (list, query) in [("incidents", &of_job[..]), ("captures", &of_job), ("actions", &[])] {
            let found = self.client.get(&[list], query).unwrap_or_default();
            let is_here = |of: &&Value| {
                of["job"] == job && of["attempt"].as_u64().is_none_or(|of| of == attempt)
            };
            let rows = found[list].as_array().map(Vec::as_slice).unwrap_or_default();
            let rows: Vec<&Value> = rows.iter().filter(is_here).collect();
            let name =
                if query.is_empty() { list.to_string() } else { format!("{list}?job={job}") };
            self.report.answers.insert(name, json!({ list: rows }));
        }
    }

    /// The ranks of the attempt, and the steps of the fastest growing ones.
    fn ranks(&mut self, job: &str, attempt: u64, incident: Option<&Incident>) {
        let attempt = attempt.to_string();
        let Some(answer) = self.add(&["jobs", job, "ranks"], &[("attempt", &attempt)]) else {
            return;
        };
        let Ok(Ranks { mut ranks, .. }) = parse::<Ranks>(&answer) else { return };
        // The view of the job asks for its last attempt: here that of the report.
        self.report.answers.insert(format!("jobs/{job}/ranks"), answer);
        let subject = incident.map(|incident| incident.rank);
        let growth = |of: &memtape_proto::api::Rank| of.growth_bytes_per_step.unwrap_or(0);
        ranks.sort_by_key(|of| (Some(of.rank) != subject, std::cmp::Reverse(growth(of)), of.rank));
        ranks.truncate(REPORT_RANKS_MAX);
        for rank in &ranks {
            let most = rank.devices.iter().rev().max_by_key(|device| device.allocated_bytes);
            let main = most.map_or(0, |device| device.device);
            let of_incident = incident.filter(|of| of.rank == rank.rank).map(|of| of.device);
            let mut devices = vec![main];
            devices.extend(of_incident.filter(|device| *device != main));
            for device in devices {
                let (rank, device) = (rank.rank.to_string(), device.to_string());
                let points = SERIES_POINTS.to_string();
                let query = [
                    ("rank", rank.as_str()),
                    ("device", &device),
                    ("attempt", &attempt),
                    ("points", &points),
                ];
                self.add(&["jobs", job, "series"], &query);
            }
        }
    }
}

/// A URL without a name and a password, which do not belong into a ticket.
fn without_user(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host))
        }
        None => url.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_stay_out_of_the_page() {
        for (url, shown) in
            [("http://me:secret@host:7771", "http://host:7771"), ("https://host", "https://host")]
        {
            assert_eq!(without_user(url), shown);
        }
    }
}
