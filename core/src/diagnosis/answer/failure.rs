//! What is said of a rank that died, or whose request for memory failed: how, with what in memory,
//! and why the request did not fit.
//!
//! It compares the ends that are known with the snapshot of the rank; it is called again when more
//! ranks have ended, because all of them may have been stopped. What the other ranks did is said in
//! `aftermath.rs`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use super::aftermath::Aftermath;
use super::diagnosis::{Condition, Diagnosis};
use super::restart::Restart;
use crate::detector::Growth;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::inquiry::Inquiry;
use crate::diagnosis::evidence::past::{Refusal, Refused};
use crate::diagnosis::evidence::segments::shape;
use crate::diagnosis::judges::facts::RestartAnswer;
use crate::diagnosis::judges::remedy::{Cause, Remedy};
use crate::diagnosis::words::{bytes, location, plural, ranks};
use crate::identity::end::End;
use crate::snapshot::failed_request::FailedRequest;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{Frame, RankSnapshot};

/// A rank that dies later than this after a request has failed, in nanoseconds, had caught that.
const CAUGHT_NS: i64 = 60_000_000_000;

/// A request that failed earlier than this many steps before the end is not its reason.
const STEPS_BEFORE_MAX: u64 = 1;

/// SIGBUS and SIGKILL, as exit statuses.
const SIGBUS: i32 = -7;
pub(crate) const SIGKILL: i32 = -9;

/// Lines that are named of those that held most memory.
const LINES_NAMED_MAX: usize = 3;

/// Confidence that something went wrong, in parts per million.
const SURE_PPM: u32 = 950_000;

/// The same where all ranks were killed together and no crash is known, as by a person or a
/// scheduler: a notice, and no page.
const STOPPED_PPM: u32 = 500_000;

pub(crate) fn failure(inquiry: &Inquiry<'_>) -> Diagnosis {
    let case = Failed::new(inquiry);
    let is_sure = !case.is_stopped() && (case.is_out_of_memory() || case.has_died());
    let asking = case.request.map(|request| case.stack(request.stack)).unwrap_or_default();
    let known = inquiry.context.known_growth.as_ref();
    let known_line = known.and_then(|known| known.culprit.clone());
    let condition = Condition {
        class: if case.is_out_of_memory() { Class::OutOfMemory } else { Class::Died },
        confidence_ppm: if is_sure { SURE_PPM } else { STOPPED_PPM },
        sentence: case.sentence(),
        evidence: case.evidence(),
        against: case.against(),
        remedy: case.remedy(),
        restart: case.restart(),
    };
    Diagnosis {
        culprit: known_line.or_else(|| telling_frame(&asking).cloned()),
        stack: asking.into_iter().cloned().collect(),
        // A failed request that the rank has survived does not page.
        ends_soon: case.is_out_of_memory() && case.has_died(),
        steps_to_oom: case.is_out_of_memory().then_some(0),
        ..Diagnosis::of_condition(inquiry.growth, condition)
    }
}

/// Who has the memory that a request needed: the first that holds as much as it asked for.
enum Holder {
    /// Other ranks of the job, on this device.
    Ranks,
    /// Private pools, which hold this much free.
    Pools(u64),
    /// The allocator itself, in blocks that the request could not use.
    Cache,
    /// Processes of others.
    Others(u64),
    /// The step.
    Step,
}

/// What is known of a failure.
struct Failed<'a> {
    inquiry: &'a Inquiry<'a>,
    suspect: &'a RankSnapshot,
    /// The request that failed, unless the rank went on after it.
    request: Option<&'a FailedRequest>,
}

impl<'a> Failed<'a> {
    fn new(inquiry: &'a Inquiry<'a>) -> Self {
        let suspect = inquiry.suspect;
        let last_step = inquiry.growth.last_step;
        let fates = &inquiry.context.fates;
        let own = fates.iter().find(|fate| fate.rank == inquiry.growth.rank);
        let died_ns = own.and_then(|own| own.end.filter(|(end, _)| end.is_death()));
        let is_reason = |request: &&FailedRequest| {
            let was_caught =
                died_ns.is_some_and(|(_, ns)| ns.saturating_sub(request.wall_ns) > CAUGHT_NS);
            let is_near = request.step.saturating_add(STEPS_BEFORE_MAX) >= last_step;
            is_near && (request.wall_ns == 0 || !was_caught)
        };
        let request = suspect.failed_request.as_ref().filter(is_reason);
        Self { inquiry, suspect, request }
    }

