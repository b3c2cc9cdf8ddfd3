//! What can go wrong in the demo: one file for each fault of a rank, and one row for each scenario.
//!
//! A fault changes what the modelled rank does, and nothing else: recorder, agent, coordinator,
//! detector and diagnosis do not know the scenario. What the demo says was found is what the
//! coordinator's API answers.

mod desync;
mod fragmentation;
mod host;
mod imbalance;
mod leak;

use std::fmt::Debug;
use std::time::Duration;

use memtape_core::diagnosis::Class;

use super::allocator::{Allocator, Listener, OutOfMemory};
use super::training::Noise;

const MIB: u64 = 1 << 20;
/// Bytes that the leaking rank keeps each step: they fill the device in about 80 seconds.
const LEAK_BYTES: u64 = 5 * MIB / 2;
/// The same where the request that fails is the point.
const FAST_LEAK_BYTES: u64 = 8 * MIB;

/// What a rank does that its peers do not.
pub(crate) trait Fault<L: Listener>: Debug {
    /// Called once, before step 1.
    /// Fails when the device is full.
    fn prepare(&mut self, _gpu: &mut Allocator<L>) -> Result<(), OutOfMemory> {
        Ok(())
    }

    /// Length of this rank's sequences where the usual one is `length`.
    fn length(&self, length: u64) -> u64 {
        length
    }

    /// Called in each step while its activations are alive.
    /// Fails when the device is full.
    fn act(
        &mut self,
        _step: u64,
        _gpu: &mut Allocator<L>,
        _noise: &mut Noise,
    ) -> Result<(), OutOfMemory> {
        Ok(())
    }

    /// True when the rank does not begin the collectives of the step.
    fn leaves_collectives_out(&self) -> bool {
        false
    }
}

/// What the demo shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// One rank keeps a tensor each step until its device is full, after about 90 s
    #[default]
    Leak,
    /// The reserved memory of one rank grows, its tensors do not
    Fragmentation,
    /// The peak of one rank rises above that of its peers and stays there
    Imbalance,
    /// The process of one rank keeps more and more memory of this machine: 768 MiB at most
    Host,
    /// One rank keeps 8 MiB each step; a request fails after about 30 s
    Oom,
    /// One rank is killed by SIGKILL
    Killed,
    /// One rank leaves a collective out, and all stand still: no incident, a capture shows it
    Desync,
}

/// What the demo waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// An incident of this class.
    Incident(Class),
    /// An incident of this class, then the capture at the request that failed.
    OutOfMemory(Class),
    /// The capture at the death of a rank.
    Death,
    /// A capture whose comparison of the collectives says that a rank is desynchronised. No
    /// incident: where all ranks stand still, the detector has nothing to compare.
    Desynchronised,
}

impl Goal {
    /// The class of the incident; none where none is waited for.
    pub(crate) fn class(self) -> Option<Class> {
        match self {
            Self::Incident(class) | Self::OutOfMemory(class) => Some(class),
            Self::Death => Some(Class::Died),
            Self::Desynchronised => None,
        }
    }
}

/// How a scenario runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Step in which the fault begins: after the detector's warm-up, as most faults do.
    pub(crate) from_step: u64,
    /// Length of a step.
    pub(crate) step_time: Duration,
    /// What the demo waits for.
    pub(crate) goal: Goal,
    /// The device is full in the end.
    pub(crate) fills_device: bool,
    /// Fewest ranks that show it.
    pub(crate) ranks_min: u32,
    /// What the rank does, behind `rank 2`.
    pub(crate) models: &'static str,
}

impl Scenario {
    /// How it runs.
    pub(crate) fn plan(self) -> Plan {
        let usual = Plan {
            from_step: 100,
            step_time: Duration::from_millis(30),
            goal: Goal::Incident(Class::Leak),
            fills_device: false,
            ranks_min: 1,
            models: "",
        };
        match self {
            Self::Leak => Plan {
                fills_device: true,
                models: "keeps a tensor each step, about 2.7 MiB as the allocator rounds it",
                ..usual
            },
            Self::Fragmentation => Plan {
                goal: Goal::Incident(Class::Fragmentation),
                models: "keeps samples in the segments of its batches: they cannot be reused",
                ..usual
            },
            Self::Imbalance => Plan {
                goal: Goal::Incident(Class::Imbalance),
                ranks_min: 3,
                models: "gets sequences of 1.9 times the usual length",
                ..usual
            },
            Self::Host => Plan {
                goal: Goal::Incident(Class::Host),
                from_step: 200,
                models: "keeps 0.5 MiB of this machine's memory each step, 768 MiB at most; \
                         this memory is real, and is freed when the demo ends",
                ..usual
            },
            Self::Oom => Plan {
                goal: Goal::OutOfMemory(Class::Leak),
                fills_device: true,
                models: "keeps a tensor of about 8 MiB each step until a request fails",
                ..usual
            },
            Self::Killed => Plan {
                goal: Goal::Death,
                from_step: 150,
                models: "is killed (SIGKILL); its peers wait for it in their collectives",
                ..usual
            },
            Self::Desync => Plan {
                goal: Goal::Desynchronised,
                ranks_min: 3,
                models: "leaves the collectives of its step out and stops; its peers wait for it",
                ..usual
            },
        }
    }

    /// What the faulty rank does; none where the fault comes from outside.
    pub(crate) fn fault<L: Listener>(self) -> Option<Box<dyn Fault<L>>> {
        match self {
            Self::Leak => Some(Box::new(leak::Leak::of(LEAK_BYTES))),
            Self::Oom => Some(Box::new(leak::Leak::of(FAST_LEAK_BYTES))),
            Self::Fragmentation => Some(Box::<fragmentation::Fragmentation>::default()),
            Self::Imbalance => Some(Box::new(imbalance::Imbalance)),
            Self::Host => Some(Box::<host::Host>::default()),
            Self::Desync => Some(Box::new(desync::Desync)),
            Self::Killed => None,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        use clap::ValueEnum;
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}
