//! Decides whether the memory of a GPU was not given back: for the coordinator, which then keeps
//! the node out, and for a launcher that asks the agent to check its node.
//!
//! A GPU on which no process computes holds only its driver's own memory. The memory in use before
//! a rank computes on the GPU is its idle memory. When ranks have computed on it, every process on
//! it has ended, and it holds far more than that for a while, the driver has not given the memory
//! back, and the next job on that node would fail.
//!
//! Nothing is found where processes cannot be told apart, where idle memory was never seen, and
//! while a node is silent. [`Node::present`] gives the state of each GPU at its last reading. This
//! file reads no GPU, waits for nothing, keeps no node out, and never takes one back in.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};

use crate::diagnosis::bytes;
use crate::limits::{
    GPUS_PER_NODE_MAX, LEFT_MEMORY_BYTES_MAX, LEFT_MEMORY_SECONDS_MAX,
    NODE_CHECK_ANSWER_SECONDS_MAX, NODE_CHECK_GIVE_BACK_SECONDS_MAX, NODES_KEPT_OUT_MAX,
};

const SECOND_NS: u64 = 1_000_000_000;

/// Longest time between two readings that show together that nothing changed, in nanoseconds.
const GAP_NS_MAX: u64 = 30 * SECOND_NS;

/// One reading of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Processes that compute on the GPU; none where they cannot be told apart.
    pub processes: Option<u32>,
    /// Processes on the GPU that are ranks.
    pub ranks: Option<u32>,
}

/// State of a GPU's memory at its last reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// No process computes on it, and it holds little more than its idle memory.
    Idle {
        /// Bytes in use.
        used_bytes: u64,
    },
    /// Processes compute on it.
    InUse {
        /// Number of processes.
        processes: u32,
        /// No process is a rank, and the memory of earlier ranks was not given back yet.
        is_after_ranks: bool,
    },
    /// No process computes on it after ranks have, and it holds too much.
    Held {
        /// Bytes beyond its idle memory.
        held_bytes: u64,
        /// Time for which no process has computed on the GPU, in seconds.
        seconds: u64,
    },
    /// Processes on the GPU cannot be told apart.
    NoProcesses,
    /// The GPU holds so much memory without processes that an earlier rank may have left it.
    NoIdleMemory,
    /// The last reading had nothing of it.
    NotRead,
    /// The GPU holds too much memory, and no rank was seen on it.
    NoRank {
        /// Bytes beyond its idle memory.
        held_bytes: u64,
    },
}

/// Memory state of the GPUs of one node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    devices: BTreeMap<String, Device>,
}

/// Memory state of one GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// The least it held with no process on it, in bytes.
    idle_bytes: Option<u64>,
    /// True if a rank has computed on the GPU since its memory was last given back.
    was_used: bool,
    /// Since when no process has computed on it and it holds too much, and when it was seen last.
    left: Option<(u64, u64)>,
    is_reported: bool,
    /// State at the last reading; none before the first.
    present: Option<Present>,
}

impl Node {
    /// Takes a reading of all GPUs of the node.
    pub fn see<'a>(&mut self, now_ns: u64, gpus: impl Iterator<Item = (&'a str, Seen)>) {
        let mut known = core::mem::take(&mut self.devices);
        for (uuid, seen) in gpus.take(GPUS_PER_NODE_MAX as usize) {
            let mut device = known.remove(uuid).unwrap_or_default();
            device.present = Some(device.judge(now_ns, seen));
            self.devices.insert(uuid.to_string(), device);
        }
        // One that cannot be read for a while keeps what is known of it.
        let room = (GPUS_PER_NODE_MAX as usize).saturating_sub(self.devices.len());
        for (uuid, device) in known.into_iter().take(room) {
            let present = Some(Present::NotRead);
            self.devices.insert(uuid, Device { present, ..device });
        }
    }

    /// Memory that was not given back for long, in a sentence, once for each use of a GPU. It is
    /// reported now, if `may_report` says so, or else asked for again.
    pub fn left(&mut self, may_report: impl FnOnce() -> bool) -> Option<String> {
        let mut devices = self.devices.iter_mut();
        let (uuid, device) = devices.find(|(_, device)| device.holds_for_long())?;
        device.is_reported = may_report();
        device.present.filter(|_| device.is_reported).map(|present| present.sentence(uuid))
    }

    /// State of each GPU that was ever read, by UUID.
    pub fn present(&self) -> impl Iterator<Item = (&str, Present)> {
        self.devices.iter().filter_map(|(uuid, device)| Some((uuid.as_str(), device.present?)))
    }
}

