//! The whole way: a real DDP job whose rank 2 keeps its losses ends in one incident that names
//! the very line; a capture of all ranks at one step lies in the store and outlives SIGKILL.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{Torch, library, marked_line, memtape, torch};

const SCRIPT: &str = "tests/torch/train_ddp.py";
const RANKS: u32 = 4;

#[test]
fn a_leaking_rank_is_caught_captured_stored_and_explained() {
    let Some(torch) = torch("a leaking DDP rank ends in the right incident") else { return };
    let mut cluster = Cluster::start(&["node-a"]);
    let job = start(
        &cluster,
        &torch,
        "leaking",
        &["--steps", "2000", "--leak-rank", "2", "--step-ms", "50"],
    );

    let incident = cluster.named_incident("leaking", Duration::from_secs(150));
    let culprit = &incident["culprit"];
    assert_eq!(incident["rank"], 2, "{incident:#}");
    assert_eq!(incident["class"], "leak", "{incident:#}");
    assert!(culprit["file"].as_str().is_some_and(|file| file.ends_with(SCRIPT)), "{culprit}");
    assert_eq!(culprit["line"], marked_line(SCRIPT, "# CULPRIT"), "{incident:#}");
    assert_eq!(culprit["function"], "train");

    leaking_line(&cluster, &["lines", "leaking"]);

    let id = incident["id"].as_str().expect("an id").to_string();
    let capture_id = incident["capture_id"].as_str().expect("a capture").to_string();
    let capture = cluster.ask(&["show", &capture_id]);
    assert_eq!(capture["state"], "complete", "{capture:#}");
    assert_eq!((&capture["ranks"], &capture["aligned"]), (&RANKS.into(), &RANKS.into()));
    let steps = capture["parts"].as_array().expect("parts").iter().map(|part| &part["step"]);
    assert!(steps.clone().all(|step| step == &capture["step"]), "{capture:#}");
    assert_eq!(steps.count(), RANKS as usize);

    cluster.kill_coordinator();
    cluster.start_coordinator();
    let read_back = cluster.ask(&["show", &id]);
    assert_eq!(read_back["culprit"], incident["culprit"]);
    assert_eq!(cluster.ask(&["show", &capture_id])["parts"], capture["parts"]);
    for rank in 0..RANKS {
        let output = cluster.scratch().join(format!("rank{rank}.json"));
        let (rank, output) = (rank.to_string(), output.to_string_lossy().into_owned());
        let export = ["export", &capture_id, "--rank", &rank, "--format", "json", "-o", &output];
        assert!(cluster.memtape(&export).status.success(), "rank {rank}'s snapshot is read back");
    }
    wait_for("the agent is back", Duration::from_secs(30), || {
        let nodes = cluster.ask(&["jobs"]);
        (nodes["jobs"][0]["ranks_alive"] == RANKS).then_some(())
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(cluster.incidents("leaking").len(), 1, "one cause, one incident");

    // Everything is started again over the tapes of the dead job: nothing new is to be found.
    drop(job);
    let ended = |cluster: &Cluster| {
        wait_for("the end is seen", Duration::from_secs(60), || {
            // Its ranks were killed.
            (cluster.ask(&["jobs"])["jobs"][0]["state"] == "failed").then_some(())
        });
    };
    ended(&cluster);
    cluster.restart(&["node-a"]);
    std::thread::sleep(Duration::from_secs(6));
    ended(&cluster);
    // What the killed ranks held is known from the store, and from their tapes.
    leaking_line(&cluster, &["lines", "leaking", "--rank", "2"]);
    let tapes = memtape_tests::tapes::in_folder(&cluster.tapes("node-a"));
    let tapes: Vec<String> = tapes.iter().map(|path| path.display().to_string()).collect();
    let words: Vec<&str> = ["lines"].into_iter().chain(tapes.iter().map(String::as_str)).collect();
    leaking_line(&cluster, &words);
    let mut incidents = cluster.incidents("leaking");
    incidents.retain(|incident| incident["layer"] != "process");
    assert_eq!(incidents.len(), 1, "{incidents:#?}");
    assert_eq!((&incidents[0]["id"], &incidents[0]["state"]), (&id.into(), &"closed".into()));
}

#[test]
fn the_same_job_without_the_leak_gives_no_incident() {
    let Some(torch) = torch("a clean DDP job gives no incident") else { return };
    let cluster = Cluster::start(&["node-a"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
    let ends_at = now.as_secs() + 24 * 3_600;
    let ends = [("SLURM_JOB_END_TIME", ends_at), ("MEMTAPE_TOTAL_STEPS", 700)];
    let job = start_with(&cluster, &torch, "clean", &["--steps", "700"], &ends);
    let (code, said) = job.end(Duration::from_secs(200));
    assert_eq!(code, Some(0), "{said:#?}");
    wait_for("the end is seen", Duration::from_secs(30), || {
        (cluster.ask(&["jobs"])["jobs"][0]["state"] == "ended").then_some(())
    });
    let jobs = cluster.ask(&["jobs"]);
    let job = &jobs["jobs"][0];
    assert_eq!((&job["step_max"], &job["total_steps"]), (&700.into(), &700.into()), "{jobs:#}");
    assert_eq!(job["ends_at_wall_ns"], ends_at * 1_000_000_000, "as the environment says");
    assert_eq!(cluster.incidents("clean"), Vec::<serde_json::Value>::new());
}

/// Waits until a line through the culprit grows on rank 2, and on no other rank.
fn leaking_line(cluster: &Cluster, words: &[&str]) {
    let line = u64::from(marked_line(SCRIPT, "# CULPRIT"));
    wait_for("the leaking line is shown", Duration::from_secs(60), || {
        let answer = cluster.ask(words);
        let lines = answer["lines"].as_array().expect("lines");
        let is_culprit = |of: &&serde_json::Value| {
            let frames = of["frames"].as_array().expect("frames");
            frames.iter().any(|frame| frame["line"] == line)
        };
        let mut holders = lines.iter().filter(is_culprit).flat_map(|of| {
            let holders = of["holders"].as_array().expect("holders");
            holders.iter().filter(|holder| !holder["growing_since_step"].is_null())
        });
        let ranks: Vec<u64> = holders.by_ref().filter_map(|of| of["rank"].as_u64()).collect();
        (!ranks.is_empty() && ranks.iter().all(|rank| *rank == 2)).then_some(())
    });
}

/// Starts the script the way a user does: `memtape run -- torchrun …`.
fn start(cluster: &Cluster, torch: &Torch, job: &str, arguments: &[&str]) -> Process {
    start_with(cluster, torch, job, arguments, &[])
}

fn start_with(
    cluster: &Cluster,
    torch: &Torch,
    job: &str,
    arguments: &[&str],
    variables: &[(&str, u64)],
) -> Process {
    library();
    // The fake runtime must stand behind the recorder, so its launcher is what `run` runs.
    let inner = torch.command(RANKS, "4G");
    let mut command = Command::new(memtape());
    command.args(["run", "--job", job, "--dir"]).arg(cluster.tapes("node-a")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args());
    command.args(Torch::torchrun(RANKS)).arg(SCRIPT).args(arguments);
    command.envs(variables.iter().map(|(name, value)| (name, value.to_string())));
    command.current_dir(memtape_tests::root());
    Process::start(&mut command)
}
