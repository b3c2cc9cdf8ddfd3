//! Who the simulated ranks are, and what their tapes would say.
//!
//! Everything is a function of rank and step, so that what the coordinator gives back later can be
//! compared with what it was sent, without remembering it.

use memtape_core::placement::shard_of;
use memtape_proto::v1;

/// Ranks of one agent: a node with eight GPUs.
pub(crate) const RANKS_PER_AGENT: u32 = 8;

/// Size of the simulated device.
const DEVICE_BYTES: u64 = 80 << 30;

/// What a model and its optimizer hold for good.
const MODEL_BYTES: u64 = 24 << 30;

/// Steps until the caches of a training job are filled; memory grows until then.
const WARM_UP_STEPS: u64 = 16;

/// What each of these steps adds.
const WARM_UP_BYTES: u64 = 512 << 20;

/// How far floors scatter from step to step: buckets of variable length.
const SCATTER_BYTES: u64 = 64 << 20;

/// One simulated agent and its ranks.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Which of all.
    pub(crate) index: u32,
    /// Job of its ranks.
    pub(crate) job: String,
    /// Global ranks of its ranks in that job.
    pub(crate) ranks: std::ops::Range<u32>,
    pub(crate) world_size: u32,
}

/// The nodes of a cluster of this many ranks in this many jobs of about equal size, whose names
/// divide them evenly among the shards.
pub(crate) fn nodes(ranks: u32, jobs: u32, shards: u16) -> Vec<Node> {
    let count = ranks.div_ceil(RANKS_PER_AGENT).max(1);
    let per_job = count.div_ceil(jobs.max(1));
    let names: Vec<String> = (0..jobs.max(1)).map(|job| name(job, jobs.max(1), shards)).collect();
    let node = |index: u32| {
        let job = index / per_job;
        let first = (index % per_job) * RANKS_PER_AGENT;
        let world_nodes = per_job.min(count - job * per_job);
        Node {
            index,
            job: names[job as usize].clone(),
            ranks: first..first + RANKS_PER_AGENT,
            world_size: world_nodes * RANKS_PER_AGENT,
        }
    };
    (0..count).map(node).collect()
}

/// Name of a job: the first of those numbers that have this remainder whose shard it is.
fn name(job: u32, jobs: u32, shards: u16) -> String {
    let wanted = job % u32::from(shards);
    let mut names = (job..).step_by(jobs as usize).map(|number| format!("load-{number}"));
    names.find(|name| u32::from(shard_of(name, shards)) == wanted).unwrap_or_default()
}

impl Node {
    /// Its name.
    pub(crate) fn name(&self) -> String {
        format!("node-{:05}", self.index)
    }

    /// Name of a rank's tape: as long as real ones, which carry boot id, pid and start time.
    pub(crate) fn tape_id(&self, rank: u32) -> String {
        let node = self.index;
        format!("6f1c22ab-74a5-4f0e-9d3c-{node:012x}-{}-{:010}", 4000 + rank, 1_000_000 + rank)
    }

    /// The user who runs its job.
    pub(crate) fn owner(&self) -> v1::Owner {
        let number = self.job.rsplit('-').next().and_then(|number| number.parse::<u32>().ok());
        v1::Owner { uid: 1000 + number.unwrap_or(0), ..v1::Owner::default() }
    }

    /// Its job where another owner's has the same name.
    pub(crate) fn job_id(&self) -> String {
        format!("{}@{}", self.job, self.owner().uid)
    }

    /// A rank's announcement.
    pub(crate) fn rank_up(&self, rank: u32, start_wall_ns: i64) -> v1::RankUp {
        v1::RankUp {
            tape_id: self.tape_id(rank),
            job: self.job.clone(),
            rank,
            world_size: self.world_size,
            local_rank: rank % RANKS_PER_AGENT,
            pid: 4000 + rank,
            start_wall_ns,
            command: "python train.py --config configs/base.yaml".to_string(),
            device_uuids: vec![format!("GPU-{:08x}-{rank:08x}", self.index)],
            ..v1::RankUp::default()
        }
    }

