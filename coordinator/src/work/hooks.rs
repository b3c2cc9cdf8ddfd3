//! The restart hooks: a command on this machine, a webhook to another.
//!
//! They only carry out; the policy decides. The command gets the facts in its environment. This
//! file starts no shell (the command line passes `sh -c` and the operator's text). The webhook is
//! a CloudEvent in JSON, signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body,
//! the id the same over all tries, so that the receiver can tell a repetition.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use memtape_core::policy::Outcome;

use crate::clock;
use crate::config::{RestartConfig, Webhook};
use crate::state::effects::WorkDone;
use crate::state::orders::{Hook, Order};

/// Waits before the tries of the webhook. A restart that is late is worse than none, so the
/// schedule is short.
const TRIES: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)];

/// Of a command's output this much is kept, its end.
const OUTPUT_BYTES_MAX: usize = 1024;

/// Of a command's output this much is read.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("no hook is configured")]
    NotConfigured,
    #[error("{program} cannot be started: {source}")]
    NotStarted { program: String, source: std::io::Error },
    #[error("{program} took longer than {limit:?}")]
    TooLong { program: String, limit: Duration },
    #[error("{program} is lost: {source}")]
    Lost { program: String, source: std::io::Error },
    #[error("{program} ended with {status}")]
    Failed { program: String, status: ExitStatus },
    #[error("{program} ended with {status}: {line}")]
    FailedSaying { program: String, status: ExitStatus, line: String },
    #[error("the webhook cannot be called: {0}")]
    NoClient(#[source] reqwest::Error),
    #[error("refused with {0}")]
    Refused(u16),
    #[error("not delivered in {tries} tries: {why}")]
    NotDelivered { tries: usize, why: String },
}

/// The configured hooks.
#[derive(Clone, Debug)]
pub(crate) struct Hooks {
    config: Arc<RestartConfig>,
}

impl Hooks {
    pub(crate) fn new(config: RestartConfig) -> Self {
        Self { config: Arc::new(config) }
    }

    /// Runs a hook to its end.
    pub(crate) async fn run(&self, order: &Order) -> WorkDone {
        let result = match (order.hook, &self.config.webhook) {
            (Hook::Command, _) => self.command(order).await,
            (Hook::Webhook, Some(webhook)) => self.webhook(webhook, order).await,
            _ => Err(HookError::NotConfigured),
        };
        let outcome = match result {
            Ok(said) => Outcome::Finished { said },
            Err(why) => Outcome::Failed { why: why.to_string() },
        };
        WorkDone::Restarted { action: order.action.clone(), outcome }
    }

    async fn command(&self, order: &Order) -> Result<String, HookError> {
        let Some((program, arguments)) = self.config.command.split_first() else {
            return Err(HookError::NotConfigured);
        };
        let mut child = Command::new(program)
            .args(arguments)
            .env("MEMTAPE_ACTION", &order.action)
            .env("MEMTAPE_JOB", &order.job)
            .env("MEMTAPE_ATTEMPT", order.attempt.to_string())
            .env("MEMTAPE_RANK", order.rank.to_string())
            .env("MEMTAPE_NODE", &order.node)
            .env("MEMTAPE_INCIDENT", &order.incident)
            .env("MEMTAPE_CLASS", &order.class)
            .env("MEMTAPE_WHY", &order.why)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| HookError::NotStarted { program: program.clone(), source })?;
        let stderr = child.stderr.take();
        let finished = timeout(self.config.timeout, async {
            let mut said = Vec::new();
            if let Some(stderr) = stderr {
                let _ = stderr.take(READ_BYTES_MAX).read_to_end(&mut said).await;
            }
            (child.wait().await, said)
        });
        let program = program.clone();
        let limit = self.config.timeout;
        let (status, said) = match finished.await {
            Err(_) => return Err(HookError::TooLong { program, limit }),
            Ok((Err(source), _)) => return Err(HookError::Lost { program, source }),
            Ok((Ok(status), said)) => (status, said),
        };
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(OUTPUT_BYTES_MAX)..]);
        let line = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        match (status.success(), line) {
            (true, _) => Ok("done".to_string()),
            (false, "") => Err(HookError::Failed { program, status }),
            (false, line) => {
                Err(HookError::FailedSaying { program, status, line: line.to_string() })
            }
        }
    }

    async fn webhook(&self, webhook: &Webhook, order: &Order) -> Result<String, HookError> {
        let client = reqwest::Client::builder()
            .timeout(self.config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(HookError::NoClient)?;
        let body = event(order).to_string();
        let mut why = String::new();
        for wait in TRIES {
            sleep(wait).await;
            let seconds = clock::now().wall_ns / 1_000_000_000;
            let mut request = client
                .post(&webhook.url)
                .header("content-type", "application/cloudevents+json")
                .header("webhook-id", &order.action)
                .header("webhook-timestamp", seconds.to_string());
            if let Some(secret) = &webhook.secret {
                let signature = signature(secret, &order.action, seconds, &body);
                request = request.header("webhook-signature", signature);
            }
            match request.body(body.clone()).send().await {
                Ok(answer) if answer.status().is_success() => {
                    return Ok(format!("answered {}", answer.status().as_u16()));
                }
                Ok(answer) if answer.status().is_client_error() => {
                    return Err(HookError::Refused(answer.status().as_u16()));
                }
                Ok(answer) => why = format!("answered {}", answer.status().as_u16()),
                // Without the URL, which may hold a secret of its own.
                Err(error) => why = error.without_url().to_string(),
            }
        }
        Err(HookError::NotDelivered { tries: TRIES.len(), why })
    }
}

