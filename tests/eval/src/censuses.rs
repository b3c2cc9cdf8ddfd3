//! What agents would count on the tapes of a played job, and when.
//!
//! The blocks of each course are replayed in the order of their births and ends. A census is due
//! as the agent has it: when enough steps and enough time have passed since the last one.

use std::collections::BTreeMap;
use std::rc::Rc;

use memtape_core::census::line::line_of;
use memtape_core::census::{Census, INTERVAL_MIN_NS, LineId, STEPS_MIN};
use memtape_core::snapshot::{Frame, Held};

use crate::scenario::Scenario;
use crate::world::Run;

/// The censuses of all ranks of a scenario.
pub struct Censuses<'a> {
    scenario: &'a Scenario,
    /// Line and frames of each stack.
    lines: Vec<(LineId, Vec<Frame>)>,
    frames: BTreeMap<LineId, Vec<Frame>>,
    /// By place of the course, which ranks may share.
    courses: BTreeMap<usize, Rc<[Change]>>,
    ranks: BTreeMap<u32, Counted>,
}

/// A block is born or gone at the end of a step.
#[derive(Clone, Copy)]
struct Change {
    step: u64,
    is_birth: bool,
    line: LineId,
    birth: u64,
    bytes: u64,
}

/// One rank as it was counted last.
struct Counted {
    changes: Rc<[Change]>,
    next: usize,
    step: u64,
    at_ns: u64,
    live: BTreeMap<(LineId, u64), Held>,
}

impl<'a> Censuses<'a> {
    /// None was made so far.
    pub fn of(scenario: &'a Scenario) -> Self {
        let lines: Vec<(LineId, Vec<Frame>)> =
            scenario.stacks().map(|stack| line_of(&stack)).collect();
        let frames = lines.iter().cloned().collect();
        Self { scenario, lines, frames, courses: BTreeMap::new(), ranks: BTreeMap::new() }
    }

    /// The census of a rank whose newest step this is; `None` while none is due.
    pub fn due(&mut self, now_ns: u64, rank: u32, step: u64) -> Option<Census> {
        let run = self.scenario.run(rank)?;
        let (courses, lines) = (&mut self.courses, &self.lines);
        let counted = self.ranks.entry(rank).or_insert_with(|| {
            let place = std::ptr::from_ref(run) as usize;
            let changes = courses.entry(place).or_insert_with(|| changes(run, lines)).clone();
            Counted { changes, next: 0, step: 0, at_ns: 0, live: BTreeMap::new() }
        });
        let is_due = step >= counted.step + STEPS_MIN && now_ns >= counted.at_ns + INTERVAL_MIN_NS;
        if !is_due {
            return None;
        }
        (counted.step, counted.at_ns) = (step, now_ns);
        while let Some(change) = counted.changes.get(counted.next).filter(|it| it.step <= step) {
            let key = (change.line, change.birth);
            let held = counted.live.entry(key).or_default();
            if change.is_birth {
                held.add(change.bytes);
            } else {
                *held = Held { bytes: held.bytes - change.bytes, count: held.count - 1 };
                if held.count == 0 {
                    counted.live.remove(&key);
                }
            }
            counted.next += 1;
        }
        let first_step = self.scenario.first_step;
        let live = counted.live.iter();
        let blocks = live.map(|((line, birth), held)| (*line, first_step + birth - 1, *held));
        Some(Census::of(0, first_step + step, blocks, |id| self.frames.get(&id).cloned()))
    }
}

fn changes(run: &Run, lines: &[(LineId, Vec<Frame>)]) -> Rc<[Change]> {
    let mut changes = Vec::new();
    for life in &run.lives {
        let tag = &life.lying.tag;
        let over = if tag.freed == 0 { life.gone } else { life.gone.min(tag.freed) };
        if over <= tag.step {
            continue;
        }
        let line = lines.get(tag.stack as usize).map(|(id, _)| *id).unwrap_or_default();
        let (birth, bytes) = (tag.step, life.lying.size);
        changes.push(Change { step: birth, is_birth: true, line, birth, bytes });
        changes.push(Change { step: over, is_birth: false, line, birth, bytes });
    }
    changes.sort_by_key(|change| (change.step, !change.is_birth));
    changes.into()
}

#[cfg(test)]
mod tests {
    use crate::families::families;

    use super::*;

    #[test]
    fn a_census_holds_what_the_step_ended_with() {
        let family = families().into_iter().find(|family| family.name == "leak_one_rank");
        let scenario = family.and_then(|family| family.scenario(3, 2)).expect("there is one");
        let mut censuses = Censuses::of(&scenario);
        let mut count = 0;
        for step in 1..=scenario.steps {
            let Some(census) = censuses.due(step * scenario.step_ns, 0, step) else { continue };
            count += 1;
            let held =
                census.lines.values().fold(census.other_lines, |sum, line| sum.plus(line.held()));
            let of = scenario.step(0, step).expect("it was played");
            assert_eq!((held.bytes, held.count), (of.end, of.blocks), "step {step}");
        }
        assert!(count > 10, "{count} censuses");
    }
}
