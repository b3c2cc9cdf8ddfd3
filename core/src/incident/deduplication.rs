//! Decides which finding continues which, and which have one cause: one cause is one incident,
//! although it shows on several devices, ranks or accounts of the memory.
//!
//! The incident machine asks this when a finding is opened while other incidents are open. A
//! finding that returns after it was closed says so itself ([`Growth::returns`]). Ranks that count
//! steps are compared by the detector; those that do not are compared here.

use alloc::vec::Vec;

use super::attempt::Attempt;
use super::machine::{Change, Incidents, Now};
use super::tracked::{Tracked, ids};
use crate::detector::{Growth, GrowthKey, Layer, Scope};
use crate::tape::layout::Clock;

/// A finding about one rank continues as a finding about many ranks when its rate is at most this
/// multiple of their rate.
const FIRST_TIMES_MAX: u64 = 2;

/// Two ranks without steps grow alike when neither grows faster than this multiple of the other;
/// an account that a growth drags along grows no faster than this multiple of that.
const ALIKE_TIMES_MAX: u64 = 2;

/// Findings with one cause began within this many steps of each other, and a part of their age.
const BEGAN_STEPS: u64 = 64;
const BEGAN_AGE_PART: u64 = 4;

/// Maximum joined findings of an incident. More findings of its cause open another incident.
const JOINED_MAX: usize = 16;

impl GrowthKey {
    /// Is this finding about the one rank that `wide`, about many ranks, names as its example?
    pub fn narrows(&self, wide: &Self) -> bool {
        self.scope == Scope::OneRank
            && wide.scope != Scope::OneRank
            && (self.rank, self.device, self.layer) == (wide.rank, wide.device, wide.layer)
    }
}

impl Growth {
    /// Does this continue the finding `known`, which grew by `known_bytes_per_step`? True when it
    /// was about one rank and is now about many, or was about the number of blocks and is now about
    /// their bytes.
    pub fn goes_on_with(&self, known: &GrowthKey, known_bytes_per_step: u64) -> bool {
        let is_wide = |scope: Scope| scope != Scope::OneRank;
        let was_first = !is_wide(known.scope)
            && is_wide(self.scope)
            && known.layer == self.layer
            && known_bytes_per_step <= self.bytes_per_step.saturating_mul(FIRST_TIMES_MAX);
        let are_many = is_wide(known.scope) && is_wide(self.scope);
        let is_there = are_many || (known.rank, known.device) == (self.rank, self.device);
        was_first || (is_there && self.layer.takes_over(known.layer))
    }
}

impl Growth {
    /// Has this growth the cause of a `known` one of the same attempt? `counts_steps`: the steps of
    /// both ranks count the same.
    pub fn shares_cause(&self, known: &Self, counts_steps: bool) -> bool {
        let are_wide = [self.scope, known.scope].map(|scope| scope != Scope::OneRank);
        let is_rank = self.rank == known.rank;
        if self.layer == known.layer {
            // A process that keeps tensors of several devices; or ranks that serve the same.
            let is_elsewhere = match is_rank {
                true => self.device != known.device && self.began_near(known),
                false => !counts_steps && self.grows_like(known),
            };
            return are_wide == [false; 2] && self.layer.has_rate() && is_elsewhere;
        }
        let is_there = are_wide == [true; 2] || (is_rank && self.device == known.device);
        is_there && (self.drags_along(known) || known.drags_along(self))
    }

    /// Does this growth show in that of the other account, which began near it, or later, is no
    /// more certain and not much faster? A condition that recurs has no rate.
    fn drags_along(&self, other: &Self) -> bool {
        let rates = 1..=self.bytes_per_step.saturating_mul(ALIKE_TIMES_MAX);
        let is_later = self.onset_step <= other.onset_step
            && self.is_sure >= other.is_sure
            && rates.contains(&other.bytes_per_step);
        self.layer.drags_along(other.layer) && (is_later || self.began_near(other))
    }

