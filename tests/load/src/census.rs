//! What a census costs: the time to count a rank's live table, and the bytes of its message.
//!
//! The tape has the live table of a recorder with default sizes. It is a file in shared memory,
//! read by copies of its words, as an agent reads it. The job on it trains: parameters are older
//! than the first step, most lines free their blocks within a step, and on a leaking rank some
//! lines keep a block of each step. Beside a count stands a pass that only adds up the bytes of
//! the same table.
//!
//! Times are the thread's own on the processor. Bytes are those of the protobuf message, without
//! HTTP/2; the stream is not compressed.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use memtape_core::census::changes::Changes;
use memtape_core::census::reader::CensusReader;
use memtape_core::census::{INTERVAL_MIN_NS, STEPS_MIN};
use memtape_core::tape::interned::InternedWriter;
use memtape_core::tape::layout::{Layout, Sizes};
use memtape_core::tape::read::Tape;
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};
use memtape_proto::v1;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::figures::percentile;
use crate::snapshot::Copies;

/// Lines of parameters and optimizer states, and the blocks of each.
const STATE_LINES: u64 = 4;
const STATE_BLOCKS: u64 = 4_096;
/// Lines whose blocks each step allocates and frees, and the blocks of each.
const WORK_LINES: u64 = 320;
const WORK_BLOCKS: u64 = 256;
/// Steps before the first census.
const STEPS: u64 = 8_192;
/// Stacks of one line, which differ in library frames.
const STACKS_PER_LINE: u64 = 4;
/// Times that each pass is timed; the median counts.
const ROUNDS: usize = 101;
/// Censuses after the first one whose messages are measured.
const CENSUSES: u64 = 64;
const SECOND_NS: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const TOTALS: Totals = Totals { allocated: 0, reserved: 0 };

/// What a rank trains.
#[derive(Clone, Copy)]
struct Job {
    /// Equal layers of the model. Each layer runs all lines of the step's work, so that a line has
    /// live blocks during most of the step.
    layers: u64,
    /// Lines that keep one block of each step.
    kept_lines: u64,
}

const HEALTHY: Job = Job { layers: 32, kept_lines: 0 };
/// Has 131,072 live blocks at the peak of its first counted step, as many as a tape of default size
/// is made for.
const LEAKING: Job = Job { layers: 32, kept_lines: 4 };
/// Each line has live blocks in its own part of the step, so that the largest lines change.
const UNEQUAL_LAYERS: Job = Job { layers: 1, kept_lines: 0 };

/// Names of the figures, time of a step, and time between two reports of the agent, which counts
/// when it reports.
const CADENCES: [(&str, u64, u64); 3] = [
    ("steps_of_1_s", SECOND_NS, 0),
    ("steps_of_20_ms", SECOND_NS / 50, 0),
    ("steps_of_20_ms_reports_of_1_s", SECOND_NS / 50, SECOND_NS),
];

/// Measures counts and messages.
pub(crate) fn census() -> anyhow::Result<Value> {
    Ok(json!({
        "count": count(LEAKING)?,
        "message": {
            "healthy": messages(HEALTHY)?,
            "leaking": messages(LEAKING)?,
            "unequal_layers": messages(UNEQUAL_LAYERS)?,
        },
    }))
}

/// Microseconds of the first count of a tape, which resolves its stacks, of a later one, and of a
/// pass that adds up bytes.
fn count(job: Job) -> anyhow::Result<Value> {
    let mut rank = Rank::new(job)?;
    rank.advance(STEPS, WORK_LINES * WORK_BLOCKS)?;
    let tape = rank.tape()?;
    let (mut first, mut later, mut pass) = (Vec::new(), Vec::new(), Vec::new());
    let mut blocks = 0;
    for _ in 0..ROUNDS {
        let mut reader = CensusReader::default();
        first.push(timed(|| reader.count(&tape, 0)));
        later.push(timed(|| reader.count(&tape, 0)));
        let (mut bytes, mut count) = (0, 0);
        pass.push(timed(|| {
            tape.for_each_live_block(0, |block| (bytes, count) = (bytes + block.bytes, count + 1))
        }));
        blocks = black_box((bytes, count)).1;
    }
    let [first, later, pass] =
        [&mut first, &mut later, &mut pass].map(|ns| f64::from(percentile(ns, 0.5)) / 1e3);
    let share = |(name, step_ns, report_ns): (&str, u64, u64)| {
        let (_, interval_ns) = cadence(step_ns, report_ns);
        (name.to_string(), json!((later * 1e9 / interval_ns as f64).round() / 1e6))
    };
    Ok(json!({
        "blocks": blocks,
        "lines": job.lines(),
        "stacks": job.lines() * STACKS_PER_LINE,
        "first_us": first.round(),
        "later_us": later.round(),
        "pass_us": pass.round(),
        "later_times_pass": (later / pass * 100.0).round() / 100.0,
        "share_of_one_core": CADENCES.map(share).into_iter().collect::<Map<_, _>>(),
    }))
}