impl Device {
    /// True for memory that was not given back for long, and is not reported yet.
    fn holds_for_long(&self) -> bool {
        let is_long = |seconds: u64| seconds >= LEFT_MEMORY_SECONDS_MAX && !self.is_reported;
        matches!(self.present, Some(Present::Held { seconds, .. }) if is_long(seconds))
    }

    /// Takes a reading; returns the state that it shows.
    fn judge(&mut self, now_ns: u64, seen: Seen) -> Present {
        let Some(processes) = seen.processes else { return Present::NoProcesses };
        let used_bytes = seen.used_bytes;
        let left = self.left.take();
        if processes == 0 && (!self.was_used || self.idle_bytes.is_none()) {
            self.was_used = false;
            self.idle_bytes = Some(self.idle_bytes.map_or(used_bytes, |idle| idle.min(used_bytes)));
        }
        // Where idle memory was never seen, all of it may have been left.
        let idle_bytes = self.idle_bytes.unwrap_or(0);
        let held_bytes = used_bytes.saturating_sub(idle_bytes);
        let holds_much = held_bytes > LEFT_MEMORY_BYTES_MAX;
        self.was_used &= holds_much;
        if processes > 0 {
            let has_ranks = seen.ranks.unwrap_or(0) > 0;
            let is_after_ranks = self.was_used && !has_ranks;
            self.was_used |= has_ranks;
            self.is_reported = false;
            return Present::InUse { processes, is_after_ranks };
        }
        if self.was_used {
            let since_ns = match left {
                Some((since_ns, at_ns)) if now_ns.saturating_sub(at_ns) <= GAP_NS_MAX => since_ns,
                _ => now_ns,
            };
            self.left = Some((since_ns, now_ns));
            let seconds = now_ns.saturating_sub(since_ns) / SECOND_NS;
            return Present::Held { held_bytes, seconds };
        }
        if holds_much {
            return Present::NoRank { held_bytes };
        }
        // The agent may have been started after a rank had left memory.
        if idle_bytes > LEFT_MEMORY_BYTES_MAX {
            return Present::NoIdleMemory;
        }
        Present::Idle { used_bytes }
    }
}

impl Present {
    /// Its part in the answer, this many seconds after the question; none where the next reading
    /// may show more.
    fn verdict(self, waited: u64) -> Option<Verdict> {
        match self {
            Self::Held { seconds, .. } => {
                (seconds >= NODE_CHECK_GIVE_BACK_SECONDS_MAX).then_some(Verdict::Failed)
            }
            Self::InUse { is_after_ranks: true, .. } => {
                (waited >= NODE_CHECK_GIVE_BACK_SECONDS_MAX).then_some(Verdict::Unknown)
            }
            Self::NoProcesses | Self::NoIdleMemory | Self::NotRead | Self::NoRank { .. } => {
                Some(Verdict::Unknown)
            }
            Self::InUse { is_after_ranks: false, .. } | Self::Idle { .. } => Some(Verdict::Healthy),
        }
    }

    /// State of a GPU, in a sentence.
    pub fn sentence(self, uuid: &str) -> String {
        let computing = |processes: u32| match processes {
            1 => "1 process computes on".to_string(),
            _ => format!("{processes} processes compute on"),
        };
        match self {
            Self::Idle { used_bytes } => {
                format!("no process computes on {uuid}, which holds {}", bytes(used_bytes))
            }
            Self::InUse { processes, is_after_ranks: false } => {
                format!("{} {uuid}: its memory is not judged", computing(processes))
            }
            Self::InUse { processes, is_after_ranks: true } => format!(
                "after its ranks have ended, {} {uuid}: whether memory is given back is not known",
                computing(processes)
            ),
            Self::Held { held_bytes, seconds } => format!(
                "{seconds} s after its last process has ended, {uuid} holds {} more than before",
                bytes(held_bytes)
            ),
            Self::NoProcesses => format!(
                "which processes compute on {uuid} is not known: run the agent in the pid \
                 namespace of the host"
            ),
            Self::NoIdleMemory => format!(
                "{uuid} has held memory since the agent was started: whether a rank left it is not \
                 known"
            ),
            Self::NotRead => format!("{uuid} is not read any more: what it holds is not known"),
            Self::NoRank { held_bytes } => format!(
                "{uuid} holds {} more than before, and no rank was seen on it: whose memory it is \
                 is not known",
                bytes(held_bytes)
            ),
        }
    }
}

