//! Tests of `claims.rs`.

use memtape_core::limits::OWNER_CHANGES_AT_ONCE_MAX;

use super::*;
use crate::state::effects::Context;
use crate::state::jobs::tests::limits;

/// Rank 0 of a job of its own.
fn up(number: usize) -> RankUp {
    let (tape_id, job) = (format!("t{number}"), format!("job-{number}"));
    RankUp { tape_id, job, ..RankUp::default() }
}

/// Before its node or its owner may announce it, and where it would be refused all the same.
#[test]
fn nothing_is_forgotten_for_a_newcomer_that_is_refused() {
    let now = Now::default();
    let mut jobs = Jobs::new(limits());
    assert!(jobs.may_make_room(now, "n", &up(0)));
    while jobs.changes.take(now.mono_ns, holder("n", up(0).owner.key())).is_ok() {}
    assert!(!jobs.may_make_room(now, "n", &up(0)));
    assert!(jobs.may_make_room(now, "other", &up(0)));

    let mut jobs = Jobs::new(limits());
    let first = jobs.announce(now, "n", up(0)).unwrap().serial;
    jobs.attempts.get_mut(&first).unwrap().record.ended_wall_ns = Some(1);
    for number in 1..=JOBS_RUNNING_PER_NODE_MAX {
        jobs.announce(now, "n", up(number)).unwrap();
    }
    assert!(jobs.may_make_room(now, "n", &up(999)), "one place is enough");
    // It goes on after all.
    jobs.attempts.get_mut(&first).unwrap().record.ended_wall_ns = None;
    assert!(!jobs.may_make_room(now, "n", &up(999)));
}

#[test]
fn a_rank_that_is_not_taken_takes_a_permit() {
    let now = Now::default();
    let mut jobs = Jobs::new(limits());
    jobs.announce(now, "other", up(0)).unwrap();
    for _ in 0..OWNER_CHANGES_AT_ONCE_MAX {
        assert!(jobs.may_make_room(now, "n", &up(1)));
        jobs.rank_up(&mut Context::new(now), "n", up(0), None);
    }
    assert!(!jobs.may_make_room(now, "n", &up(1)));
}
