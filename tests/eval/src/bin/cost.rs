//! What the detector costs: time for each record, bytes for each rank, and the share of one core
//! that 16,384 ranks take, with one step and one reading of every layer a second, and a census of
//! each rank every 16 steps, as an agent sends them.
//!
//! `cargo xtask eval --cost [--ranks N] [--steps N] [--json]`. Time is the thread's own on the
//! processor, so that other programs do not count; beside it stands what keeping the last 256
//! values of one layer and fitting a line to them takes in the same run.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser as _;
use memtape_core::census::{Census, LineId, STEPS_MIN};
use memtape_core::detector::Sample;
use memtape_core::snapshot::Held;
use memtape_core::tape::StepRecord;
use memtape_eval::baselines::{Line, PerRank};
use memtape_eval::judge::Judge;
use memtape_eval::product::Product;
use memtape_eval::rng::mix;
use memtape_eval::world::{Outside, Step};
use serde_json::json;

const RANKS: u64 = 16_384;
/// Past warm-up, with every length of block in use but the longest window.
const STEPS: u64 = 480;
/// Of those, the last ones are timed.
const TIMED_STEPS: u64 = 160;
/// Layers: three of a sample (tensors, segments, blocks), and seven readings.
const LAYERS: u64 = 10;
/// Steps between two censuses of a rank, as an agent has it where a step takes a second.
const CENSUS_STEPS: u64 = STEPS_MIN;
/// Lines of a census whose blocks are freed in each step, beside four that stay.
const WORK_LINES: u64 = 12;
const SECOND_NS: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// Counts the bytes that are there.
struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; only sizes are added up beside.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one judge took.
#[derive(Clone, Copy)]
struct Cost {
    record_ns: f64,
    rank_bytes: f64,
    core_share: f64,
}

/// What the detector costs.
#[derive(clap::Parser)]
struct Options {
    #[arg(long, default_value_t = RANKS)]
    ranks: u64,
    #[arg(long, default_value_t = STEPS)]
    steps: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let Options { ranks, steps, json: is_json } = Options::parse();
    let steps = steps.max(TIMED_STEPS);
    let (ours, line) = match (
        measure(&mut Product::default(), ranks, steps),
        measure(&mut PerRank::new(Line::default), ranks, steps),
    ) {
        (Some(ours), Some(line)) => (ours, line),
        _ => {
            eprintln!("no /proc/thread-self/schedstat: the time on the processor is not known");
            return ExitCode::FAILURE;
        }
    };
    if is_json {
        let figures = json!({
            "ranks": ranks,
            "layers": LAYERS,
            "microseconds_per_record": (ours.record_ns.round()) / 1e3,
            "bytes_per_rank": ours.rank_bytes.round(),
            "share_of_one_core": (ours.core_share * 1e4).round() / 1e4,
            "line_and_fit_microseconds_per_record": (line.record_ns.round()) / 1e3,
            "times_line_and_fit": (ours.record_ns / line.record_ns * 100.0).round() / 100.0,
        });
        println!("{}", json!({ "figures": figures }));
    } else {
        println!("{ranks} ranks, {LAYERS} layers, one step and one reading of each a second,");
        println!("a census every {CENSUS_STEPS} seconds");
        for (name, cost) in [("memtape", ours), ("line and fit, one layer", line)] {
            println!(
                "{name:24} {:>8.3} µs a record  {:>8.0} bytes a rank  {:>6.1} % of one core",
                cost.record_ns / 1e3,
                cost.rank_bytes,
                cost.core_share * 100.0
            );
        }
    }
    ExitCode::SUCCESS
}

/// A record is one sample or one reading. All ranks tell each step, then the next.
fn measure(judge: &mut dyn Judge, ranks: u64, steps: u64) -> Option<Cost> {
    let before = BYTES.load(Ordering::Relaxed);
    let mut begun = 0;
    for step in 1..=steps {
        if step == steps - TIMED_STEPS + 1 {
            begun = on_processor_ns()?;
        }
        for rank in 0..ranks {
            tell(judge, rank as u32, step);
        }
        while judge.said().is_some() {}
    }
    let took_ns = (on_processor_ns()? - begun) as f64;
    let held = BYTES.load(Ordering::Relaxed).saturating_sub(before) as f64;
    let records = (TIMED_STEPS * ranks) as f64;
    Some(Cost {
        record_ns: took_ns / (records * 8.0),
        rank_bytes: held / ranks as f64,
        core_share: took_ns / (TIMED_STEPS * SECOND_NS) as f64,
    })
}

/// A model, what its steps allocate, and a line that keeps blocks on one rank in a thousand.
fn census(rank: u32, step: u64) -> Census {
    let held = |bytes: u64, count: u64| Held { bytes, count };
    let state = (1..=4).map(|line| (LineId(line), 0, held(4_000 * MIB, 200)));
    let work = (1..=WORK_LINES).map(|line| (LineId(100 + line), step, held(100 * MIB, 5)));
    let kept = if rank.is_multiple_of(1_000) { step } else { 0 };
    let kept = (0..kept).map(|birth| (LineId(1_000), birth, held(MIB, 1)));
    Census::of(0, step, state.chain(work).chain(kept), |_| None)
}

/// One step of one rank: a floor that moves a little; one rank in a thousand leaks.
fn tell(judge: &mut dyn Judge, rank: u32, step: u64) {
    let noise = mix(u64::from(rank) << 32 | step) % (8 * MIB);
    let kept = if rank.is_multiple_of(1_000) { step * MIB } else { 0 };
    let floor = 20_000 * MIB + noise + kept;
    let now_ns = step * SECOND_NS + u64::from(rank % 1_000) * 1_000_000;
    let sample = Sample {
        rank,
        device: 0,
        device_bytes: 80_000 * MIB,
        record: StepRecord {
            first_step: step,
            last_step: step,
            floor_allocated: floor,
            peak_allocated: floor + 15_000 * MIB,
            end_allocated: floor,
            floor_reserved: 40_000 * MIB,
            end_reserved: 40_000 * MIB,
            blocks: 900 + noise % 50,
            ..StepRecord::default()
        },
    };
    judge.sample(now_ns, step, &sample);
    let outside = Outside {
        non_torch: 900 * MIB,
        other: 0,
        host: 9_000 * MIB + noise,
        pinned: 500 * MIB,
        shared: 200 * MIB,
        workers: 4_000 * MIB + noise / 2,
    };
    judge.reading(now_ns, rank, step, &Step { outside, ..Step::default() });
    if (step + u64::from(rank)).is_multiple_of(CENSUS_STEPS) {
        judge.census(now_ns, rank, census(rank, step));
    }
}

/// Time this thread has had on the processor.
fn on_processor_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