/// Usability of the node's GPU readings for a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readings {
    /// The newest reading was begun after the question.
    Fresh,
    /// There is no reading newer than the question yet.
    Awaited,
    /// There is no driver to ask.
    Absent,
}

/// The answer to a check of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// No GPU holds memory that was not given back.
    Healthy,
    /// The state of some GPU is unknown, and no other GPU fails.
    Unknown,
    /// A GPU holds memory that was not given back.
    Failed,
}

/// The answer to a question, from the states of the GPUs; none while more readings are needed.
///
/// A launcher asks right after its workers have ended, and waits for the answer before it starts
/// others. The driver may take seconds to give memory back, so a reading from before the question
/// proves nothing, and memory that is held fails the check only after a while
/// ([`NODE_CHECK_GIVE_BACK_SECONDS_MAX`]). The answer is "unknown", never a failure, where facts
/// are missing: a launcher that is refused gives its node up.
pub fn verdict(asked_ns: u64, now_ns: u64, readings: Readings, node: &Node) -> Option<Verdict> {
    let waited = now_ns.saturating_sub(asked_ns) / SECOND_NS;
    let in_the_end = || (waited >= NODE_CHECK_ANSWER_SECONDS_MAX).then_some(Verdict::Unknown);
    match readings {
        Readings::Absent => return Some(Verdict::Unknown),
        Readings::Awaited => return in_the_end(),
        Readings::Fresh => {}
    }
    let verdicts = || node.present().map(|(_, present)| present.verdict(waited));
    match verdicts().flatten().max() {
        Some(Verdict::Failed) => Some(Verdict::Failed),
        _ if verdicts().any(|of| of.is_none()) => in_the_end(),
        // A node without GPUs shows nothing either.
        worst => worst.or(Some(Verdict::Unknown)),
    }
}

