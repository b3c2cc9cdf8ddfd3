//! The spools of the shards, and the move of what they keep when a cluster divides its jobs again.
//!
//! Each start moves the entries of spools of another division to the spools of the present one. A
//! spool is deleted after all that it keeps is synced in its new place. A spool whose entries
//! cannot all be read, kept and synced stays whole, and is tried again at the next start. So a
//! process that is killed meanwhile, or tries again, leaves entries in two places, and the
//! coordinator takes each once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use memtape_core::limits::{SPOOL_CAPTURES_MAX, STEPS_PER_REPORT_MAX};
use memtape_core::placement::{JobsShard, shard_of};
use memtape_disk::files::Disk;
use memtape_disk::real::RealDisk;

use super::{Dropped, Kind, Next, Spool};
use crate::link::wire::{Outgoing, RankUp};

/// The name of each folder of a shard's spool begins so.
const SHARD: &str = "shard-";

/// The folder of a shard's spool. Without shards, this is the folder itself.
pub(crate) fn spool_of(folder: &Path, jobs: Option<JobsShard>) -> PathBuf {
    let name = |JobsShard { shard, shards }| format!("{SHARD}{shard}-of-{shards}");
    jobs.map_or(folder.to_path_buf(), |jobs| folder.join(name(jobs)))
}

/// The jobs of a shard; none for all jobs, where there is one shard.
pub(crate) fn jobs_of(shard: u16, shards: u16) -> Option<JobsShard> {
    (shards > 1).then_some(JobsShard { shard, shards })
}

/// Moves the entries of other divisions' spools in this folder to the spools of this number of
/// shards.
/// `open` opens a spool, and logs why it cannot.
pub(crate) fn divide(folder: &Path, shards: u16, open: impl Fn(&Path) -> Option<Spool>) {
    let present = |shard| spool_of(folder, jobs_of(shard, shards));
    let mut targets = BTreeMap::new();
    for old in spools_in(folder) {
        if (0..shards).any(|shard| present(shard) == old) {
            continue;
        }
        let Some(mut spool) = open(&old) else { continue };
        let mut wanted: BTreeSet<u16> = spool.ups().map(|up| shard_of(&up.job, shards)).collect();
        if wanted.is_empty() {
            // The spool of this shard counts the loss of entries without a job.
            wanted.insert(shard_of("", shards));
        }
        let mut is_opened = |shard| {
            if !targets.contains_key(&shard) {
                targets.extend(open(&present(shard)).map(|target| (shard, target)));
            }
            targets.contains_key(&shard)
        };
        // All are opened before the first entry is copied.
        let is_moved = spool.is_empty()
            || (wanted.into_iter().all(&mut is_opened)
                && RealDisk::new(folder).sync_folder("").is_ok()
                && spool.divide(shards, &mut targets));
        if !is_moved {
            tracing::warn!(
                "the spool in {} could not be moved to the spools of its jobs' shards: it stays, \
                 and is tried again when the agent is started again",
                old.display()
            );
        } else if old != *folder
            && let Err(error) = fs::remove_dir_all(&old)
        {
            tracing::warn!("the empty spool in {} cannot be deleted: {error}", old.display());
        }
    }
}

/// The shards whose spools keep records, except the shard of the primary agent.
pub(crate) fn shards_with_records(
    folder: &Path,
    (shards, primary): (u16, u16),
    open: impl Fn(&Path) -> Option<Spool>,
) -> BTreeSet<u16> {
    let others = (0..shards).filter(|shard| *shard != primary);
    let has_records = |shard: &u16| {
        let of_shard = spool_of(folder, jobs_of(*shard, shards));
        of_shard.is_dir() && open(&of_shard).is_some_and(|spool| !spool.is_empty())
    };
    others.filter(has_records).collect()
}

/// The folder, which may be the only spool, and the spools of shards in it.
fn spools_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let of_shards = entries.flatten().filter(|entry| {
        let is_folder = entry.file_type().is_ok_and(|of| of.is_dir());
        is_folder && entry.file_name().to_string_lossy().starts_with(SHARD)
    });
    let mut spools: Vec<PathBuf> = of_shards.map(|entry| entry.path()).collect();
    spools.push(folder.to_path_buf());
    spools.sort();
    spools
}

