//! Ranks that die or cannot get memory.

use super::*;
use crate::diagnosis::{Aftermath, Fate};
use crate::identity::end::End;
use crate::incident::deaths::{ASKED_NS, COMPARE_EVERY_NS, SETTLED_NS};
use crate::incident::failure::FAILURE_CAPTURE_WAIT_NS;
use crate::limits::FAILURE_AGE_SECONDS_MAX;

const DIED: FailureKind = FailureKind::Died(End::Killed);

fn failure(rank: u32, wall_seconds: i64, kind: FailureKind) -> Failure {
    let wall_ns = wall_seconds * SECOND as i64;
    Failure { rank, device: 0, step: 149, wall_ns, ranks: 4, kind, exit_status: None }
}

impl Shell {
    fn failed(&mut self, job: &Job, failure: Failure) {
        let (now, names) = (self.now(), &mut self.names);
        self.incidents.failed(now, job, failure, || {
            *names += 1;
            format!("inc-{names:04}")
        });
        self.carry_out();
    }

    /// Lets as much time pass as a death is held for.
    fn settle(&mut self, job: &Job) {
        self.now_ns += SETTLED_NS;
        let (now, names) = (self.now(), &mut self.names);
        self.incidents.settle(now, job, || {
            *names += 1;
            format!("inc-{names:04}")
        });
        self.carry_out();
    }

    fn at(&mut self, seconds: u64) {
        self.now_ns = seconds * SECOND;
        self.incidents.tick(self.now());
        self.carry_out();
    }

    fn diagnose_capture(&mut self, id: &str, capture: &str) {
        self.incidents.diagnosed(self.now(), id, capture, Ok(died(99)));
        self.carry_out();
    }

    /// Names of the captures that were to be compared.
    fn compared(&self) -> Vec<&str> {
        let capture = |effect: &'_ Effect| match effect {
            Effect::Diagnose { capture, .. } => Some(capture.clone()),
            _ => None,
        };
        let all: Vec<String> = self.log.iter().filter_map(capture).collect();
        all.iter().map(|id| if id == "cap-death" { "cap-death" } else { "another" }).collect()
    }
}

#[test]
fn only_deaths_that_are_not_reported_wait() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    let waits = |shell: &Shell| shell.incidents.unsettled_ranks(7).collect::<Vec<_>>();
    shell.failed(&job, failure(2, 1, DIED));
    assert_eq!(waits(&shell), [2]);
    shell.settle(&job);
    shell.failed(&job, failure(1, 2, DIED));
    assert_eq!((waits(&shell), shell.incidents.len()), (Vec::new(), 1), "it is reported there");
    shell.incidents.close(shell.now(), "inc-0001", ClosedReason::NoNews, true);
    shell.failed(&job, failure(3, 20, DIED));
    assert_eq!(waits(&shell), [3]);
}

fn died(end_wall_ns: i64) -> Box<Diagnosis> {
    let mut found = diagnosis(Class::Died, 0);
    (found.culprit, found.sentence) = (None, format!("it died at {end_wall_ns}"));
    found
}

