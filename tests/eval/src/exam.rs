//! Examines judges on many scenarios at once, a thread for each core.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::baselines::baselines;
use crate::families::{Family, Set, families};
use crate::figures::Tally;
use crate::judge::Judge;
use crate::product::Product;
use crate::runner::{Incident, run};
use crate::scenario::Scenario;
use crate::score::score;

/// Name of Memtape as it is, among the judges.
pub const DEFAULT: &str = "memtape";

/// What is to be examined.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Only families of this set.
    pub set: Option<Set>,
    /// Only this family.
    pub family: Option<String>,
    /// Scenarios of each family.
    pub seeds: u64,
    /// The first of them.
    pub first: u64,
    /// Ranks a job has at most.
    pub ranks_max: u32,
    /// Beside Memtape, the others.
    pub baselines: bool,
}

/// What one judge found, family by family.
pub type Found = BTreeMap<String, Tally>;

/// Everything that was found, by judge.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Judges, Memtape first, the others as they were asked.
    pub judges: Vec<(String, Found)>,
    /// Families that were examined.
    pub families: Vec<Family>,
    /// Scenarios that could not be made.
    pub unmade: u64,
    /// Time it took.
    pub seconds: f64,
}

impl Outcome {
    /// A judge's findings, over the families of a set or over all.
    pub fn sum(&self, judge: &str, set: Option<Set>) -> Tally {
        let mut sum = Tally::default();
        let found = self.judges.iter().find(|(name, _)| name == judge).map(|(_, found)| found);
        for family in self.families.iter().filter(|family| set.is_none_or(|it| it == family.set)) {
            if let Some(tally) = found.and_then(|found| found.get(family.name)) {
                sum.merge(tally);
            }
        }
        sum
    }

    /// One family's.
    pub fn family(&self, judge: &str, family: &str) -> Option<&Tally> {
        let (_, found) = self.judges.iter().find(|(name, _)| name == judge)?;
        found.get(family)
    }
}

/// A judge under examination; each thread makes its own.
struct Candidate {
    name: String,
    judge: Box<dyn Judge>,
}

fn candidates(plan: &Plan) -> Vec<Candidate> {
    let memtape = Candidate { name: DEFAULT.to_string(), judge: Box::new(Product::default()) };
    let mut all = vec![memtape];
    if plan.baselines {
        let named = |(name, judge): (&str, Box<dyn Judge>)| Candidate { name: name.into(), judge };
        all.extend(baselines().into_iter().map(named));
    }
    all
}

/// Families that a plan is about.
pub fn chosen(plan: &Plan) -> Vec<Family> {
    let is_chosen = |family: &Family| {
        plan.set.is_none_or(|set| set == family.set)
            && plan.family.as_ref().is_none_or(|name| name == family.name)
    };
    families().into_iter().filter(is_chosen).collect()
}

/// Called for each scenario with its family, its seed, itself, and what Memtape said.
pub type Each<'a> = &'a (dyn Fn(&Family, u64, &Scenario, &[Incident]) + Sync);

/// Examines. `each` is called for every scenario that Memtape itself was examined on.
pub fn examine(plan: &Plan, each: Each<'_>) -> Outcome {
    let begun = std::time::Instant::now();
    let families = chosen(plan);
    let seeds = plan.first..plan.first + plan.seeds;
    let work: Vec<(Family, u64)> =
        seeds.flat_map(|seed| families.iter().map(move |&family| (family, seed))).collect();
    let names: Vec<String> =
        candidates(plan).iter().map(|candidate| candidate.name.clone()).collect();
    let found: Mutex<(Vec<Found>, u64)> = Mutex::new((vec![Found::new(); names.len()], 0));
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut candidates = candidates(plan);
                while let Some((family, seed)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tallies = one(family, *seed, plan.ranks_max, &mut candidates, each);
                    let Ok(mut found) = found.lock() else { return };
                    found.1 += u64::from(tallies.is_empty());
                    for (all, tally) in found.0.iter_mut().zip(&tallies) {
                        all.entry(family.name.to_string()).or_default().merge(tally);
                    }
                }
            });
        }
    });
    let (found, unmade) = found.into_inner().unwrap_or_default();
    let judges = names.into_iter().zip(found).collect();
    Outcome { judges, families, unmade, seconds: begun.elapsed().as_secs_f64() }
}

/// One scenario, to all candidates; nothing when it could not be made.
fn one(
    family: &Family,
    seed: u64,
    ranks_max: u32,
    candidates: &mut [Candidate],
    each: Each<'_>,
) -> Vec<Tally> {
    let Some(scenario) = family.scenario(seed, ranks_max) else { return Vec::new() };
    let examined = candidates.iter_mut().map(|candidate| {
        let incidents = run(&scenario, candidate.judge.as_mut());
        if candidate.name == DEFAULT {
            each(family, seed, &scenario, &incidents);
        }
        score(&scenario, &incidents, candidate.judge.wants_snapshots())
    });
    examined.collect()
}
