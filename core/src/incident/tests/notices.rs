//! Growth that is shown at once and becomes a ticket or pages later, or never.

use super::*;
use crate::detector::Forecast;
use crate::identity::end::End;
use crate::limits::FAILURE_AGE_SECONDS_MAX;
use crate::policy::Objection;

/// Growth that is no reason to page yet.
pub(super) fn notice(rank: u32) -> Growth {
    Growth { is_sure: false, ..growth(rank, Layer::Allocated, Scope::AllRanks, 0) }
}

#[test]
fn a_notice_does_not_page_though_its_diagnosis_would() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let incident = shell.incident("inc-0001");
    assert!(incident.diagnosis.as_ref().is_some_and(|found| found.pages()));
    assert_eq!((incident.urgency, shell.pages()), (Urgency::Notice, 0));
    assert_eq!(incident.objection(), Some(Objection::NotCertain));
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
    assert_eq!((shell.incident("inc-0001").urgency, shell.pages()), (Urgency::Page, 1));
    for growth in [notice(0), sure] {
        shell.found(&job, Finding::Updated(growth));
        shell.now_ns += 60 * SECOND;
        shell.incidents.tick(shell.now());
        shell.carry_out();
        let incident = shell.incident("inc-0001");
        assert!(incident.growth.is_sure, "it stays sure");
        assert_eq!((incident.urgency, shell.pages(), shell.requests()), (Urgency::Page, 1, 2));
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

/// Certain growth of all ranks, whose end is certain too. A step takes a second.
fn ends_in(hours: u64) -> Growth {
    let steps = hours * 3_600;
    let forecast = Some(Forecast { p10: steps, p50: steps, p90: steps });
    Growth { is_sure: true, steps_to_oom: Some(steps), forecast, ..notice(0) }
}

/// Reports growth, and diagnoses the capture that follows, if any. Returns the urgency and the
/// number of captures.
fn grow(shell: &mut Shell, job: &Job, growth: Growth) -> (Urgency, usize) {
    let before = shell.requests();
    shell.now_ns += 60 * SECOND;
    shell.found(job, Finding::Updated(growth));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    if shell.requests() > before {
        shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    }
    (shell.incident("inc-0001").urgency, shell.requests())
}

#[test]
fn a_shared_growth_is_a_notice_then_a_ticket_then_pages_and_never_falls() {
    use Urgency::{Notice, Page, Ticket};
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let far = Growth { is_sure: false, ..ends_in(100) };
    assert_eq!(grow(&mut shell, &job, far), (Notice, 1));
    assert_eq!(grow(&mut shell, &job, ends_in(100)), (Notice, 2));
    assert_eq!(grow(&mut shell, &job, ends_in(20)), (Ticket, 3));
    // A ticket is captured again only for a page.
    assert_eq!(grow(&mut shell, &job, ends_in(19)), (Ticket, 3));
    assert_eq!(grow(&mut shell, &job, ends_in(100)), (Ticket, 3));
    assert_eq!(grow(&mut shell, &job, ends_in(11)), (Page, 4));
    assert_eq!(grow(&mut shell, &job, ends_in(20)), (Page, 4));
    let raised = |effect: &Effect| match effect {
        Effect::Raised { urgency, .. } => Some(*urgency),
        _ => None,
    };
    let raised: Vec<Urgency> = shell.log.iter().filter_map(raised).collect();
    assert_eq!(raised, [Ticket, Page]);
    // It stays what it was while its diagnosis stands.
    shell.incidents.compare("inc-0001", "cap-inc-0001");
    let now = shell.now();
    shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", Ok(diagnosis(Class::Leak, 3)));
    assert_eq!(shell.incident("inc-0001").urgency, Page);
    shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", Ok(diagnosis(Class::Unknown, 0)));
    assert_eq!(shell.incident("inc-0001").urgency, Notice);
}

#[test]
fn a_rise_whose_capture_fails_is_captured_again() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(ends_in(20)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Updated(ends_in(11)));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    assert_eq!((shell.incident("inc-0001").urgency, shell.requests()), (Urgency::Ticket, 2));
    shell.incidents.capture_closed(0, "cap-inc-0001", &Reason::Manual);
    let (now, failed) = (shell.now(), Err(NotCompared::UnknownRank { rank: 0 }));
    shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", failed.clone());
    shell.now_ns += RETRY_NS;
    shell.incidents.tick(shell.now());
    shell.carry_out();
    assert_eq!(shell.requests(), 3);
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0001").urgency, shell.pages()), (Urgency::Page, 1));
    // The capture that could be compared stays.
    shell.incidents.diagnosed(now, "inc-0001", "cap-0002", failed);
    let incident = shell.incident("inc-0001");
    assert_eq!(incident.capture_id.as_deref(), Some("cap-inc-0001"));
    assert!(!incident.against().concat().contains("compared:"), "{incident:?}");
}

