//! What is said of a job that stands still: which ranks wait in which collective, and which rank
//! has not begun it.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::diagnosis::{Condition, Diagnosis};
use super::restart::Restart;
use super::sentence::Parts;
use crate::capture::collective::{GroupState, Lag, Verdict};
use crate::detector::Growth;
use crate::diagnosis::class::Class;
use crate::diagnosis::evidence::context::Fate;
use crate::diagnosis::evidence::inquiry::Inquiry;
use crate::diagnosis::judges::desynchronised;
use crate::diagnosis::judges::facts::RestartAnswer;
use crate::diagnosis::judges::remedy::{Cause, Remedy};
use crate::diagnosis::words::{count, ranks};

/// Confidence where a rank is seen to be behind the collective of the others, in parts per million.
const BEHIND_PPM: u32 = 950_000;

/// The same where all known ranks wait in one collective, and none is seen to be behind.
const WAITING_PPM: u32 = 700_000;

/// Steps that are named of the ranks, the lowest first.
const STEPS_NAMED_MAX: usize = 4;

pub(crate) fn standstill(inquiry: &Inquiry<'_>) -> Diagnosis {
    let (growth, context) = (inquiry.growth, inquiry.context);
    let groups = context.collectives.iter().flat_map(|known| &known.groups);
    let stuck: Vec<&GroupState> = groups.filter(|group| group.is_stuck()).collect();
    // Where two groups wait for each other, the fewer ranks left a collective out.
    let behind = stuck.iter().filter_map(|group| Some((group, group.holds_up()?)));
    let behind = behind.min_by_key(|(group, _)| group.behind.len());
    let named = behind.map_or(*growth, |(_, rank)| naming(rank, growth, &context.fates));
    let group = behind.map(|(group, _)| *group).or(stuck.first().copied());
    let waits = group.map_or(String::new(), |group| format!("; {}", group.sentence));
    // What the capture shows stays true of it.
    let waited = group.map_or(String::new(), |of| format!("; its capture shows: {}", of.sentence));
    let parts = Parts::of_condition(waits, waited);
    let against = match (&context.collectives, group) {
        (_, Some(_)) => Vec::new(),
        (Some(known), None) => known.sentences.clone(),
        (None, None) => ["how far the ranks are in their collectives is not known".into()].into(),
    };
    let condition = Condition {
        class: if group.is_some() { Class::Desynchronised } else { Class::Unknown },
        confidence_ppm: match (behind, group) {
            (Some(_), _) => BEHIND_PPM,
            (None, Some(_)) => WAITING_PPM,
            (None, None) => 0,
        },
        sentence: parts.sentence(&named, true),
        // Only of a rank of one role with others it is known that it has finished fewer steps.
        evidence: steps(&context.fates, behind.is_some() && named.grown_bytes > 0)
            .into_iter()
            .chain(stuck.iter().filter(|each| Some(**each) != group).map(|of| of.sentence.clone()))
            .collect(),
        against,
        remedy: match (behind, group) {
            (Some((_, rank)), _) => {
                let fate = context.fates.iter().find(|fate| fate.rank == rank);
                desynchronised::remedy(fate.and_then(|fate| fate.pid))
            }
            (None, Some(group)) if group.unknown() > 0 => silent_remedy(),
            (None, Some(_)) => waiting_remedy(),
            (None, None) => unknown_remedy(),
        },
        restart: Restart { answer: RestartAnswer::EndsWaiting, ..Restart::default() },
    };
    let of = Diagnosis::of_condition(growth, condition);
    Diagnosis { seen: Some(named), parts: Some(parts), ..of }
}

impl GroupState {
    /// Do its ranks wait in a collective that does not end?
    fn is_stuck(&self) -> bool {
        matches!(self.verdict, Verdict::Desynchronised | Verdict::Waiting)
    }

    /// The rank that has not begun what the others wait in.
    fn holds_up(&self) -> Option<u32> {
        let late = self.behind.iter().find(|behind| behind.why == Lag::Late);
        late.or(self.behind.first()).map(|behind| behind.rank)
    }
}

/// The standstill with this rank as the one that it names.
fn naming(rank: u32, growth: &Growth, fates: &[Fate]) -> Growth {
    let step = fates.iter().find(|fate| fate.rank == rank).map(|fate| fate.step);
    let onset_step = step.unwrap_or(growth.onset_step);
    // Of a rank of another role the steps do not compare.
    let grown_bytes = if rank == growth.rank { growth.grown_bytes } else { 0 };
    Growth { rank, onset_step, grown_bytes, ..*growth }
}

/// Which steps the ranks have finished. Those that wait for another rank may `run_ahead` of it: a
/// step is finished when the program has given its work to the GPU.
fn steps(fates: &[Fate], run_ahead: bool) -> Option<String> {
    let mut by_step: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let living = fates.iter().filter(|fate| fate.end.is_none());
    living.for_each(|fate| by_step.entry(fate.step).or_default().push(fate.rank));
    let mut said = String::new();
    for (step, of) in by_step.iter().take(STEPS_NAMED_MAX) {
        let has = match (said.is_empty(), of.len()) {
            (true, 1) => "has finished ",
            (true, _) => "have finished ",
            (false, _) => "",
        };
        let next = if said.is_empty() { "" } else { ", " };
        said += &format!("{next}{} {has}step {}", ranks(of, of.len()), count(*step));
    }
    if run_ahead {
        said += "; ranks that wait may have finished later steps: a program gives work to its GPU \
                 in advance";
    }
    (!said.is_empty()).then_some(said)
}

