//! Requests to the coordinator's HTTP API; the answers' types are in `memtape_proto::api`.
//!
//! Answers are kept as JSON, because `--json` prints them as they came; [`parse`] reads them.

mod address;
pub(crate) mod credentials;
pub(crate) mod unknown;
mod unreachable;

use std::time::Duration;

use anyhow::{Context, bail};
use memtape_core::placement::JobsShard;
use memtape_proto::api::{
    Capture, CaptureRequest, Incident, Index, Problem, RequestedCapture, SHARD_HEADER,
};
use memtape_tls::TlsError;
use memtape_tls::client::ClientTls;
use memtape_tls::unreachable::Unreachable;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::credentials::Credentials;
use crate::clock;

pub(crate) use address::url as address;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Time in which one of several coordinators must answer to be asked.
const CHOICE_TIME_MAX: Duration = Duration::from_secs(3);

/// Snapshots of captures can be large.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);

/// The longest download: a backup.
const DOWNLOAD_TIME_MAX: Duration = Duration::from_secs(86_400);

/// The coordinator's refusal, in its own words.
#[derive(Debug)]
pub(crate) struct Refused {
    /// True if the coordinator does not know the requested object.
    pub(crate) is_unknown: bool,
    line: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Refused {}

/// Version and clock of a coordinator.
#[derive(Debug)]
pub(crate) struct About {
    /// Version of the coordinator's program, which is empty where an older one does not tell it; or
    /// its refusal.
    pub(crate) version: Result<String, Refused>,
    /// Clock of the coordinator, if its answer had a date.
    pub(crate) unix_seconds: Option<i64>,
}

/// Asks one coordinator.
#[derive(Debug)]
pub(crate) struct Client {
    base: String,
    /// The error of its own certificate, if that has ended.
    ended: Option<TlsError>,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client of the coordinator at this URL; nothing is sent yet.
    /// Fails when it cannot be made, or others could read the token on its way.
    pub(crate) fn new(base: &str, credentials: &Credentials) -> anyhow::Result<Self> {
        let http = credentials
            .apply(base, reqwest::Client::builder())?
            .connect_timeout(CONNECT_TIME_MAX)
            .timeout(ANSWER_TIME_MAX)
            .build()
            .context("cannot make an HTTP client")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ended = credentials.tls.as_ref().and_then(ClientTls::invalid);
        Ok(Self { base: base.to_string(), ended, http, runtime })
    }

    /// A client of the first of these coordinators that answers a small request in time: those that
    /// wait do not listen, and one that hangs accepts connections. Of the first, where none does.
    /// Fails as [`Self::new`] does.
    pub(crate) fn first_that_answers(
        bases: &[String],
        credentials: &Credentials,
    ) -> anyhow::Result<Self> {
        let clients = bases.iter().map(|base| Self::new(base, credentials));
        let mut clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
        let answering = match clients.len() {
            0 | 1 => None,
            _ => clients.iter().position(Self::answers),
        };
        Ok(clients.swap_remove(answering.unwrap_or(0)))
    }

