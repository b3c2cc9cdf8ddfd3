//! What sets groups apart: hand-made groups whose answer is known, and rules that hold for all.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::allowance::{About, Allowance, Most};
use super::{Difference, Differences, Groups, Kind, Level, Member, differences};
use crate::account::Account;
use crate::census::{Census, LineCensus, LineId};
use crate::limits::DIFFERENCES_MAX;
use crate::snapshot::{Frame, Held};

const MIB: u64 = 1 << 20;

fn line(number: u32, bytes: u64) -> (LineId, LineCensus) {
    let frame = Frame { file: "/app/train.py".to_string(), line: number, ..Frame::default() };
    let cohorts = BTreeMap::from([(1, Held { bytes, count: 1 })]);
    (LineId(u64::from(number)), LineCensus { frames: vec![frame], cohorts })
}

fn member(rank: u32, bytes: u64, lines: &[(u32, u64)], traits: &[(Kind, &str)]) -> Member {
    let lines = lines.iter().map(|(number, bytes)| line(*number, *bytes)).collect();
    Member {
        rank,
        values: BTreeMap::from([(Account::Allocated, bytes), (Account::StepTime, 1000)]),
        traits: traits.iter().map(|(of, value)| (*of, (*value).to_string())).collect(),
        censuses: vec![Census { step: 9, lines, ..Census::default() }],
    }
}

fn shown(found: &Differences) -> Vec<(Kind, String, i32, u32)> {
    let name = |of: &Difference| match of.frames.first() {
        Some(frame) => frame.line.to_string(),
        None => of.name.clone(),
    };
    let row = |of: &Difference| (of.kind, name(of), of.separation_permille, of.explains_permille);
    found.listed.iter().map(row).collect()
}

#[test]
fn a_line_that_keeps_memory_on_one_node_is_first_and_the_node_beside_it() {
    let node = |name| [(Kind::Node, name), (Kind::Role, "dp")];
    let all = |rank: u32| match rank {
        0 | 1 => member(rank, 400 * MIB, &[(36, 300 * MIB), (7, 100 * MIB)], &node("a")),
        _ => member(rank, 110 * MIB, &[(36, 10 * MIB), (7, 100 * MIB)], &node("b")),
    };
    let (chosen, others): (Vec<_>, Vec<_>) = (0..6).map(all).partition(|member| member.rank < 2);
    let found = differences(Groups::Ranks, &chosen, &others);
    assert_eq!(
        shown(&found),
        [
            (Kind::Line, "36".to_string(), 1000, 1000),
            (Kind::Node, "a".to_string(), 1000, 1000),
            (Kind::Node, "b".to_string(), -1000, 1000),
            (Kind::Account, "allocated".to_string(), 1000, 725),
            (Kind::Account, "step_time".to_string(), 0, 0),
        ]
    );
    let line = found.listed.first().expect("a line");
    let level = |median: u64, ranks, rank| Level {
        ranks,
        median,
        highest: median,
        highest_rank: Some(rank),
    };
    assert_eq!(line.chosen, level(300 * MIB, 2, 0));
    assert_eq!(line.baseline, level(10 * MIB, 4, 2));
    assert_eq!((found.lines_left_out, found.traits_left_out), (0, 0));
}

/// Two nodes of four ranks, on which the leaking ones have 400 MiB instead of 300 MiB by line 36.
fn nodes(leaking: &[u32]) -> Vec<Member> {
    let local_ranks = ["0", "1", "2", "3"];
    let of = |rank: u32| {
        let node = if rank < 4 { "a" } else { "b" };
        let local = local_ranks.get(rank as usize % 4).copied().unwrap_or_default();
        let bytes = if leaking.contains(&rank) { 400 * MIB } else { 300 * MIB };
        member(rank, bytes, &[(36, bytes)], &[(Kind::Node, node), (Kind::LocalRank, local)])
    };
    (0..8).map(of).collect()
}

/// Compares the chosen ranks of [`nodes`] with the others.
fn among_nodes(chosen: &[u32], leaking: &[u32]) -> Differences {
    let (chosen, others): (Vec<_>, Vec<_>) =
        nodes(leaking).into_iter().partition(|member| chosen.contains(&member.rank));
    differences(Groups::Ranks, &chosen, &others)
}

