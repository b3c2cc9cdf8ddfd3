//! Hints of a job over the network: what is suggested, and what the settings did that later starts
//! applied.

use std::ops::{Range, RangeInclusive};

use serde_json::{Value, json};

use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;

use crate::fake::{Agent, Job, Running, attached};

const MIB: u64 = 1 << 20;
const EXPAND: &str = "expandable_segments:True";

/// An attempt: its number, the settings that hints set, and what its allocator holds.
struct Attempt {
    number: u32,
    hints: &'static str,
    reserved: u64,
    retries: u64,
}

impl Attempt {
    fn job(&self) -> Job {
        Job { attempt: self.number, run: self.number + 1, ..Job::new("train", 2) }
    }

    /// Announces its ranks, and reports steps up to one.
    async fn run(&self, agent: &mut Agent, steps: u64) {
        self.run_steps(agent, 1..=steps, 0..2).await;
    }

    /// Announces its ranks, of which some have the settings, and reports these steps.
    async fn run_steps(
        &self,
        agent: &mut Agent,
        steps: RangeInclusive<u64>,
        with_hints: Range<u32>,
    ) {
        let job = self.job();
        for rank in 0..job.ranks {
            let hints = if with_hints.contains(&rank) { self.hints } else { "" };
            let up = v1::RankUp {
                allocator_settings: Some(hints.to_string()),
                applied_hints: hints.to_string(),
                ..job.rank_up(rank)
            };
            agent.say(FromAgent::RankUp(up)).await;
        }
        let report = |rank: u32| {
            let mut report = job.rank_report(rank, &steps);
            // Rank 1 holds more than rank 0.
            let reserved = self.reserved + u64::from(rank) * MIB;
            for totals in &mut report.totals {
                (totals.reserved, totals.malloc_failures) = (reserved, self.retries);
            }
            for step in &mut report.steps {
                (step.peak_reserved, step.end_reserved) = (reserved, reserved);
                (step.floor_reserved, step.malloc_failures) = (reserved, self.retries);
            }
            report
        };
        agent.report((0..job.ranks).map(report).collect()).await;
        agent.settle().await;
    }
}

async fn hints(running: &Running) -> Value {
    let (status, answer) = running.get("/api/v1/jobs/train/hints").await;
    assert_eq!(status, 200, "{answer:#}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_are_proven_by_the_attempts_that_apply_them() {
    let (_dir, running, mut agent) = attached().await;
    assert_eq!(running.get("/api/v1/jobs/train/hints").await.0, 404);

    let first = Attempt { number: 0, hints: "", reserved: 4096 * MIB, retries: 12 };
    first.run(&mut agent, 40).await;
    let found = hints(&running).await;
    assert_eq!((&found["rank"], &found["attempt"]), (&json!(1), &json!(0)), "{found:#}");
    let hint = &found["hints"][0];
    assert_eq!((&hint["setting"], &hint["bound"]), (&json!(EXPAND), &json!("at_most")));
    // 4,097 MiB reserved, and 812 MiB in tensors at the peak.
    assert_eq!(hint["saves_bytes"], (4097 - 812) * MIB);
    assert_eq!((&found["settings"], &found["applied"]), (&json!(EXPAND), &Value::Null));
    assert!(found["missing"].to_string().contains("no capture"), "{found:#}");

    // The next start applies it. Before twenty steps nothing is said of it.
    let second = Attempt { number: 1, hints: EXPAND, reserved: 1024 * MIB, retries: 0 };
    second.run(&mut agent, 10).await;
    let found = hints(&running).await;
    assert_eq!(found["applied"]["verdict"], "", "{found:#}");
    assert_eq!(found["applied"]["proof"], "10 of the 20 steps that a verdict needs");
    second.run(&mut agent, 30).await;
    let found = hints(&running).await;
    let applied = &found["applied"];
    assert_eq!((&applied["verdict"], &applied["compared_with"]), (&json!("helped"), &json!(0)));
    // As many steps of the attempt before are compared.
    assert_eq!((&applied["before"]["step"], &applied["after"]["step"]), (&json!(30), &json!(30)));
    assert_eq!(applied["before"]["reserved_bytes"], 4097 * MIB, "{applied:#}");
    assert_eq!(applied["after"]["reserved_bytes"], 1025 * MIB);
    assert_eq!(
        (&applied["before"]["retries"], &applied["after"]["retries"]),
        (&json!(12), &json!(0))
    );
    assert_eq!(found["settings"], EXPAND, "what helped is kept: {found:#}");

    // It did not help the third time: it is not set again.
    let third = Attempt { number: 2, hints: EXPAND, reserved: 6000 * MIB, retries: 40 };
    third.run(&mut agent, 30).await;
    let found = hints(&running).await;
    assert_eq!(found["applied"]["verdict"], "worse", "{found:#}");
    assert_eq!(found["settings"], "");
    running.stop().await;
}

const BOTH: &str = "expandable_segments:True,roundup_power2_divisions:8";

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_helped_stays_when_a_later_one_does_not() {
    let (_dir, running, mut agent) = attached().await;
    let of = |number, hints, reserved| Attempt { number, hints, reserved, retries: 0 };
    of(0, "", 4096 * MIB).run(&mut agent, 30).await;
    of(1, EXPAND, 1024 * MIB).run(&mut agent, 30).await;
    assert_eq!(hints(&running).await["applied"]["verdict"], "helped");
    of(2, BOTH, 1024 * MIB).run(&mut agent, 30).await;
    let found = hints(&running).await;
    let applied = &found["applied"];
    assert_eq!((&applied["verdict"], &applied["settings"]), (&json!("no effect"), &json!(BOTH)));
    assert_eq!(
        (&applied["compared_with"], &applied["judged"]),
        (&json!(1), &json!("roundup_power2_divisions:8"))
    );
    assert_eq!(found["settings"], EXPAND, "{found:#}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_resumes_is_compared_by_the_number_of_its_steps() {
    let (_dir, running, mut agent) = attached().await;
    let of = |number, hints, reserved| Attempt { number, hints, reserved, retries: 0 };
    of(0, "", 4096 * MIB).run(&mut agent, 40).await;
    let resumed = of(1, EXPAND, 1024 * MIB);
    resumed.run_steps(&mut agent, 41..=41, 0..2).await;
    let found = hints(&running).await;
    assert_eq!(found["applied"]["verdict"], "", "{found:#}");
    assert_eq!(found["applied"]["proof"], "1 of the 20 steps that a verdict needs");
    resumed.run_steps(&mut agent, 42..=65, 0..2).await;
    let found = hints(&running).await;
    let applied = &found["applied"];
    assert_eq!(applied["verdict"], "helped", "{found:#}");
    // 25 steps of both.
    assert_eq!((&applied["before"]["step"], &applied["after"]["step"]), (&json!(25), &json!(65)));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_without_the_settings_is_not_compared() {
    let (_dir, running, mut agent) = attached().await;
    let of = |number, hints, reserved| Attempt { number, hints, reserved, retries: 0 };
    // Rank 1 holds most, and only rank 0 was started with hints.
    of(0, "", 4096 * MIB).run(&mut agent, 30).await;
    of(1, EXPAND, 1024 * MIB).run_steps(&mut agent, 1..=30, 0..1).await;
    let found = hints(&running).await;
    let applied = &found["applied"];
    assert_eq!((&applied["verdict"], &applied["compared_with"]), (&json!(""), &Value::Null));
    assert!(applied["proof"].to_string().contains("on a rank that has them now"), "{applied:#}");
    assert_eq!(applied["settings"], EXPAND);
    running.stop().await;
}
