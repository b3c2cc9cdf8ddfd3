//! Which capture is deleted where there are too many, they are too large, or one is too old.
//!
//! The captures of a job, and the bytes and parts of all captures, are shared by node, then by
//! owner: the oldest capture of the largest holder goes first, captures that an open incident needs
//! after the others. A holder with more than all others together loses these too, so no flood of
//! incidents pushes out the captures of others. The age is the store's time of closing: names of
//! agent-initiated captures do not give one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use memtape_core::capture::Part;
use memtape_core::identity::owner::OwnerKey;
use memtape_core::limits::{BASELINES_PER_JOB_MAX, CAPTURES_PER_JOB_MAX, PARTS_MAX};
use memtape_core::sharing::Shares;

use crate::state::captures::{CaptureState, Captures};
use crate::state::counters::Count;
use crate::state::effects::Context;
use crate::state::jobs::Jobs;

/// Bounds on stored captures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// Bytes of all snapshots together.
    pub(crate) bytes_max: u64,
    /// Time since a capture was closed.
    pub(crate) age_ns_max: i64,
}

impl Captures {
    /// Deletes one capture that is beyond a bound.
    pub(crate) fn make_room(
        &mut self,
        context: &mut Context,
        in_use: &BTreeSet<String>,
        jobs: &Jobs,
    ) {
        let of_jobs =
            || self.too_old(context, in_use).or_else(|| self.of_crowded_job(in_use, jobs));
        let Some((id, limit)) = of_jobs().or_else(|| self.too_much(in_use, jobs)) else { return };
        context.count(limit);
        tracing::info!(capture = %id, "an old capture is forgotten");
        self.forget(context, &id);
    }

    fn too_old(&self, context: &Context, in_use: &BTreeSet<String>) -> Option<(String, Count)> {
        let before_ns = self.clock.at(context.now).saturating_sub(self.retention.age_ns_max);
        let is_old = |state: &&CaptureState| {
            state.record.closed_store_ns.is_some_and(|closed_ns| closed_ns < before_ns)
        };
        let oldest = self.free(in_use).find(is_old)?;
        Some((oldest.record.id.clone(), Count::CapturesByAge))
    }

    /// The capture to delete of a job with more captures, or baselines, than a job may keep.
    fn of_crowded_job(&self, in_use: &BTreeSet<String>, jobs: &Jobs) -> Option<(String, Count)> {
        let (mut per_job, mut baselines) = (BTreeMap::new(), BTreeMap::new());
        for state in self.captures.values() {
            *per_job.entry(state.record.job.as_str()).or_default() += 1_usize;
            if state.is_baseline() {
                *baselines.entry(state.record.job.as_str()).or_default() += 1_usize;
            }
        }
        let first = |of: &BTreeMap<&str, usize>, max, is_meant: fn(&CaptureState) -> bool| {
            let mut crowded = of.iter().filter(|(_, count)| **count > max);
            crowded.find_map(|(job, _)| {
                let is_meant = |state: &&CaptureState| state.record.job == *job && is_meant(state);
                let all = self.captures.values().filter(is_meant);
                self.of_largest_holder(all, in_use, jobs, |_| 1)
            })
        };
        let baseline = first(&baselines, BASELINES_PER_JOB_MAX, CaptureState::is_baseline);
        let id = baseline.or_else(|| first(&per_job, CAPTURES_PER_JOB_MAX, |_| true));
        Some((id?, Count::CapturesByNumber))
    }

    /// The capture to delete where all captures are too many or too large.
    fn too_much(&self, in_use: &BTreeSet<String>, jobs: &Jobs) -> Option<(String, Count)> {
        // Of what is remembered, not of what is on disk: what was forgotten goes from there later.
        let bytes_max = self.retention.bytes_max;
        if self.captures.values().map(bytes).fold(0, u64::saturating_add) > bytes_max {
            let all = self.captures.values();
            let id = self.of_largest_holder(all, in_use, jobs, part_bytes)?;
            return Some((id, Count::CapturesByBytes));
        }
        if self.captures.values().map(parts).sum::<u64>() > PARTS_MAX as u64 {
            let all = self.captures.values();
            let id = self.of_largest_holder(all, in_use, jobs, |_| 1)?;
            return Some((id, Count::CapturesByNumber));
        }
        None
    }

