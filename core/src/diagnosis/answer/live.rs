//! The figures of a diagnosis, brought up to the newest growth.
//!
//! A comparison shows one step; the growth goes on after it. What has grown since is added to what
//! a remedy saves, by the share that the diagnosis explains, and to what a restart gives back, in
//! full. A leak is kept from its onset on, and snapshots may begin later: neither figure is less
//! than the leak. Everything else stays as the snapshots showed it.

use alloc::string::String;

use super::diagnosis::Diagnosis;
use super::restart::Restart;
use crate::detector::{Growth, Layer};
use crate::diagnosis::class::Class;

impl Diagnosis {
    /// The sentence about the newest growth; with a forecast only while it goes on.
    pub fn sentence_now(&self, growth: &Growth, is_open: bool) -> String {
        self.parts
            .as_ref()
            .map_or_else(|| self.sentence.clone(), |parts| parts.sentence(growth, is_open))
    }

    /// Bytes that the remedy saves by now; none where that is not known.
    pub fn saves_bytes_now(&self, growth: &Growth) -> Option<u64> {
        let share = |grown: u64| {
            let explained = u128::from(grown) * u128::from(self.explained_ppm) / 1_000_000;
            u64::try_from(explained).unwrap_or(u64::MAX)
        };
        let (since, kept) = (share(self.grown_since(growth)), share(self.kept(growth)));
        self.remedy.saves_bytes.map(|saves| saves.saturating_add(since).max(kept))
    }

    /// What a restart does by now.
    pub fn restart_now(&self, growth: &Growth, is_open: bool) -> Restart {
        let Some(seen) = &self.seen else { return self.restart };
        let took_steps = growth.last_step.saturating_sub(seen.onset_step);
        let lasts_steps = self.restart.lasts_steps.map(|lasts| lasts.max(took_steps));
        let (since, kept) = (self.grown_since(growth), self.kept(growth));
        let given = self.restart.gives_back_bytes;
        Restart {
            answer: self.restart.answer,
            gives_back_bytes: given.map(|given| given.saturating_add(since).max(kept)),
            lasts_steps,
            ends_after_steps: lasts_steps
                .zip(growth.steps_to_oom.filter(|_| is_open))
                .map(|(lasts, left)| lasts.saturating_add(left)),
        }
    }

    /// Bytes that a leak keeps by now; 0 for other classes and layers.
    fn kept(&self, growth: &Growth) -> u64 {
        let is_kept = self.class == Class::Leak && growth.layer == Layer::Allocated;
        if is_kept { growth.grown_bytes } else { 0 }
    }

    /// Bytes grown since the comparison. A count of blocks or steps is none.
    fn grown_since(&self, growth: &Growth) -> u64 {
        let is_same = |seen: &&Growth| seen.layer == growth.layer && growth.layer.is_bytes();
        let seen = self.seen.as_ref().filter(is_same);
        seen.map_or(0, |seen| growth.grown_bytes.saturating_sub(seen.grown_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::{RestartAnswer, diagnose};
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
            lasts_steps: Some(49),
            ends_after_steps: Some(549),
        };
        assert_eq!(known.saves_bytes_now(&seen), Some(40 << 20));
        assert_eq!(known.restart_now(&seen, true), known.restart);
        let now = Growth { steps_to_oom: Some(100), ..growth(549, 450 << 20) };
        assert_eq!(known.saves_bytes_now(&now), Some(240 << 20));
        let restart = known.restart_now(&now, true);
        assert_eq!(restart.gives_back_bytes, Some(450 << 20));
        assert_eq!((restart.lasts_steps, restart.ends_after_steps), (Some(449), Some(549)));
        assert_eq!(known.restart_now(&now, false).ends_after_steps, None);
        assert!(known.sentence_now(&now, true).contains("out of memory in about 100 steps"));
        assert!(!known.sentence_now(&now, false).contains("out of memory"));
        // A snapshot that begins after the onset shows less than was kept.
        known.class = Class::Leak;
        known.remedy.saves_bytes = Some(10 << 20);
        known.restart.gives_back_bytes = Some(20 << 20);
        assert_eq!(known.saves_bytes_now(&now), Some(225 << 20));
        assert_eq!(known.restart_now(&now, true).gives_back_bytes, Some(450 << 20));
        known.class = Class::Unknown;
        known.remedy.saves_bytes = Some(40 << 20);
        // A finding about blocks that is now about bytes counts nothing twice.
        let blocks = Growth { layer: Layer::Blocks, ..now };
        assert_eq!(known.saves_bytes_now(&blocks), Some(40 << 20));
    }
}