    /// A rank's part of a report: these steps, which may be none, and the totals after their end.
    pub(crate) fn rank_report(
        &self,
        rank: u32,
        steps: std::ops::RangeInclusive<u64>,
        wall_ns: i64,
    ) -> v1::RankReport {
        let last = match *steps.end() {
            0 => v1::StepRecord::default(),
            step => record(rank, step, wall_ns),
        };
        let records = steps.map(|step| record(rank, step, wall_ns)).collect();
        let totals = v1::DeviceTotals {
            device: 0,
            allocated: last.end_allocated.max(MODEL_BYTES),
            reserved: last.end_reserved.max(MODEL_BYTES),
            peak_allocated: last.peak_allocated.max(MODEL_BYTES),
            blocks: last.blocks,
            allocs: last.last_step * last.allocs,
            frees: last.last_step * last.frees,
            device_bytes: DEVICE_BYTES,
            process_bytes: Some(last.end_reserved + (600 << 20)),
            ..v1::DeviceTotals::default()
        };
        v1::RankReport {
            tape_id: self.tape_id(rank),
            step: last.last_step,
            step_wall_ns: wall_ns,
            oldest_step: u64::from(last.last_step > 0),
            totals: vec![totals],
            steps: records,
            rss_bytes: Some(9 << 30),
            ..v1::RankReport::default()
        }
    }
}

/// What a rank's tape says of one step.
pub(crate) fn record(rank: u32, step: u64, end_wall_ns: i64) -> v1::StepRecord {
    let warm = step.min(WARM_UP_STEPS) * WARM_UP_BYTES;
    let scatter = |salt: u64| mix(u64::from(rank) << 40 ^ step << 8 ^ salt) % SCATTER_BYTES;
    let floor = MODEL_BYTES + warm + scatter(1) / 512 * 512;
    let peak = floor + (12 << 30) + scatter(2) / 512 * 512;
    let reserved = MODEL_BYTES + warm + (14 << 30);
    v1::StepRecord {
        device: 0,
        first_step: step,
        last_step: step,
        end_wall_ns,
        floor_allocated: floor,
        peak_allocated: peak,
        end_allocated: floor + scatter(3) / 512 * 512,
        floor_reserved: reserved,
        peak_reserved: reserved + (2 << 20),
        end_reserved: reserved + (2 << 20),
        blocks: 4_000 + scatter(4) % 64,
        allocs: 21_000 + scatter(5) % 300,
        frees: 21_000 + scatter(6) % 300,
        ..v1::StepRecord::default()
    }
}

/// Scrambles a number (splitmix64), so that neighbours have nothing in common.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_of_every_job_is_there_once() {
        for (ranks, jobs) in [(8, 1), (512, 1), (512, 4), (520, 3), (4096, 7)] {
            let nodes = nodes(ranks, jobs, 1);
            let mut seen = std::collections::BTreeSet::new();
            for node in &nodes {
                for rank in node.ranks.clone() {
                    assert!(rank < node.world_size, "{node:?}");
                    assert!(seen.insert((node.job.clone(), rank)), "{node:?}: {rank} twice");
                }
            }
            assert_eq!(seen.len() as u32, ranks.div_ceil(RANKS_PER_AGENT) * RANKS_PER_AGENT);
        }
    }

    #[test]
    fn the_names_of_jobs_divide_them_evenly() {
        for shards in [1, 2, 4] {
            let mut jobs = vec![std::collections::BTreeSet::new(); usize::from(shards)];
            for node in nodes(512, 16, shards) {
                jobs[usize::from(shard_of(&node.job, shards))].insert(node.job);
            }
            let sizes: Vec<usize> = jobs.iter().map(|jobs| jobs.len()).collect();
            assert_eq!(sizes, vec![16 / usize::from(shards); usize::from(shards)]);
        }
    }
}
