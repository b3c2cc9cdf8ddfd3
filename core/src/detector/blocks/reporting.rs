//! Findings about blocks: one for each rank that grows by itself, and one for all that grow alike.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::census::LineId;
use crate::roles::are_most;
use crate::snapshot::allocation_step;

use super::super::constants::{SETTLED_STEPS, STOPPED_STEPS};
use super::super::findings::{UNFOLLOWED, is_apart};
use super::super::machine::Detector;
use super::super::series::Layer;
use super::super::{Growth, GrowthKey, Scope};
use super::growing::Growing;
use super::line::in_bytes;
use super::state::Open;

/// Most closed findings whose line is kept.
const CLOSED_MAX: usize = 1024;

/// The birth step of what a growth of blocks kept first.
fn first_birth(growth: &Growth) -> u64 {
    growth.onset_step.saturating_sub(1)
}

impl Detector {
    pub(super) fn report_blocks(&mut self, growing: &BTreeMap<u32, Vec<Growing>>) {
        let all = || growing.values().flatten();
        let is_sure = all().any(|one| !one.is_own && one.is_sure);
        let is_shared = |one: &Growing| !one.is_own && one.is_sure == is_sure;
        let mut many: BTreeMap<LineId, usize> = BTreeMap::new();
        for one in all().filter(|one| is_shared(one)) {
            *many.entry(one.line).or_default() += 1;
        }
        let mut found = Vec::new();
        let mut shared: Option<(LineId, Growth)> = None;
        for (rank, lines) in growing {
            let of = |is_it: &dyn Fn(&Growing) -> bool| {
                lines.iter().filter(|one| is_it(one)).copied().collect::<Vec<Growing>>()
            };
            let kept = lines.iter().filter(|one| !one.is_garbage);
            let kept = kept.map(|one| one.held.bytes / one.steps).fold(0, u64::saturating_add);
            found.extend(self.growth(*rank, &of(&|one| one.is_own), kept, &BTreeMap::new()));
            let Some(growth) = self.growth(*rank, &of(&is_shared), kept, &many) else { continue };
            // The rank that ends first stands for all of them.
            let urgency = |growth: &Growth| {
                (growth.steps_to_oom.unwrap_or(u64::MAX), Reverse(growth.bytes_per_step))
            };
            if shared.is_none_or(|known| urgency(&growth.1) < urgency(&known.1)) {
                shared = Some(growth);
            }
        }
        found.extend(shared);
        let lines: BTreeSet<LineId> = all().map(|one| one.line).collect();
        for (line, growth) in found {
            self.report_growth(line, growth, &lines);
        }
    }