#[test]
fn a_death_is_an_incident_that_outlives_its_job() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.found(&job, Finding::Opened(leak(2)));
    shell.at(100);
    shell.failed(&job, failure(2, 99, DIED));
    shell.incidents.rank_ended(shell.now(), &job, 2, End::Killed);
    shell.carry_out();
    let growth = shell.incident("inc-0001").closed.expect("its rank has ended");
    assert_eq!(growth.reason, ClosedReason::RankEnded);
    // The capture of the trigger is compared, when it is known what became of the others; no other
    // is requested.
    let requests = shell.requests();
    let reason = Reason::Death { rank: 2 };
    shell.incidents.capture_closed(6, "cap-of-another-attempt", &reason);
    shell.incidents.capture_closed(7, "cap-by-hand", &Reason::Manual);
    shell.incidents.capture_closed(7, "cap-death", &reason);
    shell.carry_out();
    assert_eq!((shell.incidents.len(), shell.compared().len()), (1, 0));
    shell.settle(&job);
    let incident = shell.incident("inc-0002");
    assert_eq!(incident.sentence(), "rank 2 ended without an orderly exit after step 149");
    let known = shell.incidents.growth_before(incident, &job).expect("the leak is known");
    assert_eq!((known.incident.as_str(), known.growth.grown_bytes), ("inc-0001", 1 << 24));
    assert_eq!(shell.compared(), ["cap-death"]);
    shell.diagnose_capture("inc-0002", "cap-death");
    assert_eq!((shell.incident("inc-0002").class(), shell.pages()), (Class::Died, 1));
    assert_eq!(shell.requests(), requests);
    // The others end because of it: one incident, which is compared once more.
    for rank in [0, 1, 3] {
        shell.failed(&job, failure(rank, 111, DIED));
        shell.incidents.rank_ended(shell.now(), &job, rank, End::Killed);
    }
    shell.incidents.attempt_ended(shell.now(), &job);
    shell.at(116);
    assert_eq!(shell.compared(), ["cap-death"; 2]);
    let incident = shell.incident("inc-0002");
    assert_eq!((incident.is_open(), incident.growth.rank), (true, 2));
    assert_eq!(shell.incidents.len(), 2);
    // A newer attempt runs.
    shell.incidents.attempt_begun(shell.now(), &[5, 6]);
    assert!(shell.incident("inc-0002").is_open());
    shell.incidents.attempt_begun(shell.now(), &[6, 7]);
    let closed = shell.incident("inc-0002").closed.expect("it is over");
    assert_eq!(closed.reason, ClosedReason::NewAttempt);
    // Its agent connects again and repeats it.
    shell.failed(&job, failure(2, 99, DIED));
    // So do the deaths that followed, and those whose clocks are ahead.
    shell.failed(&job, failure(3, 111, DIED));
    shell.failed(&job, failure(1, 130, DIED));
    assert_eq!(shell.incidents.len(), 2);
}

#[test]
fn the_first_failure_names_the_incident() {
    let (mut shell, mut job) = (Shell::default(), Job::new(7));
    job.is_on_two_nodes = true;
    shell.at(100);
    shell.failed(&job, failure(3, 99, DIED));
    // Reported later, and earlier by the clock.
    shell.failed(&job, failure(1, 96, FailureKind::Died(End::OomKilled)));
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.growth.rank, shell.incidents.len()), (1, 1));
    assert!(incident.sentence().contains("by the kernel"), "{}", incident.sentence());
    // The clocks of two nodes differ by more than this, and one clock does not.
    shell.failed(&job, failure(2, 95, DIED));
    assert_eq!(shell.incident("inc-0001").growth.rank, 1);
    // The kernel kills processes of a cgroup together, by SIGKILL.
    shell.failed(&job, failure(5, 95, DIED));
    assert_eq!(shell.incident("inc-0001").growth.rank, 1);
    shell.failed(&job, Failure { exit_status: Some(-11), ..failure(5, 95, DIED) });
    assert_eq!(shell.incident("inc-0001").growth.rank, 5);
}

/// A death of this rank after this many milliseconds, with this exit status or signal.
fn end(rank: u32, millis: i64, kind: FailureKind, exit_status: i32) -> Failure {
    let wall_ns = millis * 1_000_000;
    Failure { wall_ns, exit_status: Some(exit_status), ..failure(rank, 0, kind) }
}

/// The fates of ranks that ended like these, and of one that lives, if there is one.
fn fates(deaths: &[Failure], living: Option<u32>) -> Vec<Fate> {
    let fate = |of: &Failure| {
        let FailureKind::Died(how) = of.kind else { panic!("it is a death") };
        let (end, activity) = (Some((how, of.wall_ns)), Default::default());
        let Failure { rank, exit_status, step, .. } = *of;
        Fate { rank, end, exit_status, pid: None, step, activity }
    };
    let lives = |rank| {
        let (end, exit_status, activity) = (None, None, Default::default());
        Fate { rank, end, exit_status, pid: None, step: 149, activity }
    };
    deaths.iter().map(fate).chain(living.map(lives)).collect()
}

