//! Blocks of more and more steps stay alive, or larger ones replace a block again and again.

use alloc::format;
use alloc::string::String;

use super::common::{
    about_births, gave_back, is_about_tensors, is_explained, other_account, outlasts, too_early,
    unexplained,
};
use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::{
    Cause, Remedy, advice_for_unpickled, function, is_called, is_hook, is_inside, is_named,
    is_of_checkpoint, is_of_function, unpickled_by,
};
use crate::detector::{Layer, Scope};
use crate::diagnosis::constants::CONFIRMED_PPM;
use crate::diagnosis::evidence::account::unsigned;
use crate::diagnosis::evidence::births::AgeProfile;
use crate::diagnosis::evidence::case::{Case, Lines, net_grown};
use crate::diagnosis::evidence::lines::Line;
use crate::diagnosis::evidence::segments::Requests;
use crate::diagnosis::evidence::shared::model_call;
use crate::diagnosis::words::{bytes, location, plural};
use crate::snapshot::Frame;
use crate::snapshot::frames::is_backward;

pub(crate) const JUDGE: Judge = Judge {
    evaluate: |case, lines, _| evaluate(case, lines),
    confidence_ppm,
    outlook: Outlook::Fault,
    share: Share::Tensors,
    restart: RestartAnswer::GivesBack,
    phrase: Phrase::Plain,
    remedy,
};

fn evaluate(case: &Case<'_>, lines: &Lines<'_>) -> Facts {
    if case.layer == Layer::Spread && !case.shows_growth() {
        let unknown = "it is not recorded whether what it holds grows";
        return Facts::default().needs(None, "", "").doubts(Some(unknown));
    }
    let top = lines.top();
    if let Some(line) = top.filter(|line| case.age_profile(line) == AgeProfile::Replaced) {
        let is_counted = Some(case.is_counted());
        return Facts::default().needs(is_counted, replaces(case, line), too_early(case));
    }
    if !is_about_tensors(case) {
        return Facts::default().needs(Some(false), "", other_account(case));
    }
    let leaking = net_grown(lines.all.iter().filter(|line| case.leaks(line)));
    let is_leaking = top.is_some_and(|line| case.leaks(line)) || case.share_ppm(leaking) >= 500_000;
    let outlasts = outlasts(case, lines);
    Facts::default()
        .needs(Some(case.is_counted()), "", too_early(case))
        .needs(Some(is_explained(case, lines)), "", unexplained(case, lines))
        .needs(
            Some(is_leaking),
            backlog(case, top),
            top.map(|line| about_births(case, line)).unwrap_or_default(),
        )
        .excluded_by(
            Some(case.give_backs().is_some() && outlasts != Some(true)),
            gave_back(case),
            "",
        )
        .excluded_by(
            top.map(|line| case.is_workspace(line)),
            "each of its blocks is on a stream of its own: they are workspaces",
            "",
        )
        .excluded_by(
            outlasts.map(|outlasts| !outlasts),
            "most of what was older was freed at one moment",
            "",
        )
        .excluded_by(
            case.context.in_peaks,
            "the peaks within steps grow, the per-step minima do not",
            "the per-step minima grow, not only the peaks",
        )
}

fn confidence_ppm(case: &Case<'_>, lines: &Lines<'_>) -> u64 {
    let top = lines.top();
    if let Some(line) = top.filter(|line| case.age_profile(line) == AgeProfile::Replaced) {
        // What larger requests leave behind is no part of the line's own growth.
        let is_left = case.outgrown(line).is_some();
        return if is_left {
            850_000
        } else {
            u64::from(case.share_ppm(line.net_grown)).min(850_000)
        };
    }
    let leaking = net_grown(lines.all.iter().filter(|line| case.leaks(line)));
    let shared = lines.shared.as_ref().filter(|line| case.leaks(line));
    let explained = leaking.max(shared.map_or(0, |line| line.net_grown));
    let explained = u64::from(case.share_ppm(explained)) * 1_000_000 / u64::from(CONFIRMED_PPM);
    let births = top.map_or(0, |line| line.births.count()).saturating_add(case.older_steps());
    let births = match births {
        0..4 => 550_000,
        4..8 => 800_000,
        8..16 => 950_000,
        _ => 1_000_000,
    };
    explained.min(1_000_000) * births / 1_000_000
}

/// What shows that larger tensors replace one: the requests, or the blocks.
fn replaces(case: &Case<'_>, line: &Line<'_>) -> String {
    let here = location(line.frame);
    if let Some(Requests { rising_sizes, large_sizes, .. }) = case.outgrown(line) {
        return format!(
            "{rising_sizes} of the {large_sizes} different sizes that were asked for lately are of \
             {here}, and most are larger than all before: they do not fit into the memory that \
             those left free"
        );
    }
    let need = case.context.step_need.unwrap_or_default();
    format!(
        "{} of {here} took the place of smaller ones, and the steps need at most one copy more \
         than before ({} beyond the per-step minimum, {} then)",
        plural(line.blocks, "block"),
        bytes(need.now),
        bytes(need.before),
    )
}