    /// Adds up the growth of these lines on a rank, and names the line that grows most. All growing
    /// lines of the rank keep `kept` bytes a step; `many` is the number of ranks that share each
    /// line.
    fn growth(
        &self,
        rank: u32,
        lines: &[Growing],
        kept: u64,
        many: &BTreeMap<LineId, usize>,
    ) -> Option<(LineId, Growth)> {
        let key = self.primary_of(rank)?;
        let series = self.series.get(&key)?;
        let rank_of = |one: &&Growing| (one.is_sure, one.held.bytes / one.steps, one.held.count);
        let main = lines.iter().max_by_key(rank_of)?;
        let many = many.get(&main.line).copied().unwrap_or(1);
        let in_bytes = in_bytes(main.held);
        let layer = if in_bytes { Layer::Allocated } else { Layer::Blocks };
        let rate = |one: &Growing| {
            let amount = if in_bytes { one.held.bytes } else { one.held.count };
            amount / one.steps.max(1)
        };
        let rate = lines.iter().map(rate).fold(0, u64::saturating_add).max(1);
        let (peers, heard) = (self.groups.peers(rank), self.heard_peers(rank));
        // Half of the ranks speak for all, where the others are only later, and heard.
        let are_many = match heard < peers {
            true => are_most(many, peers as usize + 1),
            false => many * 2 > peers as usize,
        };
        let is_one = main.is_own || self.ranks.len() == 1 || !are_many;
        let are_all = self.groups.list.len() == 1 || are_most(many, self.ranks.len());
        let scope = match (is_one, are_all) {
            (true, _) => Scope::OneRank,
            (false, true) => Scope::AllRanks,
            (false, false) => Scope::Role,
        };
        let last_step = series.last_step;
        let steps = last_step.saturating_sub(main.onset_step);
        let onset_step = self.reported_onset(rank, scope, layer, main.line);
        let device = self.blocks.devices.get(&key)?;
        // Measured at the newest census; at the rate in the few steps since then in which the level
        // rose.
        let device_key = GrowthKey { rank, device: key.1, scope, layer };
        let rose_until = self.pause(&device_key, main.onset_step).rose_until();
        let until = rose_until.unwrap_or(last_step).min(last_step);
        let uncounted = rate.saturating_mul(until.saturating_sub(device.step));
        let grown = lines.iter().map(|one| one.grown(device, onset_step, in_bytes));
        let grown_bytes = grown.fold(uncounted, u64::saturating_add);
        let ahead = self.ahead(key, layer, steps, kept.max(rate));
        let growth = Growth {
            rank,
            device: key.1,
            scope,
            onset_step: allocation_step(main.onset_step).min(last_step),
            detected_step: last_step,
            last_step,
            bytes_per_step: rate,
            grown_bytes,
            level_bytes: None,
            layer,
            steps_to_oom: ahead.map(|ahead| ahead.p50),
            forecast: ahead,
            peers: if is_one { heard } else { peers },
            ranks: u32::try_from(many).unwrap_or(u32::MAX),
            returns: 0,
            give_backs: main.collections,
            is_sure: lines.iter().any(|one| one.is_sure),
            paused_since_step: None,
        };
        Some((main.line, growth))
    }

    /// The births at which the open finding about a line began, as it was reported; none where none
    /// is open.
    fn reported_onset(&self, rank: u32, scope: Scope, layer: Layer, line: LineId) -> Option<u64> {
        let is_it = |known: &GrowthKey| {
            let is_same_scope = match scope {
                Scope::OneRank => known.scope == scope && known.rank == rank,
                Scope::Role | Scope::AllRanks => known.scope != Scope::OneRank,
            };
            is_same_scope && known.layer == layer
        };
        let mut open = self.blocks.open.iter();
        let (known, _) = open.find(|(known, open)| is_it(known) && open.line == line)?;
        self.findings.get(known).map(|open| first_birth(&open.growth))
    }