/// The rank and the sentence of the incident about these deaths, reported in this order; none where
/// none is opened, and how many seconds after the first it is.
fn story(deaths: &[Failure], living: Option<u32>) -> Option<(u32, String, u64)> {
    let (mut shell, mut job) = (Shell::default(), Job::new(7));
    job.fates = fates(deaths, living);
    deaths.iter().for_each(|death| shell.failed(&job, *death));
    for _ in 0..6 {
        if let Some(known) = shell.incidents.iter().next() {
            let incident = known.incident();
            return Some((incident.growth.rank, incident.sentence(), shell.now_ns / SECOND));
        }
        shell.settle(&job);
    }
    assert!(shell.incidents.unsettled().is_empty());
    None
}

#[test]
fn the_rank_that_was_killed_first_is_named_and_not_those_that_the_launcher_ended() {
    let terminated = |rank, millis| end(rank, millis, DIED, -15);
    let first = end(3, 1_000, DIED, -9);
    let others = [terminated(0, 1_040), terminated(1, 1_041), terminated(2, 1_042)];
    let expected = "rank 3 was killed by SIGKILL after step 149".to_string();
    for at in 0..4 {
        let mut reported = others.to_vec();
        reported.insert(at, first);
        assert_eq!(story(&reported, None), Some((3, expected.clone(), 10)));
    }
    // Their peer fails of an error: the same.
    let reported = [end(0, 1_200, FailureKind::Died(End::Failed), 1), first];
    assert_eq!(story(&reported, None).map(|said| said.0), Some(3));
}

#[test]
fn a_rank_that_the_kernel_kills_for_memory_is_named_before_those_that_end_with_it() {
    let victim = |millis| end(2, millis, FailureKind::Died(End::OomKilled), -9);
    // The kernel kills the other processes of its cgroup, in any order; or its peers were asked.
    for (first, millis) in [(end(0, 1_000, DIED, -9), 1_002), (end(0, 1_000, DIED, -15), 31_000)] {
        assert_eq!(story(&[first, victim(millis)], None).map(|said| said.0), Some(2));
    }
    // One that failed long before by itself is named, and says what the kernel did.
    let deaths = [end(0, 1_000, FailureKind::Died(End::Failed), 1), victim(9_000)];
    assert_eq!(story(&deaths, None).map(|said| said.0), Some(0));
    let after = Aftermath { rank: 0, step: 149, fates: &fates(&deaths, None) }.sentence();
    let expected = "; rank 2 ended within 8 s after it; the kernel killed rank 2 for memory of the \
                    host";
    assert_eq!(after, expected);
}

#[test]
fn a_job_that_was_ended_as_a_whole_is_no_incident() {
    let failed = FailureKind::Died(End::Failed);
    // scancel, Ctrl-C or the deletion of a pod; one rank fails because its peers are gone, and one
    // is killed because it does not end.
    let asked = |signal| [end(0, 1_000, DIED, signal), end(1, 1_010, DIED, signal)];
    for signal in [-15, -2] {
        assert_eq!(story(&asked(signal), None), None);
        let more = [end(2, 1_020, failed, 1), end(3, 31_000, DIED, -9)];
        assert_eq!(story(&[&asked(signal)[..], &more].concat(), None), None);
    }
    assert_eq!(story(&[end(0, 1_000, failed, 143), end(1, 1_000, failed, 143)], None), None);
    // SIGKILL for all.
    let killed = [end(0, 1_000, DIED, -9), end(1, 1_500, DIED, -9)];
    assert_eq!(story(&killed, None), None);
    // One rank alone was asked to end, and the others live.
    let sentence = "rank 0 was killed by SIGTERM after step 149".to_string();
    let seconds = ASKED_NS.next_multiple_of(SETTLED_NS) / SECOND;
    assert_eq!(story(&asked(-15)[..1], Some(1)), Some((0, sentence, seconds)));
    // They crash; and who kills a job of one rank is not known.
    assert!(story(&[end(0, 1_000, DIED, -11), end(1, 1_000, DIED, -11)], None).is_some());
    assert!(story(&killed[..1], None).is_some());
    // One fails by itself.
    let reported = [end(1, 1_000, failed, 1), end(0, 1_100, DIED, -15)];
    assert_eq!(story(&reported, None).map(|said| said.0), Some(1));
}

#[test]
fn ranks_that_end_together_by_an_unknown_signal_are_an_incident() {
    let unknown = [failure(0, 1, DIED), failure(1, 2, DIED)];
    assert_eq!(story(&unknown, None).map(|said| said.0), Some(0));
    // Of one of them it is known, or it is neither SIGKILL nor that of a crash (SIGUSR1).
    assert!(story(&[end(0, 1_000, DIED, -9), unknown[1]], None).is_some());
    assert!(story(&[end(0, 1_000, DIED, -10), end(1, 1_000, DIED, -10)], None).is_some());
}