/// Bytes of a rank's messages, and how many these are in a second.
fn messages(job: Job) -> anyhow::Result<Value> {
    let mut figures = json!({});
    for (name, step_ns, report_ns) in CADENCES {
        let (steps, interval_ns) = cadence(step_ns, report_ns);
        let (first, mut later) = sizes(job, steps)?;
        let sum: u64 = later.iter().copied().map(u64::from).sum();
        let per_s = sum as f64 / later.len() as f64 * SECOND_NS as f64 / interval_ns as f64;
        figures["bytes_per_s"][name] = json!(per_s.round());
        if steps == STEPS_MIN {
            figures["first_bytes"] = json!(first);
            figures["later_bytes"] = json!(percentile(&mut later, 0.5));
            figures["later_max_bytes"] = json!(percentile(&mut later, 1.0));
        }
    }
    Ok(figures)
}

/// Steps and nanoseconds between two censuses of a rank.
fn cadence(step_ns: u64, report_ns: u64) -> (u64, u64) {
    let interval_ns = (STEPS_MIN * step_ns).max(INTERVAL_MIN_NS).max(report_ns);
    let steps = interval_ns.div_ceil(step_ns);
    (steps, steps * step_ns)
}

/// Bytes of the first message of a rank, and of later ones. A census finds the rank anywhere in a
/// step, with a part of the step's blocks.
fn sizes(job: Job, steps: u64) -> anyhow::Result<(u32, Vec<u32>)> {
    let mut rank = Rank::new(job)?;
    rank.advance(STEPS, WORK_LINES * WORK_BLOCKS / 2)?;
    let tape = rank.tape()?;
    let mut reader = CensusReader::default();
    let (mut sent, mut sizes) = (None, Vec::new());
    for number in 0..=CENSUSES {
        let census = reader.count(&tape, 0).context("the tape cannot be counted")?;
        let changes = Changes::between(sent.as_ref(), &census);
        let report = v1::RankReport { censuses: vec![changes.into()], ..Default::default() };
        sizes.push(u32::try_from(report.encoded_len())?);
        sent = Some(census);
        // Numbers without a common factor spread the censuses over the step.
        rank.advance(steps, (number * 197 + 1) % WORK_LINES * WORK_BLOCKS)?;
    }
    let later = sizes.split_off(1);
    Ok((sizes[0], later))
}

/// The thread's time on the processor, in nanoseconds.
fn timed<T>(work: impl FnOnce() -> T) -> u32 {
    let now = || {
        let clock = clock_gettime(ClockId::ThreadCPUTime);
        clock.tv_sec as u64 * SECOND_NS + clock.tv_nsec as u64
    };
    let begin = now();
    let result = work();
    let took = now() - begin;
    drop(black_box(result));
    u32::try_from(took).unwrap_or(u32::MAX)
}

impl Job {
    fn lines(self) -> u64 {
        STATE_LINES + WORK_LINES + self.kept_lines
    }
}

/// A rank and its tape.
struct Rank {
    job: Job,
    words: Vec<AtomicU64>,
    layout: Layout,
    file: File,
    step: u64,
    /// Stacks of all lines: states, work, kept.
    stacks: Vec<u32>,
    /// Live blocks of the step: address and size.
    work: Vec<(u64, u64)>,
}

