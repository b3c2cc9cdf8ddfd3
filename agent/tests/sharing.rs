//! What one user wants of a node delays and displaces nothing of another's.

use memtape_agent::testing::{MemoryRank, Now, SMALL};
use memtape_core::identity::Identity;
use memtape_core::limits::{
    AGENT_CAPTURES_PER_USER_MAX, ANNOUNCEMENT_WAIT_SECONDS_MAX, ANNOUNCEMENTS_AGAIN_PER_MINUTE_MAX,
    ANNOUNCEMENTS_PER_ROUND_MAX, STEPS_PER_REPORT_MAX, TAPES_PER_NODE_MAX,
};
use memtape_core::tape::layout::{STEP_WORDS, Sizes, device};
use memtape_proto::v1;

use super::{SECOND_NS, Said, ToAgent, World, is_of};

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

    fn ups(&self, rank: &MemoryRank) -> usize {
        let is_up = |said: &&Said| matches!(said, Said::RankUp(up) if up.tape_id == rank.tape_id());
        self.said.iter().filter(is_up).count()
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
    world.connect();
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
fn agent_initiated_captures_are_bounded_by_user() {
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
    let own = captures.iter().filter(|(_, tape)| is_of(tape, &world.ranks[0])).count();
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
    // An end waits at most two seconds for the rank's last census.
    (0..3).for_each(|_| world.tick());
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

/// 900 tapes of another user say another device at every look.
#[test]
fn tapes_that_change_all_the_time_silence_no_other_user() {
    let mut world = World::new(2, |_| ());
    let others: Vec<_> = (0..900).map(|pid| world.start_of(OTHER, 500 + pid, TINY)).collect();
    let mut value = 0;
    let mut look = |world: &mut World| {
        value += 1;
        others.iter().for_each(|rank| rank.set_device(device::UUID, value));
        world.train(1);
        world.tick();
        world.acknowledge();
    };
    world.connect();
    let rounds = 902_usize.div_ceil(ANNOUNCEMENTS_PER_ROUND_MAX);
    (0..rounds).for_each(|_| look(&mut world));
    assert_eq!(world.steps(0), (1..=rounds as u64).collect::<Vec<_>>(), "after {rounds} rounds");
    let looks = 4 * ANNOUNCEMENT_WAIT_SECONDS_MAX;
    for step in 1..=looks {
        look(&mut world);
        assert_eq!(world.steps(0).last(), Some(&(rounds as u64 + step)), "every step at once");
    }
    // A change of ours is announced at the next look, as is a new rank, and an end after three.
    world.ranks[1].set_device(device::UUID, 77);
    world.ranks.push(world.start_of(0, 9, SMALL));
    let before = world.ups(&world.ranks[1]);
    look(&mut world);
    assert_eq!((world.ups(&world.ranks[1]) - before, world.ups(&world.ranks[2])), (1, 1));
    world.ranks[0].kill();
    (0..3).for_each(|_| look(&mut world));
    assert!(world.down(0).is_some(), "the end is said");
    let ups: usize = others.iter().map(|rank| world.ups(rank)).sum();
    let minutes = (rounds as u64 + looks).div_ceil(60) + 1;
    let again = TAPES_PER_NODE_MAX as u64 + minutes * ANNOUNCEMENTS_AGAIN_PER_MINUTE_MAX;
    assert!(ups as u64 <= 900 + again, "{ups} announcements of the others");
}

/// As before, and their processes seem to end and to come back.
#[test]
fn processes_that_come_and_go_silence_no_other_user() {
    let mut world = World::new(1, |_| ());
    let mut others: Vec<_> = (0..900).map(|pid| world.start_of(OTHER, 500 + pid, TINY)).collect();
    world.connect();
    (0..8).for_each(|_| world.tick());
    for look in 0..200_u64 {
        others.iter_mut().for_each(|rank| match look % 4 {
            3 => rank.come_back(),
            _ => rank.kill(),
        });
        world.train(1);
        world.tick();
        world.acknowledge();
        assert_eq!(world.steps(0).last(), Some(&(look + 1)), "every step at once");
    }
    world.ranks[0].kill();
    for _ in 0..4 {
        world.tick();
        world.acknowledge();
    }
    assert!(world.down(0).is_some(), "the end is said");
    let ups: usize = others.iter().map(|rank| world.ups(rank)).sum();
    let again = TAPES_PER_NODE_MAX as u64 + 4 * ANNOUNCEMENTS_AGAIN_PER_MINUTE_MAX;
    assert!(ups as u64 <= 900 + again, "{ups} announcements of the others");
}

/// A change waits for the change before, and is not lost.
#[test]
fn a_tape_is_announced_again_at_once_and_then_after_a_time() {
    let mut world = World::new(1, |_| ());
    world.connect();
    let ups = |world: &World| world.ups(&world.ranks[0]);
    for (value, looks, expected) in [(1, 1, 2), (2, ANNOUNCEMENT_WAIT_SECONDS_MAX - 1, 2)] {
        world.ranks[0].set_device(device::UUID, value);
        (0..looks).for_each(|_| world.tick());
        assert_eq!(ups(&world), expected);
    }
    world.tick();
    assert_eq!(ups(&world), 3);
    (0..2 * ANNOUNCEMENT_WAIT_SECONDS_MAX).for_each(|_| world.tick());
    assert_eq!(ups(&world), 3, "nothing has changed");
}

/// The first report says that all tapes were announced.
#[test]
fn the_first_report_comes_after_all_announcements() {
    let mut world = World::new(2, |_| ());
    let others: Vec<_> = (0..900).map(|pid| world.start_of(OTHER, 500 + pid, TINY)).collect();
    world.connect();
    assert!(world.ups(&world.ranks[0]) == 1 && world.ups(&world.ranks[1]) == 1, "by turns");
    let is_report = |said: &Said| matches!(said, Said::Report(_));
    let mut more = Vec::new();
    let mut rounds = 1;
    while !world.said.iter().any(is_report) {
        // What comes later does not hold it up.
        more.extend((0..20).map(|pid| world.start_of(1002, 2000 + 20 * rounds + pid, TINY)));
        world.tick();
        rounds += 1;
        assert!(rounds <= 8, "{rounds} rounds");
    }
    let first = world.said.iter().position(is_report).expect("a report");
    world.said.truncate(first);
    assert!(others.iter().all(|rank| world.ups(rank) == 1));
}

/// Sixteen tapes of another user are written on without pause while no coordinator is there: a look
/// reads the records of one report, later the rate of one user, and finds and keeps other ranks.
#[test]
fn a_writer_without_pause_delays_no_look() {
    let mut world = crate::agent_captures::alone(1, |_| ());
    let many = Sizes { step_records: 1024, ..TINY };
    let mut others: Vec<_> = (0..16).map(|pid| world.start_of(OTHER, 500 + pid, many)).collect();
    let mut words = Vec::new();
    for second in 0..80 {
        for step in 1..=1024_u64 {
            let now = Now { mono_ns: world.now.mono_ns + step * 1_000, ..world.now };
            others.iter_mut().for_each(|rank| rank.train(now, 512));
        }
        let before = world.tapes.words_read();
        world.train(1);
        world.tick();
        words.push(world.tapes.words_read() - before);
        assert_eq!(world.ranks[0].step(), 6 + second);
    }
    let of_report = (STEPS_PER_REPORT_MAX * STEP_WORDS) as u64;
    assert!(words.iter().all(|words| *words < 2 * of_report), "{words:?}");
    let late: u64 = words[60..].iter().sum();
    assert!(late < 20 * of_report / 4, "500 records a second: {words:?}");
    // What happened to a rank of another user was kept, and is delivered.
    world.ranks[0].kill();
    (0..3).for_each(|_| world.tick());
    world.connect();
    for _ in 0..200 {
        world.acknowledge();
        world.tick();
    }
    assert_eq!(world.steps(0), (1..=85).collect::<Vec<_>>());
    assert!(world.down(0).is_some());
}