#[test]
fn a_rank_that_is_ended_because_another_did_not_start_is_no_incident() {
    let at_start = |status| Failure { step: 0, ..end(0, 1_000, DIED, status) };
    assert_eq!(story(&[at_start(-15)], None), None);
    assert_eq!(story(&[Failure { exit_status: None, ..at_start(0) }], None), None);
    let failed = Failure { kind: FailureKind::Died(End::Failed), ..at_start(1) };
    assert_eq!(story(&[failed], None).map(|said| said.0), Some(0));
    assert_eq!(story(&[at_start(-9)], None), None);
    // It crashed (SIGSEGV, SIGABRT, SIGBUS) before the others were there.
    for signal in [-11, -6, -7] {
        assert_eq!(story(&[at_start(signal)], None).map(|said| said.0), Some(0));
    }
}

#[test]
fn a_signal_that_is_known_later_is_taken() {
    let unknown = failure(2, 99, DIED);
    let known = Failure { exit_status: Some(-11), ..unknown };
    let said = "rank 2 was killed by SIGSEGV after step 149";
    for is_held in [true, false] {
        let (mut shell, job) = (Shell::default(), Job::new(7));
        shell.at(100);
        shell.failed(&job, unknown);
        if is_held {
            shell.failed(&job, known);
            shell.settle(&job);
        } else {
            shell.settle(&job);
            shell.failed(&job, known);
        }
        let incident = shell.incident("inc-0001");
        assert_eq!((incident.sentence().as_str(), incident.class()), (said, Class::Died));
        // It is said once, and a repeated report takes nothing back.
        let changes = shell.log.len();
        shell.failed(&job, known);
        shell.failed(&job, unknown);
        assert_eq!((shell.log.len(), shell.incidents.len()), (changes, 1));
        assert_eq!(shell.incident("inc-0001").sentence(), said);
    }
}

#[test]
fn an_end_that_is_known_better_replaces_a_held_one() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.failed(&job, failure(2, 0, DIED));
    shell.failed(&job, end(2, 0, FailureKind::Died(End::Failed), 3));
    // A new agent sees only that its tape is not sealed.
    shell.failed(&job, failure(2, 0, DIED));
    shell.settle(&job);
    let said = shell.incident("inc-0001").sentence();
    assert_eq!(said, "rank 2 exited with status 3 after step 149");
    // It exited with status 0, and another rank died after it.
    for others in [&[][..], &[end(3, 1_000, DIED, -11)]] {
        let mut shell = Shell::default();
        shell.failed(&job, failure(2, 0, DIED));
        others.iter().for_each(|other| shell.failed(&job, *other));
        shell.incidents.rank_ended(shell.now(), &job, 2, End::Exited);
        shell.settle(&job);
        let named = shell.incidents.iter().map(|known| known.incident().growth.rank);
        assert!(named.eq(others.iter().map(|other| other.rank)));
    }
}

#[test]
fn one_comparison_of_an_incident_is_under_way_at_a_time() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.at(100);
    shell.failed(&job, failure(2, 99, DIED));
    shell.settle(&job);
    for capture in ["cap-death", "cap-1", "cap-death"] {
        shell.incidents.capture_closed(7, capture, &Reason::Death { rank: 2 });
        shell.carry_out();
    }
    assert_eq!(shell.compared(), ["cap-death"]);
    // The last of those that were asked for follows.
    shell.diagnose_capture("inc-0001", "cap-death");
    assert_eq!(shell.compared(), ["cap-death", "cap-death"]);
    shell.diagnose_capture("inc-0001", "cap-death");
    assert_eq!(shell.compared(), ["cap-death", "cap-death"]);
}

