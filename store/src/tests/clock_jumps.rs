//! The machine's wall clock jumps, while the store is open and between two lives of it: no
//! acknowledged step is hidden or deleted, and each jump is reported. A seed that fails is printed,
//! and `MEMTAPE_STORE_SEED` tries it alone.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use crate::handle::Store;
use crate::records::StepRecord;
use crate::recovery::check::{check_simulated, look_at_simulated};
use crate::steps::newest::NewestRows;
use crate::steps::packer::StepLimits;
use crate::tests::fixtures::{SERIES, flush, number, read_steps};
use fastrand::Rng;
use memtape_disk::clock::{self, Now};
use memtape_simulated_disk::SimulatedDisk;

const SEEDS: u64 = 200;
const BEGIN_NS: i64 = 1 << 60;
const SECOND_NS: i64 = 1_000_000_000;
const HOUR_NS: i64 = 3600 * SECOND_NS;
const DAY_NS: i64 = 24 * HOUR_NS;

/// The default of `--steps-age-max`.
const AGE_NS_MAX: i64 = 14 * DAY_NS;

/// A store on a machine whose clocks are set from here.
struct Machine {
    disk: SimulatedDisk,
    store: Option<Store>,
    now: Now,
    steps: u64,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let now = Now { mono_ns: BEGIN_NS as u64, wall_ns: BEGIN_NS };
        let disk = SimulatedDisk::new(seed);
        let mut machine = Self { disk, store: None, now, steps: 0 };
        machine.start();
        machine
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("the store is open")
    }

    fn start(&mut self) {
        clock::set(self.now);
        let store = Store::open_in_turns(&self.disk.process()).expect("the store opens").0;
        store.limit_steps(StepLimits { age_ns_max: AGE_NS_MAX, ..Default::default() });
        self.store = Some(store);
    }

    /// The process ends, in order or not, and another begins: its monotonic clock begins at the
    /// wall clock's reading.
    fn restart(&mut self, is_killed: bool) {
        if !is_killed {
            flush(self.store());
        }
        self.store = None;
        self.disk.kill();
        self.now.mono_ns = self.now.wall_ns.unsigned_abs();
        self.start();
    }

    fn jump(&mut self, by_ns: i64) {
        self.now.wall_ns += by_ns;
        clock::set(self.now);
    }

    /// Takes a step every second and looks for old ones, as the coordinator does.
    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.pass(SECOND_NS);
            let row = StepRecord { last_step: self.steps, ..StepRecord::default() };
            self.steps += 1;
            let batch = vec![((SERIES, (1, 1)), vec![row])];
            self.store().steps(batch, Box::new(|taken| taken.expect("taken")));
            self.store().turn();
        }
    }

    fn pass(&mut self, ns: i64) {
        self.now.mono_ns += ns.unsigned_abs();
        self.now.wall_ns += ns;
        clock::set(self.now);
    }

    fn jumps(&self) -> u64 {
        self.store().health().clock_jumps.load(Relaxed)
    }

    /// Every step is there, once.
    fn check(&self) {
        let found = read_steps(self.store());
        assert_eq!(found.len() as u64, self.steps, "steps that are there");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), (0..self.steps).collect());
        let bounds = NewestRows { rows_max: usize::MAX, stretches_max: usize::MAX };
        let rows = self.store().newest(&BTreeSet::from([SERIES]), bounds).expect("a series");
        assert_eq!(rows[&SERIES].len() as u64, self.steps, "steps that a restart sees");
    }
}

/// 65 s with a clock that is set forward or back, and back again; then a restart; then the same
/// with a restart at each jump.
fn check(by_ns: i64) {
    let mut machine = Machine::new(1);
    machine.run(90);
    machine.jump(by_ns);
    machine.run(65);
    machine.check();
    machine.jump(-by_ns);
    machine.run(85);
    machine.check();
    assert_eq!(machine.jumps(), 2);
    machine.restart(true);
    machine.run(60);
    machine.check();
    assert_eq!(machine.jumps(), 0);
    machine.jump(by_ns);
    machine.restart(false);
    machine.run(65);
    machine.check();
    machine.jump(-by_ns);
    machine.restart(true);
    machine.run(600);
    machine.check();
    // The second one came behind the last look: it is reported if it set the clock back.
    let reported_at_start = u64::from(by_ns > 0);
    assert_eq!(machine.jumps(), reported_at_start, "after {by_ns} ns");
    machine.restart(false);
    machine.check();
    drop(machine.store.take());
    let checked = look_at_simulated(&machine.disk).expect("a disk that can be read");
    assert_eq!(checked.findings, []);
    assert_eq!(checked.clock_jumps, 3 + reported_at_start);
}

#[test]
fn a_clock_that_jumps_hides_and_deletes_nothing() {
    for by_ns in [2 * HOUR_NS, -2 * HOUR_NS, 100 * DAY_NS, -100 * DAY_NS] {
        check(by_ns);
    }
}

fn live(seed: u64) {
    let mut machine = Machine::new(seed);
    let mut rng = Rng::with_seed(seed ^ 0xc10c);
    for _ in 0..40 {
        match rng.usize(..8) {
            0 => {
                let sizes = [10 * SECOND_NS, 2 * HOUR_NS, 20 * DAY_NS, 100 * DAY_NS];
                let by_ns = sizes[rng.usize(..sizes.len())];
                machine.jump(if rng.usize(..2) == 0 { by_ns } else { -by_ns });
            }
            1 => machine.restart(rng.usize(..2) == 0),
            2 => machine.pass(rng.usize(..6 * 3600) as i64 * SECOND_NS),
            3 => {
                flush(machine.store());
            }
            _ => machine.run(rng.usize(..90) as i64),
        }
        machine.check();
    }
    assert_eq!(machine.store().health().steps_expired_by_age.load(Relaxed), 0);
    machine.restart(true);
    machine.check();
    // What is old goes: the clock stands still between two lives, and goes on in each.
    machine.run(1);
    machine.restart(false);
    machine.pass(AGE_NS_MAX + 2 * HOUR_NS);
    machine.store().turn();
    assert!(read_steps(machine.store()).is_empty());
    drop(machine.store.take());
    assert_eq!(check_simulated(&machine.disk), []);
}

#[test]
fn clocks_that_jump_at_random_hide_and_delete_nothing() {
    let only = number("MEMTAPE_STORE_SEED");
    let seeds =
        only.map_or(0..number("MEMTAPE_STORE_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    for seed in seeds {
        let lived = std::panic::catch_unwind(|| live(seed));
        lived.unwrap_or_else(|_| panic!("run with MEMTAPE_STORE_SEED={seed}"));
    }
}
