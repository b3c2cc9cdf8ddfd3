//! The open findings: one for each cause, updated seldom, closed when the growth is over.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::constants::APART_HALVES;
use super::series::{BLOCK_STEPS, Layer, WINDOW};
use super::{Finding, Growth, GrowthKey, Scope};

/// Windows without a new high after which a growth counts as over.
const QUIET_WINDOWS: usize = 2;

/// An update is reported when the expected end moves by an eighth and these steps.
const END_MOVES_STEPS: u64 = 16;
const END_MOVES_DIVISOR: u64 = 8;

/// The scale of a finding that follows no track: the code that opened it judges it again.
pub(super) const UNFOLLOWED: usize = usize::MAX;

/// A value lasts when this many successive points reach it: a checkpoint is no new high.
const LASTING_POINTS: usize = 3;

/// Growth that begins again within this many times its own age, plus these steps, is the same
/// growth after it gave memory back: garbage that is collected too seldom.
const RETURN_AGES: u64 = 4;
const RETURN_STEPS: u64 = 256;

/// Most findings that are kept after they are over.
const OVER_MAX: usize = 1024;

/// One open finding.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) growth: Growth,
    /// Scale at which the growth was found, and is followed.
    pub(super) scale: usize,
    /// Value of the followed track where the growth began.
    pub(super) onset_value: i64,
    /// Smallest rise that counts.
    pub(super) rise_min: i64,
    /// The level climbs: it is known by more than a few stairs.
    pub(super) climbs: bool,
    /// Highest value that lasted.
    best: i64,
    /// Points since then. Steps of which nothing was heard say nothing.
    quiet_points: usize,
    /// Step in which the growth rose last.
    rose_step: u64,
    /// The newest values: a single one may be a spike or a dip.
    newest: [i64; LASTING_POINTS],
    /// The growth as it was last reported.
    reported: Growth,
    /// Ranks that grow alike.
    others: BTreeSet<u32>,
    /// Group of the rank.
    group: usize,
}

impl Open {
    /// Is the finding about growth? Else it is about a difference or a recurring condition.
    pub(super) fn grows(&self) -> bool {
        self.growth.layer.index().is_some()
    }

    /// Reports an update when the growth is larger by more than a quarter, when the end is expected
    /// an eighth (and [`END_MOVES_STEPS`]) earlier or later than reported, when the growth is newly
    /// certain, or when a distance to the peers is another one.
    fn update(&mut self) -> Option<Finding> {
        let larger = self.growth.grown_bytes > (self.reported.grown_bytes / 4).saturating_mul(5);
        let passed = self.growth.last_step.saturating_sub(self.reported.last_step);
        let moved = match (self.growth.steps_to_oom, self.reported.steps_to_oom) {
            (Some(now), Some(before)) => {
                let expected = before.saturating_sub(passed);
                now.abs_diff(expected) > END_MOVES_STEPS + expected / END_MOVES_DIVISOR
            }
            (now, before) => now.is_some() && before.is_none(),
        };
        let surer = self.growth.is_sure && !self.reported.is_sure;
        let is_other = self.growth.layer == Layer::Spread
            && self.growth.grown_bytes != self.reported.grown_bytes;
        if !larger && !is_other && !moved && !surer {
            return None;
        }
        self.reported = self.growth;
        Some(Finding::Updated(self.growth))
    }

    /// The growth at its end: its last step, and the most that had grown.
    fn ended(&self) -> Growth {
        if self.scale == UNFOLLOWED {
            return self.growth;
        }
        let known = self.growth;
        let best_bytes = u64::try_from(self.best - self.onset_value).unwrap_or(0);
        let more_bytes = best_bytes.saturating_sub(known.grown_bytes);
        Growth {
            last_step: self.rose_step.max(known.onset_step).min(known.last_step),
            grown_bytes: known.grown_bytes.saturating_add(more_bytes),
            level_bytes: known.level_bytes.map(|level| level.saturating_add(more_bytes)),
            ..known
        }
    }

    /// Number of ranks that grow alike, the finding's own included.
    fn ranks(&self) -> u32 {
        1 + u32::try_from(self.others.len()).unwrap_or(u32::MAX - 1)
    }

    /// Lowest and highest of the newest values.
    fn range(&self) -> [i64; 2] {
        let fold = |fold: fn(i64, i64) -> i64| self.newest.into_iter().reduce(fold).unwrap_or(0);
        [fold(i64::min), fold(i64::max)]
    }
}

/// A finding that is over.
#[derive(Clone, Copy, Debug)]
struct Over {
    onset_step: u64,
    closed_step: u64,
    returns: u32,
    give_backs: u32,
    /// The growth gave back most of its bytes, and did not merely stop.
    gave_back: bool,
    /// A level of the followed track up to this is no new growth.
    high: i64,
}