    fn grows_like(&self, known: &Self) -> bool {
        let [one, other] = [self, known].map(|growth| growth.bytes_per_step);
        let most = |of: u64| of.saturating_mul(ALIKE_TIMES_MAX);
        one <= most(other) && other <= most(one)
    }

    pub(super) fn began_near(&self, known: &Self) -> bool {
        let last_step = self.last_step.max(known.last_step);
        let age_steps = last_step.saturating_sub(self.onset_step.min(known.onset_step));
        self.onset_step.abs_diff(known.onset_step) <= BEGAN_STEPS + age_steps / BEGAN_AGE_PART
    }
}

impl Layer {
    /// Does growth of this account show in the other one, too? Peaks beyond those of the peers
    /// leave segments behind them.
    fn drags_along(self, other: Self) -> bool {
        let is_dragged = matches!(other, Self::Reserved | Self::Peak | Self::Retries | Self::Churn);
        self.explains(other) || (self == Self::Spread && is_dragged)
    }
}

impl Incidents {
    /// Adds a new finding to the open incident that has its cause; false where there is none.
    pub(super) fn joined(&mut self, now: Now, attempt: &impl Attempt, growth: &Growth) -> bool {
        let serial = attempt.serial();
        let is_steps = |rank: u32| attempt.clock(rank) == Clock::Steps;
        let has_cause = |known: &Growth| {
            growth.shares_cause(known, is_steps(growth.rank) && is_steps(known.rank))
        };
        let takes = |known: &Tracked| {
            let of = &known.incident;
            let mut all = core::iter::once(&of.growth).chain(&of.joined);
            of.failure.is_none() && of.joined.len() < JOINED_MAX && all.any(has_cause)
        };
        let Some(tracked) = self.known.find_open(serial, takes) else { return false };
        let known = tracked.incident.growth;
        let is_cause = growth.layer != known.layer && growth.layer.drags_along(known.layer);
        if is_cause {
            // The incident is about what grows, and not about what that drags along.
            tracked.join_finding(now, known);
            tracked.be_about(now, attempt, *growth);
        } else {
            tracked.join_finding(now, *growth);
        }
        let id = tracked.incident.id.clone();
        self.store(&id, Change::Updated);
        true
    }

    /// Brings the figures of a finding that has joined an incident up to date; false where it has
    /// joined none.
    pub(super) fn rejoined(&mut self, now: Now, serial: u32, growth: &Growth) -> bool {
        let key = growth.key();
        let is_it = |of: &Growth| of.key().names(&key);
        let has_it = |known: &Tracked| known.incident.joined.iter().any(is_it);
        let Some(tracked) = self.known.find_open(serial, has_it) else { return false };
        tracked.confirm(&key);
        tracked.join_finding(now, *growth);
        let id = tracked.incident.id.clone();
        self.store(&id, Change::Updated);
        true
    }

    /// Adds growth that returns to the open incidents that were about it before; false where there
    /// are none. An incident stays about its present finding, unless the returning one explains it;
    /// it lasts as long as either.
    pub(super) fn returned(&mut self, now: Now, attempt: &impl Attempt, growth: &Growth) -> bool {
        let (serial, key) = (attempt.serial(), growth.key());
        let was_about = |known: &&Tracked| known.incident.was_about(&key);
        let ids = ids(self.known.open_of(serial).filter(was_about));
        if ids.is_empty() {
            return false;
        }
        if let Some(id) = self.continued(now, serial, growth) {
            self.grew(now, attempt, &id, growth);
            return true;
        }
        for id in ids {
            let Some(tracked) = self.known.get_mut(&id) else { continue };
            if tracked.incident.joined.len() < JOINED_MAX {
                tracked.join_finding(now, *growth);
                self.store(&id, Change::Updated);
            }
        }
        true
    }

