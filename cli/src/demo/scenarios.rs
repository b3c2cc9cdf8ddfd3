//! What can go wrong in the demo: one row for each scenario.
//!
//! What the demo says was found is what the coordinator's API answers.

use memtape_core::diagnosis::Class;

use super::fault::Fault;

const MIB: u64 = 1 << 20;

/// What the demo shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// One rank keeps a tensor each step until its device is full, after about 70 s
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
    /// One rank leaves a collective out, and all stand still
    Desync,
}

/// How a scenario runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Step in which the fault begins: after the detector's warm-up, as most faults do.
    pub(crate) from_step: u64,
    /// Class of the incident that the demo waits for.
    pub(crate) class: Class,
    /// The rank is killed.
    pub(crate) kills: bool,
    /// The demo also waits for the capture at the request that fails.
    pub(crate) waits_for_oom: bool,
    /// The device is full in the end.
    pub(crate) fills_device: bool,
    /// Fewest ranks that show it.
    pub(crate) ranks_min: u32,
    /// What the rank does; nothing where the fault comes from outside.
    pub(crate) fault: Fault,
    /// The same in words, behind `rank 2`.
    pub(crate) models: &'static str,
}

impl Scenario {
    /// How it runs.
    pub(crate) fn plan(self) -> Plan {
        let none = Fault::default();
        let usual = Plan {
            from_step: 100,
            class: Class::Leak,
            kills: false,
            waits_for_oom: false,
            fills_device: false,
            ranks_min: 1,
            fault: none,
            models: "",
        };
        match self {
            Self::Leak => Plan {
                fills_device: true,
                // They fill the device in about a minute.
                fault: Fault { leak_bytes: 5 * MIB / 2, ..none },
                models: "keeps a tensor each step, about 2.7 MiB as the allocator rounds it",
                ..usual
            },
            Self::Fragmentation => Plan {
                class: Class::Fragmentation,
                fault: Fault { samples: 36, ..none },
                models: "keeps samples in the segments of its batches: they cannot be reused",
                ..usual
            },
            Self::Imbalance => Plan {
                class: Class::Imbalance,
                ranks_min: 3,
                fault: Fault { longer_percent: 90, ..none },
                models: "gets sequences of 1.9 times the usual length",
                ..usual
            },
            Self::Host => Plan {
                class: Class::Host,
                from_step: 200,
                fault: Fault { host_bytes: 512 << 10, ..none },
                models: "keeps 0.5 MiB of this machine's memory each step, 768 MiB at most; \
                         this memory is real, and is freed when the demo ends",
                ..usual
            },
            Self::Oom => Plan {
                waits_for_oom: true,
                fills_device: true,
                fault: Fault { leak_bytes: 8 * MIB, ..none },
                models: "keeps a tensor of about 8 MiB each step until a request fails",
                ..usual
            },
            Self::Killed => Plan {
                class: Class::Died,
                kills: true,
                from_step: 150,
                models: "is killed (SIGKILL); its peers wait for it in their collectives",
                ..usual
            },
            Self::Desync => Plan {
                class: Class::Desynchronised,
                ranks_min: 3,
                fault: Fault { leaves_collectives_out: true, ..none },
                models: "leaves the collectives of its step out and stops; its peers wait for it",
                ..usual
            },
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> String {
        use clap::ValueEnum;
        self.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default()
    }
}
