//! One cause, one incident: what shows on several devices, ranks or accounts.

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
    assert_eq!(opened(Clock::Steps, &[leak, grows(2, 0, Host, 7)]).len(), 2);
}

#[test]
fn an_incident_lasts_as_long_as_one_of_its_findings() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let devices: Vec<Growth> = (0..3).map(|device| grows(0, device, Allocated, 2)).collect();
    devices.iter().for_each(|growth| shell.found(&job, Finding::Opened(*growth)));
    let close = |of: &Growth| Finding::Closed { key: of.key(), at_step: 300 };
    let larger = Growth { grown_bytes: 1 << 30, ..devices[2] };
    shell.found(&job, close(&devices[1]));
    shell.found(&job, Finding::Updated(larger));
    assert_eq!(shell.incident("inc-0001").joined, [larger]);
    shell.found(&job, close(&devices[0]));
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.is_open(), incident.growth.key()), (true, larger.key()));
    // It is found again after a restart of the coordinator.
    shell.found(&job, Finding::Opened(larger));
    shell.found(&job, close(&larger));
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
