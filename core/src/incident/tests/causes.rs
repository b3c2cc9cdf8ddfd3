//! One cause, one incident: what shows on several devices, ranks or accounts.

use alloc::vec;

use super::*;
use crate::detector::Layer::{Allocated, Host, Reserved, Spread};
use crate::detector::Scope::OneRank;
use crate::identity::end::End;

/// Growth of this rank, device and account since step 100, with this many MiB a step.
fn grows(rank: u32, device: u8, layer: Layer, mib: u64) -> Growth {
    let known = growth(rank, layer, OneRank, 0);
    Growth { device, onset_step: 100, last_step: 200, bytes_per_step: mib << 20, ..known }
}

/// The sentences of the incidents that these findings open, one after the other.
fn opened(clock: Clock, findings: &[Growth]) -> Vec<String> {
    let (mut shell, job) = (Shell::default(), Job { clock, ..Job::new(0) });
    findings.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
    shell.incidents.iter().map(|known| known.incident().sentence()).collect()
}

#[test]
fn a_process_that_keeps_tensors_of_four_devices_is_one_incident() {
    let devices: Vec<Growth> = (0..4).map(|device| grows(0, device, Allocated, 2)).collect();
    let said = opened(Clock::Steps, &devices);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].ends_with("; it grows on devices 0, 1, 2 and 3"), "{said:?}");
    // Another one that began long after it is another cause.
    let later = Growth { onset_step: 900, last_step: 1_000, ..devices[1] };
    assert_eq!(opened(Clock::Steps, &[devices[0], later]).len(), 2);
}

#[test]
fn ranks_without_steps_that_grow_alike_are_one_incident() {
    let two = [grows(0, 0, Allocated, 2), grows(1, 0, Allocated, 3)];
    let said = opened(Clock::Turns, &two);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].ends_with("; rank 1 grows alike"), "{said:?}");
    assert_eq!(opened(Clock::Turns, &[two[0], grows(1, 0, Allocated, 9)]).len(), 2);
    // Of ranks that count steps the detector knows better.
    assert_eq!(opened(Clock::Steps, &two).len(), 2);
}

#[test]
fn what_a_growth_drags_along_belongs_to_it() {
    let (leak, reserved) = (grows(2, 0, Allocated, 2), grows(2, 0, Reserved, 7));
    for findings in [[leak, reserved], [reserved, leak], [grows(2, 0, Spread, 0), reserved]] {
        let (mut shell, job) = (Shell::default(), Job::new(0));
        findings.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
        let incident = shell.incident("inc-0001");
        assert_eq!(shell.incidents.len(), 1, "{findings:?}");
        assert!(incident.growth.layer != Reserved, "{findings:?}");
        let is_said = incident.evidence().iter().any(|line| line.contains("reserves 7 MiB more"));
        assert!(is_said, "{:?}", incident.evidence());
    }
    assert_eq!(opened(Clock::Steps, &[leak, grows(3, 0, Reserved, 7)]).len(), 2);
    // It may be seen long after the cause began, unless it grows much faster than that.
    let later = |mib| Growth { onset_step: 900, last_step: 1_000, ..grows(2, 0, Reserved, mib) };
    let incidents = |mib| opened(Clock::Steps, &[leak, later(mib)]).len();
    assert_eq!([4, 5].map(incidents), [1, 2]);
    // What is certain, or recurs, is reported beside a notice.
    let notice = Growth { is_sure: false, ..leak };
    for other in [later(4), Growth { layer: Layer::Retries, ..later(0) }] {
        assert_eq!(opened(Clock::Steps, &[notice, other]).len(), 2, "{other:?}");
    }
    assert_eq!(opened(Clock::Steps, &[leak, grows(2, 0, Host, 7)]).len(), 2);
}

