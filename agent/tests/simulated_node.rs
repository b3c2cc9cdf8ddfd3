//! The agent's logic with a coordinator's part played by hand, in one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use memtape_agent::Config;
use memtape_agent::testing::{
    Event, MemoryNode, MemoryRank, MemoryTapes, Now, Output, SMALL, SimulatedAgent, UploadEnd,
};
use memtape_core::identity::Identity;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use memtape_proto::v1::coordinator_message::Body as ToAgent;
use memtape_simulated_disk::SimulatedDisk;
use prost::Message;

mod agent_captures;
mod censuses;
mod health_checks;
mod memory;
mod pod_folders;
mod quotas;
mod sharing;
mod turns;

const SECOND_NS: u64 = 1_000_000_000;

/// One node with its ranks.
struct World {
    now: Now,
    node: MemoryNode,
    tapes: MemoryTapes,
    ranks: Vec<MemoryRank>,
    agent: SimulatedAgent,
    said: Vec<Said>,
    rewinds: Vec<u64>,
    uploads: Vec<(u64, String, Vec<u8>)>,
    /// Of each upload, when it was wanted.
    times_left: BTreeMap<u64, Duration>,
}

/// True when this is the id of a rank's tape.
fn is_of(sent: &str, rank: &MemoryRank) -> bool {
    sent == rank.tape_id()
}

fn first_message() -> v1::CoordinatorMessage {
    let welcome = v1::Welcome { protocol: 1, ..v1::Welcome::default() };
    v1::CoordinatorMessage { body: Some(ToAgent::Welcome(welcome)) }
}

impl World {
    fn new(ranks: u32, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { node: "node-1".to_string(), ..Config::default() };
        change(&mut config);
        let now = Now { wall_ns: 1_700_000_000_000_000_000, mono_ns: 5 * SECOND_NS };
        let (node, tapes) = (MemoryNode::default(), MemoryTapes::default());
        let start = |rank| {
            let job = "job".to_string();
            let identity = Identity { job, rank, world_size: ranks, ..Identity::default() };
            MemoryRank::start(&tapes, now, (7, 100 + rank), &identity, SMALL)
        };
        let ranks = (0..ranks).map(start).collect();
        let agent = SimulatedAgent::new(now, "boot-1", config, node.clone(), tapes.clone(), None);
        let (said, rewinds, uploads) = (Vec::new(), Vec::new(), Vec::new());
        let times_left = BTreeMap::new();
        Self { now, node, tapes, ranks, agent, said, rewinds, uploads, times_left }
    }

    fn handle(&mut self, event: Event) {
        self.agent.handle(self.now, event);
        while let Some(output) = self.agent.poll() {
            match output {
                Output::Message(message) => self.said.extend(message.body),
                Output::Rewind { id } => self.rewinds.push(id),
                Output::Upload { id, capture_id, snapshot, hash, time_left, .. } => {
                    self.times_left.insert(id, time_left);
                    assert_eq!(blake3::hash(&snapshot), hash);
                    self.uploads.push((id, capture_id, snapshot.to_vec()));
                }
            }
        }
    }

    fn connect(&mut self) {
        let Some(Said::Hello(hello)) = self.agent.hello().body else { panic!("no hello") };
        assert_eq!(hello.node, "node-1");
        self.handle(Event::Connected { welcome: first_message() });
    }

    fn say(&mut self, body: ToAgent) {
        self.handle(Event::Message(v1::CoordinatorMessage { body: Some(body) }));
    }

    fn pass(&mut self, ns: u64) {
        self.now.mono_ns += ns;
        self.now.wall_ns += i64::try_from(ns).expect("small");
    }

    fn tick(&mut self) {
        self.pass(SECOND_NS);
        self.handle(Event::Tick);
    }

    fn train(&mut self, steps: u64) {
        for _ in 0..steps {
            self.pass(1_000_000);
            self.ranks.iter_mut().for_each(|rank| rank.train(self.now, 512));
        }
    }

    fn do_rewinds(&mut self) {
        for id in std::mem::take(&mut self.rewinds) {
            assert!(self.agent.do_work(self.now, id));
        }
        self.handle(Event::Timeout);
    }

