//! The families: which there are, which are kept apart, and how a seed becomes a scenario.

use crate::actors::benign::BEHAVIOURS;
use crate::actors::faults::TROUBLES;
use crate::actors::{Named, apart, opened};
use crate::job::Job;
use crate::recorded;
use crate::rng::{Rng, mix};
use crate::scenario::Scenario;

/// Which families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Those that the detector and the diagnosis may be tuned on.
    Tuned,
    /// Those that they may not.
    Apart,
}

impl Set {
    /// The name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tuned => "tuned",
            Self::Apart => "apart",
        }
    }
}

/// A family of scenarios: one mechanism, many seeds.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Where it belongs.
    pub set: Set,
    /// Every scenario has a fault.
    pub is_fault: bool,
    make: Make,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    Of(fn(&mut Job)),
    /// Two or three benign behaviours at once.
    Mixed,
    /// Recorded on real GPUs, as it is or with a fault put in.
    Recorded {
        with_fault: bool,
    },
}

/// All families, benign ones first in each set.
pub fn families() -> Vec<Family> {
    let of = |set: Set, is_fault: bool, named: &[Named]| -> Vec<Family> {
        let family = |&(name, make): &Named| Family { name, set, is_fault, make: Make::Of(make) };
        named.iter().map(family).collect()
    };
    let mixed = |name| Family { name, set: Set::Tuned, is_fault: false, make: Make::Mixed };
    let recorded = |name, is_fault| Family {
        name,
        set: Set::Tuned,
        is_fault,
        make: Make::Recorded { with_fault: is_fault },
    };
    let mut all = of(Set::Tuned, false, BEHAVIOURS);
    all.extend([mixed("mixed_a"), mixed("mixed_b"), mixed("mixed_c")]);
    all.push(recorded("recorded", false));
    all.extend(of(Set::Tuned, true, TROUBLES));
    all.push(recorded("recorded_injected", true));
    for (set, is_fault, named) in [
        (Set::Tuned, false, opened::healthy_tensors::FAMILIES),
        (Set::Tuned, false, opened::healthy_loads::FAMILIES),
        (Set::Tuned, false, opened::healthy_host::FAMILIES),
        (Set::Tuned, true, opened::faulty_graphs::FAMILIES),
        (Set::Tuned, true, opened::faulty_tensors::FAMILIES),
        (Set::Tuned, true, opened::faulty_outside::FAMILIES),
        (Set::Tuned, false, opened::healthy_batches::FAMILIES),
        (Set::Tuned, false, opened::healthy_caches::FAMILIES),
        (Set::Tuned, true, opened::faulty_records::FAMILIES),
        (Set::Tuned, true, opened::faulty_inputs::FAMILIES),
        (Set::Tuned, false, opened::healthy_training::FAMILIES),
        (Set::Tuned, false, opened::healthy_engines::FAMILIES),
        (Set::Tuned, true, opened::faulty_training::FAMILIES),
        (Set::Tuned, true, opened::faulty_engines::FAMILIES),
        (Set::Tuned, true, opened::faulty_hosts::FAMILIES),
        (Set::Tuned, false, opened::healthy_stages::FAMILIES),
        (Set::Tuned, false, opened::healthy_servers::FAMILIES),
        (Set::Tuned, true, opened::faulty_caches::FAMILIES),
        (Set::Tuned, true, opened::faulty_exchanges::FAMILIES),
        (Set::Tuned, true, opened::faulty_nodes::FAMILIES),
        (Set::Apart, false, apart::healthy_devices::FAMILIES),
        (Set::Apart, false, apart::healthy_processes::FAMILIES),
        (Set::Apart, true, apart::faulty_passes::FAMILIES),
        (Set::Apart, true, apart::faulty_devices::FAMILIES),
        (Set::Apart, true, apart::faulty_services::FAMILIES),
    ] {
        all.extend(of(set, is_fault, named));
    }
    all
}

/// Ranks of jobs, the smaller ones more often; 4,096 once in a hundred.
const RANKS: [(u32, u32); 7] = [(1, 14), (2, 12), (4, 12), (8, 38), (64, 20), (512, 3), (4_096, 1)];

fn ranks(rng: &mut Rng, ranks_max: u32) -> u32 {
    let total: u32 = RANKS.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.between(0, u64::from(total)) as u32;
    for (ranks, weight) in RANKS {
        if at < weight {
            return ranks.min(ranks_max);
        }
        at -= weight;
    }
    1
}

/// Tries to make a scenario whose label holds: memory must not be out before the fault begins, nor
/// at all in a healthy job.
const TRIES_MAX: u64 = 40;

impl Family {
    /// The scenario of a seed, with at most this number of ranks. The same seed gives the same
    /// scenario.
    pub fn scenario(&self, seed: u64, ranks_max: u32) -> Option<Scenario> {
        let name = self.name.bytes().fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
        (0..TRIES_MAX).find_map(|attempt| {
            let seed = mix(name ^ mix(seed ^ mix(attempt)));
            let scenario = self.draw(seed, ranks_max);
            scenario.label_holds().then_some(scenario)
        })
    }

    fn draw(&self, seed: u64, ranks_max: u32) -> Scenario {
        let mut rng = Rng::new(seed, 0xfa);
        if let Make::Recorded { with_fault } = self.make {
            return recorded::scenario(seed, with_fault);
        }
        let mut job = Job::new(seed, ranks(&mut rng, ranks_max));
        match self.make {
            Make::Of(make) => make(&mut job),
            Make::Mixed => mix_some(&mut job, &mut rng),
            Make::Recorded { .. } => {}
        }
        Scenario::of(job)
    }
}

fn mix_some(job: &mut Job, rng: &mut Rng) {
    let count = rng.between(2, 4);
    for _ in 0..count {
        if let Some((name, behaviour)) = rng.pick(BEHAVIOURS)
            && !job.notes.contains(&name)
        {
            job.notes.push(name);
            behaviour(job);
        }
    }
}
