//! One job: its ranks and their roles, what they run, and the label of what is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use memtape_core::detector::Layer;

use crate::actors::base::{self, Base};
use crate::code::{Code, Site};
use crate::rng::Rng;
use crate::world::{Actor, Run, StepPhase, World};

/// Ranks of one node.
pub const NODE_RANKS: u32 = 8;

/// Different courses that ranks of one role are given: beyond, ranks share one. Each is played
/// block by block, so a job of thousands of ranks is too long to play in full.
const VARIANTS: u32 = 24;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Sizes of real devices.
const DEVICES: [u64; 6] = [24 * GIB, 40 * GIB, 80 * GIB, 80 * GIB, 141 * GIB, 192 * GIB];

/// How work is divided among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Every rank does the same.
    Ddp,
    /// Every rank does the same with its shard.
    Fsdp,
    /// Shards within groups, tensors split over this number of ranks.
    HsdpTp(u32),
    /// This number of pipeline stages, experts within.
    PpEp(u32),
}

impl Map {
    /// The role of a rank: equal ones do the same work.
    pub fn role(self, rank: u32, ranks: u32) -> u32 {
        match self {
            Self::Ddp | Self::Fsdp => 0,
            Self::HsdpTp(split) => rank % split.max(1),
            Self::PpEp(stages) => rank / (ranks / stages.max(1)).max(1),
        }
    }

    /// The name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ddp => "ddp",
            Self::Fsdp => "fsdp",
            Self::HsdpTp(_) => "hsdp_tp",
            Self::PpEp(_) => "pp_ep",
        }
    }
}

/// What should become of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A page is required.
    Page,
    /// It must be visible; a page is no mistake either.
    Notice,
}

/// The label of a fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The class it has.
    pub class: &'static str,
    /// The ranks it is on.
    pub ranks: Vec<u32>,
    /// Step of the job in which it began.
    pub onset: u64,
    /// Accounts in which it shows; the first is where most of it is.
    pub layers: Vec<Layer>,
    /// Lines that keep the memory; none where no line does.
    pub sites: Vec<Site>,
    /// What should become of it.
    pub expect: Expect,
    /// Bytes a step on each of the ranks, as it was drawn.
    pub rate: f64,
    /// Rise of the first account, from the onset on, without which there is nothing to find.
    pub rise_min: u64,
    /// It begins when the first account rises first, at the onset or later.
    pub begins_with_rise: bool,
}

/// How samples come to the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Samples lost, each on its own, in parts per million.
    pub loss_ppm: u64,
    /// Probability a minute that a node is held up, in parts per million.
    pub stall_ppm: u64,
    /// Longest time a node is held up.
    pub stall_ns_max: u64,
    /// Wall clocks of nodes are off by up to this.
    pub clock_error_ns: u64,
    /// This rank says nothing more from this step on, while it goes on working.
    pub silent: Option<(u32, u64)>,
}

/// Who sits where: what a part of a program may know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seat {
    /// Global rank.
    pub rank: u32,
    /// Its role.
    pub role: u32,
    /// Work of its role against the average.
    pub scale: f64,
    /// What its own chance is drawn from.
    pub chance: u64,
}

/// Makes an actor for a rank that has it.
type Part = Box<dyn Fn(u32) -> Option<Actor> + Send + Sync>;

/// What acts at one phase, as an actor.
fn at_phase(
    phase: StepPhase,
    mut act: impl FnMut(&mut World) + Clone + Send + Sync + 'static,
) -> impl FnMut(StepPhase, &mut World) + Clone + Send + Sync + 'static {
    move |now, world| {
        if now == phase {
            act(world);
        }
    }
}

/// A job in the making.
pub struct Job {
    /// Everything follows from it.
    pub seed: u64,
    /// Number of ranks.
    pub ranks: u32,
    /// How work is divided.
    pub map: Map,
    /// The detector knows the roles.
    pub roles_known: bool,
    /// Steps that are played, unless memory is out before.
    pub steps: u64,
    /// Steps the job had made before it was seen first.
    pub first_step: u64,
    /// How long a step takes.
    pub step_ns: u64,
    /// Size of each device.
    pub device_bytes: u64,
    /// Limit of the host's memory for the job on a node; 0 where it has none.
    pub host_limit: u64,
    /// The job ends when the ranks of a node have reached that limit.
    pub ends_on_host: bool,
    /// Segments grow.
    pub is_expandable: bool,
    /// The model and what belongs to it.
    pub base: Base,
    /// All stacks.
    pub code: Code,
    /// How samples come.
    pub arrival: Arrival,
    /// What is wrong; nothing in benign jobs.
    pub fault: Option<Fault>,
    /// Only what is added: the model and its loop come from elsewhere.
    pub is_bare: bool,
    /// Behaviours, by name.
    pub notes: Vec<&'static str>,
    /// Chance in the making.
    pub rng: Rng,
    loads: Vec<Part>,
    parts: Vec<Part>,
    special: BTreeSet<u32>,
}

