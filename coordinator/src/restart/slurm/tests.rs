//! Stand-ins for Slurm's programs: their requests, and the conditions of a requeue.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use memtape_core::action::Outcome;

use super::*;
use crate::restart::proving::Prover;

/// Prints the line of the job of this number on this node, or Slurm's error about an unknown one.
/// The file `jobs` has lines of number, node and fields; `scontrol` may change it. After a query
/// the file `late`, a script of `sed`, changes it.
const SQUEUE: &str = r#"#!/bin/sh
here=$(dirname "$0")
for word in "$@"; do
    case $word in
    --jobs=99) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
    --jobs=*) job=${word#--jobs=} ;;
    --nodelist=*) node=${word#--nodelist=} ;;
    esac
done
test "$SLURM_TIME_FORMAT" = %s -a -z "$CARGO_MANIFEST_DIR" || exit 7
while read -r id at fields; do
    if [ "$id $at" = "$job $node" ]; then echo "$fields"; fi
done < "$here/jobs" || exit
if [ -e "$here/late" ]; then
    sed -i -f "$here/late" "$here/jobs"
    rm "$here/late"
fi
"#;

/// Requeues: the job ends on its nodes, and is restarted once more.
const SCONTROL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/asked"
sed -i 's/RUNNING 1000 0/COMPLETING 1000 1/' "$here/jobs"
"#;

const JOBS: &str = "\
4711 gpu-1 4711 4711 N/A RUNNING 1000 0 100
4711 gpu-2 4711 4711 N/A RUNNING 1000 0 100
4712 gpu-1 4712 4712 N/A COMPLETED 1000 0 100
4713 gpu-1 4713 4713 N/A RUNNING 1000 3 201
4715 gpu-1 4715 4714 7 RUNNING 1000 0 100
4716 gpu-1 4716 garbled
4717 gpu-1 4717 4717 N/A SUSPENDED 1000 0 100
";

/// Poll interval of the stand-ins' callers.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// A program of this text. It is copied by another process: a child that another test forks would
/// hold a file open for writing that this process writes, and such a file cannot be run.
pub(super) fn program(folder: &Path, name: &str, text: &str) {
    let (written, path) = (folder.join("written"), folder.join(name));
    fs::write(&written, text).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("cp").args([written, path]).status().unwrap().success());
}

/// Stand-ins, with `scontrol` as given.
fn stand_ins(scontrol: &str) -> (tempfile::TempDir, Slurm) {
    let folder = tempfile::tempdir().unwrap();
    program(folder.path(), "squeue", SQUEUE);
    program(folder.path(), "scontrol", scontrol);
    fs::write(folder.path().join("jobs"), JOBS).unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.path().display()).into();
    (folder, Slurm { timeout: Duration::from_secs(10), path: Some(path), poll: POLL })
}

fn order(job: &str, node: &str) -> Order {
    let (slurm_job, node) = (job.to_string(), node.to_string());
    let (owner_uid, wall_ns) = (Some(1000), 200_000_000_000);
    Order { slurm_job, node, owner_uid, wall_ns, prover: Prover::Always, ..Order::default() }
}

pub(super) fn asked(folder: &Path) -> String {
    fs::read_to_string(folder.join("asked")).unwrap_or_default()
}

#[track_caller]
pub(super) fn check_refused(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    assert_eq!(outcome.to_string().lines().count(), 1, "{outcome}");
}