/// The request as a CloudEvent.
fn event(order: &Order) -> serde_json::Value {
    serde_json::json!({
        "specversion": "1.0",
        "id": order.action,
        "source": "memtape/coordinator",
        "type": "io.memtape.restart.requested",
        "subject": order.incident,
        "time": rfc3339(order.wall_ns),
        "datacontenttype": "application/json",
        "data": order,
    })
}

/// `v1,` and the base64 of the HMAC-SHA256 of `id.timestamp.body`.
fn signature(secret: &str, id: &str, seconds: i64, body: &str) -> String {
    let decoded = secret.strip_prefix("whsec_").and_then(|secret| BASE64.decode(secret).ok());
    let secret = decoded.unwrap_or_else(|| secret.as_bytes().to_vec());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let tag = hmac::sign(&key, format!("{id}.{seconds}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(tag))
}

/// A time in UTC, as `2026-01-31T12:00:00Z`.
fn rfc3339(wall_ns: i64) -> String {
    jiff::Timestamp::from_second(wall_ns.div_euclid(1_000_000_000)).unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds * 1_000_000_000), expected);
        }
    }

    #[test]
    fn signatures_are_those_of_the_specification() {
        // The example of Standard Webhooks' own reference libraries.
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    async fn check(command: &[&str], seconds: u64, expected: Result<&str, &str>) {
        let config = RestartConfig {
            command: command.iter().map(ToString::to_string).collect(),
            timeout: Duration::from_secs(seconds),
            ..RestartConfig::default()
        };
        let order = Order { job: "j'$(x)".to_string(), rank: 3, ..Order::default() };
        let result = Hooks::new(config).command(&order).await;
        let result = result.map_err(|why| why.to_string());
        let result = result.as_deref().map_err(String::as_str);
        match (result, expected) {
            (Err(why), Err(part)) => assert!(why.contains(part), "{why:?} has no {part:?}"),
            _ => assert_eq!(result, expected),
        }
    }

    #[tokio::test]
    async fn commands_are_run_with_the_facts_and_a_limit() {
        check(&["true"], 5, Ok("done")).await;
        let facts = "test \"$MEMTAPE_JOB\" = \"j'\\$(x)\" && test $MEMTAPE_RANK = 3";
        check(&["sh", "-c", facts], 5, Ok("done")).await;
        check(&["sh", "-c", "echo no quota >&2; exit 3"], 5, Err("no quota")).await;
        check(&["false"], 5, Err("exit status: 1")).await;
        check(&["sleep", "60"], 0, Err("took longer")).await;
        check(&["/nowhere/restart"], 5, Err("cannot be started")).await;
    }
}