/// May one more node be kept out beside these? A finding that is wrong must not empty
/// a cluster.
pub fn may_keep_out(kept_out: usize) -> bool {
    kept_out < NODES_KEPT_OUT_MAX
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// GiB in use, processes and ranks.
    type Used = (u64, Option<u32>, u32);

    fn seen((used, processes, ranks): Used) -> Seen {
        Seen { used_bytes: used * GIB, processes, ranks: processes.map(|_| ranks) }
    }

    /// Takes readings of one GPU, one in 10 s. Gives the second of each finding.
    fn found(readings: impl IntoIterator<Item = Used>) -> Vec<u64> {
        let mut node = Node::default();
        let mut found = Vec::new();
        for (index, reading) in readings.into_iter().enumerate() {
            let second = index as u64 * 10;
            node.see(second * SECOND_NS, [("GPU-a", seen(reading))].into_iter());
            found.extend(node.left(|| true).map(|_| second));
        }
        found
    }

    fn repeated(reading: Used, count: usize) -> impl Iterator<Item = Used> {
        core::iter::repeat_n(reading, count)
    }

    const IDLE: Used = (1, Some(0), 0);
    const BUSY: Used = (70, Some(1), 1);
    const LEFT: Used = (41, Some(0), 0);

    #[test]
    fn memory_that_is_not_given_back_is_found_once() {
        let after = 20 + LEFT_MEMORY_SECONDS_MAX;
        assert_eq!(found([IDLE, BUSY].into_iter().chain(repeated(LEFT, 1000))), [after]);
        let mut node = Node::default();
        let mut see = |second: u64, used: u64, count: u32| {
            let reading = seen((used, Some(count), count));
            node.see(second * SECOND_NS, [("GPU-a", reading)].into_iter());
            node.left(|| true)
        };
        assert_eq!(see(0, 1, 0), None);
        assert_eq!(see(1, 70, 8), None);
        for second in 2..2 + LEFT_MEMORY_SECONDS_MAX {
            assert_eq!(see(second, 41, 0), None);
        }
        let left = see(2 + LEFT_MEMORY_SECONDS_MAX, 41, 0).unwrap();
        let sentence = "60 s after its last process has ended, GPU-a holds 40 GiB more than \
                        before";
        assert_eq!(left, sentence);
    }

    #[test]
    fn what_is_not_known_is_not_found() {
        let never = |readings: &[Used]| {
            let long = readings.iter().copied().flat_map(|reading| repeated(reading, 100));
            assert!(found(long).is_empty(), "{readings:?}");
        };
        never(&[IDLE, BUSY, IDLE, BUSY, (2, Some(0), 0)]);
        // Its idle memory was never seen.
        never(&[BUSY, LEFT]);
        // No rank has computed on it.
        never(&[IDLE, (70, Some(1), 0), LEFT]);
        // Another process computes on it.
        never(&[IDLE, BUSY, (41, Some(1), 0)]);
        // Processes cannot be told apart.
        never(&[IDLE, BUSY, (41, None, 0)]);
        // It is given back in time, again and again.
        let short = (0..50).flat_map(|_| [BUSY, LEFT, LEFT, LEFT, LEFT, LEFT, IDLE]);
        assert!(found([IDLE].into_iter().chain(short)).is_empty());
    }

    /// State after some readings, a second apart.
    fn present(readings: &[Used]) -> Present {
        let mut node = Node::default();
        for (second, reading) in (0..).zip(readings.iter().copied()) {
            node.see(second * SECOND_NS, [("GPU-a", seen(reading))].into_iter());
        }
        let known: Vec<_> = node.present().collect();
        assert_eq!(known.len(), 1, "{readings:?}");
        known[0].1
    }

    #[test]
    fn what_is_known_now_can_be_asked_at_any_time() {
        let held = |seconds| Present::Held { held_bytes: 40 * GIB, seconds };
        let in_use = |is_after_ranks| Present::InUse { processes: 1, is_after_ranks };
        let cases: &[(&[Used], Present)] = &[
            (&[IDLE], Present::Idle { used_bytes: GIB }),
            (&[IDLE, BUSY], in_use(false)),
            (&[IDLE, BUSY, (41, Some(1), 0)], in_use(true)),
            (&[IDLE, (41, Some(1), 0)], in_use(false)),
            (&[IDLE, BUSY, LEFT], held(0)),
            (&[IDLE, BUSY, LEFT, LEFT, LEFT], held(2)),
            (&[IDLE, BUSY, LEFT, IDLE], Present::Idle { used_bytes: GIB }),
            (&[IDLE, BUSY, LEFT, BUSY, LEFT], held(0)),
            (&[IDLE, BUSY, (41, None, 0)], Present::NoProcesses),
            (&[BUSY, LEFT], Present::NoIdleMemory),
            (&[BUSY, IDLE], Present::Idle { used_bytes: GIB }),
            // A process that is no rank, and memory that was given back.
            (&[IDLE, BUSY, (1, Some(1), 0)], in_use(false)),
            // What it held when it was first seen may have been left by a rank.
            (&[LEFT], Present::NoIdleMemory),
            (&[LEFT, IDLE], Present::Idle { used_bytes: GIB }),
            (&[BUSY, LEFT, LEFT, BUSY, LEFT], Present::NoIdleMemory),
            (&[BUSY, IDLE, BUSY, LEFT], held(0)),
            (&[IDLE, (70, Some(1), 0), LEFT], Present::NoRank { held_bytes: 40 * GIB }),
        ];
        for (readings, expected) in cases {
            assert_eq!(present(readings), *expected, "{readings:?}");
        }
        assert_eq!(Node::default().present().count(), 0);
    }

    #[test]
    fn a_gpu_that_is_not_read_for_a_while_is_not_forgotten() {
        let mut node = Node::default();
        for (second, reading) in (0..).zip([Some(IDLE), Some(BUSY), None, Some(LEFT), Some(LEFT)]) {
            let gpus = reading.map(|reading| ("GPU-a", seen(reading)));
            node.see(second * SECOND_NS, gpus.into_iter());
            let (_, present) = node.present().next().unwrap();
            assert_eq!(present == Present::NotRead, reading.is_none());
        }
        let (_, present) = node.present().next().unwrap();
        assert_eq!(present, Present::Held { held_bytes: 40 * GIB, seconds: 1 });
        // As many as a node may have are kept.
        let names: Vec<_> = (0..GPUS_PER_NODE_MAX).map(|at| alloc::format!("GPU-{at}")).collect();
        node.see(9 * SECOND_NS, names.iter().map(|name| (name.as_str(), seen(IDLE))));
        assert_eq!(node.present().count(), GPUS_PER_NODE_MAX as usize);
    }

    #[test]
    fn a_silent_node_gives_no_verdict() {
        let mut node = Node::default();
        for (second, reading) in [(0, IDLE), (1, BUSY), (2, LEFT), (200, LEFT), (201, LEFT)] {
            let gpus = [("GPU-a", seen(reading))];
            node.see(second * SECOND_NS, gpus.into_iter());
            assert_eq!(node.left(|| true), None, "{second}");
        }
    }

    #[test]
    fn memory_that_may_not_be_reported_yet_is_found_again() {
        let mut node = Node::default();
        for (second, reading) in [(0, IDLE), (1, BUSY), (2, LEFT), (32, LEFT), (62, LEFT)] {
            node.see(second * SECOND_NS, [("GPU-a", seen(reading))].into_iter());
        }
        assert_eq!(node.left(|| false), None);
        assert!(node.left(|| true).is_some());
        assert_eq!(node.left(|| true), None);
    }

    #[test]
    fn a_cluster_is_not_emptied() {
        assert!((0..NODES_KEPT_OUT_MAX).all(may_keep_out));
        assert!(!may_keep_out(NODES_KEPT_OUT_MAX));
    }

    /// A process that is no rank.
    const OTHER: Used = (41, Some(1), 0);

    /// Readings of one GPU before the question, and one in each second after it, the last one again
    /// and again. Gives the answer and the second in which it is given.
    fn answer(before: &[Used], after: &[Used]) -> (Verdict, u64) {
        let mut node = Node::default();
        let asked = before.len() as u64;
        for (second, reading) in (0..).zip(before.iter().copied()) {
            node.see(second * SECOND_NS, [("GPU-a", seen(reading))].into_iter());
        }
        let at = |second: u64| (asked + second) * SECOND_NS;
        assert_eq!(verdict(at(0), at(0), Readings::Awaited, &node), None);
        for second in 1.. {
            let index = usize::try_from(second).unwrap().min(after.len()) - 1;
            node.see(at(second), [("GPU-a", seen(after[index]))].into_iter());
            if let Some(verdict) = verdict(at(0), at(second), Readings::Fresh, &node) {
                return (verdict, second);
            }
        }
        unreachable!("a check has an end")
    }

    #[test]
    fn a_check_fails_only_for_memory_that_is_not_given_back_for_long() {
        let grace = NODE_CHECK_GIVE_BACK_SECONDS_MAX;
        let check = |before: &[_], after: &[_], expected| {
            assert_eq!(answer(before, after), expected, "{before:?} {after:?}");
        };
        check(&[IDLE], &[IDLE], (Verdict::Healthy, 1));
        check(&[IDLE, BUSY], &[IDLE], (Verdict::Healthy, 1));
        // The driver gives it back in five seconds.
        check(&[IDLE, BUSY], &[LEFT, LEFT, LEFT, LEFT, IDLE], (Verdict::Healthy, 5));
        check(&[IDLE, BUSY], &[LEFT], (Verdict::Failed, 1 + grace));
        // The ranks of another job compute on the node.
        check(&[IDLE, BUSY], &[BUSY], (Verdict::Healthy, 1));
        // A child of a rank ends after its rank.
        check(&[IDLE, BUSY], &[OTHER, OTHER, OTHER, LEFT], (Verdict::Failed, 4 + grace));
        check(&[IDLE, BUSY], &[OTHER, OTHER, IDLE], (Verdict::Healthy, 3));
        check(&[IDLE, BUSY], &[OTHER], (Verdict::Unknown, grace));
        // No rank was seen on it: a launcher does not wait for its process.
        check(&[IDLE, OTHER], &[OTHER], (Verdict::Healthy, 1));
        check(&[IDLE, OTHER], &[LEFT], (Verdict::Unknown, 1));
        check(&[BUSY], &[LEFT], (Verdict::Unknown, 1));
        // The agent was started after the ranks had ended.
        check(&[], &[LEFT], (Verdict::Unknown, 1));
        // A reading without its processes takes nothing back.
        check(&[IDLE, BUSY, LEFT, (41, None, 0)], &[LEFT], (Verdict::Failed, grace - 2));
        check(&[IDLE, BUSY], &[(41, None, 0)], (Verdict::Unknown, 1));
        // It was held long before the question.
        let mut long = [LEFT; 100];
        (long[0], long[1]) = (IDLE, BUSY);
        check(&long, &[LEFT], (Verdict::Failed, 1));
    }

    #[test]
    fn figures_missing_from_the_driver_are_unknown() {
        let node = Node::default();
        let last = NODE_CHECK_ANSWER_SECONDS_MAX * SECOND_NS;
        let unknown = Some(Verdict::Unknown);
        assert_eq!(verdict(0, 0, Readings::Absent, &node), unknown);
        assert_eq!(verdict(0, last - 1, Readings::Awaited, &node), None);
        assert_eq!(verdict(0, last, Readings::Awaited, &node), unknown);
        assert_eq!(verdict(0, 1, Readings::Fresh, &node), unknown, "there is no GPU");
    }

    /// One GPU that failed fails the node, for any state of the others.
    #[test]
    fn one_gpu_is_enough() {
        let mut node = Node::default();
        for second in 0..40 {
            let failing = seen(if second < 2 { [IDLE, BUSY][second] } else { LEFT });
            let gpus = [("GPU-a", seen(BUSY)), ("GPU-b", failing), ("GPU-c", seen((9, None, 0)))];
            node.see(second as u64 * SECOND_NS, gpus.into_iter());
        }
        let now = 39 * SECOND_NS;
        assert_eq!(verdict(now - 1, now, Readings::Fresh, &node), Some(Verdict::Failed));
        let sentences: Vec<String> =
            node.present().map(|(uuid, present)| present.sentence(uuid)).collect();
        let expected = [
            "1 process computes on GPU-a: its memory is not judged",
            "37 s after its last process has ended, GPU-b holds 40 GiB more than before",
            "which processes compute on GPU-c is not known: run the agent in the pid namespace of \
             the host",
        ];
        assert_eq!(sentences, expected);
    }

    fn reading() -> impl Strategy<Value = Used> {
        let processes = prop_oneof![4 => Just(Some(0)), 3 => Just(Some(1)), 1 => Just(None)];
        (0..4_u64, processes, 0..2_u32).prop_map(|(used, processes, ranks)| {
            (used * 20, processes, ranks.min(processes.unwrap_or(0)))
        })
    }

    proptest! {
        /// A check ends in time, and fails only where the GPU was free of processes and held memory
        /// in each of the last readings that show it, after a rank had computed on it.
        #[test]
        fn no_check_fails_without_proof(
            before in proptest::collection::vec(reading(), 1..40),
            after in proptest::collection::vec(reading(), 1..50),
        ) {
            let (verdict, second) = answer(&before, &after);
            prop_assert!(second <= NODE_CHECK_ANSWER_SECONDS_MAX, "{second} s");
            if verdict == Verdict::Failed {
                let last = *after.last().expect("one");
                let asked = after.iter().copied().chain(core::iter::repeat(last));
                let all: Vec<_> =
                    before.iter().copied().chain(asked.take(second as usize)).collect();
                // One in each second but that of the question.
                let count = NODE_CHECK_GIVE_BACK_SECONDS_MAX as usize;
                prop_assert!(all.len() > count);
                let (earlier, held) = all.split_at(all.len() - count);
                let is_held = |(used, processes, _): &Used| {
                    processes.is_none_or(|count| count == 0 && *used > 1)
                };
                prop_assert!(held.iter().all(is_held), "{held:?}");
                prop_assert!(earlier.iter().any(|(_, _, ranks)| *ranks > 0));
                prop_assert!(earlier.iter().any(|(_, processes, _)| *processes == Some(0)));
            }
        }
    }
}