#[tokio::test]
async fn a_job_is_requeued_only_where_it_runs() {
    let (folder, slurm) = stand_ins(SCONTROL);
    for (job, node, why) in [
        ("4711", "thief", "job 4711 does not run on node thief: not requeued"),
        ("471", "gpu-1", "does not run on node"),
        ("99", "gpu-1", "Invalid job id"),
        ("", "gpu-1", "in no Slurm job"),
        ("4711,4712", "gpu-1", "in no Slurm job"),
        ("4711", "", "has no name"),
        ("4711", "gpu-[1-9]", "has no name"),
        ("4711", "/tmp/nodes", "has no name"),
        ("4712", "gpu-1", "job 4712 is COMPLETED: not requeued"),
        ("4717", "gpu-1", "is SUSPENDED"),
        ("4713", "gpu-1", "has started again since"),
        ("4716", "gpu-1", "printed no job"),
    ] {
        check_refused(&slurm.run(&order(job, node)).await, why);
    }
    let of_other = Order { owner_uid: Some(1001), ..order("4711", "gpu-2") };
    check_refused(&slurm.run(&of_other).await, "belongs to user id 1000, the rank to 1001");
    assert_eq!(asked(folder.path()), "", "nothing was requeued");
    let done = slurm.run(&order("4711", "gpu-2")).await;
    assert_eq!(done, Outcome::Finished { said: "requeued job 4711".to_string() });
    // It has not started again yet.
    check_refused(&slurm.run(&order("4711", "gpu-2")).await, "COMPLETING");
    assert_eq!(asked(folder.path()), "requeue 4711\n");
}

#[tokio::test]
async fn one_task_of_an_array_is_requeued_and_not_all() {
    let (folder, slurm) = stand_ins(SCONTROL);
    let done = slurm.run(&order("4715", "gpu-1")).await;
    assert!(matches!(done, Outcome::Finished { .. }), "{done:?}");
    assert_eq!(asked(folder.path()), "requeue 4714_7\n");
}

#[tokio::test]
async fn a_refusal_of_slurm_is_reported_in_its_words() {
    let says = "echo 'Requested operation is presently disabled for job 4711' >&2; exit 1";
    let (_folder, slurm) = stand_ins(&format!("#!/bin/sh\n{says}\n"));
    check_refused(&slurm.run(&order("4711", "gpu-1")).await, "presently disabled for job 4711");
    let absent = Slurm { path: Some("/nowhere".into()), ..slurm };
    check_refused(&absent.run(&order("4711", "gpu-1")).await, "squeue cannot be started");
}

/// Ends the job meanwhile, and makes `scontrol` fail, too.
const FAILS: &str = "sed -i 's/RUNNING/FAILED/' \"$(dirname \"$0\")/jobs\"; exit 1";
const IS_OVER: &str = "sed -i '/^4711 /d' \"$(dirname \"$0\")/jobs\"; exit 1";

#[tokio::test]
async fn a_request_that_may_have_been_taken_is_no_refusal() {
    for (scontrol, why) in [
        ("kill -9 $$", "and the job may be requeued"),
        ("sleep 60", "took longer"),
        ("exit 0", "still runs as before"),
        ("rm \"$(dirname \"$0\")/jobs\"", "it is not known whether job 4711 was requeued"),
        ("rm \"$(dirname \"$0\")/jobs\"; exit 1", "it is not known whether job 4711 was requeued"),
        (FAILS, "scontrol ended with exit status: 1, and the job may be requeued"),
        (IS_OVER, "scontrol ended with exit status: 1, and the job may be requeued"),
    ] {
        let (_folder, slurm) = stand_ins(&format!("#!/bin/sh\n{scontrol}\n"));
        let slurm = Slurm { timeout: Duration::from_secs(2), ..slurm };
        let outcome = slurm.run(&order("4711", "gpu-1")).await;
        assert!(matches!(outcome, Outcome::Failed { .. }), "{scontrol}: {outcome:?}");
        assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    }
}

/// The answer of a busy `slurmctld` does not come in time.
const TIMEOUT: &str = "echo 'Socket timed out on send/recv operation' >&2; exit 1";

#[tokio::test]
async fn a_request_that_was_taken_although_scontrol_failed_is_seen() {
    let requeued = "s/RUNNING 1000 0/COMPLETING 1000 1/";
    let runs_again = "s/RUNNING 1000 0 100/RUNNING 1000 1 201/";
    for change in [requeued, runs_again] {
        let now = format!("sed -i '{change}' \"$(dirname \"$0\")/jobs\"");
        let late = format!("echo '{change}' > \"$(dirname \"$0\")/late\"");
        for change in [now, late] {
            let (_folder, slurm) = stand_ins(&format!("#!/bin/sh\n{change}\n{TIMEOUT}\n"));
            let done = slurm.run(&order("4711", "gpu-1")).await;
            assert_eq!(done, Outcome::Finished { said: "requeued job 4711".to_string() });
        }
    }
}

