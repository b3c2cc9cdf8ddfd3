//! What to do, and how many bytes it would save.
//!
//! What is known of a line is where its memory was allocated: the frames inside PyTorch tell
//! activations from optimizer state and a hook from a checkpoint. Names of the user's own files and
//! functions are hints, no more; advice that rests on them says "perhaps".

use alloc::string::String;

use crate::snapshot::Frame;
use crate::snapshot::frames::{is_library_frame, is_module_call, is_user_frame, telling_frame};

/// What the advice is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Cause {
    /// Activations of a forward pass that are not needed any more.
    RetainedGraph,
    /// A loss that is kept with its graph.
    RetainedLoss,
    /// What a hook stores.
    Hook,
    /// Gradients, or a graph of the backward pass.
    Gradients,
    /// State of an optimizer.
    OptimizerState,
    /// Copies made for a checkpoint.
    Checkpoint,
    /// Batches.
    Batches,
    /// Perhaps a cache without bound.
    Cache,
    /// A tensor that is concatenated onto itself.
    GrowingTensor,
    /// Perhaps what only the logging rank keeps.
    Log,
    /// Workspaces of a library, one for each stream.
    Workspaces,
    /// Perhaps the state of a metric.
    Metric,
    /// A list, dict or attribute, of which nothing more is known.
    Kept,
    /// Reference cycles.
    Cycles,
    /// Other streams still use what was freed.
    Streams,
    /// Free blocks that are too small.
    Fragments,
    /// Free segments that wait in the cache.
    CachedSegments,
    /// A cache that is emptied in the loop.
    EmptyCache,
    /// Recompilations.
    Recompiles,
    /// The job is too large.
    Load,
    /// Something that is made once, or fills up and stays.
    OneTime,
    /// Work is spread unevenly.
    Balance,
    /// Communicators of NCCL.
    Communicators,
    /// Contexts of other processes of the job.
    Contexts,
    /// Other processes on the device.
    Neighbours,
    /// Memory of the device of which no source is known.
    Outside,
    /// Pinned memory.
    PinnedPool,
    /// Shared memory of the workers' queues.
    SharedQueues,
    /// Workers that load data.
    Workers,
    /// Python objects and arrays.
    HostObjects,
    /// Collectives.
    Collectives,
    /// The recording.
    Recording,
    /// Nothing is known.
    #[default]
    Unknown,
}

impl Cause {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What to try first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Remedy {
    /// What it is about.
    pub cause: Cause,
    /// True when it rests on names alone: then the text says "perhaps".
    pub is_guess: bool,
    /// What to do.
    pub text: String,
    /// Bytes that it would give back by now; none when that is not known.
    pub saves_bytes: Option<u64>,
}

impl Remedy {
    pub(crate) fn new(cause: Cause, text: impl Into<String>, saves_bytes: Option<u64>) -> Self {
        let saves_bytes = saves_bytes.filter(|&bytes| bytes > 0);
        Self { cause, is_guess: false, text: text.into(), saves_bytes }
    }

    pub(crate) fn guess(self) -> Self {
        Self { is_guess: true, ..self }
    }

    /// What to do when nothing is known.
    pub(crate) fn unknown() -> Self {
        let text = "the stacks do not explain the growth: take another capture in some hundred \
                    steps, and check that stacks are recorded (limitations of the rank)";
        Self::new(Cause::Unknown, text, None)
    }
}

/// Is there a frame of this part of PyTorch, or of this file of it?
pub(crate) fn is_inside(stack: &[&Frame], part: &str) -> bool {
    stack.iter().any(|frame| frame.file.contains(part))
}

/// The same of the frames inside the user's code. An optimizer calls the closure that a framework
/// gave it, so what lies further out says nothing of what was allocated.
pub(crate) fn is_called(stack: &[&Frame], part: &str) -> bool {
    let is_own = |frame: &&&Frame| !is_user_frame(frame) && !is_library_frame(frame);
    stack.iter().take_while(is_own).any(|frame| frame.file.contains(part))
}

/// The last part of a qualified name.
pub(crate) fn function(frame: &Frame) -> &str {
    frame.function.rsplit('.').next().unwrap_or_default()
}

/// True when PyTorch's call of a module called this stack's telling frame, and it is not the
/// `forward`: then it is a hook.
pub(crate) fn is_hook(stack: &[&Frame]) -> bool {
    let in_hooks = is_inside(stack, "torch/utils/hooks.py");
    let Some(at) = stack.iter().position(|frame| is_user_frame(frame)) else { return in_hooks };
    let name = stack.get(at).map(|frame| function(frame)).unwrap_or_default();
    let is_called = stack.get(at + 1).is_some_and(|frame| is_module_call(frame));
    let is_own = name.contains("forward") || name.contains("state_dict") || name.starts_with("__");
    in_hooks || (is_called && !is_own && !name.is_empty())
}

/// Does the name of a file or function of the user's contain one of these words?
pub(crate) fn is_named(stack: &[&Frame], words: &[&str]) -> bool {
    let Some(frame) = telling_frame(stack) else { return false };
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    let says = |text: &str| {
        let text = text.to_ascii_lowercase();
        words.iter().any(|word| text.contains(word))
    };
    says(file) || says(&frame.function)
}