#[test]
fn an_end_that_comes_as_forecast_pages_without_a_report_of_the_detector() {
    let (mut shell, mut job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(ends_in(20)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    // The finding names another of the ranks that grow.
    for (hours, requests) in [(19, 1), (11, 2), (10, 2)] {
        job.newest = Some(Growth { rank: 3, ..ends_in(hours) });
        shell.now_ns += 60 * SECOND;
        shell.review(&job);
        shell.incidents.tick(shell.now());
        shell.carry_out();
        assert_eq!(shell.requests(), requests, "{hours} h before the end");
    }
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0001").urgency, shell.pages()), (Urgency::Page, 1));
}

#[test]
fn growth_of_one_rank_pages_at_any_time_but_that_of_the_host_near_its_end() {
    let of = |layer, steps| Growth { steps_to_oom: steps, ..growth(3, layer, Scope::OneRank, 0) };
    for (growth, expected) in [
        (of(Layer::Allocated, Some(u64::MAX)), Urgency::Page),
        (of(Layer::Allocated, None), Urgency::Page),
        (of(Layer::Host, Some(3_600)), Urgency::Page),
        (of(Layer::Host, Some(20 * 3_600)), Urgency::Ticket),
        (of(Layer::Host, Some(100 * 3_600)), Urgency::Notice),
        (of(Layer::Host, None), Urgency::Ticket),
        (Growth { steps_to_oom: None, ..ends_in(1) }, Urgency::Ticket),
    ] {
        let (mut shell, job) = (Shell::default(), Job::new(0));
        shell.found(&job, Finding::Opened(growth));
        shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
        assert_eq!(shell.incident("inc-0001").urgency, expected, "{growth:?}");
    }
}

/// A job that ends itself after these hours.
fn planned(hours: u64) -> Job {
    let planned_end = PlannedEnd { total_steps: Some(hours * 3_600), ..PlannedEnd::default() };
    Job { planned_end, ..Job::new(0) }
}

#[test]
fn growth_that_outlasts_the_job_does_not_page() {
    use Urgency::{Notice, Page, Ticket};
    let own = Growth { scope: Scope::OneRank, ..ends_in(11) };
    let host = Growth { layer: Layer::Host, ..own };
    let turns = Job { clock: Clock::Turns, ..planned(2) };
    let first = "; the job ends as planned in 2 h, before memory is full";
    let memory = "; memory is full before the job's planned end, which is in 40 h";
    for (growth, job, urgency, said) in [
        (ends_in(11), Job::new(0), Page, ""),
        (ends_in(11), planned(2), Notice, first),
        (ends_in(11), planned(40), Page, memory),
        (ends_in(20), planned(2), Notice, first),
        (ends_in(30), Job::new(0), Notice, ""),
        (ends_in(30), planned(40), Ticket, memory),
        (own, planned(2), Ticket, first),
        (own, planned(40), Page, memory),
        (host, planned(2), Notice, first),
        (ends_in(11), turns, Page, ""),
        (Growth { steps_to_oom: None, ..own }, planned(2), Page, ""),
        // How early memory may be full is not known.
        (Growth { forecast: None, ..ends_in(11) }, planned(2), Page, ""),
        // The job is at its end.
        (ends_in(11), planned(0), Notice, ""),
        (Growth { forecast: None, ..ends_in(30) }, planned(40), Notice, ""),
        (Growth { is_sure: false, ..own }, planned(2), Notice, ""),
    ] {
        let mut shell = Shell::default();
        shell.found(&job, Finding::Opened(growth));
        shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
        let incident = shell.incident("inc-0001");
        assert_eq!(incident.urgency, urgency, "{growth:?} {:?}", job.planned_end);
        let sentence = incident.sentence();
        let clause = sentence.find("; the job ends").or(sentence.find("; memory is full"));
        assert_eq!(clause.map_or("", |at| &sentence[at..]), said, "{sentence}");
    }
}

#[test]
fn an_urgency_does_not_fall_when_the_job_ends_first_after_all() {
    use Urgency::{Notice, Page, Ticket};
    let (mut shell, mut job) = (Shell::default(), planned(40));
    let own = |hours| Growth { scope: Scope::OneRank, ..ends_in(hours) };
    shell.found(&job, Finding::Opened(ends_in(100)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!(shell.incident("inc-0001").urgency, Notice);
    assert_eq!(grow(&mut shell, &job, ends_in(30)), (Ticket, 2));
    assert_eq!(grow(&mut shell, &job, ends_in(50)), (Ticket, 2));
    assert_eq!(grow(&mut shell, &job, ends_in(11)), (Page, 3));
    job.planned_end = planned(2).planned_end;
    assert_eq!(grow(&mut shell, &job, ends_in(11)), (Page, 3));
    let said = shell.incident("inc-0001").sentence();
    assert!(said.ends_with("; the job ends as planned in 2 h, before memory is full"), "{said}");
    // A job that goes on after its plan has no end any more.
    let (mut shell, mut job) = (Shell::default(), planned(2));
    shell.found(&job, Finding::Opened(own(11)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!(shell.incident("inc-0001").urgency, Ticket);
    job.last_step = 2 * 3_600 + 1;
    job.newest = Some(own(9));
    shell.review(&job);
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0001").urgency, shell.pages()), (Page, 1));
}

#[test]
fn a_ticket_rises_to_a_page_with_another_finding_of_its_cause() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(ends_in(20)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let host = growth(2, Layer::Host, Scope::OneRank, 0);
    shell.found(&job, Finding::Opened(Growth { steps_to_oom: Some(72_000), ..host }));
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    let other = shell.incident("inc-0002");
    let found = (other.urgency, other.reported_in.as_deref());
    assert_eq!(found, (Urgency::Notice, Some("inc-0001")));
    // Its end comes near before that of the other.
    shell.now_ns += 60 * SECOND;
    shell.found(&job, Finding::Updated(Growth { steps_to_oom: Some(3_600), ..host }));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    let other = shell.incident("inc-0002");
    let found = (other.urgency, other.reported_in.as_deref());
    assert_eq!(found, (Urgency::Notice, Some("inc-0001")));
    assert_eq!((shell.incident("inc-0001").urgency, shell.pages()), (Urgency::Page, 1));
    // It pages by itself when the incident that reports it is over.
    shell.found(&job, Finding::Closed(ends_in(20)));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0002").urgency, shell.pages()), (Urgency::Page, 2));
}

#[test]
fn a_notice_suppresses_no_page() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let other = growth(2, Layer::Reserved, Scope::OneRank, 0);
    shell.found(&job, Finding::Opened(other));
    shell.diagnose("inc-0002", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incident("inc-0002").urgency, shell.pages()), (Urgency::Page, 1));
}

#[test]
fn what_comes_with_a_notice_raises_that_notice() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::CompilePools, 3));
    shell.found(&job, Finding::Opened(growth(0, Layer::NonTorch, Scope::OneRank, 0)));
    let library = Diagnosis { culprit: None, ..*diagnosis(Class::NonTorch, 0) };
    shell.diagnose("inc-0002", Box::new(library));
    let urgencies = ["inc-0001", "inc-0002"].map(|id| shell.incident(id).urgency);
    assert_eq!(urgencies, [Urgency::Page, Urgency::Notice]);
    assert_eq!(shell.incident("inc-0002").reported_in.as_deref(), Some("inc-0001"));
    assert_eq!(shell.pages(), 1);
}

#[test]
fn a_notice_that_returns_is_captured_again_only_when_it_becomes_sure() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    for returns in 1..4 {
        shell.found(&job, Finding::Closed(notice(0)));
        shell.found(&job, Finding::Opened(Growth { returns, ..notice(0) }));
        shell.now_ns += SECOND;
        shell.incidents.tick(shell.now());
        shell.carry_out();
        assert!(shell.incident("inc-0001").is_open());
        assert_eq!(shell.requests(), 1);
    }
    shell.found(&job, Finding::Updated(Growth { is_sure: true, returns: 3, ..notice(0) }));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    assert_eq!(shell.requests(), 2);
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    assert_eq!((shell.incidents.len(), shell.pages()), (1, 1));
}

