//! The cluster and its clock: a queue of happenings, and what each does.
//!
//! Everything that takes time in a real cluster is a happening in the queue: a message on its way,
//! the writer's turn, a rewind, a comparison. Virtual time jumps from one to the next. This file
//! knows nodes, ranks and the coordinator; `network.rs` carries what they say.

use std::collections::BTreeMap;

use bytes::Bytes;
use fastrand::Rng;
use memtape_agent::testing::{Event as AgentEvent, MemoryRank, UploadEnd};
use memtape_coordinator::testing::{Now, SimulatedCoordinator};
use memtape_core::capture::Outcome;
use memtape_core::identity::Identity;
use memtape_proto::v1;
use memtape_simulated_disk::SimulatedDisk;

use crate::Counts;
use crate::network::{Conn, Upload};
use crate::node::{self, Node, WALL_NS};
use crate::plan::{Fault, MS_NS, Plan, SECOND_NS};
use crate::truth::{TapeTruth, Truth};

/// The coordinator looks at its deadlines this often, as the real one.
const TICK_NS: u64 = 200 * MS_NS;

/// Deadline of captures here: shorter than the default, so that many fit into a minute.
pub(crate) const DEADLINE_NS: u64 = 10 * SECOND_NS;

/// After the last fault, everything has this long to find together again.
pub(crate) const SETTLE_NS: u64 = 45 * SECOND_NS;

/// A last capture is asked for this long before the end: it has to be perfect.
const LAST_CAPTURE_NS: u64 = 15 * SECOND_NS;

/// Bytes of snapshots an agent may hold, small enough to matter.
pub(crate) const UPLOAD_BYTES_MAX: u64 = 64 << 10;

/// Bytes an agent may spool.
pub(crate) const SPOOL_BYTES_MAX: u64 = 1 << 20;

/// Name of the one job.
pub(crate) const JOB: &str = "job";

/// Something that will happen.
#[derive(Debug)]
pub(crate) enum Happening {
    CoordinatorTick(u64),
    CoordinatorTurn(u64),
    CoordinatorWork(u64),
    StartCoordinator,
    AgentTick(usize, u64),
    AgentTimeout(usize, u64),
    AgentRewind(usize, u64, u64),
    StartAgent(usize),
    Connect(usize, u64),
    Hello(u64, Box<v1::AgentMessage>),
    Up(u64, Box<v1::AgentMessage>),
    Down(u64, Box<v1::CoordinatorMessage>),
    AgentSeesEnd(u64),
    CoordinatorSeesEnd(u64),
    UploadArrives(u64),
    UploadEnds(u64, UploadEnd),
    Step(usize, u64),
    Resume(usize, u64),
    StartJob {
        is_counted: bool,
    },
    /// Of the start of this number: it is restarted.
    Relaunch(u64),
    /// The coordinator of this number is killed at its stage.
    KillAtStage(u64),
    /// Has what was acted on come to its end?
    LookAtActs,
    Uncut(usize),
    EmptyDisk,
    MendSpool(usize),
    Fault(Fault),
    Request(u64),
    AllIsWell,
    End,
}

/// A rank's place in the job; its process changes.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    pub(crate) process: Option<MemoryRank>,
    pub(crate) tape_id: String,
    /// Processes so far: what belongs to an earlier one is stale.
    pub(crate) processes: u64,
    pub(crate) pid: u32,
    pub(crate) hangs_until_ns: Option<u64>,
}

/// The whole cluster.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now_ns: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    queued: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) attempt: u32,
    /// Starts of the job so far.
    pub(crate) launches: u64,
    pub(crate) is_start_due: bool,
    started_ns: Option<u64>,
    pub(crate) is_count_needed: bool,
    pub(crate) coordinator: Option<SimulatedCoordinator>,
    pub(crate) coordinators: u64,
    pub(crate) disk: SimulatedDisk,
    crashes_seen: u64,
    has_turn: bool,
    has_work: bool,
    pub(crate) disk_delay_ns: u64,
    pub(crate) down_ns: u64,
    pub(crate) conns: BTreeMap<u64, Conn>,
    pub(crate) uploads: BTreeMap<u64, Upload>,
    pub(crate) numbers: u64,
    pub(crate) requests: BTreeMap<u64, u64>,
    pub(crate) last_request: Option<u64>,
    pub(crate) last_capture: Option<anyhow::Result<String>>,
    pub(crate) truth: Truth,
    /// What went wrong; the simulation goes on, and says all of it.
    pub(crate) broken: Vec<String>,
    pub(crate) is_calm: bool,
    pub(crate) is_traced: bool,
    is_over: bool,
}

