//! What a report says of one rank.

use memtape_core::census::changes::Changes;
use memtape_core::snapshot::OutsideUse;
use memtape_core::tape::StepRecord;
use memtape_core::tape::layout::Clock;
use memtape_core::tape::read::DeviceTotals;
use memtape_core::tape::read::Status;
use memtape_proto::readings::{Cgroup, RankHost, Workers};
use memtape_proto::{step_message, v1};

use crate::node::process::Memory;

/// What a tape says of its rank at one moment, for a report.
#[derive(Clone, Debug)]
pub(crate) struct RankFacts<'a> {
    /// Identity of the tape.
    pub(crate) tape_id: &'a str,
    /// Its status.
    pub(crate) status: &'a Status,
    /// Unix time of the last step's end.
    pub(crate) step_wall_ns: i64,
    /// Oldest step that can be rewound to.
    pub(crate) oldest_step: u64,
    /// What its process takes of the host; none when it is gone.
    pub(crate) host: Option<HostFacts>,
    /// What other code than PyTorch's allocator holds.
    pub(crate) outside: Vec<OutsideUse>,
}

/// What a rank's process takes of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostFacts {
    /// The process itself.
    pub(crate) memory: Option<Memory>,
    /// The processes below it.
    pub(crate) below: Option<Workers>,
    /// Its cgroup.
    pub(crate) cgroup: Option<Cgroup>,
    /// Why it cannot be read, although it lives; empty when it can be.
    pub(crate) missing: &'static str,
}

/// One rank's part of a report. Only this folder sees what is in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankReport(pub(super) v1::RankReport);

impl RankReport {
    /// The report without steps and totals.
    pub(crate) fn new(facts: RankFacts) -> Self {
        Self(v1::RankReport {
            tape_id: facts.tape_id.to_string(),
            step: facts.status.step,
            step_wall_ns: if facts.status.step > 0 { facts.step_wall_ns } else { 0 },
            oldest_step: facts.oldest_step,
            totals: Vec::new(),
            steps: Vec::new(),
            rss_bytes: facts.host.as_ref().and_then(|host| host.memory?.rss),
            lost: facts.status.lost,
            steps_missed: 0,
            host: facts.host.map(rank_host),
            outside: facts.outside.iter().map(v1::OutsideUse::from).collect(),
            censuses: Vec::new(),
            clock: clock(facts.status.clock).into(),
        })
    }

    /// Adds a device's present totals.
    pub(crate) fn add_totals(&mut self, t: &DeviceTotals, process_bytes: Option<u64>) {
        self.0.totals.push(v1::DeviceTotals {
            device: u32::from(t.device),
            allocated: t.allocated,
            reserved: t.reserved,
            peak_allocated: t.peak_allocated,
            blocks: t.blocks,
            allocs: t.allocs,
            frees: t.frees,
            ooms: t.ooms,
            malloc_failures: t.malloc_failures,
            device_bytes: t.device_bytes,
            process_bytes,
            deferred_bytes: t.deferred,
        });
    }

    /// Adds a census of a device.
    pub(crate) fn add_census(&mut self, changes: Changes) {
        self.0.censuses.push(changes.into());
    }

    /// Adds a finished step of a device.
    pub(crate) fn add_step(&mut self, device: u8, record: StepRecord) {
        self.0.steps.push(step_message(device, record));
    }

    /// Identity of the tape.
    pub(crate) fn tape_id(&self) -> &str {
        &self.0.tape_id
    }

    /// Steps that were overwritten before they were read.
    pub(crate) fn steps_missed(&self) -> u64 {
        self.0.steps_missed
    }

    /// Sets [`Self::steps_missed`].
    pub(crate) fn set_steps_missed(&mut self, steps: u64) {
        self.0.steps_missed = steps;
    }

    /// Device and last step of each step record.
    pub(crate) fn steps(&self) -> impl ExactSizeIterator<Item = (u8, u64)> {
        let device = |device| u8::try_from(device).unwrap_or(u8::MAX);
        self.0.steps.iter().map(move |step| (device(step.device), step.last_step))
    }

    /// Adds the step records of another report; those that count something else are left out.
    pub(crate) fn add_steps_of(&mut self, other: Self) {
        if self.0.clock == other.0.clock {
            self.0.steps.extend(other.0.steps);
        }
    }

    /// Becomes the later report, with the step records of both that count the same.
    pub(crate) fn update(&mut self, mut later: Self) {
        if self.0.clock == later.0.clock {
            later.0.steps.splice(..0, self.0.steps.drain(..));
        }
        *self = later;
    }

    pub(super) fn into_raw(self) -> v1::RankReport {
        self.0
    }
}

fn clock(clock: Clock) -> v1::Clock {
    match clock {
        Clock::Steps => v1::Clock::Steps,
        Clock::Turns => v1::Clock::Turns,
    }
}

fn rank_host(facts: HostFacts) -> RankHost {
    let HostFacts { memory, below, cgroup, missing } = facts;
    let memory = memory.unwrap_or_default();
    RankHost {
        anon_bytes: memory.anon,
        file_bytes: memory.file,
        shmem_bytes: memory.shmem,
        swap_bytes: memory.swap,
        workers: below,
        cgroup,
        missing: missing.to_string(),
    }
}