#[test]
fn growth_that_returns_as_a_notice_is_sure_only_if_it_had_paged() {
    for (found, is_sure) in [(Class::Leak, true), (Class::Unknown, false)] {
        let (mut shell, job) = (Shell::default(), Job::new(0));
        shell.found(&job, Finding::Opened(Growth { is_sure: true, ..notice(0) }));
        shell.diagnose("inc-0001", diagnosis(found, 3));
        assert_eq!(shell.pages(), usize::from(is_sure));
        shell.found(&job, Finding::Closed(notice(0)));
        shell.found(&job, Finding::Opened(Growth { returns: 1, ..notice(0) }));
        assert_eq!(shell.incident("inc-0001").growth.is_sure, is_sure);
    }
}

#[test]
fn a_page_does_not_wait_for_a_capture_that_comes_too_late() {
    for (left_steps, comes_too_late) in [(40, true), (400, false)] {
        let (mut shell, job) = (Shell::default(), Job::new(0));
        shell.found(&job, Finding::Opened(notice(0)));
        shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
        let sure = Growth { is_sure: true, steps_to_oom: Some(left_steps), ..notice(0) };
        shell.found(&job, Finding::Updated(sure));
        shell.incidents.tick(shell.now());
        let now = shell.now();
        let refusal = Refusal::TooSoon { wait_ns: 50 * SECOND };
        shell.incidents.capture_answered(now, "inc-0001", Err(refusal));
        shell.log.clear();
        shell.incidents.tick(now);
        while let Some(effect) = shell.incidents.poll() {
            shell.log.push(effect);
        }
        let (id, capture) = ("inc-0001".to_string(), "cap-inc-0001".to_string());
        let compares = shell.log.contains(&Effect::Diagnose { id, capture });
        assert_eq!(compares, comes_too_late, "{left_steps} steps are left");
        if compares {
            let found = diagnosis(Class::Leak, 3);
            shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", Ok(found));
            assert_eq!(shell.incident("inc-0001").urgency, Urgency::Page);
        }
    }
}

