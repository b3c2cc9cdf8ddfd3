//! Memory that waits for a garbage collector.

use super::*;

#[test]
fn a_collector_sawtooth_is_never_sure() {
    for (period, shift) in [(70, 0), (200, 0), (70, 17)] {
        let mut player = Player::new(4, |rank, step| {
            let phase = (step + u64::from(rank) * shift) % period;
            alloc::vec![Births::one(TESTED, 4 * MIB, step + period - phase)]
        });
        let findings = player.run_to(1_200);
        assert!(!is_any_sure(findings), "period {period}, shift {shift}: {findings:?}");
    }
}

#[test]
fn garbage_that_is_collected_ever_less_often_is_a_notice() {
    // Each collection comes after half as many steps more than the one before.
    let collections: Vec<u64> =
        core::iter::successors(Some(150), |last| Some(last + last / 2)).take(8).collect();
    let next = |step: u64| collections.iter().copied().find(|due| *due > step).unwrap_or(u64::MAX);
    let mut player = Player::new(4, |_, step| alloc::vec![Births::one(TESTED, MIB, next(step))]);
    let findings = player.run_to(1_700);
    let last = reported(findings).last().expect("lifetimes lengthen");
    assert_eq!((last.layer, last.is_sure), (Layer::Allocated, false), "{findings:?}");
}

#[test]
fn garbage_that_takes_a_tenth_of_the_device_is_a_notice_that_says_how_often_it_went() {
    // Collected every 250 steps; what is small, or waits for 50 steps only, does no harm.
    for (period, bytes, is_found) in
        [(250, 36 * MIB, true), (250, 8 * MIB, false), (50, GIB, false)]
    {
        let program = |_, step: u64| {
            let collected = step + period - step % period;
            alloc::vec![Births::one(TESTED, bytes, collected)]
        };
        let mut player = Player::new(2, program);
        let findings = player.run_to(2_000);
        let case = format!("{period} steps, {bytes} B: {findings:?}");
        let of_garbage = reported(findings).filter(|growth| growth.give_backs > 0);
        let last = of_garbage.last();
        assert_eq!(last.is_some(), is_found, "{case}");
        assert!(!is_any_sure(findings), "{case}");
        let Some(growth) = last else { continue };
        assert_eq!((growth.scope, growth.layer), (Scope::AllRanks, Layer::Allocated), "{case}");
        // The finding is about what came after the last collection.
        let opened = opened(findings);
        let opened = opened.iter().find(|growth| growth.give_backs > 0).expect("it was opened");
        assert_eq!((opened.give_backs, opened.onset_step / period), (2, 2), "{case}");
        assert!(opened.bytes_per_step.abs_diff(bytes) <= bytes / 4, "{case}");
    }
}

#[test]
fn a_finding_whose_memory_is_collected_is_over_at_once() {
    // Rank 1 alone keeps what its peer frees, until it is collected.
    let mut player = Player::new(2, |rank, step| {
        let is_on = rank == 1 && step >= 300;
        is_on.then(|| Births::one(TESTED, 8 * MIB, 500)).into_iter().collect()
    });
    let findings = player.run_to(560);
    assert_eq!(opened(findings).len(), 1, "{findings:?}");
    let [(_, at_step)] = closed(findings)[..] else { panic!("{findings:?}") };
    assert!((500..520).contains(&at_step), "{findings:?}");
}

#[test]
fn a_shared_growth_that_was_collected_returns_as_the_same_finding() {
    // First one rank has a little more of it than the other, and later the other.
    let (period, bytes) = (400, 36 * MIB);
    let mut player = Player::new(2, |rank, step| {
        let is_more = (rank == 0) == (step < period);
        let collected = step + period - step % period;
        alloc::vec![Births::one(TESTED, bytes + u64::from(is_more) * MIB, collected)]
    });
    let findings = player.run_to(1_300);
    let [leak, garbage] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!((leak.give_backs, leak.returns), (0, 0), "{findings:?}");
    assert_eq!((garbage.give_backs, garbage.returns), (2, 1), "{findings:?}");
    assert_eq!(leak.key(), garbage.key(), "{findings:?}");
}

#[test]
fn a_shared_growth_that_returns_after_its_rank_has_ended_is_closed_in_the_end() {
    let mut player = Player::new(4, |rank, step| {
        let is_on = (200..500).contains(&step) || (900..1_300).contains(&step);
        let bytes = 8 * MIB + u64::from(rank == 0) * MIB;
        is_on.then(|| Births::one(TESTED, bytes, u64::MAX)).into_iter().collect()
    });
    player.run_to(880);
    let first = opened(&player.findings);
    assert_eq!(first.iter().map(|growth| growth.rank).collect::<Vec<_>>(), [0], "{first:?}");
    player.detector.rank_ended(0);
    let findings = player.run_some_to(2_400, |rank| rank != 0, |_| true);
    let opened = opened(findings);
    assert_eq!((opened.len(), closed(findings).len()), (2, 2), "{findings:?}");
    assert!(opened[1].rank != 0, "{findings:?}");
}
