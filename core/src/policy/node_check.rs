//! Decides the answer to a check of the node's health: is a GPU's memory not given back?
//!
//! A launcher asks right after its workers have ended, and waits for the answer before it starts
//! others. The driver may take seconds to give memory back, so a reading from before the question
//! proves nothing, and memory that is held fails the check only after a while
//! ([`NODE_CHECK_GIVE_BACK_SECONDS_MAX`]). The answer is "unknown", never a failure, where facts
//! are missing: a launcher that is refused gives its node up.
//!
//! [`super::keep_out`] decides the state of a GPU. This file reads no GPU and waits for nothing.

use alloc::format;
use alloc::string::{String, ToString};

use super::keep_out::{Left, Node, Present, Unknown};
use crate::diagnosis::bytes;
use crate::limits::{NODE_CHECK_ANSWER_SECONDS_MAX, NODE_CHECK_GIVE_BACK_SECONDS_MAX};

const SECOND_NS: u64 = 1_000_000_000;

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

/// The answer to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No GPU holds memory that was not given back.
    Healthy,
    /// A GPU does.
    Failed,
    /// The state of some GPU is unknown, and no other GPU fails.
    Unknown,
}

/// Meaning of a GPU's state for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Opinion {
    Sound,
    Unknown,
    /// The next reading may show more.
    Wait,
    Failed,
}

/// The answer to a question, from the states of the GPUs; none while more readings are needed.
pub fn verdict(asked_ns: u64, now_ns: u64, readings: Readings, node: &Node) -> Option<Verdict> {
    let waited = now_ns.saturating_sub(asked_ns) / SECOND_NS;
    let is_last = waited >= NODE_CHECK_ANSWER_SECONDS_MAX;
    match readings {
        Readings::Absent => return Some(Verdict::Unknown),
        Readings::Awaited => return is_last.then_some(Verdict::Unknown),
        Readings::Fresh => {}
    }
    // A node without GPUs shows nothing either.
    let worst = node.present().map(|(_, present)| opinion(present, waited)).max();
    match worst.unwrap_or(Opinion::Unknown) {
        Opinion::Failed => Some(Verdict::Failed),
        Opinion::Wait if is_last => Some(Verdict::Unknown),
        Opinion::Wait => None,
        Opinion::Unknown => Some(Verdict::Unknown),
        Opinion::Sound => Some(Verdict::Healthy),
    }
}

/// `waited` seconds after the question.
fn opinion(present: Present, waited: u64) -> Opinion {
    match present {
        Present::Held { seconds, .. } if seconds >= NODE_CHECK_GIVE_BACK_SECONDS_MAX => {
            Opinion::Failed
        }
        Present::Held { .. } => Opinion::Wait,
        Present::InUse { is_after_ranks: true, .. } => {
            if waited < NODE_CHECK_GIVE_BACK_SECONDS_MAX { Opinion::Wait } else { Opinion::Unknown }
        }
        Present::Unknown(_) => Opinion::Unknown,
        Present::InUse { is_after_ranks: false, .. } | Present::Idle { .. } => Opinion::Sound,
    }
}

/// State of a GPU, in a sentence.
pub fn sentence(uuid: &str, present: Present) -> String {
    match present {
        Present::Idle { used_bytes } => {
            format!("no process computes on {uuid}, which holds {}", bytes(used_bytes))
        }
        Present::InUse { processes, is_after_ranks: false } => {
            format!("{} {uuid}: its memory is not judged", on(processes))
        }
        Present::InUse { processes, is_after_ranks: true } => format!(
            "after its ranks have ended, {} {uuid}: whether memory is given back is not known",
            on(processes)
        ),
        Present::Held { held_bytes, seconds } => {
            Left { uuid: uuid.to_string(), held_bytes, seconds }.to_string()
        }
        Present::Unknown(Unknown::Processes) => format!(
            "which processes compute on {uuid} is not known: run the agent in the pid namespace of \
             the host"
        ),
        Present::Unknown(Unknown::IdleMemory) => format!(
            "{uuid} has held memory since the agent was started: whether a rank left it is not \
             known"
        ),
        Present::Unknown(Unknown::NotRead) => {
            format!("{uuid} is not read any more: what it holds is not known")
        }
        Present::Unknown(Unknown::NoRank { held_bytes }) => format!(
            "{uuid} holds {} more than before, and no rank was seen on it: whose memory it is is \
             not known",
            bytes(held_bytes)
        ),
    }
}

fn on(processes: u32) -> String {
    if processes == 1 {
        "1 process computes on".to_string()
    } else {
        format!("{processes} processes compute on")
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::super::keep_out::Seen;
    use super::*;

    const GIB: u64 = 1 << 30;

    const IDLE: (u64, Option<u32>, u32) = (1, Some(0), 0);
    const BUSY: (u64, Option<u32>, u32) = (70, Some(1), 1);
    const LEFT: (u64, Option<u32>, u32) = (41, Some(0), 0);
    /// A process that is no rank.
    const OTHER: (u64, Option<u32>, u32) = (41, Some(1), 0);

    fn seen((used, processes, ranks): (u64, Option<u32>, u32)) -> Seen {
        Seen { used_bytes: used * GIB, processes, ranks: Some(ranks) }
    }

    /// Readings of one GPU before the question, and one in each second after it, the last one again
    /// and again. Gives the answer and the second in which it is given.
    fn answer(
        before: &[(u64, Option<u32>, u32)],
        after: &[(u64, Option<u32>, u32)],
    ) -> (Verdict, u64) {
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
            node.present().map(|(uuid, present)| sentence(uuid, present)).collect();
        let expected = [
            "1 process computes on GPU-a: its memory is not judged",
            "37 s after its last process has ended, GPU-b holds 40 GiB more than before",
            "which processes compute on GPU-c is not known: run the agent in the pid namespace of \
             the host",
        ];
        assert_eq!(sentences, expected);
    }

    fn reading() -> impl Strategy<Value = (u64, Option<u32>, u32)> {
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
                let is_held = |(used, processes, _): &(u64, Option<u32>, u32)| {
                    processes.is_none_or(|count| count == 0 && *used > 1)
                };
                prop_assert!(held.iter().all(is_held), "{held:?}");
                prop_assert!(earlier.iter().any(|(_, _, ranks)| *ranks > 0));
                prop_assert!(earlier.iter().any(|(_, processes, _)| *processes == Some(0)));
            }
        }
    }
}
