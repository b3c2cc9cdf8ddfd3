//! A command on this machine. It gets the facts in its environment, and only named variables of
//! this process: other variables may be secrets. `child.rs` bounds its time and its output. A
//! command that ends with another status than 0 has done nothing; one that is killed may have
//! restarted the job, or kept the node out.

use std::time::Duration;

use memtape_core::action::TargetKind;
use memtape_core::redaction::Redaction;

use crate::restart::child::{ChildError, bare, run as run_child};
use crate::restart::target::{Done, Order, Running, Target, failed, outcome, refused};

/// Variables that every command gets: what a program needs to be found and to start.
const PASSED_ALWAYS: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ"];

/// A command line of the operator's, for `sh -c`.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) line: String,
    /// Variables of this process that it gets beside [`PASSED_ALWAYS`].
    pub(crate) passed: Vec<String>,
    pub(crate) timeout: Duration,
}

impl Target for Command {
    fn kind(&self) -> TargetKind {
        TargetKind::Command
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(run(self, order).await) })
    }
}

async fn run(command: &Command, order: &Order) -> Done {
    let passed = PASSED_ALWAYS.into_iter().chain(command.passed.iter().map(String::as_str));
    let mut child = bare("sh", passed);
    child
        .args(["-c", &command.line])
        .env("MEMTAPE_ACTION", &order.action)
        .env("MEMTAPE_JOB", &order.job)
        .env("MEMTAPE_ATTEMPT", order.attempt.to_string())
        .env("MEMTAPE_RANK", order.rank.to_string())
        .env("MEMTAPE_NODE", &order.node)
        .env("MEMTAPE_OWNER_UID", order.owner_uid.map_or(String::new(), |uid| uid.to_string()))
        .env("MEMTAPE_NAMESPACE", &order.namespace)
        .env("MEMTAPE_SLURM_JOB", &order.slurm_job)
        .env("MEMTAPE_POD", &order.pod)
        .env("MEMTAPE_POD_UID", &order.pod_uid)
        .env("MEMTAPE_INCIDENT", &order.incident)
        .env("MEMTAPE_CLASS", &order.class)
        .env("MEMTAPE_SENTENCE", &order.sentence)
        .env("MEMTAPE_WHY", &order.why);
    order.prove().await?;
    let ended = run_child(child, command.timeout).await.map_err(ChildError::outcome)?;
    let (status, line) = (ended.status, ended.line.as_str());
    if status.success() {
        return Ok("done".to_string());
    }
    let mut why = format!("sh ended with {status}");
    if !line.is_empty() {
        // Viewers of the job read it.
        why = format!("{why}: {}", Redaction::default().line(line));
    }
    Err(if status.code().is_some() { refused(why) } else { failed(why) })
}

#[cfg(test)]
mod tests {
    use memtape_core::action::Outcome;

    use super::*;
    use crate::restart::proving::Prover;

    async fn ran(line: &str, seconds: u64) -> Outcome {
        let passed = vec!["CARGO_PKG_NAME".to_string()];
        let (line, timeout) = (line.to_string(), Duration::from_secs(seconds));
        let command = Command { line, passed, timeout };
        let (job, node, sentence) = ("j'$(x)".into(), "gpu-1".into(), "leaks".into());
        let prover = Prover::Always;
        let order = Order { job, node, sentence, rank: 3, prover, ..Order::default() };
        command.run(&order).await
    }

    async fn check(command: &str, seconds: u64, expected: Outcome) {
        let (ran, expected_text) = (ran(command, seconds).await, expected.to_string());
        assert_eq!(std::mem::discriminant(&ran), std::mem::discriminant(&expected), "{ran:?}");
        assert!(ran.to_string().contains(&expected_text), "{ran:?} has no {expected_text:?}");
    }

    fn done() -> Outcome {
        Outcome::Finished { said: "done".to_string() }
    }

    #[tokio::test]
    async fn commands_are_run_with_the_facts_and_a_limit() {
        check("true", 5, done()).await;
        let facts = "test \"$MEMTAPE_JOB\" = \"j'\\$(x)\" && test $MEMTAPE_RANK = 3 \
                     && test $MEMTAPE_NODE = gpu-1 && test $MEMTAPE_SENTENCE = leaks";
        check(facts, 5, done()).await;
        check("echo no quota >&2; exit 3", 5, refused("no quota")).await;
        let says_secret = "echo cannot log in with --token=hush >&2; exit 3";
        check(says_secret, 5, refused("log in with --token=[redacted]")).await;
        check("false", 5, refused("exit status: 1")).await;
        check("/nowhere/restart", 5, refused("exit status: 127")).await;
        // These may have restarted the job before.
        check("sleep 60", 0, failed("took longer")).await;
        check("kill -9 $$", 5, failed("signal: 9")).await;
    }

    #[tokio::test]
    async fn a_command_sees_no_variable_that_is_not_named() {
        // cargo sets all three for its tests.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let seen = "test -n \"$PATH\" -a -n \"$CARGO_PKG_NAME\" -a -z \"$CARGO_MANIFEST_DIR\"";
        check(seen, 5, done()).await;
    }

    #[tokio::test]
    async fn a_flood_and_a_child_left_behind_delay_and_fail_nothing() {
        // 8 MiB on both outputs, then a reason.
        let flood = "head -c 8388608 /dev/zero | tee /dev/stderr; echo no quota >&2; exit";
        check(&format!("{flood} 0"), 30, done()).await;
        check(&format!("{flood} 3"), 30, refused("no quota")).await;
        // The child holds the standard error open for longer than the command may take.
        check("sleep 30 & exit 0", 5, done()).await;
        let child = "sleep 30 & echo no quota >&2; exit 3";
        check(child, 5, refused("no quota")).await;
        // An endless flood ends with the limit.
        check("yes >&2", 1, failed("took longer")).await;
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_leaves_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let alive = dir.path().join("alive");
        let script = format!("(sleep 2; touch {}) & sleep 60", alive.display());
        check(&script, 1, failed("took longer")).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!alive.exists(), "a process of its group lived on");
    }
}
