//! Remedies for what lives in tensors.

use super::*;
use crate::detector::Scope;
use crate::diagnosis::generations::Course;
use crate::diagnosis::ground::Ground;
use crate::diagnosis::shared::model_call;

/// A loss is one number: the allocator's smallest block.
const SCALAR_BYTES_MAX: u64 = 512;

pub(in crate::diagnosis) fn leak(case: &Case<'_>, lines: &Lines<'_>) -> Remedy {
    let Some(line) = lines.top() else { return Remedy::unknown() };
    let saved = Some(unsigned(line.net.bytes));
    let here = place(line.frame);
    if case.swells(line) {
        let text = format!(
            "the tensor of {here} is longer each time it is made, as torch.cat or torch.stack onto \
             itself makes it, and the old one is alive until the new one is: preallocate it and \
             write into it, or keep the pieces in a list (on the CPU) and torch.cat them once at \
             the end"
        );
        return Remedy::new(Cause::GrowingTensor, text, saved).guess();
    }
    let (cause, is_guess) = match cause(line) {
        _ if case.course(line) == Course::Backlog => (Cause::Batches, false),
        (Cause::Kept | Cause::RetainedLoss, _) if is_of_logger(case) => (Cause::Log, true),
        known => known,
    };
    let text = match cause {
        Cause::RetainedGraph => format!(
            "what is kept are the activations of the forward pass that {here} begins: look for an \
             output or a loss of it that is stored with its graph; store loss.item() or \
             output.detach(), and run evaluation under torch.no_grad()"
        ),
        Cause::RetainedLoss => format!(
            "the losses of {here} are kept, each with its graph: add up or store loss.item(), or \
             loss.detach()"
        ),
        Cause::Hook => format!(
            "{} is a hook and what it allocates stays: store .detach() of what it sees, empty the \
             store in each step, and remove() the hook when it is not needed",
            function(line.frame),
        ),
        Cause::Gradients => format!(
            "what is kept was made in the backward pass of {here}: look for gradients that are \
             stored, and for backward(retain_graph=True) or create_graph=True that is not needed; \
             call zero_grad(set_to_none=True)"
        ),
        Cause::OptimizerState => "new optimizer state is made again and again: make the optimizer \
                                  once, and drop the old one with its parameter groups before \
                                  another is made"
            .into(),
        Cause::Checkpoint => "copies made for checkpoints stay: drop the state_dict once it is \
                              written, and wait for an asynchronous save before the next one"
            .into(),
        Cause::Log => format!(
            "only rank 0, which mostly does the logging, keeps what {here} makes: log \
             loss.item() or .detach().cpu() instead of the tensor, and give the log a bound \
             (deque(maxlen=…)) or write it out"
        ),
        Cause::Batches if case.course(line) == Course::Backlog => format!(
            "{here} makes more than is used: give the queue or the prefetcher a bound (maxsize=…, \
             prefetch_factor), and let it wait for the step that uses its batches"
        ),
        Cause::Batches => format!(
            "batches of {here} stay: look for a list or a prefetcher that keeps them, and drop \
             what the step no longer needs"
        ),
        Cause::Cache => format!(
            "perhaps {here} fills a cache without bound: give it a size (lru_cache(maxsize=…)), \
             key it by shape and not by tensor, and store .detach() in it"
        ),
        Cause::Metric => format!(
            "perhaps {here} is the state of a metric: reset() it at the end of each epoch, let it \
             keep sums and not tensors, or keep them on the CPU"
        ),
        _ => format!(
            "look for what keeps the tensors of {here}: a list or dict that grows, a loss added \
             up without .item() or .detach(), outputs kept by a hook or a logger"
        ),
    };
    let remedy = Remedy::new(cause, text, saved);
    if is_guess { remedy.guess() } else { remedy }
}

/// Does one rank alone keep it, and is it the first, which mostly does the logging?
fn is_of_logger(case: &Case<'_>) -> bool {
    let is_alone = case.growth.scope == Scope::OneRank && case.growing_peers.is_empty();
    is_alone && case.growth.rank == 0 && case.peers > 0
}