#[test]
fn a_label_stands_below_what_was_measured() {
    for chosen in [[0, 1].as_slice(), &[0, 4], &[0, 1, 2, 3]] {
        for kind in [Kind::Line, Kind::Account] {
            let mut all = nodes(chosen);
            // Without lines, the account is all that was measured.
            if kind == Kind::Account {
                all.iter_mut().for_each(|member| member.censuses.clear());
            }
            let (chosen, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|member| chosen.contains(&member.rank));
            let found = shown(&differences(Groups::Ranks, &chosen, &others));
            assert_eq!(found.first().map(|(kind, ..)| *kind), Some(kind), "{found:?}");
            assert!(found.iter().any(|(kind, ..)| *kind > Kind::Account), "{found:?}");
        }
    }
    // Nothing was measured that a label could explain.
    let found = among_nodes(&[0, 4], &[]);
    assert!(found.listed.iter().all(|row| row.explains_permille == 0), "{found:?}");
    assert!(found.listed.iter().any(|row| row.separation_permille == 1000), "{found:?}");
}

#[test]
fn nodes_and_local_ranks_that_only_name_the_chosen_ranks_are_left_out() {
    for (chosen, kind) in
        [([0].as_slice(), Kind::Node), (&[0], Kind::LocalRank), (&[0, 1], Kind::LocalRank)]
    {
        let found = shown(&among_nodes(chosen, chosen));
        assert!(found.iter().all(|(of, ..)| *of != kind), "{chosen:?} {found:?}");
    }
}

#[test]
fn one_leaking_rank_of_two_chosen_ones_is_not_hidden() {
    let found = among_nodes(&[0, 1], &[1]);
    let line = found.listed.first().expect("the line");
    assert_eq!(
        (line.kind, line.separation_permille, line.explains_permille),
        (Kind::Line, 500, 500)
    );
    assert_eq!((line.chosen.highest_rank, line.chosen.highest), (Some(1), 400 * MIB));
    // Of the others it sets nothing apart, nor where both groups have one.
    for leaking in [[5].as_slice(), &[1, 5]] {
        let found = among_nodes(&[0, 1], leaking);
        assert!(found.listed.iter().all(|row| row.explains_permille == 0), "{found:?}");
    }
}

#[test]
fn a_trait_that_each_rank_has_for_itself_explains_nothing() {
    let names = ["a", "b", "c", "d"];
    let of = |rank: u32| {
        let name = names.get(rank as usize).copied().unwrap_or_default();
        member(rank, MIB, &[], &[(Kind::Node, name)])
    };
    let (chosen, others): (Vec<_>, Vec<_>) = (0..4).map(of).partition(|member| member.rank == 2);
    let found = shown(&differences(Groups::Ranks, &chosen, &others));
    assert!(found.iter().all(|(kind, ..)| *kind == Kind::Account), "{found:?}");
}

#[test]
fn lines_of_a_group_that_is_not_counted_are_not_compared() {
    let counted = member(0, 5 * MIB, &[(1, MIB)], &[]);
    let uncounted = Member { censuses: Vec::new(), ..member(1, MIB, &[], &[]) };
    let found = shown(&differences(Groups::Runs, &[counted], &[uncounted]));
    assert!(found.iter().all(|(kind, ..)| *kind == Kind::Account), "{found:?}");
}

#[test]
fn an_account_that_a_group_lacks_is_not_compared() {
    let mut other = member(1, MIB, &[], &[]);
    other.values.remove(&Account::StepTime);
    let found = shown(&differences(Groups::Runs, &[member(0, MIB, &[], &[])], &[other]));
    assert_eq!(found, [(Kind::Account, "allocated".to_string(), 0, 0)]);
    assert_eq!(differences(Groups::Runs, &[], &[]), Differences::default());
}

