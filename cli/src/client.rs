//! Requests to the coordinator's HTTP API; the answers' types are in `memtape_proto::api`.
//!
//! Answers are kept as JSON, because `--json` prints them as they came; [`parse`] reads them.

use std::time::Duration;

use anyhow::{Context, bail};
use memtape_proto::api::{Capture, CaptureRequest, Incident, Problem, RequestedCapture};
use serde::de::DeserializeOwned;
use serde_json::Value;

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Snapshots of captures can be large.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);

/// Asks one coordinator.
#[derive(Debug)]
pub(crate) struct Client {
    base: String,
    http: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client of the coordinator at this URL; nothing is sent yet.
    /// Fails when the URL is none.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/').to_string();
        if !base.starts_with("http://") && !base.starts_with("https://") {
            let line = format!("coordinator {base:?} is no URL such as http://127.0.0.1:7771");
            return Err(crate::args::Mistakes(vec![line]).into());
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME_MAX)
            .timeout(ANSWER_TIME_MAX)
            .build()
            .context("cannot make an HTTP client")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { base, http, runtime })
    }

    /// The coordinator's URL, without a slash at its end.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The JSON answer to a GET below `/api/v1/`; segments of the path are escaped.
    /// Fails when there is no coordinator, or it refuses; then with its own words.
    pub(crate) fn get(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let bytes = self.bytes(self.http.get(url))?;
        serde_json::from_slice(&bytes).context("the coordinator's answer is no JSON")
    }

    /// The bytes of a stored snapshot.
    /// Fails as [`Self::get`] does.
    pub(crate) fn snapshot(&self, capture: &str, rank: u32) -> anyhow::Result<Vec<u8>> {
        let path = ["captures", capture, "ranks", &rank.to_string()];
        self.bytes(self.http.get(self.url(&path)?))
    }

    /// Asks for a capture; its id.
    /// Fails as [`Self::get`] does.
    pub(crate) fn capture(&self, job: &str, step: Option<u64>) -> anyhow::Result<String> {
        let url = self.url(&["jobs", job, "captures"])?;
        let request = self.http.post(url).json(&CaptureRequest { step });
        let answer: RequestedCapture = serde_json::from_slice(&self.bytes(request)?)
            .context("the coordinator's answer is no JSON")?;
        Ok(answer.id)
    }

    /// The capture of an incident: there may be none yet, or it may have been deleted.
    pub(crate) fn capture_of(&self, incident: &Incident) -> Option<Capture> {
        parse(&self.get(&["captures", incident.capture_id.as_deref()?], &[]).ok()?).ok()
    }

    /// True when `/healthz` answers.
    pub(crate) fn is_healthy(&self) -> bool {
        let request = self.http.get(format!("{}/healthz", self.base)).timeout(CONNECT_TIME_MAX);
        self.bytes(request).is_ok()
    }

    /// Waits, serving what the client's connections need meanwhile.
    pub(crate) fn wait(&self, time: Duration) {
        // The timer must be made inside of the runtime.
        self.runtime.block_on(async { tokio::time::sleep(time).await });
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
            let status = response.status();
            let bytes = response.bytes().await.map_err(|error| self.explain(&error))?;
            if !status.is_success() {
                let Problem { error } = serde_json::from_slice(&bytes).unwrap_or_default();
                if error.is_empty() {
                    bail!("{} answered with status {status}", self.base);
                }
                bail!("{error}");
            }
            Ok(bytes.to_vec())
        })
    }

    fn explain(&self, error: &reqwest::Error) -> anyhow::Error {
        let base = &self.base;
        if error.is_connect() {
            anyhow::anyhow!(
                "no coordinator answers at {base}: start one with `memtape coordinator`, or say \
                 where it is with --coordinator or MEMTAPE_COORDINATOR"
            )
        } else if error.is_timeout() {
            anyhow::anyhow!("the coordinator at {base} does not answer in time: try again later")
        } else {
            anyhow::anyhow!("the coordinator at {base} broke off its answer: try again")
        }
    }
}

/// Reads an answer.
/// Fails when it has another shape.
pub(crate) fn parse<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    T::deserialize(value).context("the coordinator's answer has an unknown shape")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_waits() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::new("http://127.0.0.1:1/").expect("a URL");
        let url = client.url(&["jobs", "a/b ?c", "ranks"]).expect("a path");
        assert_eq!(url.as_str(), "http://127.0.0.1:1/api/v1/jobs/a%2Fb%20%3Fc/ranks");
        client.wait(Duration::from_millis(1));
        let error = client.get(&["jobs"], &[]).expect_err("port 1 is closed");
        assert!(error.to_string().contains("memtape coordinator"), "{error:#}");
        for url in ["", "127.0.0.1:7771", "ftp://x"] {
            assert!(
                Client::new(url).is_err_and(|error| error.is::<crate::args::Mistakes>()),
                "{url}"
            );
        }
    }
}
