//! One rank of the demo: a training loop whose tensors have addresses but no contents.
//!
//! It allocates what a real loop allocates: weights at the start, optimizer state at step 0, and in
//! each step activations and gradients. Sequence lengths vary, and every 50 steps there is an
//! evaluation. Every allocation goes through the recorder's own code onto a real tape, under stacks
//! that name this source. There is no GPU, no PyTorch and no computation. The clock keeps the ranks
//! in the same step, and [`Collectives`] where a rank stops.
//!
//! What a rank does wrong is in `fault.rs`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use fastrand::Rng;
use memtape::{FrameRef, with_frames};
use memtape_core::caching_allocator::{Allocator, Handle, Listener, OutOfMemory, Segment};

use crate::clock;
use memtape_core::settings::duration;

use super::collectives::Collectives;
use super::fault::{Fault, Faulty};
use super::scenarios::Scenario;

const MIB: u64 = 1 << 20;
const LAYERS: usize = 12;
const WEIGHT_BYTES: u64 = 14 * MIB;
const EMBEDDING_BYTES: u64 = 96 * MIB;
/// Attention scores, attention output, and the feed-forward layer's inner activation.
const ACTIVATION_BYTES: [u64; 3] = [18 * MIB, 6 * MIB, 24 * MIB];
const LOGITS_BYTES: u64 = 48 * MIB;
/// Largest deviation of a sequence's length from the usual one, in percent.
const LENGTH_NOISE: u64 = 12;
const EVAL_EVERY_STEPS: u64 = 50;
const EVAL_BATCHES: usize = 2;
/// The modelled device: small, so that a leak fills it within two minutes.
pub(crate) const DEVICE_BYTES: u64 = 8 << 30;

pub(crate) const MAIN: FrameRef = here!("run");
pub(crate) const STEP: FrameRef = here!("step");

/// Reports the allocator's blocks and segments to the recorder.
#[derive(Debug)]
struct Recorder {
    device: u8,
}

impl Listener for Recorder {
    fn block(&mut self, address: u64, size: i64, allocated: u64, reserved: u64) {
        memtape::report(address, size, allocated, reserved, self.device);
    }

    fn segment(&mut self, segment: &Segment) {
        memtape::segment(segment.address, segment.size, self.device, false);
    }

    fn returned(&mut self, address: u64, size: u64) {
        memtape::segment(address, size, self.device, true);
    }

    fn full(&mut self, size: u64, allocated: u64, reserved: u64) {
        memtape::out_of_memory(size, allocated, reserved, self.device);
    }
}

/// `memtape demo-rank`: identity and tape folder come from the environment, as for real ranks.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoRankArgs {
    /// Do what the faulty rank of this scenario does.
    #[arg(long, value_enum)]
    pub(crate) fault: Option<Scenario>,
    /// Begin with it in this step.
    #[arg(long, value_name = "STEP", default_value_t = 1)]
    pub(crate) fault_from: u64,
    /// File that the ranks share for the progress of their collectives; without it there are none.
    #[arg(long, value_name = "FILE")]
    pub(crate) collectives: Option<PathBuf>,
    /// Length of a step.
    #[arg(long, value_parser = duration, default_value = "30ms")]
    pub(crate) step_time: Duration,
    /// Stop after this many steps.
    #[arg(long)]
    pub(crate) steps: Option<u64>,
    /// CLOCK_MONOTONIC at which step 0 begins on every rank, in nanoseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) start_ns: u64,
}