#[test]
fn an_incident_lasts_as_long_as_one_of_its_findings() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let devices: Vec<Growth> = (0..3).map(|device| grows(0, device, Allocated, 2)).collect();
    devices.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
    let larger = Growth { grown_bytes: 1 << 30, ..devices[2] };
    shell.log.clear();
    shell.found(&job, Finding::Closed(devices[1]));
    let (id, change) = ("inc-0001".to_string(), Change::Updated);
    assert_eq!(shell.log, [Effect::Store { id, change }], "that is stored");
    shell.found(&job, Finding::Updated(larger));
    assert_eq!(shell.incident("inc-0001").joined, [larger]);
    shell.found(&job, Finding::Closed(devices[0]));
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.is_open(), incident.growth.key()), (true, larger.key()));
    // It is found again after a restart of the coordinator.
    shell.found(&job, Finding::Opened(larger));
    shell.found(&job, Finding::Closed(larger));
    assert!(!shell.incident("inc-0001").is_open() && shell.incidents.len() == 1);
}

#[test]
fn a_growth_and_the_failure_that_it_ends_in_are_linked_both_ways() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.found(&job, Finding::Opened(leak(2)));
    let (wall_ns, kind, exit_status) = (0, FailureKind::OutOfMemory, None);
    let of = Failure { rank: 2, device: 0, step: 99, wall_ns, ranks: 4, kind, exit_status };
    shell.incidents.failed(shell.now(), &job, of, || "inc-oom".to_string());
    shell.incidents.rank_ended(shell.now(), &job, 2, End::Failed);
    shell.carry_out();
    let related = |id: &str| shell.incident(id).related.clone();
    assert_eq!(related("inc-0001").as_deref(), Some("inc-oom"));
    assert_eq!(related("inc-oom").as_deref(), Some("inc-0001"));
    let why = shell.incident("inc-0001").closed_reason();
    assert_eq!(why, "the process of its rank has ended; inc-oom reports how");
}

#[test]
fn one_cause_that_is_seen_more_clearly_is_one_incident() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(growth(2, Layer::Blocks, Scope::AllRanks, 0)));
    shell.found(&job, Finding::Opened(growth(2, Layer::Blocks, Scope::OneRank, 0)));
    assert_eq!(shell.incident("inc-0001").growth.scope, Scope::OneRank, "narrowed");
    shell.found(&job, Finding::Opened(leak(2)));
    assert_eq!(shell.incident("inc-0001").growth.layer, Layer::Allocated, "blocks have bytes");
    shell.found(&job, Finding::Opened(leak(3)));
    assert_eq!(shell.incidents.len(), 2);
    shell.found(&Job::new(1), Finding::Opened(leak(2)));
    assert_eq!(shell.incidents.len(), 3, "another attempt");
}

#[test]
fn what_goes_on_of_an_incident_is_measured_and_captured() {
    let (mut shell, mut job) = (Shell::default(), Job::new(0));
    let devices: Vec<Growth> = (0..2).map(|device| grows(0, device, Allocated, 2)).collect();
    shell.found(&job, Finding::Opened(devices[0]));
    shell.found(&job, Finding::Opened(Growth { is_sure: false, ..devices[1] }));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    let newest = Growth { is_sure: false, steps_to_oom: Some(70), last_step: 290, ..devices[1] };
    job.newest = Some(newest);
    shell.found(&job, Finding::Closed(devices[0]));
    shell.incidents.tick(shell.now());
    shell.carry_out();
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.seconds_to_oom, shell.requests()), (Some(70), 2));
    assert_eq!(incident.growth, Growth { is_sure: true, ..newest }, "what was certain stays so");
}

#[test]
fn a_cause_that_takes_over_an_incident_is_as_certain() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(grows(2, 0, Reserved, 7)));
    let leak = Growth { is_sure: false, ..grows(2, 0, Allocated, 2) };
    shell.found(&job, Finding::Opened(leak));
    assert_eq!(shell.incident("inc-0001").growth, Growth { is_sure: true, ..leak });
}