#[test]
fn an_allowance_is_about_the_highest_rank() {
    let level = |highest| Level { highest, median: 1, ..Level::default() };
    let allowance = |word: &str, most| Allowance { of: word.parse().expect("a word"), most };
    let percent = allowance("peak", Most::Permille(50));
    assert!(!percent.is_exceeded(&level(1050), &level(1000)));
    assert!(percent.is_exceeded(&level(1051), &level(1000)));
    assert!(!percent.is_exceeded(&level(1), &level(1000)));
    let amount = allowance("line", Most::Amount(0));
    assert!(amount.is_exceeded(&level(1), &level(0)));
    assert!(!amount.is_exceeded(&level(u64::MAX), &level(u64::MAX)));
    assert!(amount.is_about(Kind::Line, ""));
    assert!(percent.is_about(Kind::Account, "peak"));
    assert!(!percent.is_about(Kind::Account, "reserved"));
    assert!(!percent.is_about(Kind::Node, "peak"));
    assert!("peeks".parse::<About>().is_err());
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    let lines = prop::collection::vec((0_u32..90, 0_u64..1000), 0..90);
    let traits = prop::collection::vec((0_usize..5, 0_usize..3), 0..5);
    let of =
        (0_u32..64, 0_u64..u64::MAX, lines, traits).prop_map(|(rank, bytes, lines, traits)| {
            let kinds = [Kind::Setting, Kind::Role, Kind::DeviceSize, Kind::LocalRank, Kind::Node];
            let traits: Vec<(Kind, &str)> = traits
                .into_iter()
                .filter_map(|(of, value)| Some((*kinds.get(of)?, *["x", "y", "z"].get(value)?)))
                .collect();
            member(rank, bytes, &lines, &traits)
        });
    prop::collection::vec(of, 0..8)
}

#[test]
fn a_rank_like_most_others_is_not_set_apart_by_the_one_that_leaks() {
    let of = |rank: u32| member(rank, MIB, &[(36, u64::from(rank == 2) * MIB)], &[]);
    let (chosen, others): (Vec<_>, Vec<_>) = (0..4).map(of).partition(|member| member.rank == 3);
    let found = differences(Groups::Ranks, &chosen, &others);
    assert!(found.listed.iter().all(|row| row.explains_permille == 0), "{found:?}");
    assert!(found.listed.iter().all(|row| row.kind == Kind::Account), "{found:?}");
}

#[test]
fn many_traits_leave_room_for_the_line_that_grew_most() {
    let node = |rank: u32| (0..64).map(move |of| (Kind::Node, (rank, of)));
    let of = |rank: u32, grown: u64| {
        let mut member = member(rank, MIB, &[(36, 1 + grown), (7, MIB)], &[]);
        member.traits = node(rank % 2).map(|(of, name)| (of, alloc::format!("{name:?}"))).collect();
        member
    };
    let run: Vec<Member> = (0..8).map(|rank| of(2 * rank, u64::from(rank == 3) * MIB)).collect();
    let earlier: Vec<Member> = (0..8).map(|rank| of(2 * rank + 1, 0)).collect();
    let found = differences(Groups::Runs, &run, &earlier);
    assert_eq!((found.lines_left_out, found.traits_left_out), (0, 64));
    let grown = found.listed.iter().find(|row| row.kind == Kind::Line).expect("the line");
    assert_eq!((grown.chosen.highest, grown.chosen.highest_rank), (MIB + 1, Some(6)));
}

proptest! {
    /// Exchanged groups have the same differences with the other sign; parts are parts; the list
    /// is in order and bounded.
    #[test]
    fn groups_can_be_exchanged(chosen in members(), others in members()) {
        let found = differences(Groups::Ranks, &chosen, &others);
        let exchanged = differences(Groups::Ranks, &others, &chosen);
        let sum = |of: &Differences| {
            let separations = of.listed.iter().map(|row| i64::from(row.separation_permille));
            (of.listed.len(), of.lines_left_out + of.traits_left_out, separations.sum::<i64>())
        };
        let (rows, left_out, separations) = sum(&found);
        prop_assert_eq!((rows, left_out), (sum(&exchanged).0, sum(&exchanged).1));
        if left_out == 0 {
            prop_assert_eq!(separations, -sum(&exchanged).2);
        }
        let explained: Vec<u32> = found.listed.iter().map(|row| row.explains_permille).collect();
        prop_assert!(explained.is_sorted_by(|one, next| one >= next));
        prop_assert!(explained.iter().all(|part| *part <= 1000));
        let is_part = |row: &Difference| (-1000..=1000).contains(&row.separation_permille);
        prop_assert!(found.listed.iter().all(is_part));
        let count = |is_it: fn(Kind) -> bool| {
            found.listed.iter().filter(|row| is_it(row.kind)).count()
        };
        let lines = count(|kind| kind == Kind::Line);
        let traits = count(|kind| !matches!(kind, Kind::Line | Kind::Account));
        prop_assert!(found.lines_left_out == 0 || lines == DIFFERENCES_MAX);
        prop_assert!(found.traits_left_out == 0 || traits == DIFFERENCES_MAX);
        prop_assert!(lines.max(traits) <= DIFFERENCES_MAX);
    }
}