    /// The oldest closed one of these captures with a part of the holder that has most, by a
    /// measure of parts. Parts from a node count for it, also in a job that another node began.
    fn of_largest_holder<'a>(
        &'a self,
        captures: impl Iterator<Item = &'a CaptureState> + Clone,
        in_use: &BTreeSet<String>,
        jobs: &Jobs,
        measure: fn(&Part) -> u64,
    ) -> Option<String> {
        let mut shares = Shares::default();
        for state in captures.clone() {
            for part in &state.parts {
                shares.add((part.node.as_str(), owner(state, jobs)), measure(part));
            }
        }
        let largest = |state: &'a CaptureState| {
            let of_parts = state.parts.iter().map(|part| (part.node.as_str(), owner(state, jobs)));
            of_parts.max_by_key(|holder| shares.of(*holder)).unwrap_or(("", None))
        };
        let is_used = |state: &CaptureState| in_use.contains(&state.record.id);
        let may_go =
            |state: &&'a CaptureState| !is_used(state) || shares.has_more_than_half(largest(state));
        let closed = captures.filter(|state| state.record.is_closed());
        let order = |state: &&'a CaptureState| {
            let age = (state.record.closed_store_ns, state.record.requested_wall_ns);
            (Reverse(shares.of(largest(state))), is_used(state), age)
        };
        let first = closed.filter(may_go).min_by_key(order)?;
        Some(first.record.id.clone())
    }

    /// The captures that are closed and that no open incident needs, in order of age.
    fn free(&self, in_use: &BTreeSet<String>) -> impl Iterator<Item = &CaptureState> {
        let is_free =
            |state: &&CaptureState| state.record.is_closed() && !in_use.contains(&state.record.id);
        self.captures.values().filter(is_free)
    }
}

/// The owner of the job of a capture.
fn owner<'a>(state: &CaptureState, jobs: &'a Jobs) -> Option<OwnerKey<'a>> {
    Some(jobs.get(state.record.serial)?.record.owner.key())
}

/// Bytes of the snapshots that are stored.
fn bytes(state: &CaptureState) -> u64 {
    state.parts.iter().map(part_bytes).fold(0, u64::saturating_add)
}

fn part_bytes(part: &Part) -> u64 {
    if part.hash.is_some() { part.bytes } else { 0 }
}

fn parts(state: &CaptureState) -> u64 {
    state.parts.len() as u64
}

#[cfg(test)]
mod tests {
    use memtape_core::identity::ids::Ids;

    use super::*;
    use crate::state::captures::agent_initiated::Initiated;
    use crate::state::jobs::ownership::tests::owned;
    use crate::state::jobs::tests::limits;
    use memtape_disk::clock::Now;
    use memtape_store::StoreClock;
    use memtape_store::records::CaptureRecord;

    const DAY_NS: i64 = 24 * 3_600_000_000_000;

    /// Whether a capture that was closed on day 0 is kept, by how many days have passed on the
    /// monotonic and on the wall clock.
    fn check_age(mono_days: i64, wall_days: i64, is_kept: bool) {
        let begin = Now { mono_ns: 1 << 60, wall_ns: 1 << 60 };
        let record = CaptureRecord {
            id: "cap-1".to_string(),
            closed_wall_ns: Some(begin.wall_ns),
            closed_store_ns: Some(begin.wall_ns),
            ..CaptureRecord::default()
        };
        let mut captures = Captures {
            retention: Retention { bytes_max: u64::MAX, age_ns_max: 90 * DAY_NS },
            clock: StoreClock::go_on(begin, None),
            ids: Ids::default(),
            captures: BTreeMap::from([("cap-1".into(), CaptureState::new(record, Vec::new()))]),
            initiated: Initiated::default(),
        };
        let mut context = Context::new(Now {
            mono_ns: begin.mono_ns + (mono_days * DAY_NS).unsigned_abs(),
            wall_ns: begin.wall_ns + wall_days * DAY_NS,
        });
        captures.make_room(&mut context, &BTreeSet::new(), &Jobs::new(limits()));
        assert_eq!(captures.count() == 1, is_kept, "{mono_days} and {wall_days} days");
    }

    #[test]
    fn the_wall_clock_does_not_change_the_age_of_a_capture() {
        check_age(0, 0, true);
        check_age(89, 89, true);
        check_age(91, 91, false);
        check_age(0, 100, true);
        check_age(1, -100, true);
        check_age(91, -100, false);
    }

    /// Captures that a job of each of these holders has, 10 bytes each, in order of age.
    fn flood(bytes_max: u64, jobs: &mut Jobs, counts: &[(&str, u32, u32)]) -> Captures {
        let now = Now::default();
        let mut captures = Captures {
            retention: Retention { bytes_max, age_ns_max: i64::MAX },
            clock: StoreClock::go_on(now, None),
            ids: Ids::default(),
            captures: BTreeMap::new(),
            initiated: Initiated::default(),
        };
        for (node, uid, count) in counts {
            let up = owned(&format!("tape-{node}-{uid}"), &format!("{node}-{uid}"), 0, *uid);
            let serial = jobs.announce(now, node, up).unwrap().serial;
            for number in 0..*count {
                let id = format!("cap-{:06}", captures.captures.len());
                let job = format!("{node}-{uid}-{}", number / 8);
                let closed_wall_ns = Some(0);
                let record = CaptureRecord {
                    id: id.clone(),
                    serial,
                    job,
                    closed_wall_ns,
                    ..Default::default()
                };
                let hash = Some([0; 32]);
                let node = (*node).to_string();
                let part = Part { bytes: 10, hash, node, ..Part::default() };
                captures.captures.insert(id, CaptureState::new(record, vec![part]));
            }
        }
        captures
    }

    fn of_node(captures: &Captures, node: &str) -> usize {
        captures.iter().filter(|state| state.parts[0].node == node).count()
    }