#[test]
fn a_joined_finding_about_all_ranks_that_names_another_rank_is_the_same() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let of = |rank, layer| growth(rank, layer, Scope::AllRanks, 0);
    shell.found(&job, Finding::Opened(of(1, Layer::Allocated)));
    shell.found(&job, Finding::Opened(of(1, Layer::Reserved)));
    let stored = shell.incident("inc-0001").clone();
    assert_eq!(stored.joined.len(), 1);
    let mut shell = Shell::default();
    shell.incidents.restore(shell.now(), stored, Holder::default(), 20, None);
    shell.found(&job, Finding::Opened(of(2, Layer::Allocated)));
    shell.found(&job, Finding::Opened(of(3, Layer::Reserved)));
    let joined = |shell: &Shell| {
        shell.incident("inc-0001").joined.iter().map(|growth| growth.rank).collect::<Vec<_>>()
    };
    assert_eq!((joined(&shell), shell.incidents.len()), ([3].into(), 1));
    shell.found(&job, Finding::Closed(of(3, Layer::Reserved)));
    shell.found(&job, Finding::Closed(of(2, Layer::Allocated)));
    assert!(joined(&shell).is_empty() && !shell.incident("inc-0001").is_open());
}

#[test]
fn an_incident_lasts_as_long_as_a_finding_of_it_that_returns() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let devices: Vec<Growth> = (0..2).map(|device| grows(0, device, Allocated, 2)).collect();
    devices.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
    shell.found(&job, Finding::Closed(devices[0]));
    let returned = Growth { returns: 1, onset_step: 900, last_step: 990, ..devices[0] };
    shell.found(&job, Finding::Opened(returned));
    shell.found(&job, Finding::Closed(devices[1]));
    let incident = shell.incident("inc-0001");
    assert!(incident.is_open() && incident.growth.key() == returned.key(), "{incident:?}");
    assert_eq!(shell.incidents.len(), 1);
}

#[test]
fn a_rank_that_ends_leaves_the_incident_of_another() {
    let (mut shell, mut job) = (Shell::default(), Job { clock: Clock::Turns, ..Job::new(7) });
    let ranks: Vec<Growth> = (0..3).map(|rank| grows(rank, 0, Allocated, 2)).collect();
    ranks.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
    shell.incidents.rank_ended(shell.now(), &job, 1, End::Failed);
    let incident = shell.incident("inc-0001");
    assert_eq!(incident.joined, [ranks[2]]);
    let said = incident.sentence();
    assert!(said.ends_with("; rank 2 grows alike; rank 1 grew alike"), "{said}");
    // The death of the rank is still the end of that growth, which the detector does not close.
    job.newest = Some(Growth { grown_bytes: 1 << 30, ..ranks[1] });
    let (wall_ns, kind, exit_status) = (0, FailureKind::OutOfMemory, None);
    let of = Failure { rank: 1, device: 0, step: 99, wall_ns, ranks: 4, kind, exit_status };
    shell.incidents.failed(shell.now(), &job, of, || "inc-oom".to_string());
    assert_eq!(shell.incident("inc-oom").related.as_deref(), Some("inc-0001"));
    let known = shell.incidents.growth_before(shell.incident("inc-oom"), &job);
    let grown_bytes = known.map(|known| known.growth.grown_bytes);
    assert_eq!(grown_bytes, Some(1 << 30), "that of the rank itself");
    shell.incidents.rank_ended(shell.now(), &job, 2, End::Exited);
    shell.found(&job, Finding::Closed(ranks[0]));
    let incident = shell.incident("inc-0001");
    assert!(!incident.is_open());
    assert!(incident.sentence().ends_with("; ranks 1 and 2 grew alike"), "{incident:?}");
}

#[test]
fn a_closed_incident_names_the_ranks_that_grew_alike_together() {
    let (mut shell, job) = (Shell::default(), Job { clock: Clock::Turns, ..Job::new(7) });
    (0..3).for_each(|rank| shell.found(&job, Finding::Opened(grows(rank, 0, Allocated, 2))));
    shell.incidents.rank_ended(shell.now(), &job, 1, End::Failed);
    shell.incidents.attempt_ended(shell.now(), &job);
    let said = shell.incident("inc-0001").sentence();
    assert!(said.ends_with("; ranks 1 and 2 grew alike"), "{said}");
}

