//! The coordinator's HTTP API, as this program uses it: requests, and the answers' shapes.
//!
//! Missing fields take their defaults, so that a newer coordinator can be asked by an older
//! program and the other way round. `--json` prints answers as they came.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Bodies of captures can be large.
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
    ///
    /// # Errors
    /// When the URL is none.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/').to_string();
        if !base.starts_with("http://") && !base.starts_with("https://") {
            let line = format!("coordinator {base:?} is no URL such as http://127.0.0.1:7771");
            return Err(crate::Mistakes(vec![line]).into());
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
    ///
    /// # Errors
    /// When there is no coordinator, or it refuses; then with its own words.
    pub(crate) fn get(&self, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let bytes = self.bytes(self.http.get(url))?;
        serde_json::from_slice(&bytes).context("the coordinator's answer is no JSON")
    }

    /// The bytes of a stored body.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub(crate) fn body(&self, capture: &str, rank: u32) -> anyhow::Result<Vec<u8>> {
        let path = ["captures", capture, "ranks", &rank.to_string()];
        self.bytes(self.http.get(self.url(&path)?))
    }

    /// Asks for a capture; its id.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub(crate) fn capture(&self, job: &str, step: Option<u64>) -> anyhow::Result<String> {
        let body = step.map_or_else(|| json!({}), |step| json!({ "step": step }));
        let request = self.http.post(self.url(&["jobs", job, "captures"])?).json(&body);
        let answer: Value = serde_json::from_slice(&self.bytes(request)?)
            .context("the coordinator's answer is no JSON")?;
        let id = answer["id"].as_str().context("the coordinator gave the capture no name")?;
        Ok(id.to_string())
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
                let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                match answer["error"].as_str() {
                    Some(line) => bail!("{line}"),
                    None => bail!("{} answered with status {status}", self.base),
                }
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

/// Takes an answer, or a part of it, apart.
///
/// # Errors
/// When it has another shape.
pub(crate) fn parse<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    T::deserialize(value).context("the coordinator's answer has an unknown shape")
}

/// A job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Job {
    pub(crate) job: String,
    pub(crate) attempt: u32,
    pub(crate) world_size: u32,
    pub(crate) ranks_alive: u32,
    pub(crate) ranks: u32,
    pub(crate) step_min: u64,
    pub(crate) step_max: u64,
    pub(crate) state: String,
    pub(crate) started_wall_ns: i64,
    pub(crate) incidents_open: u32,
    pub(crate) nodes: Vec<String>,
}

/// A rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) node: String,
    pub(crate) pid: u32,
    pub(crate) state: String,
    pub(crate) alive: bool,
    pub(crate) step: u64,
    pub(crate) end: Option<String>,
    pub(crate) devices: Vec<Device>,
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) host: Option<RankHost>,
    pub(crate) role: String,
    pub(crate) growth_bytes_per_step: Option<f64>,
    pub(crate) lost: u64,
    pub(crate) limitations: Vec<String>,
}

/// One device of a rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Device {
    pub(crate) allocated: u64,
    pub(crate) reserved: u64,
    pub(crate) peak_allocated: u64,
    pub(crate) blocks: u64,
    pub(crate) ooms: u64,
    pub(crate) malloc_failures: u64,
    pub(crate) device: u32,
    pub(crate) ledger: DeviceLedger,
}

/// Where the bytes of a device are.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeviceLedger {
    pub(crate) device_bytes: Option<u64>,
    pub(crate) layers: Vec<LedgerLayer>,
    pub(crate) rest_bytes: Option<i64>,
}

/// One layer of it; without bytes it is unknown, and they are in the rest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LedgerLayer {
    pub(crate) layer: String,
    pub(crate) bytes: Option<u64>,
}

/// What a rank takes of its host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RankHost {
    pub(crate) anon_bytes: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
    pub(crate) shmem_bytes: Option<u64>,
    pub(crate) swap_bytes: Option<u64>,
    pub(crate) workers: Option<Workers>,
    pub(crate) cgroup: Option<Cgroup>,
}

