//! What one user wants of a node delays and displaces nothing of another's.

use memtape_agent::testing::{MemoryRank, Now, SMALL};
use memtape_core::identity::Identity;
use memtape_core::limits::{AGENT_CAPTURES_PER_USER_MAX, STEPS_PER_REPORT_MAX, TAPES_PER_NODE_MAX};
use memtape_core::tape::layout::Sizes;
use memtape_proto::v1;

use super::{SECOND_NS, Said, ToAgent, World};

/// The user who wants much; ranks of a world are root's.
const OTHER: u32 = 1001;

const TINY: Sizes = Sizes { events: 16, table_entries: 16, step_records: 16, ..SMALL };

impl World {
    fn start_of(&self, uid: u32, pid: u32, sizes: Sizes) -> MemoryRank {
        let identity = Identity { job: "other".to_string(), ..Identity::default() };
        MemoryRank::start_of(&self.tapes, uid, self.now, (7, pid), &identity, sizes)
    }

    fn ask_of(&mut self, capture_id: &str, ranks: &[MemoryRank]) {
        self.say(ToAgent::CaptureRequest(v1::CaptureRequest {
            capture_id: capture_id.to_string(),
            tape_ids: ranks.iter().map(|rank| rank.tape_id().to_string()).collect(),
            deadline_ms: 60_000,
            ..v1::CaptureRequest::default()
        }));
    }

    fn acknowledge(&mut self) {
        self.say(ToAgent::ReportAck(v1::ReportAck { number: u64::MAX }));
    }
}

/// Sixty tapes of another user are counted, each of which takes long: the end of a rank waits for
/// its last census for two seconds, the census is the next that is made, and follows.
#[test]
fn the_end_of_a_rank_waits_two_seconds_for_its_census() {
    let mut world = World::new(1, |_| ());
    let _others: Vec<_> = (0..60).map(|pid| world.start_of(OTHER, 500 + pid, SMALL)).collect();
    world.connect_to_minor(3);
    world.train(20);
    world.tick();
    world.tick();
    assert_eq!(world.censuses(0).len(), 1);
    world.agent.hold_counts();
    for _ in 0..70 {
        world.tick();
        world.acknowledge();
    }
    // The rank is counted; then one of the others, which takes until further notice.
    assert!(world.agent.count_one(world.now));
    world.tick();
    let now = world.now;
    world.ranks[0].alloc(now, 1 << 40, 4096);
    world.ranks[0].kill();
    for _ in 0..4 {
        assert!(world.down(0).is_none() || world.censuses(0).len() == 1);
        world.tick();
        world.acknowledge();
    }
    assert!(world.down(0).is_some(), "the end does not wait for its census");
    assert_eq!(world.censuses(0).len(), 1);
    // The next turn is that of the user who had none since.
    for _ in 0..2 {
        assert!(world.agent.count_one(world.now));
        world.tick();
        world.acknowledge();
    }
    assert_eq!(world.censuses(0).len(), 2, "the last census follows");
    let downs = world.said.iter().filter(|said| matches!(said, Said::RankDown(_))).count();
    assert_eq!(downs, 1, "the end is said once");
}

/// All ranks of another user die while no coordinator is there: that of ours is captured too.
#[test]
fn captures_taken_alone_are_bounded_by_user() {
    let mut world = crate::agent_captures::alone(1, |config| config.rewinds_max = 200);
    let count = AGENT_CAPTURES_PER_USER_MAX as u32 + 40;
    let mut others: Vec<_> = (0..count).map(|pid| world.start_of(OTHER, 500 + pid, TINY)).collect();
    world.tick();
    world.tick();
    others.iter_mut().for_each(MemoryRank::kill);
    world.tick();
    world.tick();
    world.ranks[0].kill();
    for _ in 0..4 {
        world.tick();
        world.do_rewinds();
    }
    crate::agent_captures::connect_and_read(&mut world);
    let captures = crate::agent_captures::captures(&world);
    let own = captures.iter().filter(|(_, tape)| tape == world.ranks[0].tape_id()).count();
    let of_others = captures.len() - own;
    assert_eq!(own, 1);
    // One comes back every half second.
    assert!((64..84).contains(&of_others), "{of_others} of {count}");
}

