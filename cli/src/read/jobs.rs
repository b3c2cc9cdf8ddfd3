//! Tells which files are of one job: ranks of different jobs are not compared.
//!
//! Tapes, captures and Memtape's exports name their job and their attempt; where a rank of one
//! attempt has several tapes, it was started again, and its earlier process is a job of its own. Of
//! other files the folder tells: where a rank is in several
//! folders, each folder is a job. Folders that are nothing but a rank or a step are left out of
//! that. Files of several jobs in one folder, under the same ranks, cannot be told from several
//! moments of one, and neither can jobs that have no rank in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memtape_core::diagnosis::evidence::torch::origin::Origin;

use crate::read::names::{named_rank, names_rank_or_step};
use crate::read::snapshots::Snapshot;

/// The files of one job, in the order given.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name of the job, or its folder; empty where all files are of one job.
    pub(crate) name: String,
    /// Its files.
    pub(crate) files: Vec<Snapshot>,
}

/// Groups the files by job, in the order of their first files. `unreadable` files say, too, which
/// ranks a folder has. With `over_time` all are of one job.
pub(crate) fn jobs(snapshots: Vec<Snapshot>, unreadable: &[&Path], over_time: bool) -> Vec<Job> {
    let names = by_export(&snapshots).or_else(|| by_folder(&snapshots, unreadable));
    let Some(names) = names.filter(|_| !over_time) else {
        return vec![Job { name: String::new(), files: snapshots }];
    };
    let mut jobs: Vec<Job> = Vec::new();
    for (name, snapshot) in names.into_iter().zip(snapshots) {
        match jobs.iter_mut().find(|job| job.name == name) {
            Some(job) => job.files.push(snapshot),
            None => jobs.push(Job { name, files: vec![snapshot] }),
        }
    }
    jobs
}

/// True where nothing says that these files are of different jobs.
pub(crate) fn may_be_one(snapshots: &[Snapshot]) -> bool {
    by_export(snapshots).or_else(|| by_folder(snapshots, &[])).is_none()
}

/// The job of each file, where files name theirs; of others the folder. None where all are alike.
fn by_export(snapshots: &[Snapshot]) -> Option<Vec<String>> {
    if snapshots.iter().all(|file| file.look.origin.job.is_none()) {
        return None;
    }
    let attempts = attempts(snapshots);
    let newest = newest_tapes(snapshots);
    let name = |file: &Snapshot| {
        let origin = &file.look.origin;
        let Some(job) = &origin.job else { return shown(&file.path) };
        let mut name = job.clone();
        if attempts.get(job).is_some_and(|attempts| attempts.len() > 1) {
            name += &format!(", attempt {}", origin.attempt.unwrap_or(0));
        }
        let tapes = newest.get(&process_key(origin));
        if let (Some((_, newest)), Some(tape)) = (tapes, &origin.tape_id)
            && newest != tape
        {
            name += &format!(", earlier process {tape} of rank {}", origin.rank.unwrap_or(0));
        }
        name
    };
    several(snapshots.iter().map(name).collect())
}

/// The attempts at each job.
fn attempts(snapshots: &[Snapshot]) -> BTreeMap<String, BTreeSet<u32>> {
    let mut attempts: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for origin in snapshots.iter().map(|file| &file.look.origin) {
        if let Some(job) = &origin.job {
            attempts.entry(job.clone()).or_default().insert(origin.attempt.unwrap_or(0));
        }
    }
    attempts
}

/// Job, attempt and rank.
type ProcessKey = (Option<String>, Option<u32>, Option<u32>);

fn process_key(origin: &Origin) -> ProcessKey {
    (origin.job.clone(), origin.attempt, origin.rank)
}