    fn aftermath(&self) -> Aftermath<'_> {
        let Growth { rank, last_step: step, .. } = *self.inquiry.growth;
        Aftermath { rank, step, fates: &self.inquiry.context.fates }
    }

    /// How the suspect ended; none while it lives.
    fn end(&self) -> Option<End> {
        self.aftermath().own()?.end.map(|(end, _)| end)
    }

    fn has_died(&self) -> bool {
        self.end().is_some_and(End::is_death)
    }

    /// Was it a request that failed? One that the rank has survived is no longer on its tape.
    fn is_out_of_memory(&self) -> bool {
        self.request.is_some() || (self.inquiry.context.request_failed && !self.has_died())
    }

    fn stack(&self, stack: u32) -> Vec<&'a Frame> {
        self.suspect.frames_of(stack).collect()
    }

    /// May the job have been ended as a whole?
    fn is_stopped(&self) -> bool {
        self.request.is_none() && self.aftermath().may_be_stopped()
    }

    fn sentence(&self) -> String {
        let (rank, step) = (self.inquiry.growth.rank, self.inquiry.growth.last_step);
        // Steps of a trace alone have no numbers.
        let after = match self.inquiry.context.trace {
            Some(_) => String::new(),
            None => format!(" after step {step}"),
        };
        let happened = match self.request {
            Some(request) => {
                let line = telling_frame(&self.stack(request.stack)).map(location);
                let line = line.map_or(String::new(), |line| format!(" at {line}"));
                let asked = bytes(request.bytes);
                let end = match self.end() {
                    Some(end) if end.is_death() => format!(", and it {}", self.said(end)),
                    _ => String::new(),
                };
                format!(
                    "rank {rank} ran out of memory{after}: {asked} asked for{line} did not fit{end}"
                )
            }
            None if self.is_out_of_memory() => format!(
                "a request of rank {rank} for memory failed{after}, and the rank has gone on"
            ),
            None => {
                let end = self.end().unwrap_or(End::Unknown);
                format!("rank {rank} {}{after}{}", self.said(end), self.held())
            }
        };
        let cause = self.inquiry.context.known_growth.as_ref().map(|known| {
            let line = known.culprit.as_ref().map(location);
            let line = line.map_or(String::new(), |line| format!(" at {line}"));
            format!("; {}{line} {}", known.class.noun(), reached(&known.growth))
        });
        format!("{happened}{}", cause.unwrap_or_default())
    }

    /// How the suspect ended.
    fn said(&self, end: End) -> String {
        ended(end, self.exit_status())
    }

    /// Its exit status, or its signal as a negative number.
    fn exit_status(&self) -> Option<i32> {
        self.aftermath().own()?.exit_status
    }

    /// What it held when its snapshot was taken.
    fn held(&self) -> String {
        let allocated = self.suspect.devices.iter().map(|device| device.allocated);
        let held = match allocated.fold(0, u64::saturating_add) {
            0 => return String::new(),
            held => bytes(held),
        };
        match self.suspect.step {
            step if step == self.inquiry.growth.last_step => format!(", with {held} in tensors"),
            step => format!(", with {held} in tensors after step {step}"),
        }
    }

    fn evidence(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(request) = self.request {
            said.extend(self.why_not(request));
        }
        if let Some(known) = &self.inquiry.context.known_growth {
            let (of, class) = (&known.incident, known.class.as_str());
            said.push(format!("the growth of {of} ({class}) {}", reached(&known.growth)));
        }
        said.extend(self.lines());
        let trace = self.inquiry.context.trace.as_ref();
        said.extend(trace.into_iter().flat_map(|trace| trace.evidence.iter().cloned()));
        said
    }

    /// Why the request did not fit.
    fn why_not(&self, request: &FailedRequest) -> Vec<String> {
        if let Some(refused) = self.inquiry.past.and_then(|past| past.refused.last()) {
            return why_refused(refused);
        }
        let asked = bytes(request.bytes);
        let device = self.suspect.devices.iter().find(|each| each.device == request.device);
        let size = device.map_or(0, |device| device.device_bytes);
        let of = if size > 0 { format!(" of {}", bytes(size)) } else { String::new() };
        let mut said = vec![format!(
            "when it failed, tensors held {} and the allocator {}{of}",
            bytes(request.allocated),
            bytes(request.reserved),
        )];
        if self.is_split(request) && request.bytes > 0 {
            let left = request.device_free.filter(|&left| left > 0);
            let left =
                left.map_or(String::new(), |left| format!(", {} more on the device,", bytes(left)));
            said.push(format!(
                "{} of that were free{left} and could not serve {asked}: inactive splits that are \
                 too small, or blocks of other pools and streams",
                bytes(request.free_reserved()),
            ));
        }
        let near = &self.inquiry.context.neighbours;
        if near.ranks_bytes > 0 {
            let (who, held) = (ranks(&near.ranks, near.ranks.len()), bytes(near.ranks_bytes));
            let hold = if near.ranks.len() == 1 { "holds" } else { "hold" };
            said.push(format!("{who} of this job {hold} {held}{of} on the same device"));
        }
        let beside = request.device_free.and_then(|left| {
            size.checked_sub(request.reserved)?.checked_sub(left).filter(|&beside| beside > 0)
        });
        if let Some(beside) = beside.filter(|&beside| beside >= request.bytes) {
            said.push(format!(
                "{} of the device were held outside PyTorch's allocator",
                bytes(beside)
            ));
        }
        said
    }

    /// Who has the memory that the request needed.
    fn holder(&self, request: &FailedRequest) -> Holder {
        let near = &self.inquiry.context.neighbours;
        let device = self.suspect.devices.iter().find(|each| each.device == request.device);
        let shape = device.and_then(|device| shape(self.suspect, device));
        let pools = shape.map_or(0, |of| of.private.saturating_sub(of.private_used));
        let others = near.others_bytes.unwrap_or(0);
        if near.ranks_bytes >= request.bytes.max(1) {
            Holder::Ranks
        } else if pools >= request.bytes.max(1) {
            Holder::Pools(pools)
        } else if self.is_split(request) {
            Holder::Cache
        } else if others >= request.bytes.max(1) {
            Holder::Others(others)
        } else {
            Holder::Step
        }
    }

    /// What each line held: when the request failed, or at the end of the last step.
    fn held_by_line(&self) -> BTreeMap<&'a Frame, u64> {
        match self.request.filter(|request| !request.uses.is_empty()) {
            Some(request) => self.by_line(request.uses.iter().map(|each| (each.stack, each.bytes))),
            None => {
                let blocks = self.suspect.devices.iter().flat_map(|device| &device.blocks);
                self.by_line(blocks.map(|block| (block.stack, block.size)))
            }
        }
    }

    /// Adds up the bytes of stacks by their line.
    fn by_line(&self, held: impl Iterator<Item = (u32, u64)>) -> BTreeMap<&'a Frame, u64> {
        // By stack first: the frames of a stack are read once, however many blocks it has.
        let mut by_stack: BTreeMap<u32, u64> = BTreeMap::new();
        for (stack, bytes) in held {
            let sum = by_stack.entry(stack).or_default();
            *sum = sum.saturating_add(bytes);
        }
        let mut sums: BTreeMap<&Frame, u64> = BTreeMap::new();
        for (stack, held) in by_stack {
            if let Some(frame) = telling_frame(&self.stack(stack)) {
                let sum = sums.entry(frame).or_default();
                *sum = sum.saturating_add(held);
            }
        }
        sums
    }

    /// The lines that held most.
    fn lines(&self) -> Option<String> {
        let mut lines: Vec<(&Frame, u64)> = self.held_by_line().into_iter().collect();
        lines.sort_by_key(|(_, held)| core::cmp::Reverse(*held));
        let named = lines.iter().take(LINES_NAMED_MAX);
        let named: Vec<String> =
            named.map(|(frame, held)| format!("{} at {}", bytes(*held), location(frame))).collect();
        let then = self.request.filter(|request| !request.uses.is_empty());
        let then = then.map_or("", |_| "when it failed, ");
        (!named.is_empty()).then(|| format!("{then}most memory was held by {}", named.join(", ")))
    }

    fn against(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.is_stopped() {
            said.push(
                "every rank of the job ended at this time, and none is known to have failed by \
                 itself: a person, the scheduler or the launcher may have stopped it"
                    .to_string(),
            );
        }
        if self.suspect.devices.is_empty() {
            said.push("no snapshot of the rank could be had".to_string());
        }
        let trace = self.inquiry.context.trace.as_ref();
        said.extend(trace.into_iter().flat_map(|trace| trace.against.iter().cloned()));
        said
    }

    fn remedy(&self) -> Remedy {
        let known = self.inquiry.context.known_growth.as_ref();
        if let Some(known) = known.filter(|_| self.request.is_some()) {
            let (of, advice) = (&known.incident, &known.advice);
            let text = match advice.as_str() {
                "" => format!("first mend the growth of {of}"),
                _ => format!("first mend the growth of {of}: {advice}"),
            };
            return Remedy::new(Cause::Unknown, text, Some(known.growth.grown_bytes));
        }
        match (self.request, self.end()) {
            (Some(request), _) => self.memory_remedy(request),
            (None, Some(End::OomKilled)) => {
                let text = "the host ran out of memory: `memtape ranks JOB` shows what each rank \
                            and its workers held";
                Remedy::new(Cause::HostObjects, text, None)
            }
            (None, Some(End::Failed)) => {
                let text = "the program ended by itself: its last output says why";
                Remedy::new(Cause::Unknown, text, None)
            }
            (None, Some(End::Killed)) if self.exit_status() == Some(SIGBUS) => {
                let text = "shared memory or a disk behind mapped memory is full: make /dev/shm \
                            larger, or use fewer or smaller batches of DataLoader workers";
                Remedy::new(Cause::SharedQueues, text, None)
            }
            (None, Some(End::Killed)) if self.exit_status().is_some_and(is_crash) => {
                let text = "the process crashed: its last output and a core dump say where; NCCL \
                            and CUDA abort the process where they find an error";
                Remedy::new(Cause::Unknown, text, None)
            }
            (None, Some(End::Killed)) if self.exit_status().is_some() => {
                let text = "look for who sent the signal: the kernel's log, the scheduler, the \
                            launcher; an abort of NCCL or CUDA is in the output of the rank";
                Remedy::new(Cause::Unknown, text, None)
            }
            (None, _) => {
                let text = "look for what ended the process: the kernel's log, the scheduler and \
                            the launcher know of signals; an abort of NCCL or CUDA is in the \
                            output of the rank";
                Remedy::new(Cause::Unknown, text, None)
            }
        }
    }

    /// What gives a request the memory that it needed.
    fn memory_remedy(&self, request: &FailedRequest) -> Remedy {
        match self.holder(request) {
            Holder::Ranks => {
                let near = &self.inquiry.context.neighbours;
                let who = ranks(&near.ranks, near.ranks.len());
                let text = format!(
                    "free this device of {who}: load checkpoints with `map_location` of the own \
                     device, and call `torch.cuda.set_device(local_rank)` before anything else \
                     uses CUDA; a smaller batch does not help"
                );
                Remedy::new(Cause::Contexts, text, Some(near.ranks_bytes))
            }
            Holder::Pools(free) => {
                let text = "private pools of CUDA graphs hold the memory free: drop graphs that \
                            are not used any more, share one pool among graphs (`pool=`), or \
                            record fewer shapes";
                Remedy::new(Cause::Recompiles, text, Some(free))
            }
            Holder::Cache => {
                let text = "enough was free, in blocks that the request could not use: try \
                            PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
                Remedy::new(Cause::Fragments, text, None)
            }
            Holder::Others(held) => {
                let text = "processes that are not of this job hold the memory: `nvidia-smi` on \
                            the node names them";
                Remedy::new(Cause::Neighbours, text, Some(held))
            }
            Holder::Step => {
                let text = "the step needs more than the device has: a smaller micro-batch, \
                            activation checkpointing, or more sharding";
                Remedy::new(Cause::Load, text, None)
            }
        }
    }

    /// Was enough free, reserved or on the device, in blocks that the request could not use?
    fn is_split(&self, request: &FailedRequest) -> bool {
        let of_device = request.device_free.unwrap_or(0);
        request.free_reserved().saturating_add(of_device) >= request.bytes
    }

    fn restart(&self) -> Restart {
        let known = self.inquiry.context.known_growth.as_ref();
        let (answer, gives_back_bytes) = match (self.request, known) {
            (Some(_), Some(known)) => {
                let growth = Growth { steps_to_oom: None, ..known.growth };
                return Restart::gives_back(Some(growth.grown_bytes), &growth);
            }
            (Some(request), None) => match self.holder(request) {
                Holder::Cache => (RestartAnswer::GivesBack, Some(request.free_reserved())),
                Holder::Pools(free) => (RestartAnswer::GivesBack, Some(free)),
                Holder::Ranks | Holder::Others(_) => (RestartAnswer::OtherProcesses, None),
                Holder::Step => (RestartAnswer::NeededAgain, None),
            },
            (None, _) => (RestartAnswer::Unknown, None),
        };
        Restart { answer, gives_back_bytes, ..Restart::default() }
    }
}