#[test]
fn a_closed_incident_that_is_explained_is_not_captured_again() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let of = |is_sure| Growth { is_sure, steps_to_oom: Some(40), ..leak(2) };
    shell.found(&job, Finding::Opened(of(false)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Updated(of(true)));
    shell.incidents.tick(shell.now());
    let refusal = Refusal::TooSoon { wait_ns: 50 * SECOND };
    shell.incidents.capture_answered(shell.now(), "inc-0001", Err(refusal));
    while shell.incidents.poll().is_some() {}
    shell.incidents.tick(shell.now());
    // Its rank ends while the capture that is there is compared.
    shell.incidents.rank_ended(shell.now(), &job, 2, End::Failed);
    let (now, found) = (shell.now(), diagnosis(Class::Leak, 3));
    shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", Ok(found));
    let requests = shell.requests();
    shell.now_ns += 60 * SECOND;
    shell.incidents.tick(shell.now());
    shell.carry_out();
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.is_open(), incident.urgency), (false, Urgency::Page));
    assert_eq!(shell.requests(), requests);
}

#[test]
fn growth_of_a_job_that_is_not_heard_is_over_until_it_is_heard_again() {
    let (mut shell, mut job) = (Shell::default(), Job::new(7));
    shell.found(&job, Finding::Opened(leak(2)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let gone_ns = FAILURE_AGE_SECONDS_MAX * SECOND;
    let heard = |shell: &mut Shell, job: &Job, quiet_ns| {
        shell.incidents.scan_heard(shell.now(), |of| (of == 7).then_some((job, quiet_ns)));
        shell.carry_out();
        shell.incident("inc-0001").clone()
    };
    assert!(heard(&mut shell, &job, gone_ns - 1).is_open(), "its agent may come back");
    let closed = heard(&mut shell, &job, gone_ns);
    assert_eq!(closed.closed_reason(), "no rank of the job has been heard for 15 min");
    assert_eq!(heard(&mut shell, &job, 2 * gone_ns).closed, closed.closed);
    // Its agent was away. It is over unless the growth is found again.
    let back = heard(&mut shell, &job, SECOND);
    assert_eq!((back.closed, back.urgency, shell.pages()), (None, Urgency::Page, 1));
    job.last_step = CONFIRM_STEPS + back.growth.last_step + 1;
    shell.review(&job);
    let reason = shell.incident("inc-0001").closed.map(|closed| closed.reason);
    assert_eq!(reason, Some(ClosedReason::NotFoundAgain));
}

#[test]
fn a_pause_is_said_without_a_forecast_and_not_beside_growth_that_goes_on() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(notice(0)));
    let mut incident = shell.incident("inc-0001").clone();
    let paused = Growth {
        scope: Scope::OneRank,
        paused_since_step: Some(700),
        steps_to_oom: Some(90),
        ..incident.growth
    };
    let times = Times { step_ns: Some(SECOND), ..Times::default() };
    let now = incident.with_newest(&paused, times);
    assert!(now.sentence().contains("it has not grown since"), "{}", now.sentence());
    assert_eq!((now.growth.steps_to_oom, now.seconds_to_oom), (None, None));
    assert_eq!(now.growth.bytes(), Some((0, now.growth.grown_bytes)));
    incident.joined.push(Growth { device: 1, ..incident.growth });
    let now = incident.with_newest(&paused, times);
    assert!(!now.sentence().contains("has not grown"), "{}", now.sentence());
    assert_eq!((now.growth.steps_to_oom, now.growth.paused_since_step), (Some(90), None));
}