    /// Captures of one node, for many owners and with open incidents, push out none of another.
    #[test]
    fn the_captures_of_one_node_push_out_none_of_another() {
        let mut jobs = Jobs::new(limits());
        let mut all = vec![("honest", 1, 40)];
        all.extend((0..20).map(|uid| ("thief", 100 + uid, 5)));
        let mut captures = flood(1000, &mut jobs, &all);
        let of_thief = captures.iter().filter(|state| state.parts[0].node == "thief");
        let in_use: BTreeSet<String> = of_thief.map(|state| state.record.id.clone()).collect();
        let mut context = Context::new(Now::default());
        for _ in 0..200 {
            captures.make_room(&mut context, &in_use, &jobs);
        }
        assert_eq!(of_node(&captures, "honest"), 40);
        assert_eq!(of_node(&captures, "thief"), 60);
    }

    /// A capture that an open incident needs stays while its holder has at most an equal part.
    #[test]
    fn a_needed_capture_stays_within_its_part() {
        let mut jobs = Jobs::new(limits());
        let mut captures = flood(1000, &mut jobs, &[("one", 1, 120)]);
        let in_use: BTreeSet<String> = captures.iter().map(|of| of.record.id.clone()).collect();
        let mut context = Context::new(Now::default());
        captures.make_room(&mut context, &in_use, &jobs);
        assert_eq!(captures.count(), 120, "one alone loses nothing that it needs");
        captures.make_room(&mut context, &BTreeSet::from(["cap-000000".to_string()]), &jobs);
        assert!(captures.get("cap-000000").is_some() && captures.get("cap-000001").is_none());
    }

    /// A node adds a rank to the job of another, and captures of it: they count for their node.
    #[test]
    fn captures_of_a_rank_that_joined_push_out_none_of_its_job() {
        let mut jobs = Jobs::new(limits());
        let mut captures = flood(1000, &mut jobs, &[("honest", 1, 60)]);
        let serial = captures.captures.values().next().unwrap().record.serial;
        let add = |captures: &mut Captures, number: usize, job: &str| {
            // Its name says that it is the newest, or the oldest.
            let id = format!(
                "cap-{}{number:06}-alone",
                if number.is_multiple_of(2) { "00" } else { "vv" }
            );
            let mut state = captures.captures.values().next().unwrap().clone();
            state.record = CaptureRecord {
                id: id.clone(),
                serial,
                job: job.to_string(),
                closed_wall_ns: Some(0),
                closed_store_ns: Some(1_000 + number as i64),
                ..CaptureRecord::default()
            };
            state.parts[0].node = "thief".to_string();
            captures.captures.insert(id, state);
        };
        let mut context = Context::new(Now::default());
        (0..100).for_each(|number| add(&mut captures, number, &format!("other-{}", number / 8)));
        for _ in 0..200 {
            captures.make_room(&mut context, &BTreeSet::new(), &jobs);
        }
        assert_eq!(captures.count(), 100);
        let left = |captures: &Captures| {
            captures.iter().filter(|state| state.parts[0].node == "honest").count()
        };
        assert_eq!(left(&captures), 50, "an equal part");
        // The same within one job.
        for state in captures.captures.values_mut() {
            state.record.job = "one".to_string();
        }
        for _ in 0..200 {
            captures.make_room(&mut context, &BTreeSet::new(), &jobs);
        }
        assert_eq!((captures.count(), left(&captures)), (CAPTURES_PER_JOB_MAX, 32));
    }

    /// A node adds ranks to one job and brings large parts of its captures: captures of that job
    /// give way, and none of another. A job whose captures are all needed holds up no other one.
    #[test]
    fn large_parts_of_a_rank_that_joined_push_out_no_capture_of_another_job() {
        let mut jobs = Jobs::new(limits());
        let all = [("honest", 1, 40), ("other", 2, 40)];
        let mut captures = flood(1000, &mut jobs, &all);
        for state in captures.captures.values_mut().filter(|of| of.parts[0].node == "honest") {
            let thief = Part { node: "thief".into(), bytes: 20, ..state.parts[0].clone() };
            state.parts.push(thief);
        }
        let mut context = Context::new(Now::default());
        for _ in 0..200 {
            captures.make_room(&mut context, &BTreeSet::new(), &jobs);
        }
        assert_eq!((of_node(&captures, "honest"), of_node(&captures, "other")), (20, 40));
        let mut captures = flood(u64::MAX, &mut jobs, &[("x", 3, 70), ("y", 4, 70)]);
        for state in captures.captures.values_mut() {
            state.record.job = state.parts[0].node.clone();
        }
        let of_x = captures.iter().filter(|state| state.record.job == "x");
        let in_use = of_x.map(|state| state.record.id.clone()).collect();
        for _ in 0..200 {
            captures.make_room(&mut context, &in_use, &jobs);
        }
        assert_eq!((of_node(&captures, "x"), of_node(&captures, "y")), (70, CAPTURES_PER_JOB_MAX));
    }
}