#[test]
fn growth_that_had_ended_is_not_what_a_rank_died_of() {
    let (mut shell, job) = (Shell::default(), Job { clock: Clock::Turns, ..Job::new(7) });
    let ranks: Vec<Growth> = (0..2).map(|rank| grows(rank, 0, Allocated, 2)).collect();
    ranks.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
    shell.found(&job, Finding::Closed(ranks[0]));
    assert_eq!(shell.incident("inc-0001").growth.rank, 1, "that of the other goes on");
    let (wall_ns, kind, exit_status) = (0, FailureKind::OutOfMemory, None);
    let of = Failure { rank: 0, device: 0, step: 99, wall_ns, ranks: 4, kind, exit_status };
    shell.incidents.failed(shell.now(), &job, of, || "inc-oom".to_string());
    assert_eq!(shell.incident("inc-oom").related, None);
}

#[test]
fn after_a_restart_an_incident_goes_on_with_the_findings_that_are_found_again() {
    let job = Job { clock: Clock::Turns, ..Job::new(7) };
    let ranks: Vec<Growth> = (0..3).map(|rank| grows(rank, 0, Allocated, 2)).collect();
    let mut before = Shell::default();
    ranks.iter().for_each(|growth| before.found(&job, Finding::Opened(*growth)));
    let record = before.incident("inc-0001").clone();
    // Of the incident, these are found again.
    let restarted = |found: &[u32]| {
        let (mut shell, mut job) = (Shell::default(), Job { clock: job.clock, ..Job::new(7) });
        shell.incidents.restore(shell.now(), record.clone(), Holder::default(), 200, None);
        let growth = |rank: &u32| ranks[*rank as usize];
        found.iter().for_each(|rank| shell.found(&job, Finding::Opened(growth(rank))));
        job.newest = found.contains(&0).then(|| ranks[0]);
        job.last_step = 201 + CONFIRM_STEPS;
        shell.review(&job);
        let incident = shell.incident("inc-0001");
        let joined: Vec<u32> = incident.joined.iter().map(|growth| growth.rank).collect();
        (incident.is_open(), incident.growth.rank, joined)
    };
    assert_eq!(restarted(&[0, 1, 2]), (true, 0, vec![1, 2]));
    assert_eq!(restarted(&[0, 2]), (true, 0, vec![2]));
    assert_eq!(restarted(&[2]), (true, 2, vec![]));
    assert!(!restarted(&[]).0);
}

#[test]
fn findings_beyond_those_that_an_incident_keeps_open_another_one() {
    let (mut shell, job) = (Shell::default(), Job { clock: Clock::Turns, ..Job::new(7) });
    for rank in 0..20 {
        shell.found(&job, Finding::Opened(grows(rank, 0, Allocated, 2)));
    }
    let joined = |id| shell.incident(id).joined.len();
    assert_eq!((shell.incidents.len(), joined("inc-0001"), joined("inc-0002")), (2, 16, 2));
    // The seventeenth of them is brought up to date.
    let larger = Growth { grown_bytes: 1 << 30, ..grows(17, 0, Allocated, 2) };
    shell.found(&job, Finding::Updated(larger));
    assert_eq!(shell.incident("inc-0002").growth.grown_bytes, 1 << 30);
}

#[test]
fn an_incident_that_turns_to_another_account_has_the_class_of_that() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(grows(2, 0, Reserved, 7)));
    shell.diagnose("inc-0001", diagnosis(Class::Fragmentation, 3));
    shell.now_ns += SECOND;
    shell.found(&job, Finding::Opened(grows(2, 0, Allocated, 2)));
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.growth.layer, incident.class()), (Allocated, Class::Unknown));
    assert!(incident.sentence().starts_with("rank 2 keeps 2 MiB more"), "{}", incident.sentence());
    // No new capture may be taken: that which is there is compared again.
    let now = shell.now();
    shell.log.clear();
    shell.incidents.tick(now);
    let request = |effect: &Effect| matches!(effect, Effect::RequestCapture { .. });
    while let Some(effect) = shell.incidents.poll() {
        shell.log.push(effect);
    }
    let (id, capture) = ("inc-0001".to_string(), "cap-inc-0001".to_string());
    assert!(shell.log.contains(&Effect::Diagnose { id, capture }), "{:?}", shell.log);
    shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", Ok(diagnosis(Class::Leak, 3)));
    assert_eq!(shell.incident("inc-0001").class(), Class::Leak);
    // The capture of the new finding is still wanted.
    shell.log.clear();
    shell.now_ns += RETRY_NS;
    shell.incidents.tick(shell.now());
    shell.carry_out();
    assert!(shell.log.iter().any(request), "{:?}", shell.log);
}

