//! The answers of the coordinator that the views of a report ask for, as they came.

use std::path::PathBuf;

use anyhow::Context;
use memtape_coordinator::source::{self, Readable};
use memtape_core::account::Account;
use memtape_core::snapshot::Frame;
use memtape_proto::api::{Incident, Rank, Ranks};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::client::{Client, parse};
use crate::read::captures::{known, list_of};
use crate::report::Report;

/// As the page asks (`coordinator/web/src/api.ts`): points of a series, ranks of a list, and a rank
/// with the peers that are drawn beside it.
const SERIES_POINTS: &str = "400";
const RANKS_LISTED: &str = "256";
const RANKS_NEAR: &str = "8";

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
        ..Report::default()
    };
    report.answers.insert(format!("{list}/{id}"), subject);
    let mut asked = Asked { client, report: &mut report };
    if let Some(capture) = &capture {
        asked.add(&["captures", capture], &[]);
        asked.add(&["captures", capture, "collectives"], &[]);
    }
    asked.lists(&job, attempt);
    let rank = asked.job(&job, attempt, incident.as_ref());
    if let (Some(capture), Some(rank)) = (&capture, rank) {
        asked.add(&["captures", capture, "kept"], &[("rank", &rank.to_string())]);
    }
    if let Some(incident) = incident.as_ref().filter(|_| with_source) {
        asked.source(incident);
    }
    Ok(report)
}

/// An incident or a capture, in one sentence.
fn sentence(subject: &Value) -> String {
    match subject["sentence"].as_str() {
        Some(sentence) => sentence.to_string(),
        None => {
            let text = |name: &str| subject[name].as_str().unwrap_or_default();
            format!("{}: {}", text("job"), text("shown"))
        }
    }
}

/// Puts answers into a report.
struct Asked<'a> {
    client: &'a Client,
    report: &'a mut Report,
}

impl Asked<'_> {
    /// Asks once; an answer that cannot be had is left out. The page finds it by its path, with the
    /// query in the order of its names.
    fn add(&mut self, path: &[&str], query: &[(&str, &str)]) -> Option<Value> {
        let answer = self.client.get(path, query).ok()?;
        self.keep(path, query, answer.clone());
        Some(answer)
    }

    fn keep(&mut self, path: &[&str], query: &[(&str, &str)], answer: Value) {
        let mut query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        query.sort_unstable();
        let mark = if query.is_empty() { "" } else { "?" };
        self.report.answers.insert(format!("{}{mark}{}", path.join("/"), query.join("&")), answer);
    }

    /// The lines around that of an incident: from the coordinator, or from this machine, where the
    /// coordinator shows none.
    fn source(&mut self, incident: &Incident) {
        let Some(Frame { file, line, .. }) = &incident.culprit else { return };
        let (path, attempt) = (["jobs", &incident.job, "source"], incident.attempt.to_string());
        let number = line.to_string();
        let query = [("attempt", attempt.as_str()), ("file", file), ("line", &number)];
        let shown = self.add(&path, &query).is_some_and(|of| of["not_shown"].is_null());
        if !shown {
            // Reads only files of this user.
            let own = geteuid().as_raw();
            let here = Readable { folders: &[PathBuf::from("/")], owner: own };
            let read = source::lines((file, *line), incident.opened_wall_ns, here);
            read.into_iter().for_each(|lines| self.keep(&path, &query, json!(lines)));
        }
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

    /// The attempt of the job: its ranks, the map of all of them, what holds memory, and the steps
    /// of one rank and its peers. Gives that rank: of the incident, else the first one.
    fn job(&mut self, job: &str, attempt: u64, incident: Option<&Incident>) -> Option<u32> {
        let attempt = attempt.to_string();
        let of_attempt = ("attempt", attempt.as_str());
        let listed = self.add(&["jobs", job, "ranks"], &[of_attempt, ("most", RANKS_LISTED)])?;
        // The view of the job asks for its newest attempt: here that of the report.
        self.keep(&["jobs", job, "ranks"], &[("most", RANKS_LISTED)], listed.clone());
        self.add(&["jobs", job, "lines"], &[of_attempt]);
        let first = || parse::<Ranks>(&listed).ok()?.ranks.first().map(|of| of.rank);
        let rank = incident.map(|of| of.rank).or_else(first)?;
        let number = rank.to_string();
        let near = [of_attempt, ("near", number.as_str()), ("most", RANKS_NEAR)];
        let near = self.add(&["jobs", job, "ranks"], &near)?;
        let account = account(incident);
        self.add(&["jobs", job, "area"], &[("account", account.as_str()), of_attempt]);
        for of in parse::<Ranks>(&near).ok()?.ranks {
            let named = incident.filter(|known| known.rank == of.rank && known.names_device);
            let devices = [Some(main_device(&of)), named.map(|incident| incident.device)];
            for device in devices.into_iter().flatten() {
                self.series(job, of_attempt, (of.rank, device), account);
            }
        }
        Some(rank)
    }

    fn series(
        &mut self,
        job: &str,
        of_attempt: (&str, &str),
        (rank, device): (u32, u8),
        account: Account,
    ) {
        let (rank, device) = (rank.to_string(), device.to_string());
        let query = [("rank", rank.as_str()), ("device", &device), of_attempt];
        let query = [&query[..], &[("points", SERIES_POINTS)]].concat();
        let account = match account {
            // One chart shows the three together.
            Account::Allocated | Account::Peak | Account::Reserved => None,
            account => Some(("account", account.as_str())),
        };
        let query: Vec<_> = query.into_iter().chain(account).collect();
        self.add(&["jobs", job, "series"], &query);
    }
}

/// The account that the views of an incident show.
fn account(incident: Option<&Incident>) -> Account {
    match incident.map_or("", |of| of.layer.as_str()) {
        "spread" => Account::Peak,
        layer => layer.parse().unwrap_or_default(),
    }
}

/// The device of a rank that holds most.
fn main_device(of: &Rank) -> u8 {
    let most = of.devices.iter().rev().max_by_key(|device| device.allocated_bytes);
    most.map_or(0, |device| device.device)
}

/// A URL without a name and a password, which do not belong into a ticket.
pub(crate) fn without_user(url: &str) -> String {
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
