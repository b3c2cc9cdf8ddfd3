//! What starts the ranks: shells, torchrun, launchers in Python, Slurm, and `memtape run` itself.

use std::process::Command;

use memtape_core::identity::Identity;
use memtape_tests::{Torch, memtape, tapes, torch};

use super::{Outcome, python, run, script};

/// `memtape run` with a folder for tapes, around these words, in this environment.
fn launched(words: &[&str], environment: &[(&str, &str)]) -> Outcome {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(memtape());
    command.arg("run").arg("--dir").arg(scratch.path().join("tapes")).arg("--").args(words);
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MEMTAPE_JOB", "MEMTAPE_DIR", "SLURM_JOB_ID"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    run(command, scratch)
}

/// Who the tapes say they are, in order of their ranks.
fn identities(outcome: &Outcome) -> Vec<Identity> {
    assert!(outcome.status.success(), "{}\n{}", outcome.status, outcome.said);
    outcome.tapes().iter().map(|path| tapes::open(path).identity().clone()).collect()
}

fn text(path: impl AsRef<std::path::Path>) -> String {
    path.as_ref().to_str().expect("a path in UTF-8").to_string()
}

#[test]
fn a_shell_is_no_rank_but_what_it_starts_is() {
    let line = format!("true; {} {} | cat; exit 9", text(python()), text(script("rank.py")));
    let outcome = launched(&["bash", "-c", &line], &[("RANK", "3"), ("WORLD_SIZE", "4")]);
    assert_eq!(outcome.status.code(), Some(9), "the shell's own code: {}", outcome.said);
    let tape = outcome.tape();
    assert_eq!(tape.identity().pid.to_string(), outcome.value("pid"));
    assert_eq!((tape.identity().rank, tape.identity().world_size), (3, 4));
}

#[test]
fn torchrun_gives_each_rank_its_tape() {
    let Some(torch) = torch("torchrun under memtape run") else { return };
    let python = text(&torch.python);
    let arguments = Torch::torchrun(3);
    let mut words: Vec<&str> = vec![&python];
    words.extend(arguments.iter().map(String::as_str));
    let rank = text(script("rank.py"));
    words.push(&rank);
    let seen = identities(&launched(&words, &[]));
    let ranks: Vec<_> = seen.iter().map(|id| (id.rank, id.local_rank, id.world_size)).collect();
    assert_eq!(ranks, [(0, 0, 3), (1, 1, 3), (2, 2, 3)], "and none for torchrun itself");
    let job = &seen[0].job;
    assert!(job.starts_with("rank-") && seen.iter().all(|id| id.job == *job), "{seen:?}");
}

#[test]
fn a_launcher_in_python_gives_each_rank_its_tape() {
    let words = [text(python()), text(script("launcher.py")), "2".into(), text(script("rank.py"))];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seen = identities(&launched(&words, &[("MEMTAPE_JOB", "accelerated")]));
    let ranks: Vec<_> = seen.iter().map(|id| (id.rank, id.local_rank, id.world_size)).collect();
    assert_eq!(ranks, [(0, 0, 2), (1, 1, 2)]);
    assert!(seen.iter().all(|id| id.job == "accelerated"));
}

#[test]
fn slurm_names_job_and_rank() {
    let words = [text(python()), text(script("rank.py"))];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let slurm = [
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_PROCID", "5"),
        ("SLURM_NTASKS", "16"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_RESTART_COUNT", "2"),
    ];
    let seen = identities(&launched(&words, &slurm));
    let [id] = &seen[..] else { panic!("one rank: {seen:?}") };
    assert_eq!((id.job.as_str(), id.attempt), ("4711", 2));
    assert_eq!((id.rank, id.world_size, id.local_rank), (5, 16, 1));
}

#[test]
fn memtape_run_within_memtape_run_is_one_recorder() {
    let memtape = text(memtape());
    let words = [memtape, "run".into(), "--".into(), text(python()), text(script("rank.py"))];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seen = identities(&launched(&words, &[("MEMTAPE_JOB", "nested")]));
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].job, "nested");
}
