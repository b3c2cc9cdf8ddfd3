//! What one seed means: the size of the cluster, what its job does, and everything that goes wrong.
//!
//! A plan is drawn before anything runs. So two simulations of one seed differ in nothing, and a
//! plan can be printed.

use fastrand::Rng;

/// One second of virtual time.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// One millisecond of virtual time.
pub(crate) const MS_NS: u64 = 1_000_000;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Nodes, each with an agent.
    pub nodes: usize,
    /// Ranks on each node.
    pub ranks_per_node: usize,
    /// Time between two steps, in nanoseconds.
    pub step_ns: u64,
    /// The rank that keeps memory, and from which step on.
    pub leak: Option<(u32, u64)>,
    /// Typical delay of a message, in nanoseconds.
    pub delay_ns: u64,
    /// Uploads that are lost on the way, or whose receipt is, out of 100.
    pub lost_percent: u8,
    /// Messages and uploads that arrive twice, out of 100.
    pub twice_percent: u8,
    /// The launcher starts the job again after a death.
    pub is_restarted: bool,
    /// Faults happen until then; afterwards all is well.
    pub chaos_ns: u64,
    /// What goes wrong, and when.
    pub faults: Vec<(u64, Fault)>,
    /// When a person asks for a capture.
    pub requests: Vec<u64>,
    /// The coordinator acts on the job; none where that is not looked at.
    pub acts: Option<Acts>,
}

/// How the coordinator acts on the job, and where it is killed meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Acts {
    /// The coordinator is killed when the restart has come to this stage.
    pub stage: Stage,
    /// So long after it was seen there, in nanoseconds.
    pub kill_ns: u64,
    /// It is started again after this long, in nanoseconds.
    pub down_ns: u64,
    /// Its machine loses power.
    pub is_power_loss: bool,
    /// The ranks offer garbage collections, which do not help.
    pub has_gc: bool,
    /// The ranks offer checkpoints.
    pub has_checkpoint: bool,
    /// The restart is a signal to all ranks; else a target is asked.
    pub by_signal: bool,
    /// Time from the restart's request to the next attempt, in nanoseconds.
    pub launch_ns: u64,
}

/// A stage of a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// It is decided on, and waits for its capture.
    Plan,
    /// It waits for the checkpoint of all ranks.
    Precondition,
    /// It is asked for.
    Act,
    /// It was carried out, and whether it helped is not known yet.
    Observe,
}

impl Stage {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Plan, Self::Precondition, Self::Act, Self::Observe];

    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::Precondition => "precondition",
            Self::Act => "act",
            Self::Observe => "observe",
        }
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A rank's process is killed.
    KillRank(usize),
    /// A rank hangs, and the others behind it, for this long.
    HangRank(usize, u64),
    /// A request for memory fails for good on a rank.
    OutOfMemory(usize),
    /// All ranks are killed and started again; the launcher may not count the attempt.
    RestartJob {
        /// It does.
        is_counted: bool,
    },
    /// A node's agent is killed, and comes back after this long.
    KillAgent(usize, u64),
    /// A node loses power, with its ranks and tapes, and comes back after this long.
    Reboot(usize, u64),
    /// Nothing gets to a node or from it for this long.
    Cut(usize, u64),
    /// A node's stream breaks.
    Break(usize),
    /// The coordinator is killed, or its machine loses power; it comes back after this long.
    KillCoordinator {
        /// The machine.
        is_power_loss: bool,
        /// In the middle of a write this many operations from now; else between two.
        operations: Option<u64>,
        /// Time until it is started again.
        down_ns: u64,
    },
    /// The coordinator's disk takes no more bytes for this long.
    FullDisk(u64),
    /// A node's disk takes no more bytes for this long.
    FullSpool(usize, u64),
    /// A node's disk fails in every call for this long.
    FailSpool(usize, u64),
    /// The next N writes fail.
    FailWrites(u64),
    /// The next N syncs fail.
    FailSyncs(u64),
    /// The store's writer is this slow for the rest of the time.
    SlowDisk(u64),
}

impl Plan {
    /// The plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes = rng.usize(1..=3);
        let ranks_per_node = rng.usize(1..=2);
        let ranks = nodes * ranks_per_node;
        let chaos_ns = rng.u64(15..60) * SECOND_NS;
        let mut plan = Self {
            nodes,
            ranks_per_node,
            step_ns: rng.u64(60..300) * MS_NS,
            leak: rng.bool().then(|| (rng.u32(0..ranks as u32), rng.u64(30..120))),
            delay_ns: 200_000 << rng.u32(0..8),
            lost_percent: *rng.choice(&[0, 0, 5, 30]).unwrap_or(&0),
            twice_percent: *rng.choice(&[0, 0, 5, 30]).unwrap_or(&0),
            is_restarted: rng.bool(),
            chaos_ns,
            faults: Vec::new(),
            requests: (0..rng.usize(1..5)).map(|_| rng.u64(SECOND_NS..chaos_ns)).collect(),
            acts: None,
        };
        // Some seeds are calm: what must hold always must hold then too.
        for _ in 0..rng.usize(0..9) {
            let at_ns = rng.u64(0..chaos_ns);
            plan.faults.push((at_ns, fault(&mut rng, nodes, ranks)));
        }
        // What agents do alone shows itself only while they are.
        if rng.u8(0..4) == 0 {
            let at_ns = rng.u64(0..chaos_ns - 10 * SECOND_NS);
            let down_ns = rng.u64(5 * SECOND_NS..chaos_ns - at_ns);
            let is_power_loss = rng.bool();
            let kill = Fault::KillCoordinator { is_power_loss, operations: None, down_ns };
            plan.faults.push((at_ns, kill));
            for _ in 0..rng.usize(0..4) {
                let rank = rng.usize(0..ranks);
                let at_ns = at_ns + rng.u64(0..down_ns);
                let is_death = rng.bool();
                let fault = if is_death { Fault::KillRank(rank) } else { Fault::OutOfMemory(rank) };
                plan.faults.push((at_ns, fault));
            }
        }
        plan.faults.sort_by_key(|(at_ns, _)| *at_ns);
        plan
    }
}

