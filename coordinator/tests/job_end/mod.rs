//! The job's own end, as its environment names it, decides how urgent the same growth is.

use std::time::Duration;

use memtape_coordinator::Config;
use memtape_core::identity::Identity;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::Value;

use crate::fake::{Agent, Job, config, start, wall_ns};

const SECOND_NS: i64 = 1_000_000_000;

/// Jobs of one rank that keeps memory, with a variable of the environment: a number of steps, or
/// Slurm's end in seconds from now. Memory lasts a million steps more: longer than a minute, and
/// shorter than 80 days.
const JOBS: [(Job, &str, i64); 4] = [
    (leaking("endless"), "", 0),
    (leaking("short"), SLURM, 60),
    (leaking("long"), SLURM, LONG),
    (leaking("steps"), "MEMTAPE_TOTAL_STEPS", 10_000),
];

const SLURM: &str = "SLURM_JOB_END_TIME";

const LONG: i64 = 80 * 24 * 3_600;

const fn leaking(name: &'static str) -> Job {
    Job { leaking: Some(0), device_mib: 32 << 20, ..Job::new(name, 1) }
}

/// The announcement of a rank that began at this time with this variable in its environment.
fn rank_up(start_wall_ns: i64, (job, variable, number): &(Job, &str, i64)) -> v1::RankUp {
    let from = if *variable == SLURM { start_wall_ns / SECOND_NS } else { 0 };
    let value = |name: &str| (name == *variable).then(|| (from + number).to_string());
    let identity = Identity::from_environment(value);
    v1::RankUp {
        start_wall_ns,
        ends_at_wall_ns: identity.planned_end.ends_at_wall_ns.unwrap_or(0),
        total_steps: identity.planned_end.total_steps.unwrap_or(0),
        device_uuids: vec![format!("GPU-{}", job.name)],
        ..job.rank_up(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_own_end_decides_how_urgent_a_growth_is() {
    let year = Duration::from_secs(365 * 24 * 3_600);
    check(year, ["ticket", "ticket", "notice", "notice"]).await;
    check(Duration::from_secs(1), ["notice", "ticket", "notice", "notice"]).await;
}

/// Trains the jobs, and waits until each has an incident that is as urgent.
async fn check(ticket_within: Duration, expected: [&str; 4]) {
    let (dir, page_within) = (tempfile::tempdir().unwrap(), Duration::from_secs(1));
    let running = start(Config { page_within, ticket_within, ..config(dir.path()) }).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    let begin_ns = wall_ns();
    for job in &JOBS {
        agent.say(FromAgent::RankUp(rank_up(begin_ns, job))).await;
    }
    for first in (1..=760).step_by(8) {
        let report = |(job, ..): &(Job, &str, i64)| job.rank_report(0, &(first..=first + 7));
        agent.report(JOBS.iter().map(report).collect()).await;
        agent.settle().await;
        while let Some(request) = agent.requests.pop() {
            for (job, ..) in &JOBS {
                agent.serve(job, &request).await;
            }
        }
    }
    let clauses = [
        ("endless", None),
        ("long", Some("; memory is full before the job's planned end, which is in 80 days")),
        ("short", Some("; the job ends as planned in ")),
        ("steps", Some("; the job ends as planned in ")),
    ];
    for ((job, clause), urgency) in clauses.into_iter().zip(expected) {
        let is_decided = |answer: &Value| {
            let incident = &answer["incidents"][0];
            let sentence = incident["sentence"].as_str().unwrap_or_default();
            let is_said = clause.map_or(!sentence.contains("job"), |said| sentence.contains(said));
            incident["class"] == "leak" && is_said && incident["urgency"] == urgency
        };
        running.wait(&format!("/api/v1/incidents?job={job}"), is_decided).await;
    }
    let (_, answer) = running.get("/api/v1/jobs").await;
    let ends = |number: usize| answer["jobs"][number]["ends_at_wall_ns"].as_i64();
    assert_eq!((answer["jobs"][0]["job"].as_str(), ends(0)), (Some("endless@0"), None));
    let left_s = (ends(1).unwrap() - begin_ns) / SECOND_NS;
    assert!((LONG - 60..=LONG + 60).contains(&left_s), "{answer:#}");
    assert!(ends(2).is_some_and(|at| at > begin_ns), "{answer:#}");
    assert_eq!(answer["jobs"][3]["total_steps"], 10_000, "{answer:#}");
}