impl core::fmt::Debug for Job {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter
            .debug_struct("Job")
            .field("seed", &self.seed)
            .field("ranks", &self.ranks)
            .field("map", &self.map)
            .field("steps", &self.steps)
            .field("notes", &self.notes)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// A healthy job of this many ranks.
    pub fn new(seed: u64, ranks: u32) -> Self {
        let mut rng = Rng::new(seed, 0x10b);
        let device_bytes = rng.pick(&DEVICES).unwrap_or(80 * GIB);
        let splits: &[u32] = if ranks >= 8 { &[2, 4, 8] } else { &[2] };
        let split = rng.pick(splits).unwrap_or(2);
        let map = match rng.between(0, if ranks >= 4 { 6 } else { 2 }) {
            0 => Map::Ddp,
            1 | 2 => Map::Fsdp,
            3 | 4 => Map::HsdpTp(split),
            _ => Map::PpEp(split),
        };
        let steps = match ranks {
            0..=16 => rng.log_uniform(1_200.0, 4_500.0),
            17..=64 => rng.log_uniform(1_000.0, 3_000.0),
            65..=512 => rng.log_uniform(800.0, 1_600.0),
            _ => rng.log_uniform(500.0, 800.0),
        };
        let mut code = Code::new(seed);
        let base = Base::draw(&mut rng, &mut code);
        let mut job = Self {
            seed,
            ranks,
            map,
            roles_known: rng.chance(0.5),
            steps: steps as u64,
            first_step: 0,
            step_ns: (rng.log_uniform(0.15, 6.0) * 1e9) as u64,
            device_bytes,
            host_limit: rng.pick(&[0, 256 * GIB, 512 * GIB]).unwrap_or(0),
            ends_on_host: false,
            is_expandable: rng.chance(0.4),
            base,
            code,
            arrival: Arrival {
                stall_ppm: 20_000,
                stall_ns_max: 8_000_000_000,
                ..Arrival::default()
            },
            fault: None,
            is_bare: false,
            notes: Vec::new(),
            rng,
            loads: Vec::new(),
            parts: Vec::new(),
            special: BTreeSet::new(),
        };
        let share = job.rng.log_uniform(0.25, 0.6);
        job.fill(job.device_bytes - (job.device_bytes as f64 * share) as u64);
        job
    }

    /// Makes the model as large as it can be with so much left free at its peak.
    pub fn fill(&mut self, headroom: u64) {
        let device = self.device_bytes as f64;
        let room = device * 0.97 - base::NON_TORCH_MAX as f64 - headroom as f64;
        self.base.target = room.max(device * 0.12) as u64;
    }

    /// All ranks.
    pub fn all(&self) -> Vec<u32> {
        (0..self.ranks).collect()
    }

    /// Ranks of the same role as this one.
    pub fn of_role(&self, role: u32) -> Vec<u32> {
        (0..self.ranks).filter(|&rank| self.map.role(rank, self.ranks) == role).collect()
    }

    /// A rank drawn at random, which gets a course of its own.
    pub fn one(&mut self) -> u32 {
        let rank = self.rng.between(0, u64::from(self.ranks)) as u32;
        self.special.insert(rank);
        rank
    }

    /// These ranks get courses of their own, as far as there are few.
    pub fn tell_apart(&mut self, ranks: &[u32]) {
        if ranks.len() < VARIANTS as usize {
            self.special.extend(ranks);
        }
    }

    /// Adds what sets the load, before anything else acts in a step.
    pub fn load(&mut self, act: impl FnMut(&mut World) + Clone + Send + Sync + 'static) {
        self.load_act(at_phase(StepPhase::Between, act));
    }