/// Trains until the steps are over, the device is full, or the process is killed.
/// Fails when the device is full, as a leak makes it.
pub(crate) fn run(args: DemoRankArgs) -> anyhow::Result<()> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let rank = number("RANK").unwrap_or(0);
    let device = u8::try_from(number("LOCAL_RANK").unwrap_or(0)).unwrap_or(u8::MAX);
    let step_ns = u64::try_from(args.step_time.as_nanos()).unwrap_or(u64::MAX);
    let mut start_ns = if args.start_ns == 0 { clock::mono_ns() } else { args.start_ns };
    let full = |OutOfMemory { size }| {
        anyhow::anyhow!("out of memory: the modelled device has no {} MiB left", size / MIB)
    };
    let mut collectives = args
        .collectives
        .map(|path| {
            let ranks = number("MEMTAPE_WORLD_SIZE").unwrap_or(1);
            Collectives::join(&path, usize::try_from(rank)?, usize::try_from(ranks)?)
        })
        .transpose()?;
    memtape::device_bytes(DEVICE_BYTES, device);
    let fault = args.fault.map_or(Fault::default(), |scenario| scenario.plan().fault);
    let mut trainer =
        Trainer::new(Recorder { device }, rank, (fault, args.fault_from)).map_err(full)?;
    // A step has the number of those that were finished before it, as on the tape.
    for step in 0..args.steps.unwrap_or(u64::MAX) {
        let finished = step + 1;
        wait_until(start_ns.saturating_add(step_ns.saturating_mul(finished)));
        if let Err(error) = trainer.step(step) {
            bail!("step {step}: {}", full(error));
        }
        if let Some(collectives) = &mut collectives {
            if trainer.faulty.at(step).leaves_collectives_out {
                collectives.stop()?;
            }
            if collectives.finish_step(finished)? {
                // Time that was spent waiting is not caught up.
                start_ns = clock::mono_ns().saturating_sub(step_ns.saturating_mul(finished));
            }
        }
        memtape::step();
    }
    Ok(())
}

