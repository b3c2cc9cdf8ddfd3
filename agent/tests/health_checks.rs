//! The health check of the node, as the agent's logic answers it after its scans.

use memtape_agent::testing::{Event, Now};
use memtape_core::limits::{NODE_CHECK_ANSWER_SECONDS_MAX, NODE_CHECK_GIVE_BACK_SECONDS_MAX};
use memtape_core::policy::gpu_memory::Verdict;

use super::{SECOND_NS, World};

const GIB: u64 = 1 << 30;

const UUID: &str = "GPU-A";

/// Of the one rank.
const PID: u32 = 100;

impl World {
    /// One rank, and a port for the check.
    fn with_check() -> Self {
        let world = Self::new(1, |config| config.health_listen = Some(([127, 0, 0, 1], 1).into()));
        world.ranks[0].show_pid(PID);
        world.node.run(PID);
        world
    }

    /// The driver reads the GPU, and the agent scans.
    fn read(&mut self, used_gib: u64, pids: &[u32]) {
        self.pass(SECOND_NS);
        self.node.read_gpu(self.now, UUID, used_gib * GIB, pids);
        self.handle(Event::Tick);
    }

    /// The verdict of a check that was first asked for then, and what is known of the GPU.
    fn answer(&self, asked: Now) -> (Option<Verdict>, Vec<String>) {
        self.agent.check_node(asked, self.now)
    }

    /// Reads the same until there is a verdict; after how many seconds.
    fn read_until_answered(
        &mut self,
        asked: Now,
        used_gib: u64,
        pids: &[u32],
    ) -> (Verdict, Vec<String>, u64) {
        for second in 1..=NODE_CHECK_ANSWER_SECONDS_MAX + 1 {
            self.read(used_gib, pids);
            if let (Some(verdict), details) = self.answer(asked) {
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
    let asked = world.now;
    assert_eq!(world.answer(asked).0, None, "the last reading was begun before the question");
    world.read(70, &[PID]);
    world.read(41, &[]);
    world.read(20, &[]);
    assert_eq!(world.answer(asked).0, None, "the driver may still be giving it back");
    let (verdict, details, _) = world.read_until_answered(asked, 1, &[]);
    assert_eq!(verdict, Verdict::Healthy);
    assert_eq!(details, ["no process computes on GPU-A, which holds 1 GiB"]);
}

#[test]
fn memory_that_is_kept_fails_the_check_by_name_and_amount() {
    let mut world = World::with_check();
    world.compute();
    world.end_rank();
    let asked = world.now;
    let (verdict, details, second) = world.read_until_answered(asked, 41, &[]);
    assert_eq!((verdict, second), (Verdict::Failed, NODE_CHECK_GIVE_BACK_SECONDS_MAX + 1));
    let held = "20 s after its last process has ended, GPU-A holds 40 GiB more than before";
    assert_eq!(details, [held]);
    // The next one knows it at once, and when the memory is back the node is healthy again.
    let asked = world.now;
    let (verdict, _, second) = world.read_until_answered(asked, 41, &[]);
    assert_eq!((verdict, second), (Verdict::Failed, 1));
    let asked = world.now;
    let (verdict, _, second) = world.read_until_answered(asked, 1, &[]);
    assert_eq!((verdict, second), (Verdict::Healthy, 1));
}

#[test]
fn what_cannot_be_known_passes_and_is_reported_as_not_known() {
    // There is no driver: there is nothing to wait for.
    let mut world = World::with_check();
    let asked = world.now;
    world.tick();
    let no_driver = "no NVIDIA driver is found on this node: what GPUs hold now is not known";
    assert_eq!(world.answer(asked), (Some(Verdict::Unknown), vec![no_driver.to_string()]));

    // The agent was started when the rank computed already.
    world.tick();
    world.read(70, &[PID]);
    world.end_rank();
    let asked = world.now;
    let (verdict, details, second) = world.read_until_answered(asked, 41, &[]);
    assert_eq!((verdict, second), (Verdict::Unknown, 1));
    assert!(details[0].contains("since the agent was started"), "{details:?}");
}

/// The driver hangs: each scan finds the reading from before the question.
#[test]
fn a_driver_that_hangs_delays_an_answer_and_prevents_none() {
    let mut world = World::with_check();
    world.compute();
    let asked = world.now;
    for second in 1..=NODE_CHECK_ANSWER_SECONDS_MAX {
        world.tick();
        let (verdict, details) = world.answer(asked);
        let is_last = second == NODE_CHECK_ANSWER_SECONDS_MAX;
        assert_eq!(verdict, is_last.then_some(Verdict::Unknown), "{second} s");
        assert!(details[0].contains("NVML has not answered since the question"), "{details:?}");
    }
}
