//! The coordinator under load: a real process on a folder of its own, watched from outside.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use memtape_proto::v1;
use serde::de::DeserializeOwned;

use crate::trust::MaybeTrust;

/// A coordinator may take this long to read its store and listen.
const START_TIME_MAX: Duration = Duration::from_secs(120);

/// A free port.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

/// Wait before a request that was refused as one too many.
const TOO_MANY_WAIT: Duration = Duration::from_secs(1);

/// A running coordinator. It is killed when dropped: nothing that it holds in memory survives.
#[derive(Debug)]
pub(crate) struct Coordinator {
    /// None of one that others started.
    child: Mutex<Option<Child>>,
    pid: u32,
    /// Where it answers, without a slash at the end.
    pub(crate) url: String,
    /// How long it took to listen.
    pub(crate) started_in: Duration,
    /// The certificates of its cluster.
    pub(crate) trust: MaybeTrust,
    http: reqwest::Client,
}

/// Where a coordinator is.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) trust: MaybeTrust,
    /// Other coordinators may take over from it.
    pub(crate) has_others: bool,
    /// The shard that it owns; none where it is the only coordinator.
    pub(crate) shard: Option<v1::Shard>,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    cpu_ticks: u64,
    /// Resident memory now, and at its highest.
    pub(crate) rss_bytes: u64,
    pub(crate) rss_bytes_max: u64,
}

/// How to start one.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    /// The `memtape` binary.
    pub(crate) path: PathBuf,
    /// More arguments of `memtape coordinator`.
    pub(crate) arguments: Vec<String>,
    /// Certificates of its cluster; none without TLS.
    pub(crate) trust: MaybeTrust,
    /// Variables of a bucket that has the store.
    pub(crate) bucket: Option<Vec<(String, String)>>,
    /// Where it listens.
    pub(crate) listen: String,
}

impl Binary {
    /// Starts a coordinator with its store in `folder`, or in the bucket; returns
    /// when it listens.
    pub(crate) fn start(&self, folder: &Path) -> anyhow::Result<Coordinator> {
        let begin = Instant::now();
        let mut command = Command::new(&self.path);
        command.args(["coordinator", "--json", "--listen", &self.listen]).args(&self.arguments);
        match &self.bucket {
            Some(variables) => {
                command.args(["--cluster", "s3://bucket/load"]).envs(variables.iter().cloned());
                command.current_dir(folder);
            }
            None => drop(command.arg("--data-dir").arg(folder)),
        }
        if let Some(trust) = &self.trust {
            command.args(trust.arguments()?);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // Each agent that comes and goes would be a line.
        let log = std::env::var("MEMTAPE_LOG").unwrap_or("error".to_string());
        command.env("MEMTAPE_LOG", log);
        let mut child =
            command.spawn().with_context(|| format!("cannot run {}", self.path.display()))?;
        let out = child.stdout.take().context("its output cannot be read")?;
        let url = match first_url(BufReader::new(out)) {
            Some(url) if begin.elapsed() < START_TIME_MAX => url,
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("the coordinator did not start");
            }
        };
        let http = reqwest::Client::builder().timeout(Duration::from_secs(120));
        let http = match &self.trust {
            Some(trust) => http.tls_backend_preconfigured(trust.admin()?),
            None => http,
        };
        let trust = self.trust.clone();
        let pid = child.id();
        let child = Mutex::new(Some(child));
        Ok(Coordinator { child, pid, url, started_in: begin.elapsed(), trust, http: http.build()? })
    }
}

/// The address in the first line with one. Later lines are read to nowhere, so that the pipe
/// stays open.
fn first_url(mut out: BufReader<std::process::ChildStdout>) -> Option<String> {
    let mut line = String::new();
    while out.read_line(&mut line).ok()? > 0 {
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(url) = said["listening"].as_str() {
            std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
            return Some(url.to_string());
        }
        line.clear();
    }
    None
}

