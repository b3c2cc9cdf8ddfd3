//! What one seed means: how many coordinators there are, how fast their clocks go, what their
//! bucket does to requests, and everything that happens to them.
//!
//! It is drawn before anything runs.

use fastrand::Rng;

use crate::plan::{MS_NS, SECOND_NS};

/// What is simulated. Times are those of the bucket, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Script {
    /// Of each coordinator, how fast its clock goes.
    pub(crate) rates: Vec<f64>,
    /// Of each coordinator, how far its wall clock is ahead.
    pub(crate) ahead_ns: Vec<i64>,
    /// What the bucket does until all is well.
    pub(crate) weather: Weather,
    /// From then on all is well.
    pub(crate) calm_ns: u64,
    /// What happens to the coordinators, and when.
    pub(crate) turns: Vec<(u64, usize, Turn)>,
    /// Bytes of a row's value, beside its head.
    pub(crate) row_bytes: usize,
    /// Mean time between two batches of an owner.
    pub(crate) batch_ns: u64,
}

/// What happens to requests, each in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The answer is 503, and nothing was done.
    pub unavailable: u8,
    /// It was done, and the answer is lost.
    pub answer_lost: u8,
    /// Nothing was done, and there is no answer.
    pub silent: u8,
    /// It is done much later; also after the client has given it up.
    pub late: u8,
    /// The longest way to the bucket or back.
    pub way_ns_max: u64,
    /// A client gives a request up after this time.
    pub patience_ns: u64,
}

/// What happens to one coordinator.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// Its process is killed, and started again after this time.
    Kill(u64),
    /// Its process is stopped for so long, and then goes on as if nothing had been. The clock may
    /// stand as well, as that of a virtual machine.
    Stop { for_ns: u64, stands: bool },
    /// Nothing gets from it to the bucket for so long, nor back.
    Cut(u64),
    /// It is asked to end; then it is started again.
    Leave,
    /// It gives the shard up, if it has it, and waits for it again in the same process.
    GiveUp,
}

impl Script {
    /// What this seed means.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        // Large rows fill tables.
        let is_large = rng.u8(0..16) == 0;
        let mut rates = vec![1.0; rng.usize(2..=3)];
        let mut ahead_ns = vec![0; rates.len()];
        let hour_ns = 3_600 * SECOND_NS.cast_signed();
        rates.fill_with(|| 2f64.powf(rng.f64() * 2.0 - 1.0));
        ahead_ns.fill_with(|| if rng.bool() { rng.i64(-hour_ns..hour_ns) } else { 0 });
        let calm_ns = rng.u64(20..90) * SECOND_NS;
        let weather = Weather::draw(&mut rng);
        let turns = (0..rng.usize(1..10))
            .map(|_| (rng.u64(0..calm_ns), rng.usize(0..rates.len()), Turn::draw(&mut rng)));
        let mut turns: Vec<_> = turns.collect();
        turns.sort_by_key(|(at_ns, ..)| *at_ns);
        let row_bytes = if is_large { rng.usize(1..200) << 10 } else { rng.usize(0..200) };
        let batch_ns = rng.u64(50..600) * MS_NS;
        Self { rates, ahead_ns, weather, calm_ns, turns, row_bytes, batch_ns }
    }
}

impl Weather {
    fn draw(rng: &mut Rng) -> Self {
        let mut percent = |max| if rng.bool() { rng.u8(1..max) } else { 0 };
        Self {
            unavailable: percent(30),
            answer_lost: percent(30),
            silent: percent(4),
            late: percent(10),
            way_ns_max: rng.u64(2..60) * MS_NS,
            patience_ns: [3, 10, 60][rng.usize(0..3)] * SECOND_NS,
        }
    }

    /// Requests arrive, and are answered.
    pub(crate) fn calm(self) -> Self {
        Self { unavailable: 0, answer_lost: 0, silent: 0, late: 0, ..self }
    }
}

impl Turn {
    fn draw(rng: &mut Rng) -> Self {
        let short_ns = rng.u64(1..6_000) * MS_NS;
        let long_ns = rng.u64(1..40_000) * MS_NS;
        match rng.u8(0..10) {
            0 | 1 => Self::Kill(short_ns),
            2..=5 => Self::Stop { for_ns: long_ns, stands: rng.u8(0..4) == 0 },
            6 | 7 => Self::Cut(long_ns),
            8 => Self::Leave,
            _ => Self::GiveUp,
        }
    }
}
