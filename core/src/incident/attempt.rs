//! What the machine of incidents asks about an attempt at a job. The coordinator and the evaluation
//! answer; nothing here changes an attempt.

use alloc::vec::Vec;

use super::record::Times;
use crate::detector::{Growth, GrowthKey, RankView};
use crate::diagnosis::Fate;
use crate::identity::owner::Holder;
use crate::identity::planned_end::PlannedEnd;
use crate::paging::{left_of_plan, seconds_to_job_end};
use crate::tape::layout::Clock;

/// Questions of the machine about an attempt at a job.
pub trait Attempt {
    /// Serial number of the attempt, never reused.
    fn serial(&self) -> u32;
    /// Name of the job.
    fn job(&self) -> &str;
    /// Number of the attempt, by the launcher.
    fn number(&self) -> u32;
    /// Holder of an incident of this rank, where the bound of incidents is shared: the node that
    /// announced the rank. Another node cannot use up the bound of the node that began the job.
    fn holder(&self, _rank: u32) -> Holder {
        Holder::default()
    }
    /// True when all ranks have ended.
    fn has_ended(&self) -> bool;
    /// Has the process of this rank ended?
    fn rank_has_ended(&self, _rank: u32) -> bool {
        self.has_ended()
    }
    /// Unit of a rank's step numbers.
    fn clock(&self, rank: u32) -> Clock;
    /// The open finding of the detector that this key names, with its newest figures.
    fn newest(&self, key: &GrowthKey) -> Option<Growth>;
    /// Duration of a step, or a turn, of a rank, in nanoseconds.
    fn step_time_ns(&self, rank: u32) -> Option<u64>;
    /// Planned end of the job, as the environment of a rank names it.
    fn planned_end(&self, _rank: u32) -> PlannedEnd {
        PlannedEnd::default()
    }
    /// Times of a rank and its job at a Unix time.
    fn times(&self, now_wall_ns: i64, rank: u32) -> Times {
        let step_ns = self.step_time_ns(rank);
        // A plan does not count turns.
        let steps = || (self.clock(rank) == Clock::Steps).then(|| self.step(rank));
        let left = left_of_plan(self.planned_end(rank), now_wall_ns, steps);
        Times { step_ns, seconds_to_job_end: seconds_to_job_end(left, step_ns) }
    }
    /// A rank as the detector sees it.
    fn rank(&self, rank: u32) -> RankView;
    /// Newest step of a rank that is known, also before the detector has a sample of it.
    fn step(&self, rank: u32) -> u64 {
        self.rank(rank).last_step
    }
    /// What became of each of its ranks.
    fn fates(&self) -> Vec<Fate> {
        Vec::new()
    }
    /// Monotonic time since which the rank's agent is connected; none when it is away.
    fn here_since_ns(&self, rank: u32) -> Option<u64>;
}