    fn ask(&mut self, capture_id: &str, step: u64, deadline_ms: u32) {
        self.say(ToAgent::CaptureRequest(v1::CaptureRequest {
            capture_id: capture_id.to_string(),
            tape_ids: self.ranks.iter().map(|rank| rank.tape_id().to_string()).collect(),
            step,
            before_step: 0,
            deadline_ms,
            sample_workers: String::new(),
        }));
    }

    fn answers(&self) -> Vec<&v1::CaptureAnswer> {
        let answers = self.said.iter().filter_map(|said| match said {
            Said::CaptureAnswer(answer) => Some(answer),
            _ => None,
        });
        answers.collect()
    }

    fn down(&self, rank: usize) -> Option<&v1::RankDown> {
        let rank = &self.ranks[rank];
        self.said.iter().find_map(|said| match said {
            Said::RankDown(down) if is_of(&down.tape_id, rank) => Some(down),
            _ => None,
        })
    }

    fn steps(&self, rank: usize) -> Vec<u64> {
        let rank = &self.ranks[rank];
        let reports = self.said.iter().filter_map(|said| match said {
            Said::Report(report) => Some(report),
            _ => None,
        });
        let ranks = reports.flat_map(|report| &report.ranks);
        let of_rank = ranks.filter(|each| is_of(&each.tape_id, rank));
        of_rank.flat_map(|each| each.steps.iter().map(|step| step.last_step)).collect()
    }
}

#[test]
fn ranks_and_their_ends_are_reported() {
    let mut world = World::new(2, |_| ());
    world.tick();
    world.connect();
    world.train(20);
    world.tick();
    assert_eq!(world.steps(0), (1..=20).collect::<Vec<_>>());
    world.ranks[0].exit();
    world.ranks[1].kill();
    world.node.count_oom_kill();
    for _ in 0..3 {
        world.tick();
    }
    let ends = [0, 1].map(|rank| world.down(rank).map(v1::RankDown::end));
    assert_eq!(ends, [Some(v1::RankEnd::Exited), Some(v1::RankEnd::OomKilled)]);
    assert!(world.down(1).is_some_and(|down| down.step == 20 && down.detail.contains("host rose")));
}

#[test]
fn a_restarted_agent_tells_everything_again() {
    let mut world = World::new(1, |_| ());
    world.train(5);
    world.tick();
    world.connect();
    assert_eq!(world.steps(0), [1, 2, 3, 4, 5]);
    let config = Config { node: "node-1".to_string(), ..Config::default() };
    let (node, tapes) = (world.node.clone(), world.tapes.clone());
    world.agent = SimulatedAgent::new(world.now, "boot-1", config, node, tapes, None);
    world.said.clear();
    world.connect();
    world.tick();
    assert_eq!(world.steps(0), [1, 2, 3, 4, 5]);
}

#[test]
fn captures_are_rewound_in_turn_and_uploaded_until_stored() {
    let mut world = World::new(5, |config| config.rewinds_max = 2);
    world.train(30);
    world.connect();
    world.tick();
    world.ask("cap-1", 20, 60_000);
    let mut rewound = 0;
    while !world.rewinds.is_empty() {
        assert!(world.rewinds.len() <= 2, "more at once than there are turns");
        rewound += world.rewinds.len();
        world.do_rewinds();
    }
    assert_eq!((rewound, world.uploads.len()), (5, 5));
    let outcomes: Vec<_> = world.answers().iter().map(|answer| answer.outcome()).collect();
    assert_eq!(outcomes, [v1::RankOutcome::Aligned; 5]);
    for (_, _, snapshot) in &world.uploads {
        let snapshot = zstd::decode_all(snapshot.as_slice()).expect("zstd");
        let snapshot = v1::RankSnapshot::decode(snapshot.as_slice()).expect("a snapshot");
        let blocks = snapshot.devices[0].blocks.as_ref().expect("blocks");
        assert_eq!((snapshot.step, blocks.sizes.len()), (20, 20));
    }
    // One fails and is tried again when its moment has come, not before.
    let uploads = std::mem::take(&mut world.uploads);
    for (index, (id, ..)) in uploads.iter().enumerate() {
        let end = if index == 3 { UploadEnd::Failed } else { UploadEnd::Stored };
        world.handle(Event::Uploaded { id: *id, end });
    }
    assert!(world.uploads.is_empty());
    let next_ns = world.agent.next_ns().expect("a retry");
    world.pass(next_ns - world.now.mono_ns);
    world.handle(Event::Timeout);
    assert_eq!(world.uploads.len(), 1);
    assert_eq!(world.uploads[0], uploads[3]);
    world.handle(Event::Uploaded { id: uploads[3].0, end: UploadEnd::Stored });
    assert_eq!(world.agent.held_bytes(), 0);
    // The same request again is answered again, from a new rewind, only after the answers arrived.
    world.say(ToAgent::ReportAck(v1::ReportAck { number: 99 }));
    world.tick();
    world.say(ToAgent::ReportAck(v1::ReportAck { number: 99 }));
    assert!(world.agent.next_ns().is_none(), "nothing is in the making any more");
}