impl Rank {
    fn new(job: Job) -> anyhow::Result<Self> {
        // A census reads no events.
        let layout = Layout::new(Sizes { events: 64, ..Sizes::default() });
        let words: Vec<_> = (0..layout.lanes[0].end).map(|_| AtomicU64::new(0)).collect();
        let file = tempfile::tempfile_in("/dev/shm").context("/dev/shm")?;
        file.set_len(layout.file_words as u64 * 8)?;
        Words(&words).format(&layout, &Birth::default());
        Words(&words).open_lane(0, &layout);
        let stack = |number| stack(Words(&words), number).context("no room for the stacks");
        let stacks = (0..(job.lines() * STACKS_PER_LINE) as u32).map(stack);
        let stacks = stacks.collect::<anyhow::Result<_>>()?;
        let rank = Self { job, words, layout, file, step: 0, stacks, work: Vec::new() };
        for block in 0..STATE_LINES * STATE_BLOCKS {
            rank.alloc(block / STATE_BLOCKS, block, (1 << 40) + (block << 20), MIB);
        }
        Ok(rank)
    }

    /// Finishes steps, and allocates the first `work` blocks of the next one. Work of the steps
    /// before is left out: it is freed before the next census.
    fn advance(&mut self, steps: u64, work: u64) -> anyhow::Result<()> {
        for (address, size) in std::mem::take(&mut self.work) {
            self.lane().free(1, address, size, TOTALS);
        }
        for _ in 0..steps {
            for kept in 0..self.job.kept_lines {
                let address = ((16 + kept) << 40) + (self.step << 12);
                self.alloc(STATE_LINES + WORK_LINES + kept, self.step, address, 2_048);
            }
            self.step += 1;
            Words(&self.words).mark_step(self.step, self.step);
        }
        for block in 0..work {
            let line = block / (WORK_BLOCKS / self.job.layers) % WORK_LINES;
            // Few lines hold most, in any order.
            let size = 32 * MIB / (1 + line * 97 % WORK_LINES);
            let address = (2 << 40) + (block << 25);
            self.alloc(STATE_LINES + line, block, address, size);
            self.work.push((address, size));
        }
        self.save()
    }

    /// Allocates a block by one of the stacks of its line.
    fn alloc(&self, line: u64, number: u64, address: u64, size: u64) {
        let stack = self.stacks[(line * STACKS_PER_LINE + number % STACKS_PER_LINE) as usize];
        self.lane().alloc(1, Grant { address, size, stack, ..Grant::default() }, TOTALS);
    }

    fn lane(&self) -> Lane<'_> {
        Lane::new(Words(&self.words), self.layout.lanes[0], 0)
    }

    /// Writes the tape to its file, behind which lanes of other devices are a hole.
    fn save(&self) -> anyhow::Result<()> {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        Ok(self.file.write_all_at(&bytes, 0)?)
    }

    fn tape(&self) -> anyhow::Result<Tape<Copies>> {
        let tape = Tape::open(Copies(self.file.try_clone()?))?;
        let work = self.work.len() as u64;
        let blocks = STATE_LINES * STATE_BLOCKS + self.job.kept_lines * self.step + work;
        ensure!(tape.totals().iter().all(|device| device.blocks == blocks), "blocks are lost");
        Ok(tape)
    }
}

/// A stack of PyTorch, a module, the model and the loop. Each line has a module of its own.
fn stack(words: Words<'_>, number: u32) -> Option<u32> {
    let interned = InternedWriter(words);
    let (line, variant) = (number / STACKS_PER_LINE as u32, number % STACKS_PER_LINE as u32);
    let torch = "/usr/lib/python3/dist-packages/torch/nn/modules";
    let frames = [
        (format!("{torch}/linear.py"), "forward", 100 + variant),
        (format!("{torch}/module.py"), "_call_impl", 1_762),
        (format!("/workspace/train/models/block_{}.py", line / 8), "forward", 40 + line),
        (format!("{torch}/module.py"), "_wrapped_call_impl", 1_751),
        ("/workspace/train/models/transformer.py".to_string(), "forward", 212),
        ("/workspace/train/pretrain.py".to_string(), "train_step", 88),
        ("/workspace/train/pretrain.py".to_string(), "main", 301),
    ];
    let frame = |(file, function, line): &(String, &str, u32)| {
        let (file, function) = (file.as_bytes(), function.as_bytes());
        interned.frame(interned.string(file)?, interned.string(function)?, *line)
    };
    interned.stack(&frames.iter().map(frame).collect::<Option<Vec<u32>>>()?)
}
