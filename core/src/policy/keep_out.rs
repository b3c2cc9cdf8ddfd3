//! Decides whether the memory of a GPU was not given back, so that its node is kept out.
//!
//! A GPU on which no process computes holds only its driver's own memory. The memory in use before
//! a rank computes on the GPU is its idle memory. When ranks have computed on it, every process on
//! it has ended, and it holds far more than that for a while, the driver has not given the memory
//! back, and the next job on that node would fail.
//!
//! Nothing is found where processes cannot be told apart, where idle memory was never seen, and
//! while a node is silent. [`Node::present`] gives the state of each GPU at its last reading. This
//! file keeps no node out, and never takes one back in.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use core::fmt::{self, Display, Formatter};

use crate::diagnosis::bytes;
use crate::limits::{
    GPUS_PER_NODE_MAX, LEFT_MEMORY_BYTES_MAX, LEFT_MEMORY_SECONDS_MAX, NODES_KEPT_OUT_MAX,
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

/// Memory that was not given back; [`Display`] puts it into a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The GPU.
    pub uuid: String,
    /// Bytes beyond its idle memory.
    pub held_bytes: u64,
    /// Time for which no process has computed on the GPU, in seconds.
    pub seconds: u64,
}

impl Display for Left {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self { uuid, held_bytes, seconds } = self;
        let held = bytes(*held_bytes);
        write!(
            formatter,
            "{seconds} s after its last process has ended, {uuid} holds {held} more than before"
        )
    }
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
    /// Whether its memory was given back cannot be known.
    Unknown(Unknown),
}

/// Why it cannot be known whether memory was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Processes on the GPU cannot be told apart.
    Processes,
    /// The GPU holds so much memory without processes that an earlier rank may have left it.
    IdleMemory,
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
            let present = Some(Present::Unknown(Unknown::NotRead));
            self.devices.insert(uuid, Device { present, ..device });
        }
    }

    /// Memory that was not given back for long, once for each use of a GPU. It is reported now, if
    /// `may_report` says so, or else asked for again.
    pub fn left(&mut self, may_report: impl FnOnce() -> bool) -> Option<Left> {
        let mut left = self.devices.iter_mut().filter_map(|(uuid, device)| {
            let (held_bytes, seconds) = device.left_for_long()?;
            Some((device, Left { uuid: uuid.clone(), held_bytes, seconds }))
        });
        let (device, left) = left.next()?;
        device.is_reported = may_report();
        device.is_reported.then_some(left)
    }

    /// State of each GPU that was ever read, by UUID.
    pub fn present(&self) -> impl Iterator<Item = (&str, Present)> {
        self.devices.iter().filter_map(|(uuid, device)| Some((uuid.as_str(), device.present?)))
    }
}

impl Device {
    /// Bytes that were not given back, and for how many seconds, where that is to be reported.
    fn left_for_long(&self) -> Option<(u64, u64)> {
        match self.present? {
            Present::Held { held_bytes, seconds } => (seconds >= LEFT_MEMORY_SECONDS_MAX
                && !self.is_reported)
                .then_some((held_bytes, seconds)),
            Present::Idle { .. } | Present::InUse { .. } | Present::Unknown(_) => None,
        }
    }

    /// Takes a reading; returns the state that it shows.
    fn judge(&mut self, now_ns: u64, seen: Seen) -> Present {
        let Some(processes) = seen.processes else { return Present::Unknown(Unknown::Processes) };
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
            return Present::Unknown(Unknown::NoRank { held_bytes });
        }
        // The agent may have been started after a rank had left memory.
        if idle_bytes > LEFT_MEMORY_BYTES_MAX {
            return Present::Unknown(Unknown::IdleMemory);
        }
        Present::Idle { used_bytes }
    }
}

/// May one more node be kept out beside these? A finding that is wrong must not empty
/// a cluster.
pub fn may_keep_out(kept_out: usize) -> bool {
    kept_out < NODES_KEPT_OUT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// GiB in use, processes and ranks.
    type Used = (u64, Option<u32>, u32);

    fn seen((used, processes, ranks): Used) -> Seen {
        Seen { used_bytes: used * GIB, processes, ranks: processes.map(|_| ranks) }
    }

    /// Takes readings of one GPU, one in 10 s. Gives the second of each finding.
    fn found(readings: impl IntoIterator<Item = Used>) -> alloc::vec::Vec<u64> {
        let mut node = Node::default();
        let mut found = alloc::vec::Vec::new();
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
        assert_eq!(left.to_string(), sentence);
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
        let known: alloc::vec::Vec<_> = node.present().collect();
        assert_eq!(known.len(), 1, "{readings:?}");
        known[0].1
    }

    #[test]
    fn what_is_known_now_can_be_asked_at_any_time() {
        let held = |seconds| Present::Held { held_bytes: 40 * GIB, seconds };
        let in_use = |is_after_ranks| Present::InUse { processes: 1, is_after_ranks };
        let unknown = Present::Unknown;
        let cases: &[(&[Used], Present)] = &[
            (&[IDLE], Present::Idle { used_bytes: GIB }),
            (&[IDLE, BUSY], in_use(false)),
            (&[IDLE, BUSY, (41, Some(1), 0)], in_use(true)),
            (&[IDLE, (41, Some(1), 0)], in_use(false)),
            (&[IDLE, BUSY, LEFT], held(0)),
            (&[IDLE, BUSY, LEFT, LEFT, LEFT], held(2)),
            (&[IDLE, BUSY, LEFT, IDLE], Present::Idle { used_bytes: GIB }),
            (&[IDLE, BUSY, LEFT, BUSY, LEFT], held(0)),
            (&[IDLE, BUSY, (41, None, 0)], unknown(Unknown::Processes)),
            (&[BUSY, LEFT], unknown(Unknown::IdleMemory)),
            (&[BUSY, IDLE], Present::Idle { used_bytes: GIB }),
            // A process that is no rank, and memory that was given back.
            (&[IDLE, BUSY, (1, Some(1), 0)], in_use(false)),
            // What it held when it was first seen may have been left by a rank.
            (&[LEFT], unknown(Unknown::IdleMemory)),
            (&[LEFT, IDLE], Present::Idle { used_bytes: GIB }),
            (&[BUSY, LEFT, LEFT, BUSY, LEFT], unknown(Unknown::IdleMemory)),
            (&[BUSY, IDLE, BUSY, LEFT], held(0)),
            (&[IDLE, (70, Some(1), 0), LEFT], unknown(Unknown::NoRank { held_bytes: 40 * GIB })),
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
            assert_eq!(present == Present::Unknown(Unknown::NotRead), reading.is_none());
        }
        let (_, present) = node.present().next().unwrap();
        assert_eq!(present, Present::Held { held_bytes: 40 * GIB, seconds: 1 });
        // As many as a node may have are kept.
        let names: alloc::vec::Vec<_> =
            (0..GPUS_PER_NODE_MAX).map(|at| alloc::format!("GPU-{at}")).collect();
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
}
