//! Ranks that count turns, and go over to steps.

use super::{SECOND_NS, Said, World};
use memtape_proto::v1;

/// Bytes of a request.
const REQUEST_BYTES: u64 = 128 << 20;

impl World {
    /// The first rank answers requests, ten in a second, each of which ends a turn nearly.
    fn serve(&mut self, requests: u64) {
        for _ in 0..requests {
            let now = self.now;
            self.ranks[0].alloc(now, 1 << 40, REQUEST_BYTES);
            self.pass(SECOND_NS / 10);
            let now = self.now;
            self.ranks[0].free(now, 1 << 40, REQUEST_BYTES);
        }
    }

    /// What was last said of the first rank.
    fn last_report(&self) -> v1::RankReport {
        let reports = self.said.iter().rev().filter_map(|said| match said {
            Said::Report(report) => report.ranks.first(),
            _ => None,
        });
        reports.into_iter().next().expect("a report").clone()
    }
}

#[test]
fn turns_are_reported_as_turns_and_the_first_step_begins_again() {
    let mut world = World::new(1, |_| ());
    world.connect();
    world.serve(1_000);
    world.tick();
    let report = world.last_report();
    assert_eq!(report.clock(), v1::Clock::Turns);
    assert!(report.step > 64, "{} turns", report.step);
    assert_eq!(world.steps(0).last(), Some(&report.step));
    world.said.clear();
    world.train(5);
    world.tick();
    let report = world.last_report();
    assert_eq!((report.clock(), report.step, report.steps_missed), (v1::Clock::Steps, 5, 0));
    assert_eq!(world.steps(0), [1, 2, 3, 4, 5]);
    world.tick();
    let censuses = world.censuses(0);
    assert_eq!(censuses.iter().map(|of| (of.step, of.is_whole)).collect::<Vec<_>>(), [(5, true)]);
    world.serve(1_000);
    world.tick();
    assert_eq!(world.last_report().step, 5, "a process that trains has no more turns");
}