#[test]
fn snapshots_stay_within_their_bound_and_deadlines_end_them() {
    let mut world = World::new(6, |config| {
        config.rewinds_max = 2;
        config.upload_bytes_max = 1;
    });
    world.train(10);
    world.connect();
    world.tick();
    world.ask("cap-1", 5, 2_000);
    world.do_rewinds();
    // One snapshot is within the bound, two are beyond it and keep their turns.
    assert_eq!((world.uploads.len(), world.agent.held_bytes()), (1, 1));
    world.do_rewinds();
    assert_eq!((world.uploads.len(), world.rewinds.len()), (1, 0));
    let (id, ..) = world.uploads[0].clone();
    world.handle(Event::Uploaded { id, end: UploadEnd::Stored });
    assert_eq!((world.uploads.len(), world.agent.held_bytes()), (2, 1));
    // The deadline passes: what is being sent keeps its share until it has come to its end.
    world.pass(3 * SECOND_NS);
    world.handle(Event::Timeout);
    assert_eq!((world.rewinds.len(), world.agent.held_bytes()), (1, 1));
    world.do_rewinds();
    assert_eq!(world.uploads.len(), 2, "a snapshot that is not wanted any more");
    let (id, ..) = world.uploads[1].clone();
    world.handle(Event::Uploaded { id, end: UploadEnd::Failed });
    assert_eq!((world.agent.held_bytes(), world.agent.next_ns()), (0, None));
    // And a later request is served as if nothing had been.
    world.ask("cap-2", 5, 2_000);
    world.do_rewinds();
    assert_eq!(world.uploads.len(), 3);
}

#[test]
fn a_slow_reader_only_postpones() {
    let mut world = World::new(3, |config| config.report_interval = Duration::from_millis(50));
    world.train(3);
    world.agent.handle(world.now, Event::Connected { welcome: first_message() });
    for _ in 0..1000 {
        world.pass(50_000_000);
        world.agent.handle(world.now, Event::Tick);
    }
    world.train(1);
    world.tick();
    for number in [32, 64] {
        world.say(ToAgent::ReportAck(v1::ReportAck { number }));
        world.tick();
    }
    assert_eq!(world.steps(2), [1, 2, 3, 4]);
}

/// A coordinator's view: what it knows of each tape.
#[derive(Default)]
struct Known {
    newest: BTreeMap<String, u64>,
    downs: BTreeSet<String>,
    captures: BTreeMap<String, v1::AgentCapture>,
    stored: BTreeSet<String>,
    has_bad_disk: bool,
    /// Steps that never came.
    gaps: u64,
    /// What the agents said of steps that could not come, at most.
    excused: u64,
    /// What they said they dropped.
    dropped: v1::SpoolReport,
}