#[test]
fn growth_that_ends_with_its_rank_has_its_newest_figures() {
    let (mut shell, mut job) = (Shell::default(), Job::new(7));
    shell.found(&job, Finding::Opened(leak(2)));
    job.newest = Some(Growth { grown_bytes: 9 << 30, last_step: 900, ..leak(2) });
    shell.at(100);
    shell.failed(&job, failure(2, 100, FailureKind::OutOfMemory));
    let known = shell.incidents.growth_before(shell.incident("inc-0002"), &job);
    let known = known.expect("the leak is known");
    assert_eq!(shell.incident("inc-0002").class(), Class::OutOfMemory, "before any diagnosis");
    assert_eq!((known.growth.grown_bytes, known.growth.last_step), (9 << 30, 900));
    shell.incidents.rank_ended(shell.now(), &job, 2, End::Failed);
    assert_eq!(shell.incident("inc-0001").growth.grown_bytes, 9 << 30);
}

/// The capture that its rise waits for is put off until its rank and the peers have ended.
#[test]
fn a_closed_incident_is_not_diagnosed_again_with_less_evidence() {
    let found =
        |class, line, peers_compared| Diagnosis { peers_compared, ..*diagnosis(class, line) };
    for (late, expected) in [
        (found(Class::Leak, 9, 0), (Class::Leak, 3, "cap-inc-0001")),
        (found(Class::Unknown, 0, 3), (Class::Leak, 3, "cap-inc-0001")),
        (found(Class::Leak, 9, 3), (Class::Leak, 9, "cap-late")),
    ] {
        let (mut shell, job) = (Shell::default(), Job::new(7));
        shell.found(&job, Finding::Opened(Growth { is_sure: false, ..leak(2) }));
        shell.diagnose("inc-0001", Box::new(found(Class::Leak, 3, 3)));
        shell.incidents.found(shell.now(), &job, Finding::Updated(leak(2)), String::new);
        shell.incidents.tick(shell.now());
        let wait_ns = 60 * SECOND;
        let refused = Err(Refusal::TooSoon { wait_ns });
        shell.incidents.capture_answered(shell.now(), "inc-0001", refused);
        while shell.incidents.poll().is_some() {}
        shell.incidents.rank_ended(shell.now(), &job, 2, End::Failed);
        shell.incidents.attempt_ended(shell.now(), &job);
        shell.now_ns = wait_ns;
        while shell.incidents.poll().is_some() {}
        shell.incidents.tick(shell.now());
        let request = shell.incidents.poll();
        assert!(matches!(request, Some(Effect::RequestCapture { .. })), "{request:?}");
        shell.incidents.capture_answered(shell.now(), "inc-0001", Ok("cap-late".into()));
        shell.incidents.capture_closed(7, "cap-late", &Reason::Growth { rank: 2 });
        let comparison = shell.incidents.poll();
        assert!(matches!(comparison, Some(Effect::Diagnose { .. })), "{comparison:?}");
        shell.incidents.diagnosed(shell.now(), "inc-0001", "cap-late", Ok(Box::new(late)));
        let incident = shell.incident("inc-0001");
        let known = incident.diagnosis.as_ref().expect("a diagnosis");
        let line = known.culprit.as_ref().map_or(0, |culprit| culprit.line);
        let capture = incident.capture_id.as_deref().expect("a capture");
        assert!(!incident.is_open());
        assert_eq!((known.class, line, capture), expected);
        // Its growth is judged in any case.
        assert_eq!(incident.urgency, Urgency::Page);
    }
}

#[test]
fn an_open_incident_pages_from_the_leaks_page_to_that_of_its_failure() {
    let (oom, died) = (FailureKind::OutOfMemory, FailureKind::Died(End::Failed));
    let compare = |shell: &mut Shell, ends_soon: bool| {
        let mut found = diagnosis(Class::OutOfMemory, 3);
        (found.confidence_ppm, found.ends_soon) = (0, ends_soon);
        shell.incidents.diagnosed(shell.now(), "inc-0002", "cap-oom", Ok(found));
    };
    // When the comparison comes that does not know the end: before it, with it, after it, or never.
    for alive_at in 0..4 {
        let (mut shell, job) = (Shell::default(), Job::new(7));
        shell.found(&job, Finding::Opened(leak(2)));
        shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
        shell.failed(&job, failure(2, 100, oom));
        shell.incidents.capture_closed(7, "cap-oom", &Reason::OutOfMemory { rank: 2 });
        for moment in 0..4 {
            match moment {
                0 => {}
                1 => shell.failed(&job, failure(2, 101, died)),
                2 => shell.incidents.rank_ended(shell.now(), &job, 2, End::Failed),
                _ => {
                    shell.at(COMPARE_EVERY_NS / SECOND);
                    compare(&mut shell, true);
                }
            }
            if alive_at == moment && moment < 3 {
                compare(&mut shell, false);
            }
            let open = shell.incidents.iter().map(Tracked::incident).filter(|of| of.is_open());
            let pages = open.filter(|of| of.urgency == Urgency::Page).count();
            assert_eq!(pages, 1, "{alive_at} {moment}");
        }
        assert!(!shell.incident("inc-0001").is_open());
    }
}

