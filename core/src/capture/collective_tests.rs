//! Captures of several kinds, and runs that are made up: healthy ones, and such with a rank that
//! does not come.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::snapshot::CollectiveSource;

const S: i64 = 1_000_000_000;

/// A rank's table with one group: enqueued and completed numbers, since and poll time in seconds.
fn table(enqueued: i64, completed: i64, since_s: i64, look_s: i64) -> Collectives {
    let number = |number: i64| u64::try_from(number).ok();
    Collectives {
        source: CollectiveSource::FlightRecorder,
        look_wall_ns: look_s * S,
        groups: [CollectiveGroup {
            key: 7,
            name: "0".into(),
            desc: "default_pg".into(),
            size: 4,
            enqueued: number(enqueued),
            completed: number(completed),
            since_wall_ns: since_s * S,
            ..CollectiveGroup::default()
        }]
        .into(),
        ..Collectives::default()
    }
}

fn compared(tables: &[Collectives], dead: &[u32]) -> Comparison {
    let ranks: Vec<RankState<'_>> = (0..)
        .zip(tables)
        .map(|(rank, table)| RankState { rank, dead: dead.contains(&rank), state: Ok(table) })
        .collect();
    compare(&ranks)
}

fn check(tables: &[Collectives], dead: &[u32], verdict: Verdict, sentence: &str) {
    let found = compared(tables, dead);
    let [group] = found.groups.as_slice() else { panic!("one group: {found:?}") };
    assert_eq!((group.verdict, group.sentence.as_str()), (verdict, sentence), "{group:#?}");
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let waits = || table(812, 811, 100, 114);
    check(
        &[waits(), waits(), table(811, 811, 90, 114), waits()],
        &[],
        Verdict::Desynchronised,
        "group 0 (default_pg): 3 of 4 ranks wait in collective 812, for 14 s at the capture; \
         rank 2 has enqueued only 811: it is desynchronised, not leaking",
    );
    check(
        &[waits(), waits(), table(-1, -1, 90, 113), waits()],
        &[],
        Verdict::Desynchronised,
        "group 0 (default_pg): 3 of 4 ranks wait in collective 812, for 14 s at the capture; \
         rank 2 has enqueued none: it is desynchronised, not leaking",
    );
    check(
        &[waits(), waits(), table(811, 811, 90, 99), waits()],
        &[2],
        Verdict::Desynchronised,
        "group 0 (default_pg): 3 of 4 ranks wait in collective 812, for 14 s at the capture; \
         rank 2 is dead; in its last reading it had enqueued 811",
    );
    // The peers have given their GPUs different amounts of work behind it.
    let ahead = |enqueued| table(enqueued, 811, 100, 114);
    check(
        &[ahead(852), ahead(840), table(811, 811, 90, 114), ahead(852)],
        &[],
        Verdict::Desynchronised,
        "group 0 (default_pg): 3 of 4 ranks wait in collective 812, for 14 s at the capture, \
         with more enqueued up to 852; rank 2 has enqueued only 811: it is desynchronised, not \
         leaking",
    );
    check(
        &[waits(), table(811, 811, 10, 94)],
        &[],
        Verdict::Waiting,
        "group 0 (default_pg): 1 of 4 ranks waits in collective 812, for 14 s at the capture; \
         rank 1 had enqueued 811 in its last reading, 20 s before: it is stopped, or cannot \
         be read; 2 ranks are not known",
    );
}

#[test]
fn a_dead_rank_that_had_enqueued_more_waits_for_nothing() {
    let waits = || table(852, 811, 100, 114);
    check(
        &[waits(), waits(), table(830, 811, 90, 99), waits()],
        &[2],
        Verdict::Desynchronised,
        "group 0 (default_pg): 3 of 4 ranks wait in collective 812, for 14 s at the capture, \
         with more enqueued up to 852; rank 2 is dead; in its last reading it had enqueued 830",
    );
}

#[test]
fn a_difference_that_poll_times_explain_is_no_finding() {
    let step = "group 0 (default_pg): 4 of 4 ranks are in step, at collective 812";
    let fresh = || table(812, 811, 100, 101);
    // Behind by one, or by many, in a look that is hardly younger, or older.
    for behind in [table(811, 811, 99, 104), table(700, 699, 90, 90), table(811, 810, 80, 99)] {
        check(&[fresh(), fresh(), behind, fresh()], &[], Verdict::InStep, step);
    }
    check(&[fresh(), fresh(), fresh(), table(812, 812, 100, 101)], &[], Verdict::InStep, step);
    // A dead rank is not in step, whatever it had enqueued.
    let alive = "group 0 (default_pg): 3 of 4 ranks live, at collective 812; rank 1 is dead";
    let there = format!("{alive} and had enqueued it");
    check(&[fresh(), fresh(), fresh(), fresh()], &[1], Verdict::InStep, &there);
    let before = format!("{alive}; in its last reading it had enqueued 664");
    check(&[fresh(), table(664, 664, 90, 90), fresh(), fresh()], &[1], Verdict::InStep, &before);
    // All wait, but for a moment only: a collective takes its time.
    check(&[fresh(), fresh(), fresh(), fresh()], &[], Verdict::InStep, step);
}

