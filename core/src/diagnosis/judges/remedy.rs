//! What to do, and how many bytes it would save.
//!
//! What is known of a line is where its memory was allocated: the frames inside PyTorch tell
//! activations from optimizer state and a hook from a checkpoint. Names of the user's own files and
//! functions are hints, no more; advice that rests on them says "perhaps".

use alloc::format;
use alloc::string::String;

use crate::diagnosis::evidence::past::Past;
use crate::snapshot::Frame;
use crate::snapshot::frames::{is_library_frame, is_module_call, is_user_frame, telling_frame};
use crate::snapshot::step_source::StepSource;

crate::tape::names! {
    /// What the advice is about.
    #[derive(Default)]
    pub enum Cause in "snake_case" {
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
        /// Tensors that `torch.load` read.
        Loaded,
        /// Tensors in objects that other ranks sent.
        Received,
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
}

/// What to try first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
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

    /// What to do when nothing is known; `past` is that of a file.
    pub(crate) fn unknown(past: Option<&Past>) -> Self {
        let is_of_torch = past.is_some_and(|past| past.source != StepSource::Recorded);
        let text = if is_of_torch {
            "the stacks do not explain the growth: record the history with context=\"all\" and \
             stacks=\"python\" before the model is made, over some ten steps"
        } else {
            "the stacks do not explain the growth: take another capture in some hundred steps, \
             and check that stacks are recorded (limitations of the rank)"
        };
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

/// Were these copies made for a checkpoint?
pub(crate) fn is_of_checkpoint(stack: &[&Frame]) -> bool {
    is_called(stack, "torch/distributed/checkpoint/")
        || stack.iter().any(|frame| function(frame) == "state_dict")
}

/// Is the telling frame the `forward` of a `torch.autograd.Function` of the user's?
pub(crate) fn is_of_function(stack: &[&Frame]) -> bool {
    let own = stack.iter().position(|frame| is_user_frame(frame));
    let caller = own.and_then(|at| stack.get(at + 1));
    caller.is_some_and(|frame| {
        frame.file.ends_with("torch/autograd/function.py") && function(frame) == "apply"
    })
}

/// What unpickled these tensors: objects of other ranks are read by the same code as files.
pub(crate) fn unpickled_by(stack: &[&Frame]) -> Option<Cause> {
    let is_collective = |frame: &&Frame| {
        frame.file.ends_with("torch/distributed/distributed_c10d.py")
            && function(frame).contains("_object")
    };
    match is_called(stack, "torch/serialization.py") {
        _ if stack.iter().any(is_collective) => Some(Cause::Received),
        true => Some(Cause::Loaded),
        false => None,
    }
}

/// What to do about tensors that stay after they were unpickled at `here`.
pub(crate) fn advice_for_unpickled(cause: Cause, here: &str) -> String {
    match cause {
        Cause::Received => format!(
            "{here} receives objects with CUDA tensors in them, and unpickling puts each on the \
             device that it had on the rank that sent it: send .cpu() tensors, and drop what was \
             received once it is used"
        ),
        _ => format!(
            "{here} keeps what torch.load read: read with map_location=\"cpu\", copy it with \
             load_state_dict, and del it before training goes on"
        ),
    }
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