    /// Adds what sets the load and acts at other phases, too.
    pub fn load_act(
        &mut self,
        act: impl FnMut(StepPhase, &mut World) + Clone + Send + Sync + 'static,
    ) {
        self.loads.push(Box::new(move |_| Some(Box::new(act.clone()))));
    }

    /// Adds what acts on all ranks, each with a state of its own. Ranks it treats differently must
    /// have different roles, or courses of their own ([`Self::tell_apart`]).
    pub fn act(&mut self, act: impl FnMut(StepPhase, &mut World) + Clone + Send + Sync + 'static) {
        self.parts.push(Box::new(move |_| Some(Box::new(act.clone()))));
    }

    /// Adds what acts at one phase, on all ranks.
    pub fn at(
        &mut self,
        phase: StepPhase,
        act: impl FnMut(&mut World) + Clone + Send + Sync + 'static,
    ) {
        self.act(at_phase(phase, act));
    }

    /// Adds what acts on these ranks only.
    pub fn act_of(
        &mut self,
        ranks: &[u32],
        act: impl FnMut(StepPhase, &mut World) + Clone + Send + Sync + 'static,
    ) {
        self.tell_apart(ranks);
        let ranks: BTreeSet<u32> = ranks.iter().copied().collect();
        let part = move |rank| -> Option<Actor> {
            ranks.contains(&rank).then(|| Box::new(act.clone()) as Actor)
        };
        self.parts.push(Box::new(part));
    }

    /// Adds what acts at one phase, on these ranks only.
    pub fn at_of(
        &mut self,
        ranks: &[u32],
        phase: StepPhase,
        act: impl FnMut(&mut World) + Clone + Send + Sync + 'static,
    ) {
        self.act_of(ranks, at_phase(phase, act));
    }

    /// Adds what acts on all ranks and says whether the rank is one of these.
    pub fn act_where(
        &mut self,
        ranks: &[u32],
        mut act: impl FnMut(StepPhase, &mut World, bool) + Clone + Send + Sync + 'static,
    ) {
        let ranks: BTreeSet<u32> = ranks.iter().copied().collect();
        self.act(move |phase, world| {
            let is_one = ranks.contains(&world.rank);
            act(phase, world, is_one);
        });
    }

    /// The same at one phase.
    pub fn at_where(
        &mut self,
        ranks: &[u32],
        phase: StepPhase,
        mut act: impl FnMut(&mut World, bool) + Clone + Send + Sync + 'static,
    ) {
        self.act_where(ranks, move |now, world, is_one| {
            if now == phase {
                act(world, is_one);
            }
        });
    }

    fn seat(&self, rank: u32) -> (u64, Seat) {
        let role = self.map.role(rank, self.ranks);
        let scale = match self.map {
            Map::Ddp | Map::Fsdp => 1.0,
            Map::HsdpTp(_) => {
                if role == 0 {
                    1.0
                } else {
                    0.985
                }
            }
            Map::PpEp(stages) => 1.0 - 0.3 * f64::from(role) / f64::from(stages.max(1)),
        };
        let chance = if self.special.contains(&rank) {
            1 << 32 | u64::from(rank)
        } else {
            u64::from(role) << 16 | u64::from(rank % VARIANTS)
        };
        (chance, Seat { rank, role, scale, chance })
    }

    /// Plays it. Ranks that are alike in everything share one course.
    pub fn play(&self) -> Vec<Arc<Run>> {
        let mut known: BTreeMap<u64, Arc<Run>> = BTreeMap::new();
        let runs: Vec<Arc<Run>> = (0..self.ranks)
            .map(|rank| {
                let (chance, seat) = self.seat(rank);
                let play = || Arc::new(self.play_seat(&seat));
                Arc::clone(known.entry(chance).or_insert_with(play))
            })
            .collect();
        runs
    }

    fn play_seat(&self, seat: &Seat) -> Run {
        let world = World::new(seat, self.seed, self.device_bytes, self.is_expandable);
        let of = |parts: &[Part]| -> Vec<Actor> {
            parts.iter().filter_map(|part| part(seat.rank)).collect()
        };
        let mut actors = of(&self.loads);
        if !self.is_bare {
            actors.extend(self.base.actors(seat));
        }
        actors.extend(of(&self.parts));
        world.play(&mut actors, self.steps)
    }
}