#[test]
fn all_ranks_in_one_collective_differ_from_a_missing_rank() {
    let waits = || table(812, 811, 100, 114);
    check(
        &[waits(), waits(), waits(), waits()],
        &[],
        Verdict::Waiting,
        "group 0 (default_pg): all 4 ranks wait in collective 812, for 14 s at the capture; no \
         rank is known to be behind",
    );
    check(
        &[waits(), waits(), waits()],
        &[],
        Verdict::Waiting,
        "group 0 (default_pg): 3 of 4 ranks wait in collective 812, for 14 s at the capture; \
         1 rank is not known, and may not have begun it",
    );
}

#[test]
fn where_one_rank_has_completed_no_rank_waits() {
    let through = || table(812, 812, 100, 114);
    check(
        &[through(), table(812, 811, 100, 114), table(811, 811, 90, 114), through()],
        &[],
        Verdict::Uneven,
        "group 0 (default_pg): the ranks' numbers differ, up to 812, and no rank waits: its \
         operations do not wait for all ranks",
    );
}

#[test]
fn an_unknown_verdict_is_reported_with_its_reason() {
    let off = Collectives { source: CollectiveSource::Off, ..Collectives::default() };
    let mut hung = table(5, 4, 1, 2);
    (hung.asked_wall_ns, hung.groups_lost) = (3 * S, 1);
    hung.source = CollectiveSource::Making;
    let mut nameless = table(5, 4, 1, 20);
    nameless.groups[0].key = 0;
    let ranks = [
        RankState { rank: 9, dead: false, state: Ok(&off) },
        RankState { rank: 2, dead: false, state: Ok(&hung) },
        RankState { rank: 4, dead: false, state: Ok(&off) },
        RankState { rank: 5, dead: false, state: Err("no answer in time") },
        RankState { rank: 6, dead: false, state: Ok(&nameless) },
    ];
    let found = compare(&ranks);
    assert_eq!(
        found.sentences,
        [
            "group 0 (default_pg): 1 of 4 ranks are in step, at collective 5; 3 ranks are not \
             known",
            "rank 2: the flight recorder was asked and had not answered",
            "rank 5: not known: no answer in time",
            "rank 2: not known: since its last look: an NCCL communicator is being made",
            "ranks 4 and 9: not known: the flight recorder is off (TORCH_FR_BUFFER_SIZE)",
            "rank 6 waits in a collective of a group that is not identified",
            "2 groups of ranks are not compared: they are not identified",
        ]
    );
    assert_eq!(compare(&[]), Comparison::default());
    assert!(compare(&[]).sentences.is_empty());
}

#[test]
fn of_many_ranks_few_are_named() {
    let mut tables: Vec<Collectives> = (0..30).map(|_| table(3, 3, 1, 114)).collect();
    tables.extend((0..2).map(|_| table(4, 3, 100, 114)));
    let found = compared(&tables, &[]);
    let sentence = &found.groups[0].sentence;
    assert!(sentence.starts_with("group 0 (default_pg): 2 of 32 ranks wait"), "{sentence}");
    assert!(sentence.ends_with("; 22 more ranks are behind"), "{sentence}");
    let off = Collectives { source: CollectiveSource::Off, ..Collectives::default() };
    let ranks: Vec<RankState<'_>> =
        (0..30).map(|rank| RankState { rank, dead: false, state: Ok(&off) }).collect();
    assert!(
        compare(&ranks).sentences[0].starts_with("ranks 0, 1, 2, 3 and 26 others: not known: ")
    );
}

/// A run of some ranks: times at which each enqueues each collective, in milliseconds.
struct Run {
    /// Times by rank, then by collective.
    enqueued_ms: Vec<Vec<u64>>,
}

impl Run {
    fn is_over(&self, collective: usize, at_ms: u64) -> bool {
        self.enqueued_ms.iter().all(|rank| rank.get(collective).is_some_and(|&ms| ms <= at_ms))
    }

    /// Result of a poll at this time: newest enqueued and completed numbers.
    fn look(&self, rank: usize, at_ms: u64) -> (Option<u64>, Option<u64>) {
        let begun = self.enqueued_ms[rank].iter().take_while(|&&ms| ms <= at_ms).count();
        let over = (0..begun).take_while(|&number| self.is_over(number, at_ms)).count();
        let last = |count: usize| (count as u64).checked_sub(1);
        (last(begun), last(over))
    }

    /// A rank's table after polls once a second, the first and last of them at these times.
    fn table(&self, rank: usize, first_ms: u64, last_ms: u64) -> Collectives {
        let found = self.look(rank, last_ms);
        let mut since_ms = last_ms;
        while since_ms >= first_ms + 1000 && self.look(rank, since_ms - 1000) == found {
            since_ms -= 1000;
        }
        let mut table = table(0, 0, 0, 0);
        table.look_wall_ns = last_ms as i64 * (S / 1000);
        let group = &mut table.groups[0];
        (group.enqueued, group.completed) = found;
        (group.since_wall_ns, group.size) =
            (since_ms as i64 * (S / 1000), self.enqueued_ms.len() as u32);
        table
    }
}

