//! Growth that is shown at once and pages later, or never.

use super::*;

#[test]
fn a_notice_does_not_page_though_its_diagnosis_would() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let incident = shell.incident("inc-0001");
    assert!(incident.diagnosis.as_ref().is_some_and(|found| found.pages()));
    assert_eq!((&incident.page, shell.pages()), (&Page::Quiet, 0));
    // It grows on: that is no reason for another capture.
    shell.found(&job, Finding::Updated(Growth { grown_bytes: 1 << 30, ..notice(0) }));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    assert_eq!((shell.requests(), shell.pages()), (1, 0));
}

#[test]
fn a_notice_that_becomes_sure_is_captured_again_and_pages_once() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let sure = Growth { is_sure: true, ..notice(0) };
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Updated(sure));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    assert_eq!((shell.requests(), shell.pages()), (2, 0), "the page waits for the new diagnosis");
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((&shell.incident("inc-0001").page, shell.pages()), (&Page::Paged, 1));
    for growth in [notice(0), sure] {
        shell.found(&job, Finding::Updated(growth));
        shell.now_ns += 60 * SECOND;
        shell.incidents.tick(shell.now());
        shell.carry_out();
        let incident = shell.incident("inc-0001");
        assert!(incident.growth.is_sure, "it stays sure");
        assert_eq!((&incident.page, shell.pages(), shell.requests()), (&Page::Paged, 1, 2));
    }
}

#[test]
fn a_notice_that_becomes_sure_while_it_is_captured_pages_once() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.found(&job, Finding::Updated(Growth { is_sure: true, ..notice(0) }));
    assert_eq!(shell.pages(), 0);
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.requests(), shell.pages()), (1, 1));
}

#[test]
fn shared_growth_pages_when_the_end_is_within_the_horizon() {
    let ends_in = |hours: u64| Growth {
        is_sure: true,
        // A step takes a second.
        steps_to_oom: Some(hours * 3_600),
        ..notice(0)
    };
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(ends_in(60)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((&shell.incident("inc-0001").page, shell.pages()), (&Page::Quiet, 0));
    shell.now_ns += 60 * SECOND;
    shell.found(&job, Finding::Updated(ends_in(11)));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((&shell.incident("inc-0001").page, shell.pages()), (&Page::Paged, 1));
    // Later than it was: the page stands.
    shell.found(&job, Finding::Updated(ends_in(13)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((&shell.incident("inc-0001").page, shell.pages()), (&Page::Paged, 1));
    // Certain growth of one rank alone pages whenever its end is.
    let own = Growth { steps_to_oom: Some(u64::MAX), ..leak(3) };
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(own));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!(shell.pages(), 1);
}

#[test]
fn a_notice_suppresses_no_page() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let other = growth(2, Layer::Reserved, Scope::OneRank, 0);
    shell.found(&job, Finding::Opened(other));
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    assert_eq!((&shell.incident("inc-0002").page, shell.pages()), (&Page::Paged, 1));
}