impl Coordinator {
    /// One that others started, without certificates, whose answers take this time at most.
    pub(crate) fn at(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().timeout(timeout).build()?;
        let (child, url, started_in) = (Mutex::new(None), url.to_string(), Duration::ZERO);
        Ok(Self { child, pid: 0, url, started_in, trust: None, http })
    }

    /// Kills it, as the kernel does, unless others started it.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut child) = child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What it has used so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.pid));
        let stat = std::fs::read_to_string(folder.join("stat"))?;
        // Behind the name, which may contain anything: state is field 3, utime 14 and stime 15.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no name")?;
        let field = |number: usize| fields.split_whitespace().nth(number - 3);
        let ticks = |number| field(number).and_then(|text| text.parse::<u64>().ok());
        let status = std::fs::read_to_string(folder.join("status"))?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        Ok(Usage {
            at: Instant::now(),
            cpu_ticks: ticks(14)
                .zip(ticks(15))
                .map(|(user, kernel)| user + kernel)
                .context("/proc/PID/stat has no times")?,
            rss_bytes: bytes("VmRSS:").context("/proc/PID/status has no VmRSS")?,
            rss_bytes_max: bytes("VmHWM:").context("/proc/PID/status has no VmHWM")?,
        })
    }

    /// The JSON answer to a GET below `/api/v1`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let url = format!("{}/api/v1{path}", self.url);
        let mut answer = self.http.get(&url).send().await?;
        // More than one caller may ask in a second: as asked to, come again later.
        while answer.status() == reqwest::StatusCode::TOO_MANY_REQUESTS {
            tokio::time::sleep(TOO_MANY_WAIT).await;
            answer = self.http.get(&url).send().await?;
        }
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Does it say that it is ready?
    pub(crate) async fn is_ready(&self) -> bool {
        let answer = self.http.get(format!("{}/readyz", self.url)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// The bytes behind a path below `/api/v1`.
    pub(crate) async fn bytes(&self, path: &str) -> anyhow::Result<bytes::Bytes> {
        let url = format!("{}/api/v1{path}", self.url);
        Ok(self.http.get(&url).send().await?.error_for_status()?.bytes().await?)
    }

    /// Asks for a capture of a job; its id.
    pub(crate) async fn capture(&self, job: &str) -> anyhow::Result<String> {
        let url = format!("{}/api/v1/jobs/{job}/captures", self.url);
        let answer: serde_json::Value =
            self.http.post(&url).send().await?.error_for_status()?.json().await?;
        Ok(answer["id"].as_str().context("the answer names no capture")?.to_string())
    }

    /// All series of a metric that are not 0, by their labels.
    pub(crate) async fn metrics(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        let text = self.http.get(format!("{}/metrics", self.url)).send().await?.text().await?;
        let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        let values = lines.filter_map(|(labels, value)| {
            let value: f64 = value.parse().ok().filter(|value| *value != 0.0)?;
            Some((labels.to_string(), value.into()))
        });
        Ok(serde_json::Value::Object(values.collect()))
    }

    /// Value of a metric without labels, or of the one series with this text among its labels.
    pub(crate) async fn metric(&self, name: &str, label: &str) -> anyhow::Result<Option<f64>> {
        let text = self.http.get(format!("{}/metrics", self.url)).send().await?.text().await?;
        let line = text
            .lines()
            .find(|line| line.starts_with(name) && line.contains(label) && !line.starts_with('#'));
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()))
    }
}

impl Target {
    /// Where this coordinator is.
    pub(crate) fn of(coordinator: &Coordinator) -> Self {
        let (url, trust) = (coordinator.url.clone(), coordinator.trust.clone());
        Self { url, trust, has_others: false, shard: None }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Usage {
    /// CPU time since an earlier look, as a share of one core.
    pub(crate) fn cpu_share_since(&self, earlier: &Self) -> f64 {
        // Linux counts in USER_HZ, which is 100 on every architecture.
        let seconds = (self.cpu_ticks - earlier.cpu_ticks) as f64 / 100.0;
        seconds / self.at.duration_since(earlier.at).as_secs_f64()
    }
}