/// What shows that a queue grows, where one does.
fn backlog(case: &Case<'_>, line: Option<&Line<'_>>) -> String {
    let Some(line) = line.filter(|line| case.age_profile(line) == AgeProfile::Backlog) else {
        return String::new();
    };
    format!(
        "blocks of {} go oldest first, and fewer go than come: it holds those of {} steps by now",
        location(line.frame),
        line.births.count(),
    )
}

fn remedy(case: &Case<'_>, lines: &Lines<'_>) -> Remedy {
    let Some(line) = lines.top() else { return Remedy::unknown(case.past) };
    let saved = Some(case.kept_bytes(unsigned(line.net.bytes)));
    let (cause, is_guess) = match (cause(line), case.age_profile(line)) {
        (_, AgeProfile::Backlog) => (Cause::Batches, false),
        (_, AgeProfile::Replaced) => (Cause::GrowingTensor, false),
        ((Cause::Kept | Cause::RetainedLoss, _), _) if is_of_logger(case) => (Cause::Log, true),
        (known, _) => known,
    };
    let remedy = Remedy::new(cause, advice(case, line, cause), saved);
    if is_guess { remedy.guess() } else { remedy }
}

/// What to do about a cause.
fn advice(case: &Case<'_>, line: &Line<'_>, cause: Cause) -> String {
    let here = location(line.frame);
    match cause {
        Cause::RetainedGraph => format!(
            "what is kept are the activations of the forward pass that {here} begins: look for an \
             output or a loss of it that is stored with its graph; store loss.item() or \
             output.detach(), and run evaluation under torch.no_grad(){}",
            autocast(line.stack)
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
        Cause::Cycles => format!(
            "{here} is in the forward of a torch.autograd.Function: an output that is an attribute \
             of ctx holds its graph, and the graph holds ctx, so only the garbage collector frees \
             them; give outputs and intermediate tensors to ctx.save_for_backward()"
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
        Cause::Loaded | Cause::Received => advice_for_unpickled(cause, &here),
        Cause::GrowingTensor => advice_for_growing(&here),
        Cause::Log => format!(
            "only rank 0, which mostly does the logging, keeps what {here} makes: log \
             loss.item() or .detach().cpu() instead of the tensor, and give the log a bound \
             (deque(maxlen=…)) or write it out"
        ),
        Cause::Batches if case.age_profile(line) == AgeProfile::Backlog => format!(
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
            "perhaps {here} is the state of a metric: give it .detach() of what it counts, reset() \
             it at the end of each epoch, and let it keep sums and not tensors"
        ),
        _ => format!(
            "look for what keeps the tensors of {here}: a list, dict or cache that grows without \
             bound, a loss added up without .item() or .detach(), outputs kept by a hook or a \
             logger, an exception that is stored (its traceback keeps the tensors of its frames), \
             a slice that is stored (store its .clone(): a slice keeps the whole tensor){}",
            autocast(line.stack)
        ),
    }
}

fn advice_for_growing(here: &str) -> String {
    format!(
        "the tensor of {here} is longer each time it is made, as torch.cat or torch.stack onto \
         itself makes it, and the old one is alive until the new one is: keep a bounded part of \
         it, preallocate it and write into it, or keep the detached pieces in a list on the CPU \
         and torch.cat them once at the end"
    )
}

/// What to do about casts of weights, where the stack shows autocast: its cache is emptied where
/// the outermost region ends.
fn autocast(stack: &[&Frame]) -> &'static str {
    if !is_inside(stack, "torch/amp/autocast_mode.py") {
        return "";
    }
    "; if the autocast region spans many steps, its casts of weights stay: begin it again in each \
     step, or set cache_enabled=False"
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
    let is_small = line.grown.blocks > 0 && each <= 512;
    // A loss is one number: the allocator's smallest block.
    let in_loss = is_inside(stack, "torch/nn/modules/loss.py")
        || stack
            .iter()
            .any(|frame| function(frame).contains("loss") || function(frame) == "cross_entropy");
    let in_model = line.lines_inside > 1 && model_call(stack).is_some();
    if line.lines_inside <= 1 && is_hook(stack) {
        (Cause::Hook, false)
    } else if is_of_function(stack) {
        (Cause::Cycles, false)
    } else if is_called(stack, "torch/optim/") {
        (Cause::OptimizerState, false)
    } else if let Some(cause) = unpickled_by(stack) {
        (cause, false)
    } else if is_of_checkpoint(stack) {
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