/// The processes below it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Workers {
    pub(crate) count: u32,
    pub(crate) anon_bytes: u64,
    pub(crate) anon_parts_bytes: Option<u64>,
    pub(crate) left_out: u32,
}

/// Its memory cgroup.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cgroup {
    pub(crate) bytes: Option<u64>,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) oom_kills: Option<u64>,
}

/// Why something is not known of some ranks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Unknown {
    pub(crate) what: String,
    pub(crate) why: String,
    pub(crate) ranks: Vec<u32>,
}

/// One Python frame.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Frame {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) function: String,
}

/// A line that may be the cause.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Suspect {
    pub(crate) frame: Frame,
    pub(crate) grown_bytes: i64,
    pub(crate) peer_bytes: i64,
    pub(crate) blocks: u64,
    pub(crate) generations: u64,
}

/// What the advice would give back.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Remedy {
    pub(crate) saves_bytes: Option<u64>,
}

/// What a restart would do.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Restart {
    pub(crate) why: String,
}

/// Another class that an incident may be.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Alternative {
    pub(crate) class: String,
    pub(crate) standing: String,
    pub(crate) evidence: Vec<String>,
    pub(crate) against: Vec<String>,
}

/// An incident.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Incident {
    pub(crate) id: String,
    pub(crate) job: String,
    pub(crate) rank: u32,
    pub(crate) device: u32,
    pub(crate) class: String,
    pub(crate) state: String,
    pub(crate) sentence: String,
    pub(crate) culprit: Option<Frame>,
    pub(crate) stack: Vec<Frame>,
    pub(crate) onset_step: u64,
    pub(crate) detected_step: u64,
    pub(crate) bytes_per_step: f64,
    pub(crate) grown_bytes: i64,
    pub(crate) explained: Option<f64>,
    pub(crate) steps_to_oom: Option<u64>,
    pub(crate) seconds_to_oom: Option<f64>,
    pub(crate) evidence: Vec<String>,
    pub(crate) against: Vec<String>,
    pub(crate) advice: String,
    pub(crate) confidence: f64,
    pub(crate) remedy: Remedy,
    pub(crate) restart: Restart,
    pub(crate) alternatives: Vec<Alternative>,
    pub(crate) suspects: Vec<Suspect>,
    pub(crate) capture_id: Option<String>,
    pub(crate) stored: bool,
    pub(crate) opened_wall_ns: i64,
    pub(crate) closed_why: String,
}

/// What became of one rank in a capture.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Part {
    pub(crate) rank: u32,
    pub(crate) node: String,
    pub(crate) outcome: String,
    pub(crate) step: u64,
    pub(crate) wall_ns: i64,
    pub(crate) wall_error_ns: u64,
    pub(crate) dead: bool,
    pub(crate) bytes: u64,
    pub(crate) detail: String,
}

/// A rank that is not aligned.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Missing {
    pub(crate) rank: u32,
    pub(crate) outcome: String,
    pub(crate) detail: String,
}

/// A capture's manifest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    pub(crate) id: String,
    pub(crate) job: String,
    pub(crate) reason: String,
    pub(crate) step: Option<u64>,
    pub(crate) before_step: Option<u64>,
    pub(crate) requested_wall_ns: i64,
    pub(crate) state: String,
    pub(crate) ranks: u32,
    pub(crate) aligned: u32,
    pub(crate) missing: Vec<Missing>,
    pub(crate) parts: Vec<Part>,
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
        let error = client.get(&["jobs"], &[]).expect_err("nobody listens on port 1");
        assert!(error.to_string().contains("memtape coordinator"), "{error:#}");
        for url in ["", "127.0.0.1:7771", "ftp://x"] {
            assert!(Client::new(url).is_err_and(|error| error.is::<crate::Mistakes>()), "{url}");
        }
    }
}
