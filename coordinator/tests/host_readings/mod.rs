//! What each rank holds, as agents say it and as people see it.

mod keep_out;

use memtape_core::snapshot::origin::Origin;
use memtape_proto::v1;
use serde_json::{Value, json};

use crate::fake::{Job, MIB, Running, attached, config, start, training};

const JOB: Job = Job::new("held", 2);

fn outside(origin: Origin, bytes: u64) -> v1::OutsideUse {
    v1::OutsideUse { origin: origin as u32, device: 0, bytes, count: 0 }
}

/// A rank's part of a report with everything that 1.2 brought.
pub(crate) fn full(job: &Job, rank: u32, step: u64) -> v1::RankReport {
    let mut report = job.rank_report(rank, &(step..=step));
    report.totals[0].deferred_bytes = Some(6 * MIB);
    report.outside = vec![
        outside(Origin::HostPinned, 30 * MIB),
        outside(Origin::HostRegistered, 2 * MIB),
        outside(Origin::Nccl, 40 * MIB),
        // Of a later version.
        v1::OutsideUse { origin: 4000, ..outside(Origin::Nccl, 1) },
    ];
    report.host = Some(v1::RankHost {
        anon_bytes: Some(500 * MIB),
        file_bytes: Some(70 * MIB),
        shmem_bytes: Some(100 * MIB),
        swap_bytes: Some(0),
        workers: Some(v1::Workers {
            count: 4,
            anon_bytes: 1000 * MIB,
            shmem_bytes: 3 * MIB,
            anon_parts_bytes: Some(200 * MIB),
            left_out: 0,
        }),
        cgroup: Some(v1::Cgroup {
            bytes: Some(2000 * MIB),
            limit_bytes: Some(8000 * MIB),
            highs: Some(1),
            ooms: Some(2),
            oom_kills: Some(3),
            inode: Some(4),
        }),
        missing: String::new(),
    });
    report
}

pub(crate) fn gpu(rank: u32) -> v1::Gpu {
    v1::Gpu {
        uuid: format!("gpu-{rank}"),
        index: rank,
        total_bytes: 8192 * MIB,
        used_bytes: 5000 * MIB,
        free_bytes: 3192 * MIB,
        processes: Some(2),
        ranks: Some(1),
    }
}

fn layers(ledger: &Value) -> Vec<(String, Option<u64>)> {
    let layer =
        |layer: &Value| (layer["layer"].as_str().unwrap().to_string(), layer["bytes"].as_u64());
    ledger["layers"].as_array().unwrap().iter().map(layer).collect()
}

/// Whatever is known: the layers that are, and the rest, are the device.
fn assert_adds_up(ledger: &Value) {
    let known: u64 = layers(ledger).iter().filter_map(|(_, bytes)| *bytes).sum();
    let rest = ledger["unaccounted_bytes"].as_i64().unwrap();
    let device = ledger["device_bytes"].as_i64().unwrap();
    assert_eq!(i64::try_from(known).unwrap() + rest, device, "{ledger:#}");
}

