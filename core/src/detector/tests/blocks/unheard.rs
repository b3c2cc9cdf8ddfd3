//! Ranks of which nothing is heard: what they keep is unknown.

use super::*;

/// The agents of some ranks are away from this step on, until that one.
const AWAY: [u64; 2] = [900, 3_900];

/// The findings of a job in which the first half of the ranks leaks. Agents that are back send the
/// steps that they missed where `sends_again`.
fn played(
    ranks: u32,
    is_counted: bool,
    is_away: impl Fn(u32) -> bool,
    sends_again: bool,
) -> Vec<Finding> {
    let program = move |rank: u32, step: u64| match rank < ranks / 2 {
        true => leak(step, 300, 8 * MIB),
        false => Vec::new(),
    };
    let mut player = Player::new(ranks, program);
    // The ranks that stayed are counted first.
    player.apart = 3;
    player.run_some_to(AWAY[0], |_| true, |_| is_counted);
    player.run_some_to(AWAY[1], |rank| !is_away(rank), |_| is_counted);
    let now_ns = AWAY[1] * SECOND_NS;
    for rank in (0..ranks).filter(|rank| is_away(*rank)) {
        for step in AWAY[0]..AWAY[1] {
            let tape = &mut player.tapes[rank as usize];
            let births = usual(step).into_iter().chain(program(rank, step));
            let work_bytes = tape.play(step, &births.collect::<Vec<Births>>());
            if sends_again {
                let sample = tape.sample(rank, step, work_bytes);
                player.detector.sample(now_ns, &sample);
            }
        }
    }
    player.run_some_to(AWAY[1] + 600, |_| true, |_| is_counted).to_vec()
}

/// One finding is about the growth, and stays open. That a rank is silent is a finding, too.
fn assert_goes_on(findings: &[Finding], case: &str) {
    let is_growth = |key: &GrowthKey| key.layer.has_rate();
    let keys: Vec<GrowthKey> =
        opened(findings).iter().map(|growth| growth.key()).filter(is_growth).collect();
    assert!(keys.iter().all(|key| key.scope == Scope::OneRank), "{case}: {keys:?}");
    assert_eq!(keys.len(), 1, "{case}: {keys:?}");
    let mut over = closed(findings);
    over.retain(|(key, _)| is_growth(key));
    assert_eq!(over, [], "{case}");
}

#[test]
fn ranks_of_which_nothing_is_heard_do_not_share_a_growth() {
    for ranks in [2, 4] {
        let findings = played(ranks, true, |rank| rank >= ranks / 2, true);
        assert_goes_on(&findings, &format!("{ranks} ranks"));
    }
}

#[test]
fn growth_does_not_end_while_nothing_is_heard_of_it() {
    for (is_counted, sends_again) in [(true, true), (true, false), (false, true), (false, false)] {
        let findings = played(2, is_counted, |rank| rank == 0, sends_again);
        assert_goes_on(&findings, &format!("counted {is_counted}, again {sends_again}"));
    }
}