#[test]
fn rewinds_of_one_user_delay_those_of_another_by_one() {
    let mut world = World::new(2, |config| config.rewinds_max = 2);
    let others: Vec<_> = (0..30).map(|pid| world.start_of(OTHER, 500 + pid, SMALL)).collect();
    world.train(20);
    world.connect();
    world.tick();
    world.ask_of("cap-other", &others);
    assert_eq!(world.rewinds.len(), 2);
    world.ask("cap-own", 20, 60_000);
    let mut rewound = 0;
    while world.answers().iter().filter(|of| of.capture_id == "cap-own").count() < 2 {
        let id = world.rewinds.remove(0);
        assert!(world.agent.do_work(world.now, id));
        world.handle(super::Event::Timeout);
        rewound += 1;
        assert!(rewound <= 5, "{rewound} rewinds, and the capture is not answered");
    }
    let of_own = world.answers().into_iter().filter(|of| of.capture_id == "cap-own");
    assert!(of_own.clone().all(|of| of.outcome() == v1::RankOutcome::Aligned));
}

/// Forty tapes of another user hold more records than ten reports have room for.
#[test]
fn records_of_one_user_delay_those_of_another_by_nothing() {
    let mut world = World::new(2, |_| ());
    let many = Sizes { step_records: 1024, ..TINY };
    let mut others: Vec<_> = (0..40).map(|pid| world.start_of(OTHER, 500 + pid, many)).collect();
    for step in 1..=1024_u64 {
        let now = Now { mono_ns: world.now.mono_ns + step * 1_000, ..world.now };
        others.iter_mut().for_each(|rank| rank.train(now, 512));
    }
    world.train(3);
    world.tick();
    world.ranks[1].kill();
    let before = world.tapes.words_read();
    world.connect();
    assert_eq!(world.steps(0), [1, 2, 3], "in the first report");
    let words = world.tapes.words_read() - before;
    // Sixteen words a record; what each tape says beside its records is below 2,000 words.
    let words_max = STEPS_PER_REPORT_MAX * 16 + 42 * 4_000;
    assert!(words <= words_max as u64, "{words} words were read for one report");
    world.tick();
    assert!(world.down(1).is_some(), "and the end of a rank");
    // No record of the others is lost, and none is sent twice.
    for _ in 0..20 {
        world.acknowledge();
        world.tick();
    }
    let reports = world.said.iter().filter_map(|said| match said {
        Said::Report(report) => Some(report),
        _ => None,
    });
    let mut sent = 0;
    for report in reports {
        let steps: usize = report.ranks.iter().map(|rank| rank.steps.len()).sum();
        assert!(steps <= STEPS_PER_REPORT_MAX);
        sent += steps;
    }
    assert_eq!(sent, 40 * 1024 + 6);
}

/// A copy says that it is the tape of a dead rank, and its lock is held.
#[test]
fn a_copy_of_another_user_displaces_no_dead_tape() {
    let mut world = World::new(1, |_| ());
    world.train(10);
    world.connect();
    world.tick();
    world.ranks[0].kill();
    for _ in 0..3 {
        world.tick();
        world.acknowledge();
    }
    let identity = Identity { job: "job".to_string(), world_size: 1, ..Identity::default() };
    let started = Now { mono_ns: 5 * SECOND_NS, ..world.now };
    let same = ("a-copy.tape", OTHER);
    let copy = MemoryRank::start_at(&world.tapes, same, started, (7, 100), &identity, SMALL);
    let own = |rank: &MemoryRank| rank.tape_id().rsplit_once('-').expect("an owner").0.to_string();
    assert_eq!(own(&copy), own(&world.ranks[0]), "they are the same tape but for the owner");
    for _ in 0..3 {
        world.tick();
        world.acknowledge();
    }
    world.ask("cap-1", 0, 60_000);
    world.do_rewinds();
    let [answer] = world.answers()[..] else { panic!("one answer") };
    assert_eq!((answer.dead, answer.step), (true, 10), "{answer:?}");
}

/// 1,100 user ids of one user, who may have them in user namespaces: `/etc/subuid` says whose.
#[test]
fn subordinate_users_are_one_user() {
    let mut world = World::new(8, |_| ());
    let start = |pid| world.start_of(100_000 + pid, 10_000 + pid, TINY);
    let others: Vec<_> = (0..TAPES_PER_NODE_MAX as u32 + 76).map(start).collect();
    world.connect();
    world.tick();
    // A rank that starts while the agent is full.
    world.ranks.push(world.start_of(0, 9, SMALL));
    for _ in 0..4 {
        world.train(1);
        world.tick();
    }
    for rank in 0..9 {
        assert_eq!(world.steps(rank).last(), Some(&4), "rank {rank}");
    }
    drop(others);
}
