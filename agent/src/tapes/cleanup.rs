//! Which tapes of dead processes are deleted, and why.
//!
//! Dead tapes are evidence, but they lie in memory that the next attempt at the job needs. A tape
//! is deleted only if the coordinator knows of it, or no coordinator has asked for it in a long
//! time. The oldest tape of the largest user goes first, so no user pushes out tapes of another
//! within an equal part. Tapes of living processes and files that are no tapes are never touched.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::node::accounts::Account;
use crate::tapes::quota::TapeKey;

/// Time without a coordinator after which tapes unknown to it are deleted like others.
pub(crate) const UNREPORTED_MAX: Duration = Duration::from_secs(60 * 60);

/// Bounds on dead tapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum bytes of all dead tapes together.
    pub(crate) bytes_max: u64,
    /// Maximum time that dead tapes are kept.
    pub(crate) age_max: Duration,
}

/// A dead tape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadTape {
    /// The tape's key.
    pub(crate) key: TapeKey,
    /// User id of the owner.
    pub(crate) account: Account,
    /// Time since the process was last alive.
    pub(crate) age: Duration,
    /// Memory it occupies.
    pub(crate) bytes: u64,
    /// May be deleted: reported, or no coordinator was there for long.
    pub(crate) is_settled: bool,
    /// Still in its folder.
    pub(crate) is_linked: bool,
}

/// Why a tape is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The process has been dead for too long.
    Age(Duration),
    /// Dead tapes occupy too much together.
    Bytes(u64),
    /// Another program has deleted it already.
    Unlinked,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Age(age) => write!(f, "its process has been dead for {} s", age.as_secs()),
            Self::Bytes(bytes) => write!(f, "tapes of dead processes occupied {bytes} bytes"),
            Self::Unlinked => write!(f, "another program has deleted it already"),
        }
    }
}

/// The tapes to delete.
pub(crate) fn choose(mut dead: Vec<DeadTape>, limits: Limits) -> Vec<(TapeKey, Reason)> {
    dead.sort_by_key(|tape| std::cmp::Reverse((tape.age, std::cmp::Reverse(tape.key))));
    let mut chosen = Vec::new();
    dead.retain(|tape| {
        let reason = match (tape.is_settled, tape.is_linked) {
            (true, false) => Reason::Unlinked,
            (true, true) if tape.age > limits.age_max => Reason::Age(tape.age),
            _ => return true,
        };
        chosen.push((tape.key, reason));
        false
    });
    let mut of_users = BTreeMap::<Account, u64>::new();
    for tape in &dead {
        let bytes = of_users.entry(tape.account).or_default();
        *bytes = bytes.saturating_add(tape.bytes);
    }
    let part = limits.bytes_max / (of_users.len().max(1) as u64);
    let mut bytes = of_users.values().fold(0_u64, |sum, of| sum.saturating_add(*of));
    while bytes > limits.bytes_max {
        // A user within an equal part loses nothing for the others.
        let mut beyond: Vec<(Account, u64)> =
            of_users.iter().filter(|(_, of)| **of > part).map(|(uid, of)| (*uid, *of)).collect();
        beyond.sort_by_key(|(_, of)| std::cmp::Reverse(*of));
        let oldest = |uid| dead.iter().position(|tape| tape.account == uid && tape.is_settled);
        let Some(at) = beyond.into_iter().find_map(|(uid, _)| oldest(uid)) else { break };
        let tape = dead.remove(at);
        chosen.push((tape.key, Reason::Bytes(bytes)));
        bytes = bytes.saturating_sub(tape.bytes);
        if let Some(of) = of_users.get_mut(&tape.account) {
            *of = of.saturating_sub(tape.bytes);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { bytes_max: 100, age_max: Duration::from_secs(50) };

    fn tape(key: u64, age_s: u64, bytes: u64) -> DeadTape {
        DeadTape {
            key: TapeKey(key),
            account: 0,
            age: Duration::from_secs(age_s),
            bytes,
            is_settled: true,
            is_linked: true,
        }
    }

    fn check(dead: &[DeadTape], expected: &[(u64, Reason)]) {
        let expected: Vec<_> = expected.iter().map(|(key, why)| (TapeKey(*key), *why)).collect();
        assert_eq!(choose(dead.to_vec(), LIMITS), expected, "{dead:?}");
    }

    #[test]
    fn the_oldest_tapes_are_deleted_first() {
        let unsettled = |tape| DeadTape { is_settled: false, ..tape };
        let age = |s| Reason::Age(Duration::from_secs(s));
        check(&[], &[]);
        check(&[tape(1, 50, 100)], &[]);
        check(&[tape(1, 51, 1)], &[(1, age(51))]);
        check(
            &[tape(1, 5, 60), tape(2, 9, 60), tape(3, 7, 60)],
            &[(2, Reason::Bytes(180)), (3, Reason::Bytes(120))],
        );
        // What was deleted for its age counts no more.
        check(&[tape(1, 60, 60), tape(2, 9, 90)], &[(1, age(60))]);
        check(&[unsettled(tape(1, 60, 60)), tape(2, 9, 60)], &[(2, Reason::Bytes(120))]);
        check(&[unsettled(tape(1, 60, 600))], &[]);
        check(&[DeadTape { is_linked: false, ..tape(1, 1, 1) }], &[(1, Reason::Unlinked)]);
        check(&[tape(2, 9, 70), tape(1, 9, 70)], &[(1, Reason::Bytes(140))]);
    }

    #[test]
    fn no_user_pushes_out_the_tapes_of_another() {
        let of = |account, tape| DeadTape { account, ..tape };
        // A new tape that is large, beside an older one within its part.
        check(&[of(0, tape(1, 40, 50)), of(9, tape(2, 1, 60))], &[(2, Reason::Bytes(110))]);
        let unsettled = DeadTape { is_settled: false, ..tape(2, 1, 600) };
        check(&[of(0, tape(1, 40, 50)), of(9, unsettled)], &[]);
        // Both are beyond it: the one with more goes first.
        check(
            &[of(0, tape(1, 40, 60)), of(0, tape(2, 30, 20)), of(9, tape(3, 1, 70))],
            &[(1, Reason::Bytes(150))],
        );
    }
}