impl Spool {
    /// Moves all entries to the spools of the shards of their jobs, of this many shards. False when
    /// that did not succeed; then all entries are still here.
    pub(crate) fn divide(&mut self, shards: u16, targets: &mut BTreeMap<u16, Spool>) -> bool {
        targets.values_mut().for_each(|target| target.is_target = true);
        let lost = self.copy(shards, targets);
        let is_moved = lost.is_some()
            && targets.values_mut().all(|target| {
                let synced = target.steps.sync();
                target.note(synced)
            });
        if let Some(lost) = lost.filter(|_| is_moved) {
            let Dropped { steps, facts, .. } = lost;
            if let Some(target) = targets.values_mut().next().filter(|_| steps + facts > 0) {
                tracing::warn!(
                    "{steps} step records and {facts} ends of ranks in the spool are of unknown \
                     jobs: dropped"
                );
                target.count_dropped(Kind::Steps, steps);
                target.count_dropped(Kind::Facts, facts);
                target.pass_time(u64::MAX);
            }
            let captures: Vec<u64> = self.captures.keys().copied().collect();
            captures.into_iter().for_each(|number| self.forget_capture(number));
            self.sent_with(self.last(), 0);
            self.acked(0);
            self.pass_time(u64::MAX);
        }
        is_moved
    }

    /// Copies all entries; none when an entry could not be read, or kept. Returns the numbers of
    /// step records and ends of ranks whose announcements, and so the jobs, are here no more.
    fn copy(&mut self, shards: u16, targets: &mut BTreeMap<u16, Spool>) -> Option<Dropped> {
        let ups: BTreeMap<String, RankUp> =
            self.ups().map(|up| (up.tape_id.clone(), up.clone())).collect();
        let (before, mut lost) = (self.dropped, Dropped::default());
        // What was damaged earlier is gone after the next start, and stops no second attempt.
        let is_whole = |of: &Self| (of.dropped == before).then_some(());
        self.start_stream();
        while let Some(next) = self.next(STEPS_PER_REPORT_MAX) {
            let number = match next {
                Next::Steps(number, ranks) => {
                    for rank in ranks {
                        let Some(up) = ups.get(&rank.tape_id) else {
                            lost.steps += rank.steps.len() as u64;
                            continue;
                        };
                        let to = targets.get_mut(&shard_of(&up.job, shards))?;
                        (to.add_up(up) && to.add_steps(&[rank])).then_some(())?;
                    }
                    number
                }
                Next::Down(number, down) => {
                    if let Some(up) = ups.get(&down.tape_id) {
                        let to = targets.get_mut(&shard_of(&up.job, shards))?;
                        let has_status = down.exit_status.is_some();
                        let is_kept = to.is_down(&up.tape_id, has_status)
                            || (to.add_up(up)
                                && to.add_down(&up.tape_id, Outgoing::RankDown(down)));
                        is_kept.then_some(())?;
                    } else {
                        lost.facts += 1;
                    }
                    number
                }
            };
            self.sent_with(number, 0);
        }
        is_whole(self)?;
        let captures: Vec<u64> = self.captures.keys().copied().collect();
        for number in captures {
            let kept = self.captures.get(&number)?;
            let (up, capture) = (kept.up.clone(), kept.capture.clone());
            let has_snapshot = kept.bytes > kept.head_bytes;
            let snapshot = if has_snapshot { self.capture_snapshot(number) } else { None };
            let to = targets.get_mut(&shard_of(&up.job, shards))?;
            if to.captures().any(|known| *known == capture) {
                continue;
            }
            let bytes = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.bytes[..]);
            let number = to.take_number();
            let is_kept = to.captures.len() < SPOOL_CAPTURES_MAX
                && to.write_capture(number, &up, &capture, bytes, Kind::Snapshots);
            is_kept.then_some(())?;
        }
        is_whole(self)?;
        Some(lost)
    }
}