    /// Removes findings that are over from the incidents of an attempt that they have joined, which
    /// remember them; false where they have joined none.
    pub(super) fn leave(
        &mut self,
        now: Now,
        serial: u32,
        is_over: impl Fn(&Growth) -> bool,
    ) -> bool {
        let has_left = |known: &&Tracked| known.incident.joined.iter().any(&is_over);
        let ids = ids(self.known.open_of(serial).filter(has_left));
        for id in &ids {
            let Some(tracked) = self.known.get_mut(id) else { continue };
            let joined = &mut tracked.incident.joined;
            let over: Vec<Growth> = joined.extract_if(.., |of| is_over(of)).collect();
            over.iter().for_each(|growth| tracked.remember(growth.key()));
            tracked.incident.updated_wall_ns = now.wall_ns;
            self.store(id, Change::Updated);
        }
        !ids.is_empty()
    }

    /// The finding that an incident is about is over. True where one that has joined it goes on:
    /// the incident is about that one now.
    pub(super) fn goes_on(&mut self, now: Now, attempt: &impl Attempt, id: &str) -> bool {
        let Some(tracked) = self.known.get_mut(id) else { return false };
        if tracked.incident.joined.is_empty() {
            return false;
        }
        let next = tracked.incident.joined.remove(0);
        tracked.be_about(now, attempt, next);
        self.measure(now, id, attempt, None);
        self.store(id, Change::Updated);
        true
    }
}

impl Tracked {
    /// Makes the incident about another one of its findings, and wants a capture of that. What was
    /// certain stays so.
    fn be_about(&mut self, now: Now, attempt: &impl Attempt, growth: Growth) {
        let is_sure = growth.is_sure || self.incident.growth.is_sure;
        self.turn_to(now, growth.key());
        self.incident.growth = Growth { is_sure, ..growth };
        self.incident.measure(&growth, attempt.times(now.wall_ns, growth.rank));
        self.incident.updated_wall_ns = now.wall_ns;
        self.want_again(now);
    }

    /// Keeps a finding that has the cause of this incident, with its newest figures. The incident
    /// is certain when one of its findings is.
    fn join_finding(&mut self, now: Now, growth: Growth) {
        if growth.is_sure && !self.incident.growth.is_sure {
            self.incident.growth.is_sure = true;
            self.want_again(now);
        }
        self.incident.updated_wall_ns = now.wall_ns;
        let joined = &mut self.incident.joined;
        match joined.iter_mut().find(|known| known.key().names(&growth.key())) {
            Some(known) => *known = growth.continuing(known),
            None => joined.push(growth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Scope::{AllRanks, OneRank, Role};
    use super::*;
    use crate::detector::Layer::{self, Allocated, Blocks, Host};

    fn key(rank: u32, layer: Layer, scope: Scope) -> GrowthKey {
        GrowthKey { rank, device: 0, layer, scope }
    }

    fn growth(key: GrowthKey, bytes_per_step: u64) -> Growth {
        let GrowthKey { rank, device, layer, scope } = key;
        Growth { rank, device, scope, layer, bytes_per_step, ..Growth::default() }
    }

    #[test]
    fn a_repeated_cause_is_recognized() {
        let check = |expected: bool, new: GrowthKey, known: GrowthKey, rate: u64| {
            assert_eq!(growth(new, 100).goes_on_with(&known, rate), expected, "{new:?} {known:?}");
        };
        check(true, key(5, Allocated, AllRanks), key(2, Allocated, OneRank), 200);
        check(false, key(5, Allocated, AllRanks), key(2, Allocated, OneRank), 201);
        check(false, key(5, Allocated, AllRanks), key(2, Host, OneRank), 9);
        check(true, key(2, Allocated, OneRank), key(2, Blocks, OneRank), 9);
        check(false, key(3, Allocated, OneRank), key(2, Blocks, OneRank), 9);
        check(true, key(3, Allocated, Role), key(2, Blocks, AllRanks), 9);
        check(false, key(2, Blocks, OneRank), key(2, Allocated, OneRank), 9);
        assert!(key(2, Host, OneRank).narrows(&key(2, Host, AllRanks)));
        assert!(!key(3, Host, OneRank).narrows(&key(2, Host, AllRanks)));
        assert!(!key(2, Host, Role).narrows(&key(2, Host, AllRanks)));
    }
}