    /// Opens a finding, or updates the open one.
    fn report_growth(&mut self, line: LineId, mut growth: Growth, lines: &BTreeSet<LineId>) {
        let step = growth.last_step;
        let mut key = growth.key();
        // A shared finding keeps the rank that it was opened with.
        let is_shared =
            |known: &GrowthKey| known.scope != Scope::OneRank && known.layer == growth.layer;
        let shared = self.blocks.open.iter().find(|(known, _)| is_shared(known));
        if let Some((known, open)) = shared {
            if growth.scope != Scope::OneRank {
                key = *known;
            } else if self.is_part_of(&growth, line, (known, open)) {
                // The growth of the rank that the shared finding names goes on.
                let shared = (known.rank == growth.rank && open.line == line).then_some(*known);
                if let Some(open) = shared.and_then(|key| self.blocks.open.get_mut(&key)) {
                    open.seen_step = step;
                }
                return;
            }
        }
        if let Some(open) = self.blocks.open.get(&key).copied() {
            // A notice about one line does not become a page about another line, and growth of
            // another line does not keep a finding open.
            let is_another = growth.is_sure && !open.is_sure && open.line != line;
            if open.is_sure && !lines.contains(&open.line) {
                return;
            }
            if !is_another {
                self.renew(&key, open, &growth);
                return;
            }
            self.blocks.open.remove(&key);
            self.findings.close_unfollowed(&key, None, step);
            self.findings.forget(&key);
        }
        // So does one that returns, while that rank is there.
        let was_shared = |(known, of): &(&GrowthKey, &LineId)| {
            let is_here = self.ranks.get(&known.rank).is_some_and(|rank| !rank.has_ended);
            is_here && is_shared(known) && known.scope == growth.scope && **of == line
        };
        if let Some((known, _)) = self.blocks.closed.iter().find(was_shared) {
            (growth.rank, growth.device) = (known.rank, known.device);
        }
        let key = growth.key();
        let group = self.groups.of(key.rank);
        if self.is_reported(&key, group) {
            return;
        }
        if growth.scope == Scope::OneRank && self.joins(&growth, line) {
            return;
        }
        // Growth of another line is a new finding.
        if self.blocks.closed.remove(&key).is_some_and(|closed| closed != line) {
            self.findings.forget(&key);
        }
        self.findings.open(growth, (group, UNFOLLOWED), 0, 0, (step, 0));
        let open = Open { line, seen_step: self.counted_step(&key), is_sure: growth.is_sure };
        self.blocks.open.insert(key, open);
        self.close_alike(&key, (line, growth.is_sure), step);
        if growth.is_sure {
            self.close_what_it_explains(&key, step);
        }
    }

    /// Adds the growth of one rank to an open finding that has the same cause. Returns false when
    /// there is none.
    ///
    /// One notice about a line is enough, however its growth differs between ranks. Certain growth
    /// makes the notice certain that began with it, and is a finding of its own beside others.
    fn joins(&mut self, growth: &Growth, line: LineId) -> bool {
        if let Some(joined) = self.findings.joined(growth) {
            let seen_step = self.counted_step(&joined);
            if let Some(open) = self.blocks.open.get_mut(&joined) {
                open.seen_step = seen_step;
            }
            return true;
        }
        let is_alike = |(key, open): &(&GrowthKey, &Open)| {
            let has_ended = self.ranks.get(&key.rank).is_none_or(|rank| rank.has_ended);
            let is_same = open.line == line && key.layer == growth.layer && !has_ended;
            let known = self.findings.get(key).map(|open| open.growth);
            is_same
                && !open.is_sure
                && (!growth.is_sure || known.is_some_and(|known| known.is_alike(growth)))
        };
        let Some((key, open)) = self.blocks.open.iter().find(is_alike) else { return false };
        let (key, open) = (*key, *open);
        self.findings.join(&key, growth.rank);
        if growth.is_sure {
            self.renew(&key, open, growth);
        }
        true
    }

    /// Is the growth of one rank no more than its part in the shared growth?
    fn is_part_of(
        &self,
        growth: &Growth,
        line: LineId,
        (known, open): (&GrowthKey, &Open),
    ) -> bool {
        let Some(shared) = self.findings.get(known).map(|open| open.growth) else { return false };
        let [own, all] = [growth, &shared].map(|of| of.bytes_per_step.min(i64::MAX as u64) as i64);
        let is_same_line = open.line == line;
        let is_alike = !is_apart(own, all) && (is_same_line || growth.began_with(&shared));
        is_alike || (is_same_line && open.is_sure)
    }

    fn renew(&mut self, key: &GrowthKey, open: Open, growth: &Growth) {
        let is_surer = growth.is_sure && !open.is_sure;
        // A finding that was certain once stays certain until it closes.
        let is_sure = open.is_sure || is_surer;
        let open = Open { seen_step: self.counted_step(key), is_sure, ..open };
        self.blocks.open.insert(*key, open);
        let GrowthKey { rank, device, scope, .. } = *key;
        self.findings.renew(&Growth { rank, device, scope, is_sure, ..*growth });
        if is_surer {
            self.close_what_it_explains(key, growth.last_step);
        }
    }

