//! When growth of blocks is certain, and which ranks share a finding.

use super::*;

#[test]
fn growth_is_sure_sooner_the_less_memory_is_left() {
    let sure_after = |bytes: u64| {
        let program = |rank, step| if rank == 2 { leak(step, 300, bytes) } else { Vec::new() };
        let mut player = Player::new(4, program);
        let findings = player.run_to(1_000);
        let sure = reported(findings).find(|growth| growth.is_sure).expect("it goes on");
        sure.last_step - 300
    };
    // A third of what was left of the 80 GiB, or long enough.
    assert!((200..280).contains(&sure_after(96 * MIB)), "{}", sure_after(96 * MIB));
    assert!((384..500).contains(&sure_after(8 * MIB)), "{}", sure_after(8 * MIB));
}

#[test]
fn a_leak_of_all_ranks_is_sure_early_when_the_end_is_near() {
    let onset = 300;
    let mut player = Player::new(4, |_, step| leak(step, onset, 160 * MIB));
    let findings = player.run_to(onset + 350);
    let [growth] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!(growth.scope, Scope::AllRanks, "{findings:?}");
    let sure = reported(findings).find(|growth| growth.is_sure).expect("the end is near");
    assert!(sure.last_step < onset + 200, "{findings:?}");
    assert!(sure.steps_to_oom.is_some_and(|steps| steps > 100), "{findings:?}");
}

#[test]
fn ranks_that_grow_at_one_line_are_one_notice() {
    // At other rates and at other times; the sixth rank begins with the second.
    let mut player = Player::new(8, |rank, step| match rank {
        1 => leak(step, 300, 8 * MIB),
        4 => leak(step, 380, MIB),
        5 => leak(step, 300, 9 * MIB),
        _ => Vec::new(),
    });
    let findings = player.run_to(600);
    let [notice] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!((notice.scope, notice.is_sure), (Scope::OneRank, false), "{findings:?}");
    let findings = player.run_to(1_000);
    let certain: BTreeSet<u32> =
        reported(findings).filter(|growth| growth.is_sure).map(|growth| growth.rank).collect();
    assert_eq!(certain, [1, 4].into(), "the sixth rank has the second's cause: {findings:?}");
}

#[test]
fn a_leak_of_all_ranks_is_one_notice_that_becomes_sure() {
    let onset = 300;
    let mut player = Player::new(4, |_, step| leak(step, onset, 8 * MIB));
    let findings = player.run_to(1_000);
    let [notice] = opened(findings)[..] else { panic!("{findings:?}") };
    assert_eq!((notice.scope, notice.ranks), (Scope::AllRanks, 4), "{findings:?}");
    assert!(!notice.is_sure && notice.detected_step < onset + 256, "{findings:?}");
    let sure = reported(findings).find(|growth| growth.is_sure).expect("it has gone on for long");
    assert_eq!(sure.key(), notice.key());
    assert!((onset + 384..=onset + 600).contains(&sure.last_step), "{findings:?}");
    assert_eq!(closed(findings), []);
}

#[test]
fn the_rate_is_that_of_the_leak_from_the_first_report_on() {
    let leaks = [(99, 3 * MIB), (100, 8 * MIB), (217, 40 * MIB), (300, 5 * MIB)];
    for (onset, bytes, every) in leaks
        .into_iter()
        .flat_map(|(onset, bytes)| [7, 8, 33, 50, 100].map(|every| (onset, bytes, every)))
    {
        let program = |rank, step| if rank == 2 { leak(step, onset, bytes) } else { Vec::new() };
        let mut player = Player::new(4, program).with_census_every(every);
        let findings = player.run_to(onset + 900);
        let rates: Vec<(u64, u64)> =
            reported(findings).map(|growth| (growth.last_step, growth.bytes_per_step)).collect();
        assert!(rates.len() > 3, "{rates:?}");
        let is_true = |rate: u64| rate.abs_diff(bytes) <= bytes / 16;
        assert!(
            rates.iter().all(|&(_, rate)| is_true(rate)),
            "from {onset}, {bytes}, a census every {every} steps: {rates:?}"
        );
    }
}

#[test]
fn what_has_grown_is_measured_and_its_end_is_seen() {
    // Tensors of 1 to 9 MiB, until step 700.
    let bytes = |step: u64| (1 + step * 7_919 % 9) * MIB;
    let stops = 700;
    let mut player = Player::new(4, move |rank, step| match (rank, step) {
        (2, 300..) if step < stops => leak(step, 300, bytes(step)),
        _ => Vec::new(),
    });
    let findings = player.run_to(1_400);
    let [growth] = opened(findings)[..] else { panic!("{findings:?}") };
    for said in reported(findings) {
        let kept: u64 = (300..=said.last_step.min(stops - 1)).map(bytes).sum();
        // The steps since the newest census are at the usual rate.
        assert!(said.grown_bytes.abs_diff(kept) <= 8 * 9 * MIB, "{said:?} for {kept}");
        assert!(said.bytes_per_step > 4 * MIB, "{said:?}");
    }
    let [(key, at_step)] = closed(findings)[..] else { panic!("{findings:?}") };
    assert_eq!(key, growth.key());
    assert!((stops..stops + 200).contains(&at_step), "closed at {at_step}");
}
