//! What the other ranks of a job did after one of them failed: which ended and when, which go on,
//! and which are behind, stalled, silent or disconnected.
//!
//! It rests on ends and steps alone and not on snapshots, so it is made each time an incident is
//! shown. Ends within [`TOGETHER_NS`] of each other have no order, because clocks and poll
//! schedules differ.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::failure::{SIGKILL, is_crash};
use crate::diagnosis::evidence::context::{Activity, Fate};
use crate::diagnosis::words::{duration, plural, ranks};
use crate::identity::end::{End, TOGETHER_NS};

/// The ranks of a job after a failure.
#[derive(Clone, Copy, Debug)]
pub struct Aftermath<'a> {
    /// The rank that failed.
    pub rank: u32,
    /// Steps that it had finished.
    pub step: u64,
    /// What became of all ranks, this one included.
    pub fates: &'a [Fate],
}

impl<'a> Aftermath<'a> {
    /// What became of the rank that failed.
    pub(super) fn own(&self) -> Option<&'a Fate> {
        self.fates.iter().find(|fate| fate.rank == self.rank)
    }

    fn others(&self) -> impl Iterator<Item = &'a Fate> + use<'a> {
        let own = self.rank;
        self.fates.iter().filter(move |fate| fate.rank != own)
    }

    /// When the ranks were killed, in order, if all were that had not finished before, each within
    /// [`TOGETHER_NS`] of another: a launcher or a scheduler ends many ranks one after the other.
    /// In nanoseconds of Unix time.
    fn kills_ns(&self) -> Option<Vec<i64>> {
        let killed_ns = |fate: &Fate| match fate.end {
            Some((End::Killed, wall_ns)) => Some(wall_ns),
            _ => None,
        };
        let mut kills_ns: Vec<i64> = self.fates.iter().filter_map(killed_ns).collect();
        kills_ns.sort_unstable();
        let first_ns = *kills_ns.first()?;
        let had_finished =
            |of: &Fate| matches!(of.end, Some((End::Exited, wall_ns)) if wall_ns <= first_ns);
        let are_all = self.fates.iter().all(|of| killed_ns(of).is_some() || had_finished(of));
        let mut pairs = kills_ns.iter().zip(kills_ns.iter().skip(1));
        let are_together = pairs.all(|(first, next)| next.saturating_sub(*first) <= TOGETHER_NS);
        (are_all && are_together).then_some(kills_ns)
    }

    /// Was the job ended from outside as a whole, by a person, its scheduler or its launcher? The
    /// rank that failed first was asked to end, or SIGKILL ended all of them together. A signal
    /// that is not known may be that of a crash.
    pub(crate) fn was_stopped(&self) -> bool {
        let has_other_signal = |fate: &Fate| {
            matches!(fate.end, Some((End::Killed, _))) && fate.exit_status != Some(SIGKILL)
        };
        self.may_be_stopped() && (self.was_asked() || !self.fates.iter().any(has_other_signal))
    }

    /// May the job have been ended as a whole? True when all ranks were killed together and no
    /// known status is that of a crash. A launcher that answers the death of one rank asks the
    /// others to end.
    pub(super) fn may_be_stopped(&self) -> bool {
        if self.was_asked() {
            return self.fates.iter().all(|fate| fate.end.is_some());
        }
        let has_crashed = |fate: &Fate| fate.exit_status.is_some_and(is_crash);
        self.kills_ns().is_some()
            && !self.others().any(was_asked)
            && !self.fates.iter().any(has_crashed)
    }

    /// Was the rank that failed first asked to end?
    fn was_asked(&self) -> bool {
        self.own().is_some_and(was_asked)
    }

    /// What the others did, to follow the sentence about the failure; empty while the rank lives.
    pub(crate) fn sentence(&self) -> String {
        let Some((_, own_ns)) = self.own().and_then(|own| own.end) else { return String::new() };
        if let Some([first_ns, .., last_ns]) = self.kills_ns().as_deref() {
            return self.killed_within(last_ns.saturating_sub(*first_ns));
        }
        let is_earlier =
            |of: &&Fate| of.end.is_some_and(|(_, ns)| own_ns.saturating_sub(ns) > TOGETHER_NS);
        let (earlier, ended): (Vec<&Fate>, Vec<&Fate>) =
            self.others().filter(|of| of.end.is_some()).partition(is_earlier);
        let alive = |activity: Activity| -> Vec<&Fate> {
            self.others().filter(|of| of.end.is_none() && of.activity == activity).collect()
        };
        let (behind, stalled) = (alive(Activity::Behind), alive(Activity::Stalled));
        let not_heard = alive(Activity::NotHeard);
        let is_one = |fates: &[&Fate]| fates.len() == 1;
        let mut said = String::new();
        if !earlier.is_empty() {
            said += &format!("; {} had ended before", named(&earlier));
        }
        if !ended.is_empty() {
            said += &format!("; {} ended {}", named(&ended), after(own_ns, &ended));
        }
        let is_oom_kill = |of: &&Fate| matches!(of.end, Some((End::OomKilled, _)));
        let victims: Vec<&Fate> = self.others().filter(is_oom_kill).collect();
        if !victims.is_empty() {
            said += &format!("; the kernel killed {} for memory of the host", named(&victims));
        }
        for (fates, what) in [(&behind, "behind"), (&stalled, "stalled")] {
            if !fates.is_empty() {
                let are = if is_one(fates) { "is" } else { "are" };
                said += &format!("; {} {are} {what} at step {}", named(fates), furthest(fates));
            }
        }
        if !not_heard.is_empty() {
            let (who, step) = (named(&not_heard), furthest(&not_heard));
            said += &format!("; nothing is heard of {who} since step {step}");
        }
        for (fates, does_move) in [(alive(Activity::Moving), true), (alive(Activity::Alive), false)]
        {
            if fates.is_empty() {
                continue;
            }
            let step = furthest(&fates);
            // A rank may finish the step that was under way.
            let goes_on = does_move && step > self.step.saturating_add(1);
            let does = match (goes_on, is_one(&fates)) {
                (true, true) => "goes on and has",
                (true, false) => "go on and have",
                (false, true) => "lives and has",
                (false, false) => "live and have",
            };
            said += &format!("; {} {does} finished step {step}", named(&fates));
        }
        said
    }

    /// The other ranks were killed too, all within this time.
    fn killed_within(&self, spread_ns: i64) -> String {
        let killed = || self.others().filter(|of| matches!(of.end, Some((End::Killed, _))));
        // Without a status it is not known that a signal ended a process.
        let [was, were] = if killed().all(was_asked) {
            ["was asked to end (SIGTERM)", "were asked to end (SIGTERM)"]
        } else if killed().all(|of| of.exit_status.is_some()) {
            ["was killed", "were killed"]
        } else {
            ["ended", "ended"]
        };
        let count = killed().count();
        let who = match (count, self.others().count()) {
            (1, 1) => format!("; its only peer {was}"),
            (1, _) => format!("; one peer {was}"),
            (_, others) if count == others => {
                format!("; its {} {were}", plural(count as u64, "peer"))
            }
            _ => format!("; {} {were}", plural(count as u64, "peer")),
        };
        match spread_ns {
            ..=TOGETHER_NS => format!("{who} at the same time"),
            _ => format!("{who} too, all within {}", duration(spread_ns.unsigned_abs())),
        }
    }
}

fn was_asked(fate: &Fate) -> bool {
    fate.end.is_some_and(|(end, _)| end.was_asked(fate.exit_status))
}

fn named(fates: &[&Fate]) -> String {
    let numbers: Vec<u32> = fates.iter().map(|fate| fate.rank).collect();
    ranks(&numbers, numbers.len())
}

fn furthest(fates: &[&Fate]) -> u64 {
    fates.iter().map(|fate| fate.step).max().unwrap_or(0)
}

/// How long after the first end the last of these ended.
fn after(first_ns: i64, ended: &[&Fate]) -> String {
    let latest = ended.iter().filter_map(|fate| fate.end.map(|(_, ns)| ns)).max();
    let later_ns = latest.unwrap_or(first_ns).saturating_sub(first_ns);
    if later_ns <= TOGETHER_NS {
        return "at about the same time".to_string();
    }
    format!("within {} after it", duration(later_ns.unsigned_abs()))
}
