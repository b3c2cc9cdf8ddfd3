//! What is done inside the ranks of a running job, and the proof of it: garbage that waits for a
//! collector is collected, cached segments are given back, and a leak is left alone after a
//! collection did not help twice.
//!
//! Two DDP ranks train under torchrun; a real coordinator finds the growth and decides by a policy
//! file that allows no restart. Each job runs on with the processes that it began with.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use memtape_core::tape::mailbox::ReplyStatus;
use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{Torch, memtape, root, tapes, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/train_remedied.py";
const JOB: &str = "remedied";
const NODE: &str = "node-a";
const RANKS: u32 = 2;

const PATIENCE: Duration = Duration::from_secs(300);

/// A job that two actions are to be seen of within a minute.
const POLICY: &str = "[budgets]\ncool-down-inside = \"5s\"\n\
                      [[rule]]\nclasses = [\"leak\"]\nmode = \"act\"\nremedies = [\"gc\"]\n\
                      [[rule]]\nmode = \"act\"\nremedies = [\"gc\", \"empty-cache\"]\n";

/// A cluster with one job.
struct Rig {
    cluster: Cluster,
    job: Process,
    stop: PathBuf,
    begun: Instant,
}

#[test]
fn garbage_is_collected_before_memory_runs_out() {
    let Some(torch) = torch("cycles are collected in a running job") else { return };
    let rig = Rig::start(&torch, "cycles", "16G");
    let action = rig.verdict(0);
    let class = rig.class(&action);
    assert!(class == "reference_cycles" || class == "leak", "{class}");
    assert_eq!(action["decision"], "collect garbage", "{action:#}");
    let (step, text) = ("garbage collected at step ", " done on 2 of 2 ranks");
    rig.check_helped(&action, (step, text), "per-step minimum ");
    rig.finish();
}

#[test]
fn cached_segments_are_given_back_before_memory_runs_out() {
    let Some(torch) = torch("the cache is emptied in a running job") else { return };
    // Reserved memory may be what a job needs, until a third of the device is filled.
    let rig = Rig::start(&torch, "fragments", "8G");
    let action = rig.verdict(0);
    assert_eq!(rig.class(&action), "fragmentation", "{action:#}");
    assert_eq!(action["decision"], "empty the cache", "{action:#}");
    let (step, text) = ("cache emptied at step ", " done on 2 of 2 ranks");
    rig.check_helped(&action, (step, text), "reserved ");
    rig.finish();
}

/// A list holds the tensors: there is nothing to collect.
#[test]
fn a_leak_is_left_alone_when_collecting_did_not_help_twice() {
    let Some(torch) = torch("collecting does not help against a leak") else { return };
    let rig = Rig::start(&torch, "leak", "16G");
    for nth in 0..2 {
        let action = rig.verdict(nth);
        assert_eq!(rig.class(&action), "leak", "{action:#}");
        assert_eq!(action["decision"], "collect garbage", "{action:#}");
        assert_eq!(action["verdict"], "no effect", "{action:#}");
    }
    let objection = "the last 2 garbage collections did not help: a person must look";
    let declined = wait_for("the decision to do nothing", PATIENCE, || {
        let of_twice = |action: &Value| action["why"] == format!("did nothing: {objection}");
        rig.decisions().into_iter().find(of_twice)
    });
    println!("after {:?}: {declined:#}", rig.begun.elapsed());
    let explained = rig.cluster.ask(&["policy", "explain", JOB]);
    assert_eq!(explained["incidents"][0]["remedies"][0]["objection"], objection, "{explained:#}");
    assert_eq!(rig.actions().len(), 2);
    rig.finish();
}

impl Rig {
    fn start(torch: &Torch, fault: &str, device: &str) -> Self {
        let cluster = Cluster::start_with_policy(&[NODE], POLICY);
        let (stop, begun) = (cluster.scratch().join("stop"), Instant::now());
        let inner = torch.command(RANKS, device);
        let mut command = Command::new(memtape());
        command.args(["run", "--job", JOB, "--actions", "gc,empty-cache", "--dir"]);
        command.arg(cluster.tapes(NODE)).arg("--");
        command.arg(inner.get_program()).args(inner.get_args());
        command.args(Torch::torchrun(RANKS)).args([SCRIPT, fault, "--stop"]).arg(&stop);
        let job = Process::start(command.current_dir(root()));
        Self { cluster, job, stop, begun }
    }

    /// The decisions, oldest first.
    fn decisions(&self) -> Vec<Value> {
        let answer = self.cluster.get("/api/v1/actions").unwrap_or_default();
        let mut decisions = answer["actions"].as_array().cloned().unwrap_or_default();
        decisions.reverse();
        decisions
    }

    /// Those to do something, oldest first.
    fn actions(&self) -> Vec<Value> {
        let mut actions = self.decisions();
        actions.retain(|action| action["decision"] != "nothing");
        actions
    }

    /// The action of this number, when it has its verdict.
    fn verdict(&self, nth: usize) -> Value {
        let action = wait_for("the action has its verdict", PATIENCE, || {
            let action = self.actions().into_iter().nth(nth)?;
            (action["verdict"] != "").then_some(action)
        });
        println!("after {:?}: {action:#}", self.begun.elapsed());
        action
    }

    /// The class of the incident that an action is about.
    fn class(&self, action: &Value) -> String {
        let incidents = self.cluster.incidents(JOB);
        let incident = incidents.iter().find(|incident| incident["id"] == action["incident_id"]);
        let class = incident.and_then(|incident| incident["class"].as_str());
        class.unwrap_or_default().to_string()
    }

    /// All ranks did it at one step, and the figure of memory is lower than before.
    #[track_caller]
    fn check_helped(&self, action: &Value, (text, of_ranks): (&str, &str), figure: &str) {
        assert_eq!(action["verdict"], "helped", "{action:#}");
        let outcome = action["outcome"].as_str().expect("an outcome");
        let (step, done) =
            outcome.strip_prefix(text).and_then(|rest| rest.split_once(',')).expect(text);
        assert_eq!(done, of_ranks, "{action:#}");
        let step: u64 = step.parse().expect("a number");
        for tape in tapes::in_folder(&self.cluster.tapes(NODE)) {
            let (reply, _) = tapes::open(&tape).reply().expect("a reply");
            assert_eq!((reply.status(), reply.step()), (ReplyStatus::Done, step));
        }
        let proof = action["proof"].as_str().expect("figures");
        assert!(proof.contains(figure), "{action:#}");
    }

    /// Ends the job, which must end well, with the processes that it began with.
    fn finish(self) {
        let Self { cluster, job, stop, .. } = self;
        std::fs::write(stop, "").expect("a file");
        let (code, said) = job.end(PATIENCE);
        assert_eq!(code, Some(0), "{said:#?}");
        let pids = |text: &str| {
            let of = said.iter().filter(|line| line.contains(text));
            let mut pids: Vec<String> =
                of.filter_map(|line| Some(line.split_once("pid ")?.1.to_string())).collect();
            pids.sort();
            pids
        };
        let (begun, finished) = (pids(" begins, "), pids(" finished after "));
        assert_eq!((begun.len(), &begun), (RANKS as usize, &finished), "{said:#?}");
        drop(cluster);
    }
}
