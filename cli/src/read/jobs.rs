//! Groups files by job: ranks of different jobs are not compared.
//!
//! Tapes, captures and Memtape's exports name their job and their attempt; where a rank of one
//! attempt has several tapes, it was started again, and its earlier process is a job of its own. Of
//! other files the folder tells: where a rank is in several folders, each folder is a job. Folders
//! that only name a rank or a step do not count. Files whose names have no ranks are of one job
//! only where their memory comes from the same lines of code. Files of several jobs in one folder,
//! under the same ranks, cannot be distinguished from several states of one, and neither can jobs
//! that have no rank in common.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memtape_core::diagnosis::files::{Program, firsts};
use memtape_core::identity::Identity;

use crate::read::names::{named_rank, names_rank_or_step};
use crate::read::order::{RankSource, sources};
use crate::read::snapshots::Snapshot;

/// The files of one job, in the order given.
#[derive(Debug)]
pub(crate) struct Job {
    /// Name of the job, or its folder; empty where all files are of one job.
    pub(crate) name: String,
    /// Files of the job.
    pub(crate) files: Vec<Snapshot>,
}

/// Groups the files by job, in the order of their first files. `unreadable` files say, too, which
/// ranks a folder has. With `over_time` all are of one job.
pub(crate) fn jobs(snapshots: Vec<Snapshot>, unreadable: &[&Path], over_time: bool) -> Vec<Job> {
    if over_time {
        return vec![Job { name: String::new(), files: snapshots }];
    }
    let names = by_name(&snapshots, unreadable);
    let names = names.unwrap_or_else(|| vec![String::new(); snapshots.len()]);
    let mut jobs: Vec<Job> = Vec::new();
    for (name, snapshot) in names.into_iter().zip(snapshots) {
        match jobs.iter_mut().find(|job| job.name == name) {
            Some(job) => job.files.push(snapshot),
            None => jobs.push(Job { name, files: vec![snapshot] }),
        }
    }
    jobs.into_iter().flat_map(by_program).collect()
}

/// True where no fact shows that these files are of different jobs.
pub(crate) fn may_be_one(snapshots: &[Snapshot]) -> bool {
    by_name(snapshots, &[]).is_none() && programs(snapshots).is_none()
}

/// The job of each file, as contents or folders name it. None where neither does.
fn by_name(snapshots: &[Snapshot], unreadable: &[&Path]) -> Option<Vec<String>> {
    let originals = originals(snapshots);
    by_export(snapshots, &originals).or_else(|| by_folder(&originals, unreadable))
}

/// A job whose files may be ranks, program by program.
fn by_program(job: Job) -> Vec<Job> {
    let Some(programs) = programs(&job.files) else { return vec![job] };
    let mut jobs: BTreeMap<usize, Job> = BTreeMap::new();
    for (program, file) in programs.into_iter().zip(job.files) {
        let name = || file.path.display().to_string();
        let of = jobs.entry(program).or_insert_with(|| Job { name: name(), files: Vec::new() });
        of.files.push(file);
    }
    let name = |job: Job| match job.files.len() {
        1 => job,
        count => Job { name: format!("{} and {} more", job.name, count - 1), ..job },
    };
    jobs.into_values().map(name).collect()
}

/// The program of each file, by the number of the first file of that program. None where all are
/// of one, or contents or names say which rank or step each file is of.
fn programs(snapshots: &[Snapshot]) -> Option<Vec<usize>> {
    if matches!(sources(snapshots), RankSource::File | RankSource::Name | RankSource::One) {
        return None;
    }
    let files: Vec<Program<'_>> = snapshots.iter().map(|of| Program::of(&of.history)).collect();
    let mut programs: Vec<usize> = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let is_first = |(number, program): &(usize, &usize)| number == *program;
        let mut firsts = programs.iter().enumerate().filter(is_first).map(|(number, _)| number);
        let known = firsts.find(|&first| files.get(first).is_some_and(|of| of.is(file)));
        programs.push(known.unwrap_or(at));
    }
    programs.iter().any(|&program| program > 0).then_some(programs)
}

/// The job of each file: its own name for the job, else the folder. None where no file names a job.
fn by_export(snapshots: &[Snapshot], originals: &[&Snapshot]) -> Option<Vec<String>> {
    if snapshots.iter().all(|file| recorded(file).is_none()) {
        return None;
    }
    let attempts = attempts(snapshots);
    let newest = newest_tapes(snapshots);
    let name = |file: &&Snapshot| {
        let Some(identity) = recorded(file) else { return shown(&file.path) };
        let Identity { job, attempt, rank, tape_id, .. } = identity;
        let mut name = job.clone();
        if attempts.get(job.as_str()).is_some_and(|attempts| attempts.len() > 1) {
            name += &format!(", attempt {attempt}");
        }
        let newest = newest.get(&process_key(identity));
        if newest.is_some_and(|(_, newest)| newest != tape_id) {
            name += &format!(", earlier process {tape_id} of rank {rank}");
        }
        name
    };
    several(originals.iter().map(name).collect())
}