/// A run in which no rank is ever later to a collective than this after the first one.
fn run(ranks: usize, pauses_ms: &[u64], lags_ms: &[u64]) -> Run {
    let mut lags = lags_ms.iter().copied().cycle();
    let mut enqueued_ms = alloc::vec![Vec::new(); ranks];
    let mut start_ms = 0;
    for pause_ms in pauses_ms {
        start_ms += pause_ms;
        for rank in &mut enqueued_ms {
            let before = rank.last().copied().unwrap_or(0);
            rank.push(before.max(start_ms + lags.next().unwrap_or(0)));
        }
        start_ms = enqueued_ms.iter().filter_map(|rank| rank.last().copied()).max().unwrap_or(0);
    }
    Run { enqueued_ms }
}

proptest! {
    /// Ranks that come within the margin are never called desynchronised, for any poll times and
    /// any clock errors within the remaining margin.
    #[test]
    fn a_healthy_run_has_no_finding(
        ranks in 2usize..6,
        pauses in prop::collection::vec(0u64..20_000, 1..30),
        lags in prop::collection::vec(0u64..2_400, 1..20),
        looks in prop::collection::vec((0u64..1_000, 0u64..400_000), 6),
    ) {
        let run = run(ranks, &pauses, &lags);
        let tables: Vec<Collectives> = (0..ranks)
            .map(|rank| run.table(rank, looks[rank].0, looks[rank].0 + looks[rank].1))
            .collect();
        let found = compared(&tables, &[]);
        for group in &found.groups {
            prop_assert!(group.verdict != Verdict::Desynchronised, "{:?}", group.sentence);
        }
    }

    /// A rank that stops coming is named, and no other, once all ranks were polled later.
    #[test]
    fn a_rank_that_stops_coming_is_named_and_no_other(
        ranks in 2usize..6,
        pauses in prop::collection::vec(0u64..2_000, 2..30),
        lags in prop::collection::vec(0u64..2_400, 1..20),
        which in any::<prop::sample::Index>(),
        left in 1usize..30,
        phases in prop::collection::vec(0u64..1_000, 6),
        wait_ms in 8_000u64..60_000,
    ) {
        let mut run = run(ranks, &pauses, &lags);
        let lost = which.index(ranks);
        let comes_to = pauses.len().saturating_sub(left);
        run.enqueued_ms[lost].truncate(comes_to);
        // All others go on to the first that it does not come to.
        for rank in &mut run.enqueued_ms {
            rank.truncate(comes_to + 1);
        }
        let last_ms = run.enqueued_ms.iter().flatten().max().copied().unwrap_or(0) + wait_ms;
        let tables: Vec<Collectives> =
            (0..ranks).map(|rank| run.table(rank, phases[rank], last_ms + phases[rank])).collect();
        let found = compared(&tables, &[]);
        let group = &found.groups[0];
        prop_assert_eq!(group.verdict, Verdict::Desynchronised, "{}", group.sentence);
        let behind: Vec<u32> = group.behind.iter().map(|behind| behind.rank).collect();
        prop_assert_eq!(behind, [lost as u32]);
        prop_assert_eq!(group.waiting.len(), ranks - 1);
        // The order of the ranks does not matter.
        let mut states: Vec<RankState<'_>> = (0..)
            .zip(&tables)
            .map(|(rank, table)| RankState { rank, dead: false, state: Ok(table) })
            .collect();
        states.reverse();
        prop_assert_eq!(compare(&states), found);
    }

    /// For any tapes, the comparison gives sentences of one line.
    #[test]
    fn any_tables_end_in_sentences(
        tables in prop::collection::vec(
            prop::collection::vec(
                (0u64..3, any::<Option<u64>>(), any::<Option<u64>>(), any::<i64>(), any::<u32>()),
                0..4,
            ),
            0..8,
        ),
        looks in prop::collection::vec((any::<i64>(), any::<bool>()), 8),
    ) {
        let tables: Vec<Collectives> = tables
            .into_iter()
            .zip(&looks)
            .map(|(groups, &(look_wall_ns, _))| Collectives {
                look_wall_ns,
                groups: groups
                    .into_iter()
                    .map(|(key, enqueued, completed, since_wall_ns, size)| CollectiveGroup {
                        key, enqueued, completed, since_wall_ns, size,
                        name: format!("{key}"), ..CollectiveGroup::default()
                    })
                    .collect(),
                ..Collectives::default()
            })
            .collect();
        let ranks: Vec<RankState<'_>> = (0..)
            .zip(tables.iter().zip(&looks))
            .map(|(rank, (table, &(_, dead)))| RankState { rank, dead, state: Ok(table) })
            .collect();
        let sentences: Vec<String> = compare(&ranks).sentences;
        prop_assert!(sentences.iter().all(|line| !line.contains('\n') && !line.is_empty()));
    }
}