#[test]
fn blocks_whose_bytes_are_seen_keep_their_diagnosis() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(grows(2, 0, Layer::Blocks, 2)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Opened(grows(2, 0, Allocated, 2)));
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.growth.layer, incident.class()), (Allocated, Class::Leak));
}

/// The effects of the machine, with no request granted.
fn effects(shell: &mut Shell) -> Vec<Effect> {
    core::iter::from_fn(|| shell.incidents.poll()).collect()
}

fn compares(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Diagnose { .. })).count()
}

#[test]
fn a_first_capture_is_compared_once_whatever_the_incident_turned_to() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(grows(2, 0, Reserved, 7)));
    shell.found(&job, Finding::Opened(grows(2, 0, Allocated, 2)));
    shell.log.clear();
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.incidents.tick(shell.now());
    let more = effects(&mut shell);
    assert_eq!((compares(&shell.log), compares(&more)), (1, 0));
}

#[test]
fn a_comparison_of_the_account_before_is_no_diagnosis() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(grows(2, 0, Reserved, 7)));
    shell.incidents.capture_closed(0, "cap-inc-0001", &Reason::Manual);
    shell.carry_out();
    shell.found(&job, Finding::Opened(grows(2, 0, Allocated, 2)));
    shell.log.clear();
    let diagnosed = |shell: &mut Shell, class| {
        let (now, found) = (shell.now(), Ok(diagnosis(class, 3)));
        shell.incidents.diagnosed(now, "inc-0001", "cap-inc-0001", found);
        shell.carry_out();
        shell.incident("inc-0001").class()
    };
    assert_eq!(diagnosed(&mut shell, Class::Fragmentation), Class::Unknown);
    assert_eq!(compares(&shell.log), 1, "it is compared for the new account");
    assert_eq!(diagnosed(&mut shell, Class::Leak), Class::Leak);
}

#[test]
fn an_account_whose_capture_is_not_stored_any_more_is_captured() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let of = |layer, returns| Growth { is_sure: false, ..growth(2, layer, OneRank, returns) };
    shell.found(&job, Finding::Opened(of(Reserved, 0)));
    shell.found(&job, Finding::Opened(of(Allocated, 0)));
    shell.found(&job, Finding::Closed(of(Reserved, 0)));
    shell.diagnose("inc-0001", diagnosis(Class::Leak, 3));
    shell.found(&job, Finding::Closed(of(Allocated, 0)));
    let requests = shell.requests();
    // What returns as a notice requests no capture by itself.
    shell.found(&job, Finding::Opened(of(Reserved, 1)));
    let gone = || Err(NotCompared::Failed { why: "the capture is no longer stored".into() });
    for _ in 0..2 {
        shell.now_ns += RETRY_NS;
        shell.incidents.tick(shell.now());
        for effect in effects(&mut shell) {
            if let Effect::Diagnose { id, capture } = &effect {
                shell.incidents.diagnosed(shell.now(), id, capture, gone());
            }
            shell.log.push(effect);
        }
    }
    shell.carry_out();
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.growth.layer, incident.is_open()), (Reserved, true));
    assert_eq!(shell.requests(), requests + 1);
}

#[test]
fn growth_that_goes_on_ends_with_its_attempt() {
    let (mut shell, mut job) = (Shell::default(), Job::new(0));
    shell.found(&job, Finding::Opened(leak(0)));
    job.has_ended = true;
    // The findings come before the news that the attempt has ended.
    shell.found(&job, Finding::Closed(leak(0)));
    shell.incidents.attempt_ended(shell.now(), &job);
    let closed = shell.incident("inc-0001").closed.map(|closed| closed.reason);
    assert_eq!(closed, Some(ClosedReason::AttemptEnded));
}