/// For each file the one whose job is its job: a copy is of no other job than what it copies.
fn originals(snapshots: &[Snapshot]) -> Vec<&Snapshot> {
    let firsts = firsts(snapshots.iter().map(|file| &file.history));
    let original = |(file, first): (_, &usize)| {
        let same = snapshots.iter().zip(&firsts).filter(|(_, of)| *of == first);
        let mut same = std::iter::once(file).chain(same.map(|(file, _)| file));
        let known = same.clone().find(|file| recorded(file).is_some());
        known.or(same.nth(1).filter(|first| first.history.is_dated())).unwrap_or(file)
    };
    snapshots.iter().zip(&firsts).map(original).collect()
}

/// Identity of the rank in a file that Memtape recorded.
fn recorded(file: &Snapshot) -> Option<&Identity> {
    Some(&file.history.rank.identity).filter(|_| file.history.is_recorded())
}

/// The attempts at each job.
fn attempts(snapshots: &[Snapshot]) -> BTreeMap<&str, BTreeSet<u32>> {
    let mut attempts: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for identity in snapshots.iter().filter_map(recorded) {
        attempts.entry(&identity.job).or_default().insert(identity.attempt);
    }
    attempts
}

/// Job, attempt and rank.
fn process_key(identity: &Identity) -> (&str, u32, u32) {
    (&identity.job, identity.attempt, identity.rank)
}

/// The tape of each rank of each attempt whose newest event is the latest, with that event's time.
fn newest_tapes(snapshots: &[Snapshot]) -> BTreeMap<(&str, u32, u32), (Option<i64>, &str)> {
    let mut newest: BTreeMap<(&str, u32, u32), (Option<i64>, &str)> = BTreeMap::new();
    for (file, identity) in snapshots.iter().filter_map(|file| Some((file, recorded(file)?))) {
        let found = (file.history.newest_us(), identity.tape_id.as_str());
        let known = newest.entry(process_key(identity)).or_insert(found);
        *known = (*known).max(found);
    }
    newest
}

/// The folder of each file, where a rank is in several folders.
fn by_folder(originals: &[&Snapshot], unreadable: &[&Path]) -> Option<Vec<String>> {
    let mut folders: BTreeMap<u32, BTreeSet<PathBuf>> = BTreeMap::new();
    let rank = |file: &Snapshot| recorded(file).map(|identity| identity.rank);
    let read = originals.iter().map(|file| (rank(file), file.path.as_path()));
    for (rank, path) in read.chain(unreadable.iter().map(|path| (None, *path))) {
        if let Some(rank) = rank.or_else(|| named_rank(path)) {
            folders.entry(rank).or_default().insert(folder(path));
        }
    }
    if folders.values().all(|folders| folders.len() < 2) {
        return None;
    }
    several(originals.iter().map(|file| shown(&file.path)).collect())
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
    use memtape_core::diagnosis::files::History;
    use memtape_core::pickle::torch::Notes;
    use memtape_core::snapshot::RankSnapshot;
    use memtape_core::tape::layout::Clock;

    use super::*;
    use crate::read::content::Format;

    /// A file of a rank of an attempt at the job `j`, whose newest event has this time.
    fn tape_of(attempt: u32, rank: u32, tape: &str, newest_us: i64) -> Snapshot {
        let identity = Identity {
            rank,
            job: "j".to_string(),
            attempt,
            tape_id: tape.to_string(),
            ..Identity::default()
        };
        let wall_ns = newest_us * 1000;
        let rank = RankSnapshot { identity, wall_ns, ..RankSnapshot::default() };
        Snapshot {
            path: PathBuf::from(format!("{tape}.tape")),
            format: Format::Tape,
            clock: Clock::Steps,
            history: History { rank, ..History::default() },
            notes: Notes::default(),
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
        let two_times = || vec![tape_of(0, 0, "a", 1), tape_of(0, 0, "a", 9)];
        check(two_times(), &[("", 2)]);
        assert!(may_be_one(&two_times()));
        let restarted = vec![
            tape_of(0, 0, "a", 5),
            tape_of(0, 1, "b", 2),
            tape_of(0, 1, "c", 5),
            tape_of(0, 2, "d", 5),
        ];
        check(restarted, &[("j", 3), ("j, earlier process b of rank 1", 1)]);
        let attempts = || vec![tape_of(0, 0, "a", 1), tape_of(1, 0, "b", 9)];
        check(attempts(), &[("j, attempt 0", 1), ("j, attempt 1", 1)]);
        assert!(!may_be_one(&attempts()));
    }
}
