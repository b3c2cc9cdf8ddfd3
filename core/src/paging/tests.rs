//! A table of ends, and how urgent growth with such an end is.

use super::*;

#[test]
fn the_end_decides_between_a_notice_a_ticket_and_a_page() {
    use Urgency::{Notice, Page, Ticket};
    let horizons = Horizons { page_seconds: 100, ticket_seconds: 200 };
    let in_seconds = End::InSeconds;
    let (unsure, shared, own) = ((false, true), (true, false), (true, true));
    for (growth, end, expected) in [
        (unsure, in_seconds(0), Notice),
        (unsure, End::Reached, Notice),
        (unsure, End::BeforeJob(0), Notice),
        (shared, in_seconds(100), Page),
        (shared, in_seconds(101), Ticket),
        (shared, in_seconds(200), Ticket),
        (shared, in_seconds(201), Notice),
        (shared, End::Unknown, Ticket),
        (shared, End::Reached, Page),
        (own, in_seconds(u64::MAX), Page),
        (own, End::Unknown, Page),
        (own, End::Reached, Page),
        (shared, End::BeforeJob(100), Page),
        (shared, End::BeforeJob(101), Ticket),
        (shared, End::BeforeJob(u64::MAX), Ticket),
        (shared, End::AfterJob, Notice),
        (own, End::BeforeJob(u64::MAX), Page),
        (own, End::AfterJob, Ticket),
    ] {
        assert_eq!(horizons.urgency(growth, end), expected, "{growth:?} {end:?}");
    }
    let default = Horizons::default();
    assert!(default.page_seconds < default.ticket_seconds);
}

#[test]
fn the_job_ends_first_only_where_nearly_all_forecasts_say_so() {
    for (job, expected) in [
        (None, End::InSeconds(100)),
        (Some(0), End::AfterJob),
        (Some(79), End::AfterJob),
        (Some(80), End::InSeconds(100)),
        (Some(100), End::InSeconds(100)),
        (Some(101), End::BeforeJob(100)),
        (Some(u64::MAX), End::BeforeJob(100)),
    ] {
        assert_eq!(End::of_memory((Some(80), 100), job), expected, "{job:?}");
    }
}

#[test]
fn a_job_ends_at_the_earlier_of_its_limit_and_its_last_step() {
    const SECOND_NS: i64 = 1_000_000_000;
    let now = 1_000 * SECOND_NS;
    let late_s = 10 * 60;
    // The limit, in seconds from now; all steps; the finished ones; the length of a step.
    for (limit_s, total_steps, steps, step_s, expected) in [
        (None, None, Some(40), Some(2), None),
        (Some(60), None, Some(40), Some(2), Some(60)),
        (None, Some(100), Some(40), Some(2), Some(120)),
        (Some(60), Some(100), Some(40), Some(2), Some(60)),
        (Some(300), Some(100), Some(40), Some(2), Some(120)),
        // The scheduler takes its time; a job that goes on for longer has another end.
        (Some(-5), None, None, None, Some(0)),
        (Some(1 - late_s), None, None, None, Some(0)),
        (Some(-late_s), None, None, None, None),
        (Some(-late_s), Some(100), Some(40), Some(2), Some(120)),
        (None, Some(100), Some(100), Some(2), Some(0)),
        (None, Some(100), Some(101), Some(2), None),
        // Turns are not counted, and not every step time is known.
        (None, Some(100), None, Some(2), None),
        (Some(60), Some(100), Some(40), None, Some(60)),
        (None, Some(u64::MAX), Some(0), Some(2), Some(u64::MAX / 1_000_000_000)),
    ] {
        let ends_at_wall_ns = limit_s.map(|limit_s: i64| now + limit_s * SECOND_NS);
        let planned = PlannedEnd { ends_at_wall_ns, total_steps };
        let step_ns = step_s.map(|step_s: u64| step_s * 1_000_000_000);
        let found = seconds_to_job_end(left_of_plan(planned, now, || steps), step_ns);
        assert_eq!(found, expected, "{planned:?} {steps:?} {step_ns:?}");
    }
}