/// The tape of each rank of each attempt whose newest event is the latest, with that event's time.
fn newest_tapes(snapshots: &[Snapshot]) -> BTreeMap<ProcessKey, (Option<i64>, String)> {
    let mut newest: BTreeMap<ProcessKey, (Option<i64>, String)> = BTreeMap::new();
    for look in snapshots.iter().map(|file| &file.look) {
        let Some(tape) = look.origin.tape_id.clone() else { continue };
        let found = (look.newest_us, tape);
        let known = newest.entry(process_key(&look.origin)).or_insert_with(|| found.clone());
        if *known < found {
            *known = found;
        }
    }
    newest
}

/// The folder of each file, where a rank is in several folders.
fn by_folder(snapshots: &[Snapshot], unreadable: &[&Path]) -> Option<Vec<String>> {
    let mut folders: BTreeMap<u32, BTreeSet<PathBuf>> = BTreeMap::new();
    let read = snapshots.iter().map(|file| (file.look.origin.rank, file.path.as_path()));
    for (rank, path) in read.chain(unreadable.iter().map(|path| (None, *path))) {
        if let Some(rank) = rank.or_else(|| named_rank(path)) {
            folders.entry(rank).or_default().insert(folder(path));
        }
    }
    if folders.values().all(|folders| folders.len() < 2) {
        return None;
    }
    several(snapshots.iter().map(|file| shown(&file.path)).collect())
}

fn several(names: Vec<String>) -> Option<Vec<String>> {
    let different: BTreeSet<&String> = names.iter().collect();
    (different.len() > 1).then_some(names)
}

/// The folder of a job: without the innermost ones that are nothing but a rank or a step.
fn folder(path: &Path) -> PathBuf {
    let mut folder = path.parent().unwrap_or_else(|| Path::new("")).to_path_buf();
    while folder.file_name().is_some_and(|name| names_rank_or_step(&name.to_string_lossy())) {
        folder.pop();
    }
    folder
}

fn shown(path: &Path) -> String {
    match folder(path) {
        folder if folder.as_os_str().is_empty() => ".".to_string(),
        folder => folder.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::evidence::torch::look::Look;
    use memtape_core::pickle::torch::{Notes, Shape};
    use memtape_core::tape::layout::Clock;

    use super::*;
    use crate::read::content::Format;

    /// A file of a rank of an attempt at the job `j`, whose newest event has this time.
    fn recorded(attempt: u32, rank: u32, tape: &str, newest_us: i64) -> Snapshot {
        let origin = Origin {
            rank: Some(rank),
            job: Some("j".to_string()),
            attempt: Some(attempt),
            tape_id: Some(tape.to_string()),
            step: None,
        };
        Snapshot {
            path: PathBuf::from(format!("{tape}.tape")),
            format: Format::Tape,
            clock: Clock::Steps,
            look: Look { origin, newest_us: Some(newest_us), ..Look::default() },
            notes: Notes::default(),
            shape: Shape::Snapshot,
        }
    }

    #[test]
    fn processes_of_one_rank_are_not_mixed() {
        let check = |files: Vec<Snapshot>, expected: &[(&str, usize)]| {
            let jobs = jobs(files, &[], false);
            let found: Vec<(&str, usize)> =
                jobs.iter().map(|job| (job.name.as_str(), job.files.len())).collect();
            assert_eq!(found, expected);
        };
        let two_times = || vec![recorded(0, 0, "a", 1), recorded(0, 0, "a", 9)];
        check(two_times(), &[("", 2)]);
        assert!(may_be_one(&two_times()));
        let restarted = vec![
            recorded(0, 0, "a", 5),
            recorded(0, 1, "b", 2),
            recorded(0, 1, "c", 5),
            recorded(0, 2, "d", 5),
        ];
        check(restarted, &[("j", 3), ("j, earlier process b of rank 1", 1)]);
        let attempts = || vec![recorded(0, 0, "a", 1), recorded(1, 0, "b", 9)];
        check(attempts(), &[("j, attempt 0", 1), ("j, attempt 1", 1)]);
        assert!(!may_be_one(&attempts()));
    }
}