impl Known {
    /// Takes a message; the number of a report.
    fn take(&mut self, said: &Said, seed: u64) -> Option<u64> {
        match said {
            Said::Report(report) => {
                self.dropped = report.spool.unwrap_or(self.dropped);
                let missed: u64 = report.ranks.iter().map(|rank| rank.steps_missed).sum();
                self.excused = self.excused.max(missed + self.dropped.steps_dropped);
                for rank in &report.ranks {
                    let newest = self.newest.entry(rank.tape_id.clone()).or_default();
                    for step in &rank.steps {
                        if step.last_step <= *newest {
                            continue;
                        }
                        self.gaps += step.first_step.saturating_sub(*newest + 1);
                        // What a disk has lost may come from the tape when the agent is new.
                        let is_late = self.downs.contains(&rank.tape_id) && !self.has_bad_disk;
                        assert!(!is_late, "seed {seed}: a step after the end");
                        *newest = step.last_step;
                    }
                }
                return Some(report.number);
            }
            Said::RankDown(down) => {
                self.downs.insert(down.tape_id.clone());
            }
            Said::AgentCapture(capture) => {
                let name = capture.answer.as_ref().expect("an answer").capture_id.clone();
                // A disk that could not delete it has it still.
                let is_again = self.stored.contains(&name) && !self.has_bad_disk;
                assert!(!is_again, "seed {seed}: {name} is said again");
                self.captures.insert(name, capture.clone());
            }
            _ => {}
        }
        None
    }
}

/// One node whose agent dies, whose coordinator comes and goes, and whose ranks fail.
struct Random {
    seed: u64,
    random: u64,
    world: World,
    disk: SimulatedDisk,
    known: Known,
    is_connected: bool,
    /// Not acknowledged yet.
    unacked: Option<u64>,
    dead: BTreeSet<usize>,
    /// The disk fills up, fails, and loses its power.
    has_bad_disk: bool,
    /// Losses of its power, and with it of what was not synced, that the agent was restarted after.
    power_losses: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        let disk = SimulatedDisk::new(seed);
        let mut world = World::new(3, |_| ());
        world.agent = Self::agent(&world, &disk);
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (known, dead) = (Known::default(), BTreeSet::new());
        let (is_connected, has_bad_disk, power_losses, unacked) = (false, false, 0, None);
        Self {
            seed,
            random,
            world,
            disk,
            known,
            is_connected,
            unacked,
            dead,
            has_bad_disk,
            power_losses,
        }
    }

    /// An agent in the place of another, whose process is gone.
    fn agent(world: &World, disk: &SimulatedDisk) -> SimulatedAgent {
        disk.kill();
        let config = Config { node: "node-1".to_string(), ..Config::default() };
        let (node, tapes) = (world.node.clone(), world.tapes.clone());
        SimulatedAgent::new(world.now, "boot-1", config, node, tapes, Some(disk.process()))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Carries out what the agent wants, as a coordinator that is there or not would.
    fn settle(&mut self) {
        loop {
            let said = std::mem::take(&mut self.world.said);
            for said in &said {
                self.unacked = self.known.take(said, self.seed).or(self.unacked);
            }
            self.world.do_rewinds();
            for (id, capture, snapshot) in std::mem::take(&mut self.world.uploads) {
                let answer =
                    self.known.captures.get(&capture).and_then(|capture| capture.answer.clone());
                let answer = answer.expect("announced before it is sent");
                assert_eq!(answer.snapshot_hash, blake3::hash(&snapshot).as_bytes());
                let is_stored = self.is_connected && self.below(3) > 0;
                let end = if is_stored { UploadEnd::Stored } else { UploadEnd::Failed };
                if is_stored {
                    self.known.stored.insert(capture);
                }
                self.world.handle(Event::Uploaded { id, end });
            }
            if self.world.said.is_empty() && self.world.uploads.is_empty() {
                return;
            }
        }
    }

    fn train(&mut self, steps: u64) {
        for _ in 0..steps {
            self.world.pass(1_000_000);
            for (index, rank) in self.world.ranks.iter_mut().enumerate() {
                if !self.dead.contains(&index) {
                    rank.train(self.world.now, 512);
                }
            }
        }
    }

    fn connect(&mut self) {
        self.world.connect();
        (self.is_connected, self.unacked) = (true, None);
    }

    fn acknowledge(&mut self) {
        if let Some(number) = self.unacked.take().filter(|_| self.is_connected) {
            self.world.say(ToAgent::ReportAck(v1::ReportAck { number }));
        }
    }

    fn tick(&mut self) {
        self.world.tick();
        self.settle();
    }

    fn restart_agent(&mut self) {
        self.world.rewinds.clear();
        self.world.uploads.clear();
        self.world.said.clear();
        self.world.agent = Self::agent(&self.world, &self.disk);
        self.is_connected = false;
    }

    /// The agent's machine had the same power; its tapes are taken to have outlived it.
    fn heed_power_loss(&mut self) {
        let power_losses = self.disk.counts().power_losses;
        if power_losses > self.power_losses {
            self.power_losses = power_losses;
            self.restart_agent();
        }
    }

    fn act(&mut self) {
        self.heed_power_loss();
        match self.below(12) {
            0..=3 => {
                let steps = self.below(12);
                self.train(steps);
            }
            4 if self.is_connected => {
                self.world.handle(Event::Disconnected);
                self.is_connected = false;
            }
            4 => self.connect(),
            5 if self.below(3) == 0 => {
                self.restart_agent();
            }
            6 if self.below(8) == 0 && self.dead.len() < 2 => {
                let rank = usize::try_from(self.below(3)).expect("small");
                if self.dead.insert(rank) {
                    self.world.ranks[rank].kill();
                }
            }
            7 if self.below(4) == 0 => self.world.ranks[2].out_of_memory(self.world.now, 1 << 40),
            8 | 9 => self.acknowledge(),
            10 if self.has_bad_disk => match self.below(6) {
                0 => self.disk.set_failing(true),
                1 => {
                    let bytes = self.below(30_000);
                    self.disk.set_room(Some(bytes));
                }
                2 => {
                    let calls = self.below(6);
                    self.disk.crash_after(Some(calls), true);
                }
                _ => {
                    self.disk.set_failing(false);
                    self.disk.set_room(None);
                }
            },
            _ => {}
        }
        self.settle();
        self.tick();
    }
}