    /// Closes findings about the same line that a new one covers: about single ranks where all
    /// grow, and about the number of the blocks where their bytes grow. Called after that one is
    /// opened, so that their incident goes on with it.
    fn close_alike(&mut self, new: &GrowthKey, (line, is_sure): (LineId, bool), step: u64) {
        let is_alike = |key: &GrowthKey, open: &Open| {
            let is_same_rank = key.scope == Scope::OneRank && key.rank == new.rank;
            let is_of_new = new.scope != Scope::OneRank || is_same_rank;
            let is_layer = key.layer == new.layer || new.layer.explains(key.layer);
            let is_covered = (is_sure || !open.is_sure) && is_of_new && is_layer;
            key != new && open.line == line && is_covered
        };
        self.close_blocks(step, is_alike);
    }

    /// Closes findings about blocks whose growth has stopped.
    pub(super) fn close_stopped(&mut self) {
        let is_over = |(key, open): (&GrowthKey, &Open)| {
            let step = self.counted_step(key);
            if self.gave_back(key, open) {
                return Some((*key, step, true));
            }
            let unseen_steps = step.saturating_sub(open.seen_step);
            let is_over = unseen_steps > STOPPED_STEPS
                || (unseen_steps > SETTLED_STEPS && self.has_stopped(key, open));
            is_over.then_some((*key, step, false))
        };
        let over: Vec<_> = self.blocks.open.iter().filter_map(is_over).collect();
        for (key, step, gave_back) in over {
            self.close_blocks(step, |of, _| *of == key);
            if gave_back {
                self.findings.note_give_back(&key);
            }
        }
    }

    /// Was the memory of a finding collected since it began? A finding about garbage stays open: it
    /// is about what is collected again and again.
    fn gave_back(&self, key: &GrowthKey, open: &Open) -> bool {
        let known = self.findings.get(key).map(|open| open.growth);
        let device = self.blocks.devices.get(&(key.rank, key.device));
        let line = device.and_then(|device| device.lines.get(&open.line));
        known.zip(line).is_some_and(|(growth, line)| {
            growth.give_backs == 0 && line.collected_steps.1 > growth.detected_step
        })
    }

    /// Has the line of a finding stopped to grow, on the rank or on all that it is about?
    fn has_stopped(&self, key: &GrowthKey, open: &Open) -> bool {
        let Some(since) = self.findings.get(key).map(|open| first_birth(&open.growth)) else {
            return false;
        };
        let is_of = |(rank, _): &(u32, u8)| key.scope != Scope::OneRank || *rank == key.rank;
        let devices = self.blocks.devices.iter().filter(|(key, _)| is_of(key));
        let mut lines = devices.filter_map(|(_, device)| device.lines.get(&open.line)).peekable();
        lines.peek().is_some() && lines.all(|line| line.has_stopped(since))
    }

    /// Newest step at which the blocks of a finding were counted; 0 after its rank has ended. Of
    /// later steps it is not known whether the growth went on.
    fn counted_step(&self, key: &GrowthKey) -> u64 {
        self.blocks.devices.get(&(key.rank, key.device)).map_or(0, |device| device.step)
    }

    fn close_blocks(&mut self, step: u64, is_over: impl Fn(&GrowthKey, &Open) -> bool) {
        let over = self.blocks.open.extract_if(.., |key, open| is_over(key, open));
        for (key, open) in over.collect::<Vec<_>>() {
            self.blocks.closed.insert(key, open.line);
            while self.blocks.closed.len() > CLOSED_MAX {
                self.blocks.closed.pop_first();
            }
            let onset_step = self.findings.get(&key).map_or(0, |open| open.growth.onset_step);
            let rose_step = self.pause(&key, onset_step).since_step();
            self.findings.close_unfollowed(&key, rose_step, step);
        }
    }
}