impl Over {
    /// Is growth at this step the same growth, begun again?
    fn may_return(&self, step: u64) -> bool {
        let age = self.closed_step.saturating_sub(self.onset_step);
        let reach = age.saturating_mul(RETURN_AGES).saturating_add(RETURN_STEPS);
        step.saturating_sub(self.closed_step) <= reach
    }
}

/// Has a rank a cause of its own? `own` and `shared` are what the rank and all ranks grow by, in
/// any one unit.
pub(super) fn is_apart(own: i64, shared: i64) -> bool {
    own / APART_HALVES > shared / 2
}

#[derive(Debug, Default)]
pub(super) struct Findings {
    open: BTreeMap<GrowthKey, Open>,
    /// Findings whose growth gave back its bytes, or stopped.
    over: BTreeMap<GrowthKey, Over>,
    findings: VecDeque<Finding>,
}

impl Findings {
    pub(super) fn poll(&mut self) -> Option<Finding> {
        self.findings.pop_front()
    }

    pub(super) fn keys(&self) -> Vec<(GrowthKey, usize)> {
        self.open.iter().map(|(&key, open)| (key, open.scale)).collect()
    }

    /// The open findings about a series, and at which scale each is followed.
    pub(super) fn keys_of(&self, rank: u32, device: u8, layer: Layer) -> Vec<(GrowthKey, usize)> {
        let lowest = GrowthKey { rank, device, layer, scope: Scope::OneRank };
        let highest = GrowthKey { scope: Scope::AllRanks, ..lowest };
        let open = self.open.range(lowest..=highest);
        open.map(|(&key, open)| (key, open.scale)).collect()
    }

    /// The open finding about all ranks, or about all ranks of a group.
    pub(super) fn common(&self, layer: Layer, group: usize) -> Option<&Open> {
        let is_common = |open: &&Open| match open.growth.scope {
            Scope::OneRank => false,
            Scope::Role => open.growth.layer == layer && open.group == group,
            Scope::AllRanks => open.growth.layer == layer,
        };
        self.open.values().find(is_common)
    }

    /// Is the value of a track no more than that of growth which has stopped?
    pub(super) fn has_stopped_at(
        &self,
        key: &GrowthKey,
        value: impl FnOnce() -> Option<i64>,
    ) -> bool {
        let stopped = self.over.get(key).filter(|over| !over.gave_back);
        stopped.is_some_and(|over| value().is_some_and(|value| value <= over.high))
    }

    /// Adds a rank to the open finding about another rank that grows alike since about the same
    /// step: both have one cause. Returns the key of that finding.
    pub(super) fn joined(&mut self, growth: &Growth) -> Option<GrowthKey> {
        let is_same = |open: &&mut Open| {
            let known = &open.growth;
            known.layer == growth.layer
                && known.scope == Scope::OneRank
                && known.rank != growth.rank
                && (known.is_sure || !growth.is_sure)
                && growth.is_alike(known)
        };
        let key = self.open.values_mut().find(is_same)?.growth.key();
        self.join(&key, growth.rank);
        Some(key)
    }

    /// Adds a rank to an open finding.
    pub(super) fn join(&mut self, key: &GrowthKey, rank: u32) {
        if let Some(open) = self.open.get_mut(key) {
            open.others.insert(rank);
            open.growth.ranks = open.growth.ranks.max(open.ranks());
        }
    }

    /// Closes findings about ranks that another finding explains.
    pub(super) fn close_caused(&mut self, is_caused: impl Fn(&Growth) -> bool, at_step: u64) {
        for (key, _) in self.keys() {
            if self.get(&key).is_some_and(|open| is_caused(&open.growth)) {
                self.close(&key, at_step);
            }
        }
    }

    pub(super) fn of_rank(&self, rank: u32) -> impl Iterator<Item = &Open> {
        let is_of = move |open: &&Open| open.growth.rank == rank || open.others.contains(&rank);
        self.open.values().filter(is_of)
    }

    pub(super) fn get(&self, key: &GrowthKey) -> Option<&Open> {
        self.open.get(key)
    }

    /// The open finding that this key names.
    pub(super) fn named(&self, key: &GrowthKey) -> Option<&Open> {
        let is_it = |open: &&Open| open.growth.key().names(key);
        self.get(key).or_else(|| self.open.values().find(is_it))
    }