/// What a growth had reached, and at which step: the figures of its own incident.
fn reached(growth: &Growth) -> String {
    format!("had reached {} at step {}", bytes(growth.grown_bytes), growth.last_step)
}

/// What a process did that ended like this.
pub(crate) fn ended(end: End, exit_status: Option<i32>) -> String {
    match (end, exit_status) {
        (End::Failed, Some(status)) => format!("exited with status {status}"),
        (End::Killed, Some(status @ ..0)) => format!("was killed by {}", signal(status)),
        _ => end.in_words().to_string(),
    }
}

/// The name of the signal in such a status.
fn signal(status: i32) -> String {
    let name = match status {
        -1 => "SIGHUP",
        -2 => "SIGINT",
        -4 => "SIGILL",
        -6 => "SIGABRT",
        -7 => "SIGBUS",
        -8 => "SIGFPE",
        -9 => "SIGKILL",
        -11 => "SIGSEGV",
        -15 => "SIGTERM",
        _ => return format!("signal {}", status.unsigned_abs()),
    };
    name.into()
}

/// Is it the signal of a crash: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV or SIGSYS?
pub(super) fn is_crash(status: i32) -> bool {
    matches!(status, -4 | -5 | -6 | SIGBUS | -8 | -11 | -31)
}

/// What a request that failed left free, and why it was not good enough.
pub fn why_refused(of: &Refused) -> Vec<String> {
    let request = &of.request;
    let device = request.device_free.map_or("an unknown amount".to_string(), bytes);
    let used = bytes(request.allocated);
    let Some(refusal) = &of.refusal else {
        return vec![format!(
            "the device had {device} free; {used} were in use; what the allocator held free is not \
             known, because nothing recorded its segments"
        )];
    };
    let reserved = bytes(request.reserved);
    let held = format!(
        "the device had {device} free; the allocator held {reserved}, of which {used} were in use"
    );
    core::iter::once(held).chain(where_free(refusal)).collect()
}

/// Where the free memory was.
fn where_free(refusal: &Refusal) -> Vec<String> {
    let mut said = Vec::new();
    if refusal.eligible > 0 {
        said.push(format!(
            "{} were free for such a request, in {}, the largest {}",
            bytes(refusal.eligible),
            plural(refusal.eligible_pieces, "block"),
            bytes(refusal.eligible_largest)
        ));
    }
    let others = [
        (refusal.other_streams, "belong to other streams"),
        (refusal.other_pools, "belong to private pools, such as those of CUDA graphs"),
        (refusal.small_segments, "lie in segments for blocks of another size class"),
    ];
    let others = others.into_iter().filter(|&(free, _)| free > 0);
    said.extend(others.map(|(free, what)| format!("{} were free and {what}", bytes(free))));
    said
}

#[cfg(test)]
#[path = "failure_tests.rs"]
mod tests;