async fn rank(running: &Running, number: usize) -> Value {
    let (_, mut answer) = running.get("/api/v1/jobs/held/ranks").await;
    answer["ranks"][number].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_rank_is_a_device_partition_and_host_memory() {
    let (_dir, running, mut agent) = attached().await;
    for number in 0..2 {
        let role = format!("pp{number}");
        let up = v1::RankUp { role, ..JOB.rank_up(number) };
        agent.say(v1::agent_message::Body::RankUp(up)).await;
    }
    agent.gpus = vec![gpu(0)];
    agent.report(vec![full(&JOB, 0, 5), JOB.rank_report(1, &(5..=5))]).await;
    agent.settle().await;

    let known = rank(&running, 0).await;
    assert_eq!((&known["role"], &known["pinned_bytes"]), (&json!("pp0"), &json!(32 * MIB)));
    assert_eq!(known["host"]["workers"]["anon_parts_bytes"], 200 * MIB);
    assert_eq!(
        (&known["host"]["cgroup"]["ooms"], &known["host"]["swap_bytes"]),
        (&json!(2), &json!(0))
    );
    let device = &known["devices"][0];
    assert_eq!(
        (&device["gpu_processes"], &device["pending_free_bytes"]),
        (&json!(2), &json!(6 * MIB))
    );
    assert_adds_up(&device["ledger"]);
    let held = 512 * MIB;
    let expected = [
        ("free", Some(3192 * MIB)),
        ("other processes", Some(700 * MIB)),
        ("NCCL", Some(40 * MIB)),
        ("other code", None),
        ("cached", None),
        ("inactive split", None),
        ("unused by tensors", Some(4096 * MIB - held - 6 * MIB)),
        ("pending frees", Some(6 * MIB)),
        ("rounding", None),
        ("requested", None),
        ("in use by tensors", Some(held)),
    ];
    let expected: Vec<_> = expected.map(|(name, bytes)| (name.to_string(), bytes)).to_vec();
    assert_eq!(layers(&device["ledger"]), expected);

    // An agent that says less: unknown is not zero.
    let less = rank(&running, 1).await;
    assert_eq!((&less["host"], &less["pinned_bytes"]), (&Value::Null, &Value::Null));
    let ledger = &less["devices"][0]["ledger"];
    assert_adds_up(ledger);
    let unknown = layers(ledger).into_iter().filter(|(_, bytes)| bytes.is_none()).count();
    assert_eq!(unknown, 9, "{ledger:#}");
    check_metrics(&running).await;
    check_accounts(&running).await;

    // What the driver said is no word on the present once its agent is gone; the host side was
    // never the driver's.
    drop(agent);
    let is_disconnected = |answer: &Value| answer["ranks"][0]["state"] == "disconnected";
    let answer = running.wait("/api/v1/jobs/held/ranks", is_disconnected).await;
    let gone = &answer["ranks"][0];
    assert_eq!(gone["alive"], false);
    assert_eq!(layers(&gone["devices"][0]["ledger"])[0], ("free".to_string(), None));
    assert_adds_up(&gone["devices"][0]["ledger"]);
    let (_, jobs) = running.get("/api/v1/jobs").await;
    assert_eq!(jobs["jobs"][0]["state"], "disconnected");
    running.stop().await;
}

/// Readings, with their limits; what no agent says is not 0.
async fn check_accounts(running: &Running) {
    for (account, mib, limit_mib) in [
        ("host", 500, 8000),
        ("pinned", 32, 8000),
        ("shared", 70, 8000),
        ("workers", 200, 8000),
        ("deferred", 6, 8192),
        ("non_torch", 204, 8192),
        ("other", 700, 8192),
    ] {
        let path = format!("/api/v1/jobs/held/series?rank=0&account={account}");
        let (_, series) = running.get(&path).await;
        assert_eq!((&series["steps"], &series["peak_bytes"]), (&json!([6]), &json!([])));
        let columns = &series["account"];
        assert_eq!(columns["lowest"], json!([mib * MIB]), "{account}");
        assert_eq!(columns["highest"], columns["lowest"]);
        assert_eq!(columns["limit_bytes"], limit_mib * MIB, "{account}");
        assert_eq!((&columns["name"], &columns["source"]), (&json!(account), &json!("readings")));
        assert_eq!((&columns["known_from_step"], &columns["unknown"]), (&json!(6), &Value::Null));

        let (_, area) =
            running.get(&format!("/api/v1/jobs/held/area?account={account}&columns=1024")).await;
        let is_of_both = account == "non_torch";
        let cells = |rank: usize| area["rows"][rank]["cells"].as_array().unwrap().clone();
        assert!(cells(0).iter().all(Value::is_u64), "{area}");
        assert!(cells(1).iter().all(|cell| cell.is_null() != is_of_both), "{area}");
        assert_eq!(area["base"], mib * MIB);
    }
    let path = "/api/v1/jobs/held/series?rank=1&account=host";
    let (_, series) = running.get(path).await;
    let columns = &series["account"];
    assert_eq!((&columns["lowest"], &columns["known_from_step"]), (&json!([]), &Value::Null));
    assert_eq!(columns["unknown"], "its agent has not read it yet");
    // It has no cgroup that is known: the memory of its host.
    assert_eq!(columns["limit_bytes"], 64_u64 << 30);
    let path = "/api/v1/jobs/held/area?account=host&first_rank=1";
    let (_, area) = running.get(path).await;
    assert_eq!((&area["medians"], &area["known_from_step"]), (&json!([]), &Value::Null));
    assert_eq!(area["unknown"], "its agent has not read it yet");
    let (_, series) = running.get("/api/v1/jobs/held/series?rank=1&account=blocks").await;
    assert_eq!(series["account"]["unit"], "blocks");
    assert_eq!(series["account"]["limit_bytes"], Value::Null);
    let (_, series) = running.get("/api/v1/jobs/held/series?rank=1&account=step_time").await;
    assert_eq!(series["account"]["unknown"], "no two steps of it are kept");
}

async fn check_metrics(running: &Running) {
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    let series = |name: &str, rank: u32, rest: &str, mib: u64| {
        let labels = format!(r#"job="held@0",attempt="0",rank="{rank}",node="node-a""#);
        format!("{name}{{{labels}{rest}}} {}", mib * MIB)
    };
    let memory = "memtape_rank_memory_bytes";
    let host = "memtape_rank_host_layer_bytes";
    for line in [
        series(memory, 0, r#",device="0",layer="allocated""#, 512),
        series(memory, 0, r#",device="0",layer="deferred""#, 6),
        series(memory, 0, r#",device="0",layer="cached""#, 4096 - 512 - 6),
        series(memory, 0, r#",device="0",layer="nontorch""#, 204),
        series(memory, 1, r#",device="0",layer="cached""#, 4096 - 512),
        series("memtape_rank_other_processes_bytes", 0, r#",device="0""#, 700),
        series(host, 0, r#",layer="anon""#, 500),
        series(host, 0, r#",layer="pinned""#, 32),
        series("memtape_rank_worker_memory_bytes", 0, r#",shared="in_parts""#, 200),
        series("memtape_rank_cgroup_limit_bytes", 0, "", 8000),
        r#"memtape_rank_workers{job="held@0",attempt="0",rank="0",node="node-a"} 4"#.to_string(),
        r#"rank="0",node="node-a",event="oom_kill"} 3"#.to_string(),
        r#"memtape_rank_state{job="held@0",attempt="0",rank="0",node="node-a",state="warming"} 1"#
            .to_string(),
    ] {
        assert!(text.contains(&line), "no {line} in {text}");
    }
    for line in [
        series("memtape_rank_other_processes_bytes", 1, "", 0),
        r#"memtape_rank_host_layer_bytes{job="held@0",attempt="0",rank="1""#.to_string(),
        series(memory, 1, r#",device="0",layer="deferred""#, 0),
    ] {
        let begin = line.split("} ").next().unwrap().trim_end_matches('}');
        assert!(!text.contains(begin), "{begin} is not known");
    }
}

/// What a rank held when it was last seen is there after a restart of the coordinator.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_words_of_a_rank_are_kept() {
    let (dir, running, mut agent) = training(&JOB).await;
    agent.report(vec![full(&JOB, 0, 5), full(&JOB, 1, 5)]).await;
    for number in 0..2 {
        let down = v1::RankDown {
            tape_id: JOB.tape(number),
            end: v1::RankEnd::OomKilled.into(),
            step: 5,
            ..v1::RankDown::default()
        };
        agent.say(v1::agent_message::Body::RankDown(down)).await;
    }
    agent.settle().await;
    running.wait("/api/v1/jobs", |answer| answer["jobs"][0]["ended_wall_ns"].is_number()).await;
    running.stop().await;
    let running = start(config(dir.path())).await;
    let known = rank(&running, 1).await;
    assert_eq!((&known["state"], &known["end"]), (&json!("failed"), &json!("oom_killed")));
    assert_eq!(known["host"]["anon_bytes"], 500 * MIB);
    assert_eq!(known["host"]["cgroup"]["oom_kills"], 3);
    assert_eq!(known["pinned_bytes"], 32 * MIB);
    assert_eq!(known["devices"][0]["pending_free_bytes"], 6 * MIB);
    assert_adds_up(&known["devices"][0]["ledger"]);
    running.stop().await;
}

/// Steps after which growth on the host has been found, whatever the detector's settings.
const FOUND_BY: u64 = 4_000;

/// Trains with these readings until an incident is diagnosed, and answers every capture.
async fn diagnosed(job: &Job, change: impl Fn(&mut v1::RankReport, u32, u64)) -> Value {
    let (_dir, running, mut agent) = attached().await;
    agent.announce(job).await;
    let mut step = 0;
    let incident = loop {
        assert!(step < FOUND_BY, "no incident by step {step}");
        let report = |rank| {
            let mut report = job.rank_report(rank, &(step + 1..=step + 4));
            change(&mut report, rank, step + 4);
            report
        };
        let reports = (0..job.ranks).map(report).collect();
        agent.report(reports).await;
        agent.settle().await;
        step += 4;
        agent.serve_all(job).await;
        if step % 64 == 0 {
            let (_, mut answer) = running.get("/api/v1/incidents").await;
            if answer["incidents"][0]["capture_id"].is_string() {
                break answer["incidents"][0].take();
            }
        }
    };
    running.check_rate().await;
    running.stop().await;
    incident
}

/// Memory of the host that grows on one rank is found, and its diagnosis rests on what was read at
/// the capture's two steps.
#[tokio::test(flavor = "multi_thread")]
async fn growth_on_the_host_is_found_and_reported_with_its_readings() {
    let job = Job::new("workers", 4);
    let incident = diagnosed(&job, |report, rank, step| {
        let grown = if rank == 1 { step.saturating_sub(300) * 4 * MIB } else { 0 };
        let workers = v1::Workers {
            count: 4,
            anon_bytes: 900 * MIB + grown,
            anon_parts_bytes: Some(500 * MIB + grown),
            ..v1::Workers::default()
        };
        report.host = Some(v1::RankHost {
            anon_bytes: Some(2000 * MIB),
            shmem_bytes: Some(100 * MIB),
            workers: Some(workers),
            cgroup: Some(v1::Cgroup { limit_bytes: Some(64 << 30), ..v1::Cgroup::default() }),
            ..v1::RankHost::default()
        });
    })
    .await;
    assert_eq!((&incident["layer"], &incident["rank"]), (&json!("workers"), &json!(1)));
    assert_eq!(incident["class"], "host", "{incident:#}");
    let rate = incident["bytes_per_step"].as_u64().unwrap();
    assert!(rate.abs_diff(4 * MIB) < MIB, "{rate}");
    let words = incident["evidence"].to_string() + &incident["advice"].to_string();
    assert!(words.contains("worker"), "{incident:#}");
    assert!(incident["steps_to_oom"].as_u64().is_some(), "the cgroup has a limit");
}

/// The same for what the process holds of the device beside PyTorch's allocator.
#[tokio::test(flavor = "multi_thread")]
async fn growth_beside_the_allocator_is_found_and_reported() {
    let job = Job::new("nontorch", 4);
    let incident = diagnosed(&job, |report, rank, step| {
        let grown = if rank == 2 { step.saturating_sub(300) * 2 * MIB } else { 0 };
        report.totals[0].process_bytes = Some(4300 * MIB + grown);
    })
    .await;
    assert_eq!((&incident["layer"], &incident["rank"]), (&json!("non_torch"), &json!(2)));
    assert_eq!(incident["class"], "non_torch", "{incident:#}");
}
