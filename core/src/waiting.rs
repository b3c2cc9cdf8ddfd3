//! Which coordinators wait to take over.
//!
//! Each waiting coordinator writes an object again and again. A watcher lists these objects and
//! compares their versions on its own monotonic clock, so no two machines compare clocks. A
//! coordinator is shown as waiting from the time at which its object was seen to change: an object
//! that was there before may be that of a killed one. Where the objects lie is not known here.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// Time between two writes by a waiting coordinator, and between two lists by a watcher, in
/// nanoseconds. A PUT costs about 12 GETs, and a waiting coordinator reads each hint once a second:
/// with 10 s, its writes cost about as much as its reads of one hint.
pub const WAITING_EVERY_NS: u64 = 10_000_000_000;

/// Time without a change after which a coordinator counts as waiting no more, in nanoseconds.
pub const WAITING_LASTS_NS: u64 = 3 * WAITING_EVERY_NS;

/// Time without a change after which the object of a coordinator is removed, in nanoseconds.
pub const WAITING_REMOVED_AFTER_NS: u64 = 60 * WAITING_EVERY_NS;

/// What a waiting coordinator says of itself.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct WaitingNote {
    /// Name of its process; never the same twice.
    pub process: String,
    /// Where agents and people would reach it.
    pub address: String,
    /// Version of its program.
    pub version: String,
    /// Writes of the object so far.
    pub renewals: u64,
}

/// What a watcher has seen of the objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingWatch {
    has_listed: bool,
    /// By the names of the objects.
    seen: BTreeMap<String, Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    version: String,
    /// When this version was seen first.
    since_ns: u64,
    /// Was it written after the watcher began?
    is_renewed: bool,
}

impl WaitingWatch {
    /// Notes the names and versions that were listed now.
    pub fn listed(&mut self, now_ns: u64, objects: impl IntoIterator<Item = (String, String)>) {
        let mut before = core::mem::take(&mut self.seen);
        for (name, version) in objects {
            let seen = match before.remove(&name) {
                Some(known) if known.version == version => known,
                known => {
                    let is_renewed = known.is_some() || self.has_listed;
                    Seen { version, since_ns: now_ns, is_renewed }
                }
            };
            self.seen.insert(name, seen);
        }
        self.has_listed = true;
    }

    /// Names of the objects of coordinators that wait, with the time since the last change.
    pub fn waiting(&self, now_ns: u64) -> Vec<(&str, u64)> {
        let ages = self.seen.iter().filter(|(_, seen)| seen.is_renewed);
        let ages = ages.map(|(name, seen)| (name.as_str(), now_ns.saturating_sub(seen.since_ns)));
        ages.filter(|(_, age_ns)| *age_ns < WAITING_LASTS_NS).collect()
    }

    /// Names of objects that may be removed: no coordinator writes them any more.
    pub fn abandoned(&self, now_ns: u64) -> Vec<String> {
        let is_old = |seen: &Seen| now_ns.saturating_sub(seen.since_ns) >= WAITING_REMOVED_AFTER_NS;
        self.seen.iter().filter(|(_, seen)| is_old(seen)).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    fn listed(watch: &mut WaitingWatch, now_ns: u64, objects: &[(&str, u64)]) {
        let of = |(name, version): &(&str, u64)| (name.to_string(), version.to_string());
        watch.listed(now_ns, objects.iter().map(of));
    }

    fn names(watch: &WaitingWatch, now_ns: u64) -> Vec<&str> {
        watch.waiting(now_ns).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_coordinator_waits_from_a_change_of_its_object_until_there_is_none_in_time() {
        let (mut watch, every) = (WaitingWatch::default(), WAITING_EVERY_NS);
        listed(&mut watch, 0, &[("killed", 7), ("lives", 1)]);
        assert_eq!(names(&watch, 0), [""; 0], "neither was seen to change");
        listed(&mut watch, every, &[("killed", 7), ("lives", 2), ("new", 1)]);
        assert_eq!(names(&watch, every), ["lives", "new"]);
        listed(&mut watch, 2 * every, &[("killed", 7), ("lives", 3), ("new", 1)]);
        assert_eq!(watch.waiting(2 * every), [("lives", 0), ("new", every)]);
        let late = every + WAITING_LASTS_NS;
        listed(&mut watch, late, &[("killed", 7), ("lives", 4), ("new", 1)]);
        assert_eq!(names(&watch, late), ["lives"], "the new one was not renewed");
        listed(&mut watch, late, &[("killed", 7)]);
        assert_eq!(names(&watch, late), [""; 0], "it ended in order");
        assert_eq!(watch.abandoned(WAITING_REMOVED_AFTER_NS - 1), [""; 0]);
        assert_eq!(watch.abandoned(WAITING_REMOVED_AFTER_NS), ["killed"]);
    }
}