impl Random {
    /// Acts at random; then all is well, and everything is delivered.
    fn live(&mut self) {
        for _ in 0..120 {
            self.act();
        }
        self.disk.set_failing(false);
        self.disk.set_room(None);
        self.disk.crash_after(None, true);
        self.heed_power_loss();
        if !self.is_connected {
            self.connect();
        }
        for _ in 0..40 {
            self.acknowledge();
            self.settle();
            self.tick();
        }
        let seed = self.seed;
        for (index, rank) in self.world.ranks.iter().enumerate() {
            let newest = self.known.newest.iter().find(|(id, _)| is_of(id, rank));
            let newest = newest.map_or(0, |(_, step)| *step);
            assert_eq!(newest, rank.step(), "seed {seed}: rank {index}");
            let is_reported = self.known.downs.iter().any(|id| is_of(id, rank));
            assert_eq!(is_reported, self.dead.contains(&index), "seed {seed}: rank {index}");
        }
    }
}

/// Whatever the order of things, nothing is lost, nothing is stored twice, and at the end nothing
/// is left on the disk.
#[test]
fn random_runs() {
    let mut captures = 0;
    for seed in 0..150 {
        let mut run = Random::new(seed);
        run.live();
        assert_eq!(run.known.gaps, 0, "seed {seed}");
        let names: BTreeSet<String> = run.known.captures.keys().cloned().collect();
        assert_eq!(names, run.known.stored, "seed {seed}");
        captures += names.len();
        let left = run.disk.used_bytes();
        assert!(left < 200, "seed {seed}: {left} bytes are left");
    }
    assert!(captures > 150, "only {captures} captures were taken alone");
}

/// On a disk that fails in all its ways, steps are lost only where that was said, and everything
/// else goes on.
#[test]
fn random_runs_on_bad_disks() {
    let (mut gaps, mut dropped, mut stored) = (0, [0; 3], 0);
    for seed in 1000..1150 {
        let mut run = Random::new(seed);
        (run.has_bad_disk, run.known.has_bad_disk) = (true, true);
        run.live();
        let known = &run.known;
        let is_excused = run.power_losses > 0 || known.gaps <= known.excused;
        assert!(is_excused, "seed {seed}: {} steps never came, {} said", known.gaps, known.excused);
        gaps += known.gaps;
        let v1::SpoolReport { steps_dropped, snapshots_dropped, facts_dropped, .. } = known.dropped;
        for (sum, more) in dropped.iter_mut().zip([steps_dropped, snapshots_dropped, facts_dropped])
        {
            *sum += more;
        }
        stored += known.stored.len();
    }
    assert!(gaps > 0 && stored > 50, "{gaps} gaps, {stored} stored: the disks were too good");
    assert!(dropped.iter().all(|kind| *kind > 0), "{dropped:?} were dropped");
}