impl World {
    /// A cluster that is about to start.
    pub(crate) fn new(plan: Plan, seed: u64, is_traced: bool) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let nodes = (0..plan.nodes)
            .map(|number| Node::new(number, rng.i64(-200..200) * MS_NS as i64))
            .collect();
        let ranks = (0..plan.nodes * plan.ranks_per_node).map(|_| Rank::default()).collect();
        let mut world = Self {
            disk: SimulatedDisk::new(seed),
            plan,
            rng,
            now_ns: 0,
            queue: BTreeMap::new(),
            queued: 0,
            nodes,
            ranks,
            attempt: 0,
            launches: 0,
            is_start_due: false,
            started_ns: None,
            is_count_needed: false,
            coordinator: None,
            coordinators: 0,
            crashes_seen: 0,
            has_turn: false,
            has_work: false,
            disk_delay_ns: 0,
            down_ns: SECOND_NS,
            conns: BTreeMap::new(),
            uploads: BTreeMap::new(),
            numbers: 0,
            requests: BTreeMap::new(),
            last_request: None,
            last_capture: None,
            truth: Truth::default(),
            broken: Vec::new(),
            is_calm: false,
            is_traced,
            is_over: false,
        };
        world.begin();
        world
    }

    /// Runs to the end.
    pub(crate) fn run(&mut self) {
        while let Some(((at_ns, _), happening)) = self.queue.pop_first() {
            self.now_ns = at_ns;
            if self.is_traced {
                self.trace(&happening);
            }
            self.happen(happening);
            if self.is_over {
                return;
            }
        }
    }

    fn begin(&mut self) {
        self.start_coordinator();
        for node in 0..self.nodes.len() {
            self.start_agent(node);
        }
        self.start_job(false);
        for (at_ns, fault) in self.plan.faults.clone() {
            self.at(at_ns, Happening::Fault(fault));
        }
        for at_ns in self.plan.requests.clone() {
            self.numbers += 1;
            self.at(at_ns, Happening::Request(self.numbers));
        }
        let calm_ns = self.plan.chaos_ns;
        self.at(calm_ns, Happening::AllIsWell);
        match self.plan.acts {
            Some(_) => self.at(calm_ns, Happening::LookAtActs),
            None => self.end_at(calm_ns + SETTLE_NS),
        }
    }

    /// It ends then, with a last capture before.
    pub(crate) fn end_at(&mut self, at_ns: u64) {
        self.numbers += 1;
        self.last_request = Some(self.numbers);
        self.at(at_ns - LAST_CAPTURE_NS, Happening::Request(self.numbers));
        self.at(at_ns, Happening::End);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::CoordinatorTick(number) if number == self.coordinators => {
                self.tick_coordinator();
            }
            Happening::CoordinatorTurn(number) if number == self.coordinators => {
                self.has_turn = false;
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.turn(coordinator_now(self.now_ns));
                    self.heed_coordinator();
                }
            }
            Happening::CoordinatorWork(number) if number == self.coordinators => {
                self.has_work = false;
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.do_work(coordinator_now(self.now_ns));
                    self.heed_coordinator();
                }
            }
            Happening::StartCoordinator => self.start_coordinator(),
            Happening::AgentTick(node, number) => self.tick_agent(node, number),
            Happening::AgentTimeout(node, number) if number == self.nodes[node].agents => {
                self.nodes[node].wakes_ns = None;
                self.tell_agent(node, AgentEvent::Timeout);
            }
            Happening::AgentRewind(node, number, id) if number == self.nodes[node].agents => {
                let now = self.nodes[node].now(self.now_ns);
                if let Some(agent) = &mut self.nodes[node].agent {
                    agent.do_work(now, id);
                    self.heed_agent(node);
                }
            }
            Happening::StartAgent(node) => self.start_agent(node),
            Happening::Connect(node, number) => self.connect(node, number),
            Happening::Hello(conn, hello) => self.hello(conn, *hello),
            Happening::Up(conn, message) => self.up(conn, *message),
            Happening::Down(conn, message) => self.down(conn, *message),
            Happening::AgentSeesEnd(conn) => self.agent_sees_end(conn),
            Happening::CoordinatorSeesEnd(conn) => self.coordinator_sees_end(conn),
            Happening::UploadArrives(number) => self.upload_arrives(number),
            Happening::UploadEnds(number, end) => self.upload_ends(number, end),
            Happening::Step(rank, process) => self.step(rank, process),
            Happening::Resume(rank, process) if process == self.ranks[rank].processes => {
                self.ranks[rank].hangs_until_ns = None;
            }
            Happening::StartJob { is_counted } => {
                self.is_start_due = false;
                if !self.is_calm || self.ranks.iter().any(|rank| rank.process.is_none()) {
                    self.start_job(is_counted);
                }
            }
            Happening::Relaunch(launch) if launch == self.launches => self.start_job(true),
            Happening::KillAtStage(number) if number == self.coordinators => self.kill_at_stage(),
            Happening::LookAtActs => self.look_at_acts(),
            Happening::Uncut(node) => self.uncut(node),
            Happening::EmptyDisk => self.disk.set_room(None),
            Happening::MendSpool(node) => self.nodes[node].mend_disk(),
            Happening::Fault(fault) => self.go_wrong(fault),
            Happening::Request(number) => self.request(number),
            Happening::AllIsWell => self.all_is_well(),
            Happening::End => self.is_over = true,
            // Of an agent, a process or a coordinator that is no more.
            _ => {}
        }
    }

    // --- the queue ------------------------------------------------------------------------------

    pub(crate) fn at(&mut self, at_ns: u64, happening: Happening) {
        self.queued += 1;
        self.queue.insert((at_ns.max(self.now_ns), self.queued), happening);
    }

    pub(crate) fn after(&mut self, wait_ns: u64, happening: Happening) {
        self.at(self.now_ns + wait_ns, happening);
    }

    /// A delay of the network: mostly short, sometimes long.
    pub(crate) fn delay_ns(&mut self) -> u64 {
        let base_ns = self.plan.delay_ns;
        let factor = if self.rng.u8(0..20) == 0 { self.rng.u64(1..50) } else { 1 };
        self.rng.u64(base_ns / 2..base_ns * 2) * factor
    }

    fn trace(&self, happening: &Happening) {
        let is_dull = matches!(
            happening,
            Happening::CoordinatorTick(_)
                | Happening::CoordinatorTurn(_)
                | Happening::AgentTick(..)
                | Happening::AgentTimeout(..)
                | Happening::Step(..)
        );
        if !is_dull {
            let text: String = format!("{happening:?}").chars().take(240).collect();
            eprintln!("{:>9.3} {text}", self.now_ns as f64 / SECOND_NS as f64);
        }
    }

    // --- the coordinator ------------------------------------------------------------------------

    pub(crate) fn start_coordinator(&mut self) {
        if self.coordinator.is_some() {
            return;
        }
        let config = self.config();
        self.crashes_seen = self.disk.crashes();
        match SimulatedCoordinator::open(coordinator_now(self.now_ns), config, &self.disk.process())
        {
            // It was killed in the middle of something that a start does not depend on.
            Ok(_) if self.disk.crashes() > self.crashes_seen => {
                self.after(SECOND_NS, Happening::StartCoordinator);
            }
            Ok(coordinator) => {
                self.coordinators += 1;
                self.truth.starts.push(self.now_ns);
                (self.has_turn, self.has_work) = (false, false);
                self.coordinator = Some(coordinator);
                self.after(TICK_NS, Happening::CoordinatorTick(self.coordinators));
                self.heed_coordinator();
            }
            Err(error) => {
                if self.is_traced {
                    eprintln!("          the coordinator does not start: {error:#}");
                }
                // Its supervisor tries again. The disk may have to become better first.
                if self.disk.crashes() == self.crashes_seen {
                    self.disk.kill();
                }
                self.after(SECOND_NS, Happening::StartCoordinator);
            }
        }
    }

    /// Takes what the coordinator says, unless it died saying it.
    pub(crate) fn heed_coordinator(&mut self) {
        if self.disk.crashes() > self.crashes_seen {
            self.coordinator_is_gone();
            return;
        }
        self.carry_down();
        let now = coordinator_now(self.now_ns);
        let Some(coordinator) = &mut self.coordinator else { return };
        let mut taken = Vec::new();
        while let Some(answer) = coordinator.taken() {
            taken.push(answer);
        }
        let mut receipts = Vec::new();
        while let Some(receipt) = coordinator.receipt(now) {
            receipts.push(receipt);
        }
        let restarts = coordinator.restarts();
        for (action, _) in restarts {
            self.truth.restarts.push(action);
            self.target_is_asked();
        }
        self.watch_stage();
        for (number, answer) in taken {
            if self.is_traced {
                eprintln!("          capture {number}: {answer:?}");
            }
            let asked_ns = self.requests.remove(&number).unwrap_or(self.now_ns);
            if let Ok(id) = &answer {
                self.truth.accepted.entry(id.clone()).or_insert(asked_ns);
            }
            if Some(number) == self.last_request {
                self.last_capture = Some(answer);
            }
        }
        for (number, receipt) in receipts {
            self.receipt(number, receipt);
        }
        if !std::mem::replace(&mut self.has_turn, true) {
            let wait_ns = self.rng.u64(MS_NS..30 * MS_NS) + self.disk_delay_ns;
            self.after(wait_ns, Happening::CoordinatorTurn(self.coordinators));
        }
        if !std::mem::replace(&mut self.has_work, true) {
            let wait_ns = self.rng.u64(5 * MS_NS..800 * MS_NS);
            self.after(wait_ns, Happening::CoordinatorWork(self.coordinators));
        }
    }

    /// The process is gone, and all that it knew.
    pub(crate) fn coordinator_is_gone(&mut self) {
        self.crashes_seen = self.disk.crashes();
        if self.coordinator.take().is_none() {
            return;
        }
        self.requests.clear();
        self.disturb(self.down_ns + SECOND_NS);
        let open: Vec<u64> = self.conns.keys().copied().collect();
        for conn in open {
            let wait_ns = self.delay_ns();
            self.break_conn(conn, Some(wait_ns), None);
        }
        self.fail_uploads();
        self.after(self.down_ns, Happening::StartCoordinator);
    }

    fn request(&mut self, number: u64) {
        if let Some(coordinator) = &mut self.coordinator {
            self.requests.insert(number, self.now_ns);
            coordinator.request_capture(coordinator_now(self.now_ns), number, JOB, None);
            self.heed_coordinator();
        }
    }

    fn tick_coordinator(&mut self) {
        let Some(coordinator) = &mut self.coordinator else { return };
        coordinator.tick(coordinator_now(self.now_ns));
        let held = coordinator.held();
        // Each attempt of the last seconds may have one in flight.
        if held.in_flight > 10 || held.captures > 80 || held.given_up > 0 {
            self.broken.push(format!("the coordinator holds too much: {held:?}"));
        }
        self.after(TICK_NS, Happening::CoordinatorTick(self.coordinators));
        self.heed_coordinator();
    }

    // --- agents ---------------------------------------------------------------------------------

    pub(crate) fn start_agent(&mut self, node: usize) {
        if self.nodes[node].agent.is_some() {
            return;
        }
        self.nodes[node].start_agent(self.now_ns);
        let number = self.nodes[node].agents;
        let wait_ns = self.rng.u64(0..SECOND_NS);
        self.after(wait_ns, Happening::AgentTick(node, number));
        self.after(wait_ns / 2, Happening::Connect(node, number));
    }

    pub(crate) fn stop_agent(&mut self, node: usize) {
        if self.nodes[node].agent.take().is_none() {
            return;
        }
        self.disturb(0);
        self.nodes[node].agents += 1;
        if let Some(conn) = self.nodes[node].stream.take() {
            let wait_ns = self.delay_ns();
            self.break_conn(conn, None, Some(wait_ns));
        }
        self.uploads.retain(|_, upload| upload.node != node);
    }

    fn tick_agent(&mut self, node: usize, number: u64) {
        if number != self.nodes[node].agents {
            return;
        }
        let Some(agent) = &self.nodes[node].agent else { return };
        let interval_ns = u64::try_from(agent.report_interval().as_nanos()).unwrap_or(SECOND_NS);
        self.after(interval_ns, Happening::AgentTick(node, number));
        self.tell_agent(node, AgentEvent::Tick);
    }

    /// One event for an agent, and what follows from it.
    pub(crate) fn tell_agent(&mut self, node: usize, event: AgentEvent) {
        let now = self.nodes[node].now(self.now_ns);
        if let Some(agent) = &mut self.nodes[node].agent {
            agent.handle(now, event);
            self.heed_agent(node);
            self.heed_signals(node);
        }
    }

    // --- ranks ----------------------------------------------------------------------------------

    pub(crate) fn node_of(&self, rank: usize) -> usize {
        rank / self.plan.ranks_per_node
    }

    pub(crate) fn start_job(&mut self, is_counted: bool) {
        // Starting takes longer than this, and nodes' clocks differ by less.
        let is_soon = self.started_ns.is_some_and(|at_ns| self.now_ns - at_ns < 2 * SECOND_NS);
        if is_soon {
            self.after(2 * SECOND_NS, Happening::StartJob { is_counted });
            return;
        }
        self.started_ns = Some(self.now_ns);
        self.launches += 1;
        // Where a tape was lost before an agent saw it, only the launcher's number tells attempts
        // apart.
        self.attempt += u32::from(std::mem::take(&mut self.is_count_needed) || is_counted);
        for rank in 0..self.ranks.len() {
            self.kill_rank(rank);
            let node = self.node_of(rank);
            let identity = Identity {
                job: JOB.to_string(),
                attempt: self.attempt,
                rank: rank as u32,
                world_size: self.ranks.len() as u32,
                local_rank: (rank % self.plan.ranks_per_node) as u32,
                ..Identity::default()
            };
            let process = self.start_rank(node, &identity);
            let tape = TapeTruth {
                node,
                allocated: vec![node::level()],
                is_alive: true,
                is_lost: false,
                leaks: self.plan.leak.is_some_and(|(of, _)| of == rank as u32),
            };
            let known = &mut self.ranks[rank];
            known.tape_id = process.tape_id().to_string();
            known.processes += 1;
            known.pid = self.nodes[node].pids;
            known.hangs_until_ns = None;
            known.process = Some(process);
            self.truth.tapes.insert(known.tape_id.clone(), tape);
            let processes = known.processes;
            self.after(self.plan.step_ns, Happening::Step(rank, processes));
        }
    }

    pub(crate) fn kill_rank(&mut self, rank: usize) {
        let node = self.node_of(rank);
        let known = &mut self.ranks[rank];
        if let Some(mut process) = known.process.take() {
            process.kill();
            self.nodes[node].machine.end(known.pid);
            if let Some(tape) = self.truth.tapes.get_mut(&known.tape_id) {
                tape.is_alive = false;
            }
        }
    }

    /// The launcher notices a death, and starts the job again if that is its way.
    pub(crate) fn launcher_polls(&mut self) {
        if self.plan.is_restarted && !self.is_start_due && !self.is_calm {
            self.is_start_due = true;
            let wait_ns = self.rng.u64(SECOND_NS..8 * SECOND_NS);
            let is_counted = self.rng.bool();
            self.after(wait_ns, Happening::StartJob { is_counted });
        }
    }

    fn step(&mut self, rank: usize, process: u64) {
        if process != self.ranks[rank].processes || self.ranks[rank].process.is_none() {
            return;
        }
        let jitter_ns = self.rng.u64(0..self.plan.step_ns / 4);
        self.after(self.plan.step_ns + jitter_ns, Happening::Step(rank, process));
        if self.ranks[rank].hangs_until_ns.is_some_and(|until_ns| until_ns > self.now_ns) {
            return;
        }
        // A collective in each step: no rank is more than one step ahead of another.
        let step_of = |rank: &Rank| {
            let tape = self.truth.tapes.get(&rank.tape_id);
            tape.map_or(0, TapeTruth::step)
        };
        let mine = step_of(&self.ranks[rank]);
        if self.ranks.iter().any(|other| step_of(other) < mine) {
            return;
        }
        let now = self.nodes[self.node_of(rank)].now(self.now_ns);
        let known = &mut self.ranks[rank];
        let Some(tape) = self.truth.tapes.get_mut(&known.tape_id) else { return };
        let Some(process) = &mut known.process else { return };
        let leaks = tape.leaks && self.plan.leak.is_some_and(|(_, from)| mine >= from);
        let before = tape.allocated.last().copied().unwrap_or(0);
        tape.allocated.push(node::step(process, now, before, leaks));
        if let Some(remedy) = process.follow() {
            self.rank_did(rank, remedy, mine + 1);
        }
    }

    /// How much happened.
    pub(crate) fn counts(&self) -> Counts {
        let captures = || self.coordinator.iter().flat_map(SimulatedCoordinator::captures);
        let parts = captures().flat_map(|capture| capture.parts);
        Counts {
            captures: captures().filter(|capture| capture.closed_wall_ns.is_some()).count() as u64,
            complete: captures().filter(|capture| capture.complete).count() as u64,
            aligned: parts.filter(|part| part.outcome == Outcome::Aligned).count() as u64,
            snapshots: self.truth.snapshots.len() as u64,
            steps: self.truth.rows.values().map(Vec::len).sum::<usize>() as u64,
            incidents: self.coordinator.iter().flat_map(SimulatedCoordinator::incidents).count()
                as u64,
            starts: self.truth.starts.len() as u64,
            faults: self.plan.faults.len() as u64,
            restarts: self.truth.restarts.len() as u64,
            remedies: self.done(|ranks| ranks == self.ranks.len()),
            partial: self.done(|ranks| ranks < self.ranks.len()),
            stage_kills: u64::from(self.truth.acts.killed_ns.is_some()),
            alone: captures().filter(|capture| capture.id.ends_with("-alone")).count() as u64,
            index_losses: self.disk.counts().index_losses,
        }
    }

    /// Answers a new number.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Sends a snapshot of an agent on its way.
    pub(crate) fn send_upload(&mut self, upload: Upload, time_left_ns: u64, snapshot: &Bytes) {
        let number = self.number();
        let transfer_ns = snapshot.len() as u64 * 10;
        let wait_ns = self.delay_ns() + transfer_ns;
        let is_cut = self.nodes[upload.node].cut_until_ns.is_some();
        let is_lost = is_cut || self.rng.u8(0..100) < self.plan.lost_percent;
        self.uploads.insert(number, upload);
        // Too late is not refused: the agent knows whether another try makes sense.
        self.after(time_left_ns, Happening::UploadEnds(number, UploadEnd::Failed));
        if is_lost {
            self.after(wait_ns, Happening::UploadEnds(number, UploadEnd::Failed));
            return;
        }
        self.after(wait_ns, Happening::UploadArrives(number));
        if self.rng.u8(0..100) < self.plan.twice_percent {
            let again_ns = wait_ns + self.delay_ns();
            self.after(again_ns, Happening::UploadArrives(number));
        }
    }
}

/// The time on the coordinator's machine.
pub(crate) fn coordinator_now(now_ns: u64) -> Now {
    let wall_ns = WALL_NS + now_ns;
    Now { mono_ns: wall_ns, wall_ns: wall_ns as i64 }
}