#[test]
fn a_death_that_no_trigger_captures_requests_its_own_capture() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.at(100);
    shell.failed(&job, failure(3, 99, DIED));
    shell.settle(&job);
    let wait_seconds = (SETTLED_NS + FAILURE_CAPTURE_WAIT_NS) / SECOND;
    shell.at(100 + wait_seconds - 1);
    assert_eq!(shell.requests(), 0);
    shell.at(100 + wait_seconds);
    let reason = Reason::Death { rank: 3 };
    let requested = |effect: &&Effect| match effect {
        Effect::RequestCapture { reason: of, .. } => *of == reason,
        _ => false,
    };
    assert_eq!(shell.log.iter().filter(requested).count(), 1);
}

#[test]
fn a_request_that_failed_is_over_when_the_rank_goes_on() {
    let (mut shell, mut job) = (Shell::default(), Job::new(7));
    shell.at(100);
    shell.failed(&job, failure(3, 100, FailureKind::OutOfMemory));
    job.last_step = 160;
    shell.review(&job);
    assert!(shell.incident("inc-0001").is_open());
    job.last_step = 165;
    shell.review(&job);
    let closed = shell.incident("inc-0001").closed.expect("the rank went on");
    assert_eq!(closed.reason, ClosedReason::WentOn { at_step: 165 });
    // It fails again and again: one incident, captured once, although the rank was quick.
    shell.at(120);
    assert_eq!(shell.requests(), 1);
    shell.incidents.capture_closed(7, "cap-oom", &Reason::OutOfMemory { rank: 3 });
    shell.carry_out();
    let mut seen = diagnosis(Class::OutOfMemory, 0);
    seen.seen = Some(failure(3, 100, FailureKind::OutOfMemory).growth());
    seen.sentence = "it failed".to_string();
    shell.incidents.diagnosed(shell.now(), "inc-0001", "cap-oom", Ok(seen));
    for seconds in [200, 300] {
        shell.at(seconds);
        let again = failure(3, seconds as i64, FailureKind::OutOfMemory);
        shell.failed(&job, Failure { step: job.last_step, ..again });
        assert!(shell.incident("inc-0001").is_open());
        job.last_step += 16;
        shell.review(&job);
    }
    assert_eq!((shell.incidents.len(), shell.requests()), (1, 1));
    let sentence = shell.incident("inc-0001").sentence();
    assert_eq!(sentence, "it failed; it failed again after step 181");
    // A day later too, and it hides no death.
    shell.at(100_000);
    let again = failure(3, 100_000, FailureKind::OutOfMemory);
    shell.failed(&job, Failure { step: job.last_step, ..again });
    shell.at(100_001);
    assert!(shell.incident("inc-0001").is_open());
    job.last_step += 16;
    shell.review(&job);
    shell.failed(&job, failure(0, 100_001, DIED));
    shell.settle(&job);
    assert!(shell.incident("inc-0002").is_open());
}

#[test]
fn growth_of_a_dead_rank_is_not_reported() {
    let mut shell = Shell::default();
    let job = Job { dead: Some(2), ..Job::new(7) };
    shell.found(&job, Finding::Opened(leak(2)));
    assert!(shell.incidents.is_empty());
    shell.found(&job, Finding::Opened(leak(3)));
    assert_eq!(shell.incidents.len(), 1);
}

