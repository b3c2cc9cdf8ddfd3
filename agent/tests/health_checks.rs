//! The health check of the node, as the agent's logic answers it between its looks at the GPUs.

use memtape_agent::testing::{Event, HealthQuestion};
use memtape_core::limits::{NODE_CHECK_ANSWER_SECONDS_MAX, NODE_CHECK_GIVE_BACK_SECONDS_MAX};
use memtape_core::policy::node_check::Verdict;

use super::{SECOND_NS, World};

const GIB: u64 = 1 << 30;

const UUID: &str = "GPU-A";

/// Of the one rank.
const PID: u32 = 100;

impl World {
    /// One rank, and a socket for the check.
    fn with_check() -> Self {
        let world = Self::new(1, |config| config.health_socket = Some("/run/check".into()));
        world.ranks[0].show_pid(PID);
        world.node.run(PID);
        world
    }

    /// The driver reads the GPU, and the agent looks at what it said when it wants to.
    fn read(&mut self, used_gib: u64, pids: &[u32]) {
        self.pass(SECOND_NS);
        self.node.read_gpu(self.now, UUID, used_gib * GIB, pids);
        let next_ns = self.agent.next_ns().expect("a look at the GPUs");
        assert!(next_ns <= self.now.mono_ns, "the agent looks once a second");
        self.handle(Event::Timeout);
    }

    /// Reads the same until there is an answer; after how many seconds.
    fn read_until_answered(
        &mut self,
        question: &mut HealthQuestion,
        used_gib: u64,
        pids: &[u32],
    ) -> (Verdict, Vec<String>, u64) {
        for second in 1..=NODE_CHECK_ANSWER_SECONDS_MAX + 1 {
            self.read(used_gib, pids);
            if let Some((verdict, details)) = question.answer() {
                return (verdict, details, second);
            }
        }
        panic!("no answer");
    }

    /// The rank begins to compute on a GPU that held 1 GiB.
    fn compute(&mut self) {
        self.tick();
        self.read(1, &[]);
        self.read(70, &[PID]);
    }

    fn end_rank(&mut self) {
        self.ranks[0].kill();
        self.node.end(PID);
    }
}

#[test]
fn memory_that_is_given_back_in_seconds_fails_no_check() {
    let mut world = World::with_check();
    world.compute();
    world.end_rank();
    let mut question = world.agent.ask_health(world.now);
    assert_eq!(question.answer(), None, "the last reading was begun before the question");
    world.read(70, &[PID]);
    world.read(41, &[]);
    world.read(20, &[]);
    assert_eq!(question.answer(), None, "the driver may still be giving it back");
    let (verdict, details, _) = world.read_until_answered(&mut question, 1, &[]);
    assert_eq!(verdict, Verdict::Healthy);
    assert_eq!(details, ["no process computes on GPU-A, which holds 1 GiB"]);
}

#[test]
fn memory_that_is_kept_fails_the_check_by_name_and_amount() {
    let mut world = World::with_check();
    world.compute();
    world.end_rank();
    let mut question = world.agent.ask_health(world.now);
    let (verdict, details, second) = world.read_until_answered(&mut question, 41, &[]);
    assert_eq!((verdict, second), (Verdict::Failed, NODE_CHECK_GIVE_BACK_SECONDS_MAX + 1));
    let held = "20 s after its last process has ended, GPU-A holds 40 GiB more than before";
    assert_eq!(details, [held]);
    // The next one knows it at once, and when the memory is back the node is healthy again.
    let mut question = world.agent.ask_health(world.now);
    let (verdict, _, second) = world.read_until_answered(&mut question, 41, &[]);
    assert_eq!((verdict, second), (Verdict::Failed, 1));
    let mut question = world.agent.ask_health(world.now);
    let (verdict, _, second) = world.read_until_answered(&mut question, 1, &[]);
    assert_eq!((verdict, second), (Verdict::Healthy, 1));
}

#[test]
fn what_cannot_be_known_passes_and_is_reported_as_not_known() {
    // There is no driver: there is nothing to wait for.
    let mut world = World::with_check();
    let mut question = world.agent.ask_health(world.now);
    world.pass(SECOND_NS);
    world.handle(Event::Timeout);
    let no_driver = "no NVIDIA driver is found on this node: what GPUs hold now is not known";
    assert_eq!(question.answer(), Some((Verdict::Unknown, vec![no_driver.to_string()])));

    // The agent was started when the rank computed already.
    world.tick();
    world.read(70, &[PID]);
    world.end_rank();
    let mut question = world.agent.ask_health(world.now);
    let (verdict, details, second) = world.read_until_answered(&mut question, 41, &[]);
    assert_eq!((verdict, second), (Verdict::Unknown, 1));
    assert!(details[0].contains("since the agent was started"), "{details:?}");
}

/// The driver hangs: each look finds the reading from before the question.
#[test]
fn a_driver_that_hangs_delays_an_answer_and_prevents_none() {
    let mut world = World::with_check();
    world.compute();
    let mut question = world.agent.ask_health(world.now);
    let mut looks = 0;
    let answer = loop {
        let next_ns = world.agent.next_ns().expect("a look");
        world.pass(next_ns.saturating_sub(world.now.mono_ns));
        world.handle(Event::Timeout);
        looks += 1;
        if let Some(answer) = question.answer() {
            break answer;
        }
        assert!(looks < 1000, "no answer");
    };
    assert_eq!(answer.0, Verdict::Unknown);
    assert_eq!(looks, 4 * NODE_CHECK_ANSWER_SECONDS_MAX, "a look is wanted each 250 ms");
}

/// A question whose client is gone is forgotten, and the agent looks once a second again.
#[test]
fn a_client_that_is_gone_costs_nothing() {
    let mut world = World::with_check();
    world.compute();
    let questions: Vec<_> = (0..100).map(|_| world.agent.ask_health(world.now)).collect();
    let next_ns = world.agent.next_ns().expect("a look");
    assert!(next_ns - world.now.mono_ns < SECOND_NS);
    drop(questions);
    world.pass(SECOND_NS / 4);
    world.handle(Event::Timeout);
    assert_eq!(world.agent.next_ns(), Some(world.now.mono_ns + SECOND_NS));
}

/// Without the option the GPUs are not looked at.
#[test]
fn without_a_socket_there_is_no_look() {
    let mut world = World::new(1, |_| ());
    world.tick();
    assert_eq!(world.agent.next_ns(), None);
}
