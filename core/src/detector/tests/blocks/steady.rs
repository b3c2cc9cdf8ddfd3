//! Lines that rise at one rate from the start, and lines that stop.

use super::*;

#[test]
fn a_tensor_that_is_replaced_by_a_larger_one_is_found() {
    let onset = 300;
    let mut player = Player::new(4, |rank, step| {
        let is_due = rank == 1 && step >= onset && (step - onset).is_multiple_of(5);
        let bytes = (step.saturating_sub(onset) / 5 + 1) * 20 * MIB;
        is_due.then(|| Births::one(TESTED, bytes, step + 5)).into_iter().collect()
    });
    let findings = player.run_to(onset + 900);
    let [growth] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!((growth.rank, growth.scope), (1, Scope::OneRank), "{findings:?}");
    assert!(is_any_sure(findings), "{findings:?}");
}

#[test]
fn a_tensor_that_is_longer_in_each_step_is_found_though_it_began_with_the_job() {
    let program = |_, step: u64| {
        let bytes = step.saturating_sub(50) * (MIB / 4);
        (bytes > 0).then(|| Births::one(TESTED, bytes, step + 1)).into_iter().collect()
    };
    let mut player = Player::new(2, program);
    let findings = player.run_to(500);
    let [growth] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!((growth.scope, growth.is_sure), (Scope::AllRanks, false), "{findings:?}");
    // A state that is built up rises ever more slowly.
    let program = |_, step: u64| {
        let bytes = 200 * MIB - 200 * MIB * 100 / (step + 100);
        alloc::vec![Births::one(TESTED, bytes, step + 1)]
    };
    let mut player = Player::new(2, program);
    let findings = player.run_to(500);
    assert_eq!(opened(findings).len(), 0, "{findings:?}");
}

#[test]
fn a_few_even_stairs_of_the_set_up_are_no_growth() {
    let stairs = |steps: core::ops::Range<u64>, every: u64| {
        let program = |_, step: u64| {
            let is_due = steps.contains(&step) && (step - steps.start).is_multiple_of(every);
            is_due.then(|| Births::kept(TESTED, 3 * MIB)).into_iter().collect()
        };
        let mut player = Player::new(2, program);
        let found = opened(player.run_to(600));
        found.into_iter().filter(|growth| growth.layer == Layer::Allocated).collect::<Vec<_>>()
    };
    // Layers that are thawed in turn, and an evaluation that leaves something behind each time.
    let [recipe, evaluations] = [stairs(60..300, 40), stairs(30..600, 30)];
    assert_eq!((recipe.len(), evaluations.len()), (0, 1), "{recipe:?} {evaluations:?}");
}

#[test]
fn a_line_that_stopped_is_not_found_for_what_a_variable_holds() {
    // 32 blocks, each ten steps one, and what the last step made is alive until the next one.
    let program = |_, step: u64| {
        let is_due = step < 320 && step.is_multiple_of(10);
        let kept = is_due.then(|| Births::kept(TESTED, 2 * MIB));
        kept.into_iter().chain([Births::one(TESTED, MIB, step + 1)]).collect()
    };
    let mut player = Player::new(2, program).with_census_every(16);
    let findings = player.run_to(1_000).to_vec();
    let closed = closed(&findings);
    assert_eq!(closed.len(), opened(&findings).len(), "{findings:?}");
    assert!(closed.iter().all(|(_, at_step)| *at_step < 520), "{findings:?}");
}
