//! How many incidents an event visits.

use super::*;
use crate::identity::end::End;

const ITEMS: u32 = 4096;

/// What `event` visits for each of many ranks of one attempt, beside as many closed incidents of
/// other attempts.
fn visits(event: impl Fn(&mut Shell, &Job, u32)) -> usize {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(0)));
    shell.found(&job, Finding::Closed(leak(0)));
    let closed = shell.incident("inc-0001").clone();
    for serial in 1..=ITEMS {
        let other = Incident { id: format!("inc-old-{serial}"), serial, ..closed.clone() };
        shell.incidents.restore(shell.now(), other, Holder::default(), 0, None);
    }
    shell.incidents.known.visits.take();
    (0..ITEMS).for_each(|rank| event(&mut shell, &job, rank));
    shell.incidents.known.visits.take()
}

#[test]
fn an_event_visits_no_incident_of_another_attempt() {
    let failed = |kind: FailureKind| {
        visits(move |shell, job, rank| {
            let failure = Failure {
                rank,
                device: 0,
                step: 1,
                wall_ns: 1,
                ranks: ITEMS,
                kind,
                exit_status: None,
            };
            shell.incidents.failed(shell.now(), job, failure, || "inc-zzzz".to_string());
        })
    };
    let all = [
        ("requests that failed", failed(FailureKind::OutOfMemory)),
        ("deaths", failed(FailureKind::Died(End::Killed))),
        (
            "ends",
            visits(|shell, job, rank| {
                shell.incidents.rank_ended(shell.now(), job, rank, End::Killed);
            }),
        ),
        ("reviews", visits(|shell, job, _| shell.review(job))),
        (
            "findings",
            visits(|shell, job, rank| {
                shell.found(job, Finding::Opened(leak(rank)));
                shell.found(job, Finding::Closed(leak(rank)));
                shell.incidents.forget_attempt(0);
            }),
        ),
        (
            "jobs that open an incident",
            visits(|shell, _, rank| {
                let job = Job::new(10_000 + rank);
                shell.found(&job, Finding::Opened(leak(0)));
                shell.found(&job, Finding::Closed(leak(0)));
            }),
        ),
        (
            "newer attempts",
            visits(|shell, _, serial| shell.incidents.attempt_begun(shell.now(), &[serial])),
        ),
        (
            "captures",
            visits(|shell, _, _| shell.incidents.capture_closed(0, "cap", &Reason::Manual)),
        ),
    ];
    for (event, visits) in all {
        assert!(visits <= 16 * ITEMS as usize, "{event} visit {visits} incidents: {all:?}");
    }
}
