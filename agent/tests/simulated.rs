//! The agent's logic with a coordinator's part played by hand, in one thread.

use std::time::Duration;

use memtape_agent::Config;
use memtape_agent::simulated::{
    Event, MemoryNode, MemoryRank, MemoryTapes, Now, Output, SMALL, SimulatedAgent, UploadEnd,
};
use memtape_core::identity::Identity;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use memtape_proto::v1::coordinator_message::Body as ToAgent;
use prost::Message;

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
}

fn welcome() -> v1::CoordinatorMessage {
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
        Self { now, node, tapes, ranks, agent, said, rewinds, uploads }
    }

    fn handle(&mut self, event: Event) {
        self.agent.handle(self.now, event);
        while let Some(output) = self.agent.poll() {
            match output {
                Output::Message(message) => self.said.extend(message.body),
                Output::Rewind { id } => self.rewinds.push(id),
                Output::Upload { id, capture_id, body, hash, .. } => {
                    assert_eq!(blake3::hash(&body), hash);
                    self.uploads.push((id, capture_id, body.to_vec()));
                }
            }
        }
    }

    fn connect(&mut self) {
        let Some(Said::Hello(hello)) = self.agent.hello().body else { panic!("no hello") };
        assert_eq!(hello.node, "node-1");
        self.handle(Event::Connected { welcome: welcome() });
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
        let tape_id = self.ranks[rank].tape_id();
        self.said.iter().find_map(|said| match said {
            Said::RankDown(down) if down.tape_id == tape_id => Some(down),
            _ => None,
        })
    }

    fn steps(&self, rank: usize) -> Vec<u64> {
        let tape_id = self.ranks[rank].tape_id();
        let reports = self.said.iter().filter_map(|said| match said {
            Said::Report(report) => Some(report),
            _ => None,
        });
        let ranks = reports.flat_map(|report| &report.ranks);
        let of_rank = ranks.filter(|each| each.tape_id == tape_id);
        of_rank.flat_map(|each| each.steps.iter().map(|step| step.last_step)).collect()
    }
}

#[test]
fn ranks_are_reported_and_their_ends_told() {
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
    for (_, _, body) in &world.uploads {
        let body = zstd::decode_all(body.as_slice()).expect("zstd");
        let body = v1::RankBody::decode(body.as_slice()).expect("a body");
        let blocks = body.devices[0].blocks.as_ref().expect("blocks");
        assert_eq!((body.step, blocks.sizes.len()), (20, 20));
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
fn bodies_stay_within_their_bound_and_deadlines_end_them() {
    let mut world = World::new(6, |config| {
        config.rewinds_max = 2;
        config.upload_bytes_max = 1;
    });
    world.train(10);
    world.connect();
    world.tick();
    world.ask("cap-1", 5, 2_000);
    world.do_rewinds();
    // One body is within the bound, two are beyond it and keep their turns.
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
    assert_eq!(world.uploads.len(), 2, "a body that nobody waits for");
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
    world.agent.handle(world.now, Event::Connected { welcome: welcome() });
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
