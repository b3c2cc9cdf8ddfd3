//! Tells which files are of one job: ranks of different jobs are not compared.
//!
//! Memtape's exports name their job. Of other files the folder tells: where a rank is in several
//! folders, each folder is a job. Folders that are nothing but a rank or a step are left out of
//! that. Files of several jobs in one folder, under the same ranks, cannot be told from several
//! moments of one, and neither can jobs that have no rank in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

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

/// The job of each file, where files name theirs; of others the folder. None where all are alike.
fn by_export(snapshots: &[Snapshot]) -> Option<Vec<String>> {
    if snapshots.iter().all(|file| file.look.origin.job.is_none()) {
        return None;
    }
    let name = |file: &Snapshot| file.look.origin.job.clone().unwrap_or_else(|| shown(&file.path));
    several(snapshots.iter().map(name).collect())
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
