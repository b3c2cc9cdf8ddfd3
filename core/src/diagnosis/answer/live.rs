//! The figures of a diagnosis, brought up to the newest growth.
//!
//! A comparison shows one step; the growth goes on after it. Where all of a growth is kept, its
//! figures are those of the detector: a restart gives all of it back, and a remedy saves the share
//! that the diagnosis explains. Of other classes, what has grown since the comparison is added to
//! what it showed. Everything else stays as the snapshots showed it.

use alloc::string::String;

use super::diagnosis::Diagnosis;
use super::restart::Restart;
use crate::detector::Growth;
use crate::diagnosis::judges::facts::{Outlook, RestartAnswer, Share};

impl Diagnosis {
    /// The sentence about the newest growth; with a forecast only while it goes on.
    pub fn sentence_now(&self, growth: &Growth, is_open: bool) -> String {
        self.parts
            .as_ref()
            .map_or_else(|| self.sentence.clone(), |parts| parts.sentence(growth, is_open))
    }

    /// Bytes grown by now that are explained, and that are not; 0 where no bytes grow. Of a
    /// distance to the peers the capture shows a share only.
    pub fn explained_now(&self, growth: &Growth) -> (u64, u64) {
        let grows = growth.bytes().filter(|_| growth.layer.has_rate());
        let (_, grown_bytes) = grows.unwrap_or_default();
        let explained = self.explained_of(grown_bytes);
        (explained, grown_bytes.saturating_sub(explained))
    }

    /// The explained share of a growth.
    fn explained_of(&self, grown_bytes: u64) -> u64 {
        let explained = u128::from(grown_bytes) * u128::from(self.explained_ppm) / 1_000_000;
        u64::try_from(explained).unwrap_or(u64::MAX)
    }

    /// Do the bytes of a restart and a remedy include the newest growth? Else they are as the
    /// capture showed them.
    pub(crate) fn counts_newest(&self, growth: &Growth) -> bool {
        self.seen.is_some() && (self.kept(growth).is_some() || self.seen_alike(growth).is_some())
    }

    /// Bytes that the remedy saves by now; none where that is not known.
    pub fn saves_bytes_now(&self, growth: &Growth) -> Option<u64> {
        if self.seen.is_none() {
            return self.remedy.saves_bytes;
        }
        let since = self.explained_of(self.grown_since(growth));
        let kept = self.kept(growth).map(|kept| self.explained_of(kept));
        self.remedy.saves_bytes.map(|saves| kept.unwrap_or(saves.saturating_add(since)))
    }

    /// What a restart does by now.
    pub fn restart_now(&self, growth: &Growth, is_open: bool) -> Restart {
        if self.seen.is_none() {
            return self.restart;
        }
        let (since, kept) = (self.grown_since(growth), self.kept(growth));
        let given = self.restart.gives_back_bytes;
        let given = given.map(|given| kept.unwrap_or(given.saturating_add(since)));
        let now = Restart::gives_back(given, growth);
        // A failure has no rate and no steps of its own: what the capture showed stands.
        let shown = self.restart.lasts_steps;
        let lasts_steps = shown.map(|shown| now.lasts_steps.unwrap_or(shown));
        Restart { answer: self.restart.answer, lasts_steps, ..now }
            .ending(growth.steps_to_oom.filter(|_| is_open))
    }

    /// Bytes of the growth, where all of it is kept; none where blocks or steps are counted, or
    /// where only a part of it can be had back.
    fn kept(&self, growth: &Growth) -> Option<u64> {
        let facts = self.class.judge();
        let is_kept = facts.restart == RestartAnswer::GivesBack
            && facts.outlook == Outlook::Fault
            && facts.share != Share::Free;
        (is_kept && growth.layer.is_bytes()).then_some(growth.grown_bytes)
    }

    /// Bytes grown since the comparison. A count of blocks or steps is none.
    fn grown_since(&self, growth: &Growth) -> u64 {
        let seen = self.seen_alike(growth);
        seen.map_or(0, |seen| growth.grown_bytes.saturating_sub(seen.grown_bytes))
    }

    /// The growth as it was compared, where bytes of the same layer grow now.
    fn seen_alike(&self, growth: &Growth) -> Option<&Growth> {
        let is_same = |seen: &&Growth| seen.layer == growth.layer && growth.layer.is_bytes();
        self.seen.as_ref().filter(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detector::Layer;
    use crate::diagnosis::{Class, diagnose};
    use crate::snapshot::RankSnapshot;

    fn growth(last_step: u64, grown_bytes: u64) -> Growth {
        Growth {
            rank: 2,
            onset_step: 100,
            detected_step: 150,
            last_step,
            bytes_per_step: 1 << 20,
            grown_bytes,
            steps_to_oom: Some(500),
            peers: 3,
            ..Growth::default()
        }
    }

    #[test]
    fn what_has_grown_since_the_comparison_counts() {
        let seen = growth(149, 50 << 20);
        let mut known = diagnose(&seen, &RankSnapshot::default(), &[]);
        known.explained_ppm = 500_000;
        known.remedy.saves_bytes = Some(40 << 20);
        known.restart = Restart {
            answer: RestartAnswer::GivesBack,
            gives_back_bytes: Some(50 << 20),
            lasts_steps: Some(50),
            ends_after_steps: Some(550),
        };
        assert_eq!(known.saves_bytes_now(&seen), Some(40 << 20));
        assert_eq!(known.restart_now(&seen, true), known.restart);
        let now = Growth { steps_to_oom: Some(100), ..growth(549, 450 << 20) };
        assert_eq!(known.saves_bytes_now(&now), Some(240 << 20));
        assert_eq!(known.explained_now(&now), (225 << 20, 225 << 20));
        let restart = known.restart_now(&now, true);
        assert_eq!(restart.gives_back_bytes, Some(450 << 20));
        assert_eq!((restart.lasts_steps, restart.ends_after_steps), (Some(450), Some(550)));
        assert_eq!(known.restart_now(&now, false).ends_after_steps, None);
        assert!(known.sentence_now(&now, true).contains("out of memory in about 100 steps"));
        assert!(!known.sentence_now(&now, false).contains("out of memory"));
        // A snapshot that begins after the onset shows less than was kept, and one that is newer
        // than the report of the growth more.
        for class in [Class::Leak, Class::CompilePools, Class::NonTorch] {
            for shown in [20 << 20, 63 << 20] {
                known.class = class;
                known.remedy.saves_bytes = Some(shown / 2);
                known.restart.gives_back_bytes = Some(shown);
                known.restart.lasts_steps = Some(63);
                for growth in [seen, now] {
                    let restart = known.restart_now(&growth, true);
                    assert_eq!(restart.gives_back_bytes, Some(growth.grown_bytes));
                    assert_eq!(restart.lasts_steps, Some(growth.grown_bytes >> 20));
                    assert_eq!(known.saves_bytes_now(&growth), Some(growth.grown_bytes / 2));
                }
            }
        }
        known.class = Class::OutOfMemory;
        let failed = Growth { onset_step: 549, bytes_per_step: 0, ..growth(549, 0) };
        assert_eq!(known.restart_now(&failed, true).lasts_steps, Some(63), "as the capture shows");
        known.class = Class::Unknown;
        known.remedy.saves_bytes = Some(40 << 20);
        // A finding about blocks that is now about bytes counts nothing twice.
        let blocks = Growth { layer: Layer::Blocks, ..now };
        assert_eq!(known.saves_bytes_now(&blocks), Some(40 << 20));
        assert_eq!(known.explained_now(&blocks), (0, 0));
    }
}