/// Lock of the tests of the real Slurm, which has one node: one runs at a time.
pub(super) static CLUSTER: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Output of a program of the real Slurm.
pub(super) fn printed(program: &str, arguments: &[&str]) -> String {
    let output = std::process::Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

/// Submits a job of this shell text; returns its number.
fn submit(script: &str, more: &[&str]) -> String {
    let wrap = format!("--wrap={script}");
    // A name that reads like a field of `scontrol show job`.
    let name = "--job-name=x JobState=RUNNING UserId=other(7)";
    let fixed = ["--parsable", "--requeue", "--output=/dev/null", name, &wrap];
    printed("sbatch", &[&fixed, more].concat())
}

/// Waits until the job is in this state. `squeue` writes `STATE RESTARTS`.
fn wait_for(job: &str, expected: &str) {
    let of_job = format!("--jobs={job}");
    let fields = "--Format=State:20,RestartCnt:8";
    let mut found = String::new();
    for _ in 0..100 {
        found = printed("squeue", &["--noheader", "--states=all", &of_job, fields]);
        if found.split_whitespace().collect::<Vec<_>>().join(" ") == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("job {job} is {found}, not {expected}");
}

/// Needs the cluster of `tests/slurm/cluster`, which sets the variable.
#[tokio::test]
async fn the_real_slurm_requeues_once_and_never_a_completed_job() {
    if std::env::var_os("MEMTAPE_TEST_SLURM").is_none() {
        // Past the test harness: `cargo xtask test` collects these lines.
        let line = "left out: requeues of the real Slurm need tests/slurm/cluster\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let _turn = CLUSTER.lock().await;
    let slurm = Slurm::new(Duration::from_secs(10));
    let node = printed("hostname", &[]);
    let now_ns = || memtape_disk::clock::now().wall_ns;
    let uid = Some(rustix::process::getuid().as_raw());
    let order = |job: &str| Order { owner_uid: uid, wall_ns: now_ns(), ..order(job, &node) };

    let completed = submit("true", &[]);
    wait_for(&completed, "COMPLETED 0");
    check_refused(&slurm.run(&order(&completed)).await, "is COMPLETED: not requeued");
    wait_for(&completed, "COMPLETED 0");

    let running = submit("sleep 300", &[]);
    wait_for(&running, "RUNNING 0");
    let before = Order { wall_ns: 1_000_000_000, ..order(&running) };
    check_refused(&slurm.run(&before).await, "has started again since");
    let of_other = Order { owner_uid: Some(7), ..order(&running) };
    check_refused(&slurm.run(&of_other).await, "the rank to 7");
    let elsewhere = Order { node: "thief".to_string(), ..order(&running) };
    check_refused(&slurm.run(&elsewhere).await, "not requeued");
    wait_for(&running, "RUNNING 0");
    let done = slurm.run(&order(&running)).await;
    assert_eq!(done, Outcome::Finished { said: format!("requeued job {running}") });
    check_refused(&slurm.run(&order(&running)).await, "not requeued");
    wait_for(&running, "PENDING 1");
    check_refused(&slurm.run(&order(&running)).await, "does not run on node");
    wait_for(&running, "PENDING 1");
    printed("scancel", &[&running]);

    let kept = submit("sleep 300", &["--no-requeue"]);
    wait_for(&kept, "RUNNING 0");
    check_refused(&slurm.run(&order(&kept)).await, "presently disabled");
    printed("scancel", &[&kept]);

    // The last task of an array has the array's own number, by which all its tasks are meant.
    let array = submit("sleep 300", &["--array=1-2"]);
    let (first, last) = (format!("{array}_1"), format!("{array}_2"));
    wait_for(&first, "RUNNING 0");
    wait_for(&last, "RUNNING 0");
    let done = slurm.run(&order(&array)).await;
    assert_eq!(done, Outcome::Finished { said: format!("requeued job {last}") });
    wait_for(&last, "PENDING 1");
    wait_for(&first, "RUNNING 0");
    printed("scancel", &[&array]);
}
