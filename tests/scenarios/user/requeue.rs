//! `deploy/slurm/requeue.sh` with programs in the place of Slurm's: what it asks, and when it acts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/slurm/requeue.sh");

/// Answers as Slurm does, for one job that runs on two nodes.
const SQUEUE: &str = r#"#!/bin/sh
case "$*" in
*--states=RUNNING*--jobs=4711*--nodelist=gpu-1*|*--states=RUNNING*--jobs=4711*--nodelist=gpu-2*)
    echo 4711 ;;
*--jobs=99*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac
"#;

const SCONTROL: &str = "#!/bin/sh\necho \"$*\" >> \"$(dirname \"$0\")/asked\"\n";

fn program(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn a_job_is_requeued_only_where_it_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    program(folder.path(), "squeue", SQUEUE);
    program(folder.path(), "scontrol", SCONTROL);
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let run = |job: &str, node: &str| {
        let mut command = Command::new(SCRIPT);
        command.env_clear().env("PATH", &path);
        command.env("MEMTAPE_SLURM_JOB", job).env("MEMTAPE_NODE", node);
        let output = command.output().expect("a shell");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).trim().to_string())
    };
    assert_eq!(run("4711", "gpu-2"), (true, String::new()));
    let elsewhere = "job 4711 does not run on node thief: not requeued".to_string();
    assert_eq!(run("4711", "thief"), (false, elsewhere));
    for (job, node, why) in [
        ("471", "gpu-1", "does not run on node"),
        ("99", "gpu-1", "Invalid job id"),
        ("", "gpu-1", "in no Slurm job"),
        ("4711", "", "is not known"),
    ] {
        let (is_done, said) = run(job, node);
        assert!(!is_done && said.contains(why), "{job} on {node}: {said}");
    }
    let asked = fs::read_to_string(folder.path().join("asked")).expect("one call");
    assert_eq!(asked, "requeue 4711\n");
}