#[test]
fn growth_of_a_job_that_is_heard_again_after_a_restart_has_the_same_steps_to_be_found() {
    for (known_step, confirm_from) in [(0, 100_000), (100_500, 100_500)] {
        let (mut before, mut job) = (Shell::default(), Job::new(7));
        let late = Growth { onset_step: 99_000, last_step: 100_000, ..leak(2) };
        before.found(&job, Finding::Opened(late));
        let gone_ns = FAILURE_AGE_SECONDS_MAX * SECOND;
        before.incidents.scan_heard(before.now(), |_| Some((&job, gone_ns)));
        let stored = before.incident("inc-0001").clone();
        assert_eq!(stored.closed.map(|closed| closed.reason), Some(ClosedReason::NotHeard));
        let mut again = Shell::default();
        again.incidents.restore(again.now(), stored, Holder::default(), 0, None);
        job.last_step = known_step;
        again.incidents.scan_heard(again.now(), |_| Some((&job, SECOND)));
        for (step, expected) in [(0, true), (1, false)] {
            job.last_step = confirm_from + CONFIRM_STEPS + step;
            again.review(&job);
            assert_eq!(again.incident("inc-0001").is_open(), expected, "at {}", job.last_step);
        }
    }
}

#[test]
fn what_a_new_coordinator_finds_again_is_captured_no_second_time() {
    let (mut before, job) = (Shell::default(), Job::new(7));
    let known = growth(2, Layer::Spread, Scope::OneRank, 0);
    let stays = Growth { is_sure: true, bytes_per_step: 0, steps_to_oom: None, ..known };
    before.found(&job, Finding::Opened(stays));
    before.diagnose("inc-0001", diagnosis(Class::Imbalance, 3));
    let stored = before.incident("inc-0001").clone();
    assert_eq!((before.requests(), stored.tries), (1, 1));
    let mut again = Shell::default();
    again.incidents.restore(again.now(), stored, Holder::default(), 0, None);
    let more = Growth { grown_bytes: 2 * stays.grown_bytes, ..stays };
    for finding in [Finding::Opened(more), Finding::Updated(stays)] {
        again.found(&job, finding);
        again.now_ns += 60 * SECOND;
        again.incidents.tick(again.now());
        again.carry_out();
        assert_eq!(again.requests(), 0, "{:?}", again.log);
    }
    // It grows: that may show what nothing showed before.
    again.found(&job, Finding::Updated(Growth { grown_bytes: 3 * stays.grown_bytes, ..stays }));
    again.incidents.tick(again.now());
    again.carry_out();
    assert_eq!((again.requests(), again.incident("inc-0001").tries), (1, 2));
}