fn waiting_remedy() -> Remedy {
    let text = "all of these ranks have begun the collective: look at the network between their \
                nodes, at the output of NCCL, and at the kernel's log for errors of a GPU";
    Remedy::new(Cause::Collectives, text, None)
}

fn silent_remedy() -> Remedy {
    let text = "a rank that says nothing may be what the others wait for: is its process stopped \
                (state T in `ps`), and which call is it in (`py-spy dump --pid PID`)?";
    Remedy::new(Cause::Collectives, text, None)
}

fn unknown_remedy() -> Remedy {
    let text = "look at the stacks of the ranks (`py-spy dump --pid PID`): which call does each of \
                them wait in?";
    Remedy::new(Cause::Unknown, text, None)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::capture::collective::{Behind, Comparison};
    use crate::detector::{GrowthKey, Layer, Scope};
    use crate::diagnosis::Context;
    use crate::diagnosis::evidence::context::Activity;
    use crate::snapshot::RankSnapshot;

    fn said(collectives: Option<Comparison>, steps: [u64; 4]) -> Diagnosis {
        let fates = (0..).zip(steps);
        let (rank, step) = fates.clone().min_by_key(|(_, step)| *step).expect("there are ranks");
        let fates = fates.map(|(rank, step)| {
            let (end, exit_status, activity) = (None, None, Activity::Stalled);
            Fate { rank, end, exit_status, pid: Some(4_000 + rank), step, activity }
        });
        let context = Context { fates: fates.collect(), collectives, ..Context::default() };
        let (layer, scope) = (Layer::Progress, Scope::AllRanks);
        let key = GrowthKey { rank, device: 0, layer, scope };
        let growth = Growth { ranks: 4, ..Growth::still(&key, (step, 448), 448 - step, 3) };
        let suspect = &RankSnapshot::default();
        Inquiry { growth: &growth, suspect, peers: &[], context: &context, past: None }.diagnose()
    }

    fn group(verdict: Verdict, behind: Vec<Behind>) -> Comparison {
        let sentence =
            "group 0: 3 of 4 ranks wait in collective 448, for 110 s at the capture".to_string();
        let group = GroupState { verdict, behind, sentence, ..GroupState::default() };
        Comparison { groups: [group].into(), ..Comparison::default() }
    }

    #[test]
    fn a_standstill_names_the_rank_that_the_others_wait_for() {
        let behind = [Behind { rank: 2, enqueued: Some(396), ..Behind::default() }].into();
        let found = said(Some(group(Verdict::Desynchronised, behind)), [448, 448, 396, 448]);
        assert_eq!(
            found.sentence,
            "all 4 ranks stand still, rank 2 at step 396 and 52 steps behind its peers; group 0: 3 \
             of 4 ranks wait in collective 448, for 110 s at the capture"
        );
        let (parts, seen) = found.parts.as_ref().zip(found.seen).expect("it is named");
        assert_eq!(
            parts.sentence(&seen, false),
            "all 4 ranks stood still, rank 2 at step 396 and 52 steps behind its peers; its \
             capture shows: group 0: 3 of 4 ranks wait in collective 448, for 110 s at the \
             capture"
        );
        assert!(found.advice.contains("`py-spy dump --pid 4002`"), "{found:?}");
        let steps = "rank 2 has finished step 396, ranks 0, 1 and 3 step 448";
        let later = "; ranks that wait may have finished later steps: a program gives work to its \
                     GPU in advance";
        assert_eq!(found.evidence, [format!("{steps}{later}")]);
        assert_eq!(found.seen.map(|seen| (seen.rank, seen.onset_step)), Some((2, 396)));
        assert_eq!((found.class, found.pages()), (Class::Desynchronised, true));
        // Of another rank it is not known that its steps compare with those of the others.
        let behind = [Behind { rank: 1, ..Behind::default() }].into();
        let found = said(Some(group(Verdict::Desynchronised, behind)), [448, 448, 396, 448]);
        assert_eq!(found.evidence, [steps]);
    }

    #[test]
    fn of_groups_that_wait_for_each_other_the_fewer_ranks_are_named() {
        let of = |rank| Behind { rank, ..Behind::default() };
        let mut known = group(Verdict::Desynchronised, [of(0), of(1)].into());
        let fewer = group(Verdict::Desynchronised, [of(2)].into()).groups;
        known.groups.extend(fewer);
        assert_eq!(said(Some(known), [448; 4]).seen.map(|seen| seen.rank), Some(2));
    }

    #[test]
    fn a_standstill_without_a_rank_to_blame_is_reported() {
        let found = said(Some(group(Verdict::Waiting, Vec::new())), [448; 4]);
        assert_eq!((found.class, found.pages()), (Class::Desynchronised, true));
        assert!(found.advice.contains("network"), "{found:?}");
        let mut silent = group(Verdict::Waiting, Vec::new());
        silent.groups[0].size = 4;
        let found = said(Some(silent), [448; 4]);
        assert!(found.advice.contains("says nothing"), "{found:?}");
        for nothing in [None, Some(Comparison::default())] {
            let found = said(nothing, [448; 4]);
            assert_eq!((found.class, found.pages()), (Class::Unknown, false));
            assert_eq!(found.sentence, "all 4 ranks stand still at step 448");
        }
    }
}