impl Plan {
    /// The plan of a seed in which a rank leaks from its start on, and the coordinator restarts the
    /// job and is killed at this stage of it. Faults happen to the network, the agents, the disks
    /// and the coordinator; what ends ranks is the restart alone.
    pub fn draw_acts(seed: u64, stage: Stage) -> Self {
        let plain = Self::draw(seed);
        // Far from the seed of the other plan: near ones begin alike.
        let own_seed = (4 * seed + stage as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = Rng::with_seed(own_seed);
        // Of two ranks neither shows what the other one should be like.
        let nodes = if plain.nodes * plain.ranks_per_node == 2 { 3 } else { plain.nodes };
        let ranks = nodes * plain.ranks_per_node;
        let chaos_ns = rng.u64(15..120) * SECOND_NS;
        let acts = Acts {
            stage,
            kill_ns: rng.u64(0..800) * MS_NS * rng.u64(0..2),
            down_ns: (100 * MS_NS) << rng.u32(0..9),
            is_power_loss: rng.bool(),
            // A restart waits for a capture where the incident's own is no longer fresh.
            has_gc: stage == Stage::Plan || rng.bool(),
            has_checkpoint: stage == Stage::Precondition || rng.bool(),
            by_signal: rng.bool(),
            launch_ns: rng.u64(1..8) * SECOND_NS,
        };
        let mut plan = Self {
            nodes,
            step_ns: rng.u64(200..350) * MS_NS,
            leak: Some((rng.u32(0..ranks as u32), rng.u64(2..30))),
            is_restarted: false,
            chaos_ns,
            faults: Vec::new(),
            requests: Vec::new(),
            acts: Some(acts),
            ..plain
        };
        for _ in 0..rng.usize(0..7) {
            let drawn = fault(&mut rng, plan.nodes, ranks);
            if !drawn.ends_ranks() {
                plan.faults.push((rng.u64(0..chaos_ns), drawn));
            }
        }
        plan.faults.sort_by_key(|(at_ns, _)| *at_ns);
        plan
    }
}

impl Fault {
    fn ends_ranks(self) -> bool {
        match self {
            Self::KillRank(_)
            | Self::OutOfMemory(_)
            | Self::RestartJob { .. }
            | Self::Reboot(..) => true,
            Self::HangRank(..)
            | Self::KillAgent(..)
            | Self::Cut(..)
            | Self::Break(_)
            | Self::KillCoordinator { .. }
            | Self::FullDisk(_)
            | Self::FullSpool(..)
            | Self::FailSpool(..)
            | Self::FailWrites(_)
            | Self::FailSyncs(_)
            | Self::SlowDisk(_) => false,
        }
    }
}

fn fault(rng: &mut Rng, nodes: usize, ranks: usize) -> Fault {
    let some_time = |rng: &mut Rng| (100 * MS_NS) << rng.u32(0..9);
    match rng.u32(0..28) {
        0..=2 => Fault::KillRank(rng.usize(0..ranks)),
        3..=4 => Fault::HangRank(rng.usize(0..ranks), some_time(rng)),
        5..=6 => Fault::OutOfMemory(rng.usize(0..ranks)),
        7 => Fault::RestartJob { is_counted: rng.bool() },
        8..=10 => Fault::KillAgent(rng.usize(0..nodes), some_time(rng)),
        11 => Fault::Reboot(rng.usize(0..nodes), some_time(rng)),
        12..=14 => Fault::Cut(rng.usize(0..nodes), some_time(rng)),
        15..=16 => Fault::Break(rng.usize(0..nodes)),
        17..=20 => Fault::KillCoordinator {
            is_power_loss: rng.bool(),
            operations: rng.bool().then(|| rng.u64(0..200)),
            down_ns: some_time(rng),
        },
        21..=22 => Fault::FullDisk(some_time(rng)),
        23 => Fault::FailWrites(rng.u64(1..20)),
        24 => Fault::FailSyncs(rng.u64(1..20)),
        25 => Fault::FullSpool(rng.usize(0..nodes), some_time(rng)),
        26 => Fault::FailSpool(rng.usize(0..nodes), some_time(rng)),
        _ => Fault::SlowDisk(rng.u64(1..2_000) * MS_NS),
    }
}