/// What the stacks of a line say about it, and whether that is a guess.
fn cause(line: &Line<'_>) -> (Cause, bool) {
    let stack = line.stack;
    let each = line.grown.bytes.max(0).unsigned_abs() / line.grown.blocks.max(1).unsigned_abs();
    let is_small = line.grown.blocks > 0 && each <= SCALAR_BYTES_MAX;
    let in_loss = is_inside(stack, "torch/nn/modules/loss.py")
        || stack
            .iter()
            .any(|frame| function(frame).contains("loss") || function(frame) == "cross_entropy");
    let in_model = line.lines_inside > 1 && model_call(stack).is_some();
    if line.lines_inside <= 1 && is_hook(stack) {
        (Cause::Hook, false)
    } else if is_called(stack, "torch/optim/") {
        (Cause::OptimizerState, false)
    } else if is_called(stack, "torch/distributed/checkpoint/")
        || is_called(stack, "torch/serialization.py")
        || stack.iter().any(|frame| function(frame) == "state_dict")
    {
        (Cause::Checkpoint, false)
    } else if in_model {
        (Cause::RetainedGraph, false)
    } else if stack.first().is_some_and(|frame| is_backward(frame)) {
        (Cause::Gradients, false)
    } else if is_small && in_loss {
        (Cause::RetainedLoss, false)
    } else if is_inside(stack, "torch/utils/data/") {
        (Cause::Batches, false)
    } else if is_named(stack, &["cache", "memo"]) {
        (Cause::Cache, true)
    } else if is_named(stack, &["metric"]) || is_inside(stack, "torchmetrics/") {
        (Cause::Metric, true)
    } else {
        (Cause::Kept, false)
    }
}

pub(in crate::diagnosis) fn cycles(case: &Case<'_>, lines: &Lines<'_>) -> Remedy {
    let waiting = lines.top().and_then(|line| case.burst(line)).map(|(_, burst)| burst.bytes);
    let waiting = waiting.unwrap_or_else(|| unsigned(case.net.bytes));
    let from = lines.top().map(|line| place(line.frame));
    let from = from.map_or_else(String::new, |from| format!(" around {from}"));
    let text = format!(
        "break the cycle{from} (a closure or an object that holds a tensor and, in the end, \
         itself; an exception kept with its traceback), or call gc.collect() every some hundred \
         steps; torch.utils.viz._cycles.warn_tensor_cycles() names the cycles"
    );
    Remedy::new(Cause::Cycles, text, Some(waiting))
}

pub(in crate::diagnosis) fn pressure(case: &Case<'_>, lines: &Lines<'_>) -> Remedy {
    if matches!(case.ground, Ground::Peaks | Ground::Retries) {
        return load();
    }
    let Some(line) = lines.top() else { return load() };
    let here = place(line.frame);
    let course = case.course(line);
    if case.is_workspace(line) {
        let text = format!(
            "each block of {here} is on a stream of its own, as the workspaces of a library are \
             (cuBLAS takes one for each stream): use a few streams again and again, or smaller \
             workspaces (CUBLAS_WORKSPACE_CONFIG=:4096:8)"
        );
        return Remedy::new(Cause::Workspaces, text, Some(unsigned(line.net.bytes)));
    }
    let is_made_once = matches!(course, Course::Once | Course::Few | Course::Ended);
    if is_called(line.stack, "torch/optim/") && is_made_once {
        let text = "this is optimizer state, made at the first step() that needs it; it grows no \
                    further: shard it, or use an optimizer with less state, if there is no room \
                    for it";
        return Remedy::new(Cause::OptimizerState, text.into(), None);
    }
    let is_checkpoint = is_called(line.stack, "torch/distributed/checkpoint/")
        || is_called(line.stack, "torch/serialization.py");
    if is_checkpoint {
        let text = "these are copies made for a checkpoint: save sharded, offload to the CPU \
                    (cpu_offload=True), and drop them once they are written";
        return Remedy::new(Cause::Checkpoint, text.into(), Some(unsigned(line.net.bytes)));
    }
    if course == Course::Filling {
        let text = format!(
            "{here} fills something up and adds less and less: nothing to do if there is room \
             for it; a bound on its size saves the rest"
        );
        return Remedy::new(Cause::OneTime, text, None);
    }
    if course == Course::Once {
        let text = format!(
            "{here} made this once and it stays (a copy of the weights, a buffer, newly trained \
             parameters): nothing to do if it is meant to be there"
        );
        return Remedy::new(Cause::OneTime, text, Some(unsigned(line.net.bytes)));
    }
    load()
}

fn load() -> Remedy {
    let text = "the job needs this memory: a smaller micro-batch or shorter sequences, activation \
                checkpointing or more sharding; a restart does not help";
    Remedy::new(Cause::Load, text.into(), None)
}

pub(in crate::diagnosis) fn imbalance(lines: &Lines<'_>) -> Remedy {
    let experts =
        lines.top().is_some_and(|line| is_named(line.stack, &["moe", "expert", "router"]));
    if experts {
        let text = "perhaps this rank's experts get more tokens than others: look at the \
                    balancing loss and the capacity factor; a restart does not help";
        return Remedy::new(Cause::Balance, text.into(), None).guess();
    }
    let text = "give the ranks equal work: pack or bucket sequences by length, balance tokens \
                instead of samples, look at what this rank does alone; a restart does not help";
    Remedy::new(Cause::Balance, text.into(), None)
}