    pub(super) fn open(
        &mut self,
        mut growth: Growth,
        (group, scale): (usize, usize),
        onset_value: i64,
        rise_min: i64,
        last: (u64, i64),
    ) {
        if let Some(before) = self.over.remove(&growth.key())
            && before.may_return(growth.detected_step)
        {
            growth.returns = before.returns.saturating_add(1);
            let give_backs = before.give_backs.saturating_add(u32::from(before.gave_back));
            growth.give_backs = growth.give_backs.max(give_backs);
        }
        let open = Open {
            growth,
            scale,
            onset_value,
            rise_min,
            climbs: false,
            best: last.1,
            quiet_points: 0,
            rose_step: last.0,
            newest: [last.1; LASTING_POINTS],
            reported: growth,
            others: BTreeSet::new(),
            group,
        };
        self.open.insert(growth.key(), open);
        self.findings.push_back(Finding::Opened(growth));
    }

    /// Notes that the level of an open finding climbs.
    pub(super) fn note_climb(&mut self, key: &GrowthKey) {
        if let Some(open) = self.open.get_mut(key) {
            open.climbs = true;
        }
    }

    /// Takes a new point of the followed track; `change` updates the growth's figures. Closes the
    /// finding when the growth gave back its bytes or made no new high.
    pub(super) fn follow(
        &mut self,
        key: &GrowthKey,
        (step, value): (u64, i64),
        change: impl FnOnce(&mut Growth),
    ) {
        let Some(open) = self.open.get_mut(key) else { return };
        open.newest.rotate_left(1);
        open.newest[LASTING_POINTS - 1] = value;
        let [low, high] = open.range();
        let grown = open.best - open.onset_value;
        let points_ago =
            |points: usize| step.saturating_sub(points as u64 * BLOCK_STEPS[open.scale]);
        open.quiet_points += 1;
        if low > open.best + open.rise_min / 4 {
            (open.best, open.quiet_points) = (low, 0);
            open.rose_step = points_ago(LASTING_POINTS - 1);
        }
        let gave_back = high < open.best - grown / 2;
        if gave_back {
            open.rose_step = points_ago(LASTING_POINTS);
        }
        if gave_back || open.quiet_points > QUIET_WINDOWS * WINDOW {
            self.close(key, step);
            if gave_back {
                self.note_give_back(key);
            }
            return;
        }
        open.growth.last_step = open.growth.last_step.max(step);
        open.growth.grown_bytes = u64::try_from(value - open.onset_value).unwrap_or(0);
        change(&mut open.growth);
        self.findings.extend(open.update());
    }

    /// Notes that the growth of a closed finding gave back its bytes.
    pub(super) fn note_give_back(&mut self, key: &GrowthKey) {
        if let Some(over) = self.over.get_mut(key) {
            over.gave_back = true;
        }
    }

    /// Updates a finding that follows no track.
    pub(super) fn renew(&mut self, growth: &Growth) {
        let known = self.open.get_mut(&growth.key());
        if let Some(open) = known.filter(|open| open.scale == UNFOLLOWED) {
            let Growth { onset_step, detected_step, returns, .. } = open.growth;
            // The finding keeps the onset with which it was opened.
            let give_backs = growth.give_backs.max(open.growth.give_backs);
            let ranks = growth.ranks.max(open.ranks());
            open.growth =
                Growth { onset_step, detected_step, returns, give_backs, ranks, ..*growth };
            self.findings.extend(open.update());
        }
    }

    /// Closes a finding whose growth rose last in this step.
    pub(super) fn stop(&mut self, key: &GrowthKey, rose_step: u64, at_step: u64) {
        if let Some(open) = self.open.get_mut(key) {
            open.rose_step = rose_step;
        }
        self.close(key, at_step);
    }

    /// Closes a finding that follows no track, whose growth rose last in this step, where that is
    /// known.
    pub(super) fn close_unfollowed(
        &mut self,
        key: &GrowthKey,
        rose_step: Option<u64>,
        at_step: u64,
    ) {
        let Some(open) = self.open.get_mut(key).filter(|open| open.scale == UNFOLLOWED) else {
            return;
        };
        open.growth.last_step = rose_step.unwrap_or(u64::MAX).min(open.growth.last_step);
        self.close(key, at_step);
    }

    /// Forgets a closed finding: the next one under this key has another cause.
    pub(super) fn forget(&mut self, key: &GrowthKey) {
        self.over.remove(key);
    }

    /// Closes a finding. No other function does.
    pub(super) fn close(&mut self, key: &GrowthKey, at_step: u64) {
        if let Some(open) = self.open.remove(key) {
            let growth = open.ended();
            if open.grows() {
                let Growth { onset_step, returns, give_backs, .. } = growth;
                let (closed_step, gave_back) = (at_step, false);
                let high = open.best.saturating_add(open.rise_min / 2);
                let over = Over { onset_step, closed_step, returns, give_backs, gave_back, high };
                self.over.insert(*key, over);
            }
            while self.over.len() > OVER_MAX {
                self.over.pop_first();
            }
            self.findings.push_back(Finding::Closed(growth));
        }
    }
}