    /// Does the coordinator answer in time?
    fn answers(&self) -> bool {
        let asked = self.http.get(format!("{}/healthz", self.base)).timeout(CHOICE_TIME_MAX);
        let answer = self.runtime.block_on(async { asked.send().await });
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// The coordinator's URL, without a slash at its end.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The JSON answer to a GET below `/api/v1/`; segments of the path are escaped.
    /// Fails when there is no coordinator, or with the text of its refusal.
    pub(crate) fn get(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let bytes = self.bytes(self.http.get(self.asked(path, query)?))?;
        serde_json::from_slice(&bytes).context("the coordinator's answer is no JSON")
    }

    /// The parsed answer.
    /// Fails as [`Self::get`] does, and when it has another shape.
    pub(crate) fn fetch<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> anyhow::Result<T> {
        parse(&self.get(path, query)?)
    }

    /// The JSON answer to a GET below `/api/v1/`, if it comes within this time, its connection
    /// included. Nothing of the client goes on afterwards.
    /// Fails as [`Self::get`] does, or when the time is over.
    pub(crate) fn get_within(self, path: &[&str], time: Duration) -> anyhow::Result<Value> {
        let url = self.url(path)?;
        let bytes = self.bytes(self.http.get(url).timeout(time));
        // A name that is still being resolved would keep an ordinary end waiting.
        self.runtime.shutdown_background();
        serde_json::from_slice(&bytes?).context("the coordinator's answer is no JSON")
    }

    /// The bytes of a stored snapshot.
    /// Fails as [`Self::get`] does.
    pub(crate) fn snapshot(&self, capture: &str, rank: u32) -> anyhow::Result<Vec<u8>> {
        let path = ["captures", capture, "ranks", &rank.to_string()];
        self.bytes(self.http.get(self.url(&path)?))
    }

    /// Hands over an answer of any length as it comes. Before that, `accept` gets the shard of the
    /// answer, if the coordinator says it.
    /// Fails as [`Self::get`] does, when `accept` or `take` does, or when nothing comes for two
    /// minutes.
    pub(crate) fn download(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        accept: impl FnOnce(Option<JobsShard>) -> anyhow::Result<()>,
        mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let url = self.asked(path, query)?;
        self.runtime.block_on(async {
            let request = self.http.get(url).timeout(DOWNLOAD_TIME_MAX);
            let response = request.send().await.map_err(|error| self.explain(&error))?;
            let mut response = self.accepted(response).await?;
            let part = response.headers().get(SHARD_HEADER).and_then(|part| part.to_str().ok());
            accept(part.and_then(part_of))?;
            loop {
                let more = tokio::time::timeout(ANSWER_TIME_MAX, response.chunk()).await;
                let more = more.context("the coordinator sends nothing any more")?;
                match more.map_err(|error| self.explain(&error))? {
                    Some(bytes) => take(&bytes)?,
                    None => return Ok(()),
                }
            }
        })
    }

    /// The JSON answer to a POST of a body below `/api/v1/`.
    /// Fails as [`Self::get`] does.
    pub(crate) fn post(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<Value> {
        let bytes = self.bytes(self.http.post(self.url(path)?).json(body))?;
        serde_json::from_slice(&bytes).context("the coordinator's answer is no JSON")
    }

    /// Asks for a capture; its id.
    /// Fails as [`Self::get`] does.
    pub(crate) fn capture(&self, job: &str, step: Option<u64>) -> anyhow::Result<String> {
        let answer = self.post(&["jobs", job, "captures"], &CaptureRequest { step })?;
        Ok(parse::<RequestedCapture>(&answer)?.id)
    }

    /// The capture of an incident: there may be none yet, or it may have been deleted.
    pub(crate) fn capture_of(&self, incident: &Incident) -> Option<Capture> {
        self.fetch(&["captures", incident.capture_id.as_deref()?], &[]).ok()
    }

    /// The coordinator's version and clock; a refusal shows the clock alone.
    /// Fails when there is no coordinator.
    pub(crate) fn about(&self) -> anyhow::Result<About> {
        let url = self.url(&[])?;
        self.runtime.block_on(async {
            let request = self.http.get(url).timeout(CONNECT_TIME_MAX);
            let response = request.send().await.map_err(|error| self.explain(&error))?;
            let date = response.headers().get("date").and_then(|date| date.to_str().ok());
            let unix_seconds = date.and_then(clock::of_http);
            let version = match self.accepted(response).await {
                Ok(response) => {
                    let index = response.json::<Index>().await;
                    Ok(index.map_err(|error| self.explain(&error))?.version)
                }
                Err(error) => Err(error.downcast()?),
            };
            Ok(About { version, unix_seconds })
        })
    }

    fn asked(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<reqwest::Url> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn url(&self, path: &[&str]) -> anyhow::Result<reqwest::Url> {
        let mut url = reqwest::Url::parse(&format!("{}/api/v1", self.base))
            .with_context(|| format!("{:?} is no URL", self.base))?;
        match url.path_segments_mut() {
            Ok(mut segments) => segments.extend(path),
            Err(()) => bail!("{:?} is no URL of a coordinator", self.base),
        };
        Ok(url)
    }

    fn bytes(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Vec<u8>> {
        self.runtime.block_on(async {
            let response = request.send().await.map_err(|error| self.explain(&error))?;
            let response = self.accepted(response).await?;
            let bytes = response.bytes().await.map_err(|error| self.explain(&error))?;
            Ok(bytes.to_vec())
        })
    }

    /// An answer that is no refusal.
    async fn accepted(&self, response: reqwest::Response) -> anyhow::Result<reqwest::Response> {
        let status = response.status();
        if status.is_success() {
            // `memtape cluster` itself shows them.
            let missing = response.headers().get("memtape-missing");
            let is_cluster = response.url().path().ends_with("/cluster");
            if let Some(shards) = missing.filter(|_| !is_cluster) {
                let shards = shards.to_str().unwrap_or_default();
                let s = if shards.contains(',') { "s" } else { "" };
                eprintln!(
                    "memtape: warning: the answer lacks shard{s} {shards}: `memtape cluster` says \
                     why"
                );
            }
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|error| self.explain(&error))?;
        let Problem { error: line } = serde_json::from_slice(&bytes).unwrap_or_default();
        if line.is_empty() {
            bail!(self.stranger(status));
        }
        let is_unknown = status == reqwest::StatusCode::NOT_FOUND;
        Err(Refused { is_unknown, line }.into())
    }

    /// Something else than a coordinator answered.
    fn stranger(&self, status: reqwest::StatusCode) -> String {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let proxy = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"];
        let advice = match proxy.iter().find(|name| is_set(name)) {
            Some(name) => {
                format!("; {name} is set: if that proxy answered, name the host in NO_PROXY")
            }
            None => String::new(),
        };
        format!("{} answered {status}: it is no coordinator{advice}", self.base)
    }

    fn explain(&self, error: &reqwest::Error) -> anyhow::Error {
        match (unreachable::of(error), &self.ended) {
            (Unreachable::Tls | Unreachable::BrokenOff, Some(ended)) => {
                anyhow::anyhow!(ended.to_string())
            }
            (why, _) => anyhow::anyhow!(why.sentence(&self.base)),
        }
    }
}

/// The shard that `1/4` names.
fn part_of(header: &str) -> Option<JobsShard> {
    let (shard, shards) = header.split_once('/')?;
    let of = JobsShard { shard: shard.parse().ok()?, shards: shards.parse().ok()? };
    (of.shard < of.shards).then_some(of)
}

/// Reads an answer.
/// Fails when it has another shape.
pub(crate) fn parse<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    T::deserialize(value).context("the coordinator's answer has an unknown shape")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn the_first_coordinator_that_answers_is_asked() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let base = |at: &std::net::TcpListener| format!("http://{}", at.local_addr().expect("one"));
        // The kernel accepts connections for a coordinator that hangs.
        let (hanging, answering, gone) = (listen(), listen(), base(&listen()));
        let bases = [base(&hanging), gone, base(&answering), base(&hanging)];
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = answering.accept().expect("a connection");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).expect("a request");
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).expect("a client that waits");
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let chosen = |bases| Client::first_that_answers(bases, &Credentials::default()).unwrap();
        assert_eq!(chosen(&bases).base(), bases[2]);
        let asked = serving.join().expect("no panic");
        assert!(asked.starts_with("GET /healthz "), "a request that changes nothing: {asked}");
        // The error is then that of the first; and one alone is not asked before.
        assert_eq!(chosen(&bases[1..2]).base(), bases[1]);
        assert_eq!(chosen(&bases[..2]).base(), bases[0]);
    }

    #[test]
    fn a_download_says_which_shard_it_is_of() {
        assert_eq!(part_of("1/4"), Some(JobsShard { shard: 1, shards: 4 }));
        assert_eq!(part_of("0/1"), Some(JobsShard { shard: 0, shards: 1 }));
        for other in ["", "1", "1/", "/4", "1/x", "-1/4", "1/4/2", "99999/4", "4/4", "0/0"] {
            assert_eq!(part_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn segments_of_a_path_are_escaped() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = "http://127.0.0.1:1";
        let client = Client::new(base, &Credentials::default()).expect("a client");
        let url = client.url(&["jobs", "a/b ?c", "ranks"]).expect("a path");
        assert_eq!(url.as_str(), "http://127.0.0.1:1/api/v1/jobs/a%2Fb%20%3Fc/ranks");
    }
}
