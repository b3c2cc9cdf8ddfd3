//! When a coordinator may try to own a shard: the decision behind a hint that its owner renews.
//!
//! A watcher reads the version of the hint again and again. On its own monotonic clock, a hint
//! whose version stays the same for [`HINT_LASTS_NS`] was left by its owner. No two machines
//! compare clocks, and a wrong decision costs a takeover, never a record: the fence of the shard
//! decides who owns it. Where the hint lies is not known here.

use alloc::string::String;

use serde::{Deserialize, Serialize};

/// Time between two renewals by the owner, and between two reads by a watcher, in nanoseconds.
pub const HINT_EVERY_NS: u64 = 1_000_000_000;

/// Time without a change after which a hint was left, in nanoseconds.
pub const HINT_LASTS_NS: u64 = 5 * HINT_EVERY_NS;

/// Requests in a row that taking a shard takes, about, with the replay of a quiet shard.
pub const OPENING_REQUESTS: u32 = 27;

/// The contents of a hint.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Owner {
    /// Name of the coordinator's process; never the same twice.
    pub process: String,
    /// Where agents and people reach it.
    pub address: String,
    /// Epoch of its ownership; of the one before, until it has one.
    pub epoch: u64,
    /// True when it gave the shard up: the next owner need not wait.
    pub has_left: bool,
    /// Renewals so far.
    pub renewals: u64,
}

/// What a watcher has seen of a hint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HintWatch {
    /// The newest version, and the time at which it was seen first.
    seen: Option<(String, u64)>,
}

impl HintWatch {
    /// Notes the version that was read now, none if there is no hint. May the hint be claimed?
    pub fn may_claim(&mut self, now_ns: u64, version: Option<&str>) -> bool {
        let Some(version) = version else {
            self.seen = None;
            return true;
        };
        match &self.seen {
            Some((seen, since_ns)) if seen == version => {
                now_ns.saturating_sub(*since_ns) >= HINT_LASTS_NS
            }
            _ => {
                self.seen = Some((version.into(), now_ns));
                false
            }
        }
    }

    /// The hint could not be read: whether it changed meanwhile is not known.
    pub fn missed(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_claimed_when_it_was_not_renewed_for_its_time() {
        let mut watch = HintWatch::default();
        assert!(watch.may_claim(0, None));
        for now_ns in (0..100).map(|tick| tick * HINT_EVERY_NS) {
            let version = alloc::format!("{now_ns}");
            assert!(!watch.may_claim(now_ns, Some(&version)), "renewed each time");
        }
        let left_ns = 100 * HINT_EVERY_NS;
        assert!(!watch.may_claim(left_ns, Some("last")));
        assert!(!watch.may_claim(left_ns + HINT_LASTS_NS - 1, Some("last")));
        assert!(watch.may_claim(left_ns + HINT_LASTS_NS, Some("last")));
        watch.missed();
        assert!(!watch.may_claim(left_ns + HINT_LASTS_NS, Some("last")), "it begins again");
    }
}
