//! Tells which files are of one job: snapshots of different jobs are never compared.
//!
//! Memtape's exports name their job. Of other files the folder tells: where a rank is in several
//! folders, each folder is a job, unless the folders or files name different steps. Files of
//! several jobs in one folder, under the same ranks, cannot be told from several moments of one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::read::names::{named_rank, named_step, names_rank_or_step};
use crate::read::snapshots::Snapshot;

/// The files of one job, in the order given.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name of the job, or its folder; empty where all files are of one job.
    pub(crate) name: String,
    /// Its files.
    pub(crate) files: Vec<Snapshot>,
}

/// Groups the files by job, in the order of their first files. With `over_time` all are of one.
pub(crate) fn jobs(snapshots: Vec<Snapshot>, over_time: bool) -> Vec<Job> {
    let names: Option<Vec<String>> =
        if over_time { None } else { by_export(&snapshots).or_else(|| by_folder(&snapshots)) };
    let Some(names) = names else { return vec![Job { name: String::new(), files: snapshots }] };
    let mut jobs: Vec<Job> = Vec::new();
    for (name, snapshot) in names.into_iter().zip(snapshots) {
        match jobs.iter_mut().find(|job| job.name == name) {
            Some(job) => job.files.push(snapshot),
            None => jobs.push(Job { name, files: vec![snapshot] }),
        }
    }
    jobs
}

/// The job of each file, where all files name theirs and there are several.
fn by_export(snapshots: &[Snapshot]) -> Option<Vec<String>> {
    let names = snapshots.iter().map(|file| file.look.origin.job.clone());
    several(names.collect::<Option<Vec<_>>>()?)
}

/// The folder of each file, where all files tell their rank and a rank is in several folders at the
/// same step.
fn by_folder(snapshots: &[Snapshot]) -> Option<Vec<String>> {
    let mut places: BTreeMap<(u32, Option<u64>), BTreeSet<PathBuf>> = BTreeMap::new();
    for file in snapshots {
        let origin = &file.look.origin;
        let rank = origin.rank.or_else(|| named_rank(&file.path))?;
        let step = origin.step.or_else(|| named_step(&file.path).map(u64::from));
        places.entry((rank, step)).or_default().insert(folder(&file.path));
    }
    if places.values().all(|folders| folders.len() < 2) {
        return None;
    }
    let names = snapshots.iter().map(|file| folder(&file.path).display().to_string());
    several(names.collect())
}

fn several(names: Vec<String>) -> Option<Vec<String>> {
    let different: BTreeSet<&String> = names.iter().collect();
    (different.len() > 1).then_some(names)
}

/// The folder of a job: without the innermost ones that only name a rank or a step.
fn folder(path: &Path) -> PathBuf {
    let mut folder = path.parent().unwrap_or_else(|| Path::new("")).to_path_buf();
    while folder.file_name().is_some_and(|name| names_rank_or_step(&name.to_string_lossy())) {
        folder.pop();
    }
    folder
}