#[test]
fn a_survived_request_hides_no_death() {
    let (mut shell, mut job) = (Shell::default(), Job::new(7));
    shell.at(100);
    shell.failed(&job, failure(3, 100, FailureKind::OutOfMemory));
    shell.failed(&job, failure(1, 105, DIED));
    shell.settle(&job);
    assert_eq!(shell.incident("inc-0001").growth.rank, 1);
    job.last_step = 1_000;
    shell.review(&job);
    assert!(shell.incident("inc-0001").is_open(), "a death is not survived");
    // A rank that ends well takes its failed request with it.
    let other = Job::new(8);
    shell.failed(&other, failure(3, 100, FailureKind::OutOfMemory));
    shell.incidents.rank_ended(shell.now(), &other, 3, End::Exited);
    let closed = shell.incident("inc-0002").closed.expect("its rank has ended");
    assert_eq!(closed.reason, ClosedReason::RankEnded);
}

#[test]
fn old_deaths_are_no_news() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.at(100_000);
    let oldest = 100_000 - FAILURE_AGE_SECONDS_MAX as i64;
    shell.failed(&job, failure(3, oldest - 1, DIED));
    assert!(shell.incidents.unsettled().is_empty());
    shell.failed(&Job::new(8), failure(3, oldest, DIED));
    shell.settle(&Job::new(8));
    assert_eq!(shell.incidents.len(), 1);
    shell.incidents.forget_attempt(8);
    shell.failed(&job, failure(3, 99_990, DIED));
    shell.settle(&job);
    assert!(shell.incident("inc-0002").is_open());
    shell.at(200_000);
    let closed = shell.incident("inc-0002").closed.expect("it is old");
    assert_eq!(closed.reason, ClosedReason::NoNews);
}

#[test]
fn a_newer_attempt_or_a_restart_does_not_hide_a_death() {
    // A launcher starts the next attempt at once.
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.failed(&job, failure(2, 0, DIED));
    shell.incidents.capture_closed(7, "cap-death", &Reason::Death { rank: 2 });
    shell.incidents.attempt_begun(shell.now(), &[7]);
    shell.settle(&job);
    shell.incidents.attempt_begun(shell.now(), &[7]);
    shell.carry_out();
    shell.diagnose_capture("inc-0001", "cap-death");
    assert_eq!((shell.incident("inc-0001").is_open(), shell.pages()), (false, 1));
    // All deaths are reported again when the coordinator begins.
    let mut again = Shell::default();
    again.incidents.restore(
        again.now(),
        shell.incident("inc-0001").clone(),
        Holder::default(),
        149,
        None,
    );
    again.failed(&job, failure(2, 0, DIED));
    again.settle(&job);
    assert_eq!(again.incidents.len(), 1);
}

#[test]
fn a_request_that_is_reported_again_makes_no_dead_rank_alive() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.failed(&job, failure(2, 99, FailureKind::OutOfMemory));
    shell.failed(&job, failure(2, 100, DIED));
    assert!(shell.incidents.has_death(7));
    // The coordinator was restarted, and the agent repeats what it has said.
    shell.failed(&job, failure(2, 99, FailureKind::OutOfMemory));
    assert!(shell.incidents.has_death(7));
    assert_eq!(shell.incident("inc-0001").failure.map(|known| known.kind), Some(DIED));
}

#[test]
fn a_failure_is_compared_again_after_a_restart_unless_its_end_is_known() {
    for (ends_soon, compared) in [(false, 1), (true, 0)] {
        let (mut shell, job) = (Shell::default(), Job::new(7));
        shell.at(100);
        shell.failed(&job, failure(2, 99, FailureKind::OutOfMemory));
        shell.incidents.capture_closed(7, "cap-oom", &Reason::OutOfMemory { rank: 2 });
        let (now, mut found) = (shell.now(), diagnosis(Class::OutOfMemory, 3));
        found.ends_soon = ends_soon;
        shell.incidents.diagnosed(now, "inc-0001", "cap-oom", Ok(found));
        // The rank ends, and so does the coordinator before it has compared again.
        shell.incidents.rank_ended(now, &job, 2, End::Failed);
        let stored = shell.incident("inc-0001").clone();
        let mut again = Shell { now_ns: shell.now_ns, ..Shell::default() };
        again.incidents.restore(now, stored, Holder::default(), 149, None);
        again.now_ns += COMPARE_EVERY_NS;
        again.incidents.tick(again.now());
        again.carry_out();
        assert_eq!(again.compared().len(), compared, "{ends_soon}");
    }
}