fn wait_until(time_ns: u64) {
    let left = time_ns.saturating_sub(clock::mono_ns());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// A model in training on one device.
#[derive(Debug)]
struct Trainer<L> {
    gpu: Allocator<L>,
    noise: Rng,
    optimizer_state: Vec<Handle>,
    gradients: Vec<Handle>,
    faulty: Faulty,
}

impl<L: Listener> Trainer<L> {
    /// A rank with a fault from a step on.
    fn new(listener: L, rank: u64, fault: (Fault, u64)) -> Result<Self, OutOfMemory> {
        let mut gpu = Allocator::new(listener, DEVICE_BYTES, false);
        // Nothing frees the weights.
        for bytes in weight_sizes() {
            with_frames(&[here!("new"), MAIN], || gpu.alloc(bytes))?;
        }
        Ok(Self {
            faulty: Faulty::new(fault, &mut gpu)?,
            gpu,
            // The same in every run.
            noise: Rng::with_seed(rank),
            optimizer_state: Vec::new(),
            gradients: Vec::new(),
        })
    }

    fn step(&mut self, step: u64) -> Result<(), OutOfMemory> {
        let longer = self.faulty.at(step).longer_percent;
        let length = near(&mut self.noise, 100, LENGTH_NOISE) * (100 + longer) / 100;
        let activations = self.forward(length)?;
        self.faulty.act(step, &mut self.gpu, &mut self.noise)?;
        self.backward(activations, length)?;
        self.optimize()?;
        if (step + 1).is_multiple_of(EVAL_EVERY_STEPS) {
            self.evaluate()?;
        }
        Ok(())
    }

    fn alloc(&mut self, stack: &'static [FrameRef], bytes: u64) -> Result<Handle, OutOfMemory> {
        with_frames(stack, || self.gpu.alloc(bytes))
    }

    /// Allocates the activations of all layers and the logits, which the backward pass frees.
    fn forward(&mut self, length: u64) -> Result<Vec<Handle>, OutOfMemory> {
        let mut activations = Vec::new();
        for bytes in ACTIVATION_BYTES.repeat(LAYERS) {
            activations.push(self.alloc(stack!("forward"), bytes * length / 100)?);
        }
        activations.push(self.alloc(stack!("forward"), LOGITS_BYTES * length / 100)?);
        Ok(activations)
    }

    /// Frees the activations, last first, and allocates the gradients.
    fn backward(&mut self, mut activations: Vec<Handle>, length: u64) -> Result<(), OutOfMemory> {
        for bytes in weight_sizes() {
            let scratch = self.alloc(stack!("backward"), ACTIVATION_BYTES[0] * length / 100)?;
            let gradient = self.alloc(stack!("backward"), bytes)?;
            self.gradients.push(gradient);
            let first_used = activations.len().saturating_sub(ACTIVATION_BYTES.len());
            activations.drain(first_used..).for_each(|held| self.gpu.free(held));
            self.gpu.free(scratch);
        }
        activations.into_iter().for_each(|held| self.gpu.free(held));
        Ok(())
    }

    /// Allocates two optimizer states per weight at the first step; then frees the gradients.
    fn optimize(&mut self) -> Result<(), OutOfMemory> {
        if self.optimizer_state.is_empty() {
            for bytes in weight_sizes().flat_map(|bytes| [bytes, bytes]) {
                let state = self.alloc(stack!("optimize"), bytes)?;
                self.optimizer_state.push(state);
            }
        }
        self.gradients.drain(..).for_each(|held| self.gpu.free(held));
        Ok(())
    }

    /// A forward pass without gradients, with longer sequences than training has.
    fn evaluate(&mut self) -> Result<(), OutOfMemory> {
        for _ in 0..EVAL_BATCHES {
            let length = near(&mut self.noise, 140, LENGTH_NOISE);
            for bytes in ACTIVATION_BYTES.repeat(LAYERS) {
                let held = self.alloc(stack!("evaluate"), bytes * length / 100)?;
                self.gpu.free(held);
            }
        }
        Ok(())
    }
}

fn weight_sizes() -> impl Iterator<Item = u64> {
    std::iter::once(EMBEDDING_BYTES).chain(std::iter::repeat_n(WEIGHT_BYTES, LAYERS))
}

/// A number within `percent` of `middle`.
pub(crate) fn near(noise: &mut Rng, middle: u64, percent: u64) -> u64 {
    let spread = middle * percent / 100;
    noise.u64(middle - spread..=middle + spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drops each report.
    #[derive(Debug)]
    struct Silent;

    impl Listener for Silent {
        fn segment(&mut self, _: &Segment) {}
        fn returned(&mut self, _: u64, _: u64) {}
    }

    /// What is allocated and reserved at the end of each step.
    fn ends(rank: u64, fault: Option<Scenario>, steps: u64) -> Vec<[u64; 2]> {
        let fault = fault.map_or(Fault::default(), |scenario| scenario.plan().fault);
        let mut trainer = Trainer::new(Silent, rank, (fault, FROM_STEP)).expect("a large device");
        let end = |step| {
            trainer.step(step).expect("a large device");
            [trainer.gpu.allocated(), trainer.gpu.reserved()]
        };
        (0..steps).map(end).collect()
    }

    const FROM_STEP: u64 = 40;

    #[test]
    fn only_a_leaking_rank_grows() {
        for rank in 0..4 {
            let flat = ends(rank, None, 120);
            assert!(flat.iter().all(|end| end[0] == flat[0][0]), "rank {rank} is flat");

            let leaking = ends(rank, Some(Scenario::Leak), 120);
            assert_eq!(leaking[..40], flat[..40], "until it leaks");
            assert!(leaking[39..].is_sorted_by(|a, b| a[0] < b[0]), "one tensor each step");
            let growth = leaking[119][0] - leaking[39][0];
            let (least, most) = (80 * 2 * MIB, 80 * 3 * MIB);
            assert!((least..most).contains(&growth), "{growth} bytes in 80 steps");
        }
    }

    #[test]
    fn a_fragmented_rank_reserves_more_for_the_same_tensors() {
        let grown = |fault: Option<Scenario>| {
            let ends = ends(2, fault, 600);
            let (before, last) = (ends[FROM_STEP as usize - 1], ends[599]);
            [last[0].abs_diff(before[0]) / MIB, last[1].abs_diff(before[1]) / MIB]
        };
        let [tensors, reserved] = grown(Some(Scenario::Fragmentation));
        assert!(tensors < 4 && reserved > 2_048, "{tensors} and {reserved} MiB");
        let [tensors, reserved] = grown(None);
        assert!(tensors == 0 && reserved < 256, "{tensors} and {reserved} MiB");
    }
}
