//! Jobs that stand still.

use super::*;
use crate::identity::end::End;
use crate::incident::standstill::{Pauses, Progress, Ranks};

/// Four ranks at these steps that finish one each second, have stood since second 0 and were last
/// seen to allocate then; the attempt paused for up to `pause` seconds before.
fn ranks(steps: [u64; 4], seconds: u64, pause: u64) -> Ranks {
    let stood_ns = seconds * SECOND;
    let progress =
        |(rank, step)| Progress { rank, step, stood_ns, quiet_ns: stood_ns, ..Progress::default() };
    let mut pauses = Pauses::default();
    pauses.moved(0, 0);
    pauses.moved(pause * SECOND, pause * SECOND);
    let heard = (0..).zip(steps).map(progress).collect();
    Ranks { heard, world: 4, step_time_ns: Some(SECOND), pauses }
}

impl Shell {
    fn scan(&mut self, job: &Job, seconds: u64, ranks: Ranks) {
        self.now_ns = seconds * SECOND;
        let (now, names) = (self.now(), &mut self.names);
        self.incidents.scan_progress(now, job, &ranks, || {
            *names += 1;
            format!("inc-{names:04}")
        });
        self.incidents.tick(self.now());
        self.carry_out();
    }
}

/// Is this an incident? If it is, is it certain?
fn found(ranks: &Ranks) -> Option<bool> {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    shell.scan(&job, 1, ranks.clone());
    shell.incidents.iter().next().map(|known| known.incident().growth.is_sure)
}

/// A diagnosis that names this rank as the one that the others wait for.
fn desynchronised(rank: u32, step: u64, known: &Growth) -> Box<Diagnosis> {
    let seen = Some(Growth { rank, onset_step: step, ..*known });
    Box::new(Diagnosis { seen, ..*diagnosis(Class::Desynchronised, 0) })
}

#[test]
fn a_rank_that_leaves_a_collective_out_is_an_incident_that_pages() {
    let (mut shell, job) = (Shell::default(), Job::new(0));
    let hang = |seconds| ranks([448, 448, 396, 448], seconds, 3);
    shell.scan(&job, 19, hang(19));
    assert!(shell.incidents.is_empty());
    for seconds in [20, 21, 30] {
        shell.scan(&job, seconds, hang(seconds));
    }
    let incident = shell.incident("inc-0001");
    assert_eq!((incident.growth.rank, shell.requests(), shell.incidents.len()), (2, 1, 1));
    let standstill = Reason::Standstill { rank: 2 };
    let is_its =
        |of: &Effect| matches!(of, Effect::RequestCapture { reason, .. } if *reason == standstill);
    assert!(shell.log.iter().any(is_its), "{:?}", shell.log);
    assert_eq!(
        incident.sentence(),
        "all 4 ranks stand still, rank 2 at step 396 and 52 steps behind its peers"
    );
    let known = incident.growth;
    shell.diagnose("inc-0001", desynchronised(3, 448, &known));
    assert_eq!((shell.incident("inc-0001").growth.rank, shell.pages()), (3, 0));
    // It lasts: it is captured again, and pages once.
    shell.scan(&job, 480, hang(480));
    assert_eq!(shell.requests(), 2);
    shell.diagnose("inc-0001", desynchronised(2, 396, &known));
    for seconds in [490, 700] {
        shell.scan(&job, seconds, hang(seconds));
    }
    assert_eq!((shell.pages(), shell.requests(), shell.incidents.len()), (1, 2, 1));
    // The rank goes on.
    shell.scan(&job, 701, ranks([448, 448, 397, 448], 0, 700));
    let closed = shell.incident("inc-0001").closed.expect("the job goes on");
    assert_eq!(closed.reason, ClosedReason::WentOn { at_step: 448 });
}

#[test]
fn ranks_that_die_after_a_standstill_do_not_page_again() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    shell.scan(&job, 120, ranks([448, 448, 396, 448], 120, 20));
    let known = shell.incident("inc-0001").growth;
    let wait = |shell: &mut Shell, seconds: u64| {
        shell.now_ns += seconds * SECOND;
        shell.incidents.settle(shell.now(), &job, || "inc-death".to_string());
        shell.incidents.tick(shell.now());
        shell.carry_out();
    };
    shell.diagnose("inc-0001", desynchronised(2, 396, &known));
    assert_eq!(shell.pages(), 1);
    // NCCL's watchdog aborts the ranks.
    let (wall_ns, kind) = (shell.now().wall_ns, FailureKind::Died(End::Killed));
    let exit_status = Some(-6);
    let of = Failure { rank: 0, device: 0, step: 448, wall_ns, ranks: 4, kind, exit_status };
    shell.incidents.failed(shell.now(), &job, of, || "inc-death".to_string());
    shell.incidents.attempt_ended(shell.now(), &job);
    wait(&mut shell, 10);
    assert_eq!(shell.incident("inc-death").related.as_deref(), Some("inc-0001"));
    wait(&mut shell, 10);
    shell.diagnose("inc-death", diagnosis(Class::Died, 0));
    assert_eq!(shell.incident("inc-death").reported_in.as_deref(), Some("inc-0001"));
    assert_eq!(shell.pages(), 1);
}

#[test]
fn a_pause_of_the_whole_job_is_no_standstill_until_it_is_long() {
    let check =
        |expected: bool, ranks: Ranks| assert_eq!(found(&ranks).is_some(), expected, "{ranks:?}");
    let still = |seconds, pause| ranks([448; 4], seconds, pause);
    check(false, still(59, 0));
    check(true, still(60, 0));
    // It has saved a checkpoint for as long before.
    check(false, still(79, 40));
    check(true, still(80, 40));
    // It evaluates for 10 minutes each hour; nothing is remembered as longer than 2 hours.
    check(false, still(1_199, 600));
    check(true, still(1_200, 600));
    check(true, still(14_400, 100_000));
    // One rank evaluates.
    let busy = |seconds| {
        let mut ranks = still(seconds, 0);
        ranks.heard[0].quiet_ns = SECOND;
        ranks
    };
    check(false, busy(299));
    check(true, busy(300));
    // Steps are long; are not known; one rank has just finished one; there is one rank.
    check(false, Ranks { step_time_ns: Some(100 * SECOND), ..still(799, 0) });
    check(true, Ranks { step_time_ns: Some(100 * SECOND), ..still(800, 0) });
    check(false, Ranks { step_time_ns: None, ..still(900, 0) });
    let mut moves = still(900, 0);
    moves.heard[3].stood_ns = 0;
    check(false, moves);
    check(false, Ranks { heard: still(900, 0).heard[..1].to_vec(), ..still(900, 0) });
    // Ranks of another role count other steps.
    let mut roles = ranks([448, 448, 20, 20], 30, 0);
    roles.heard.iter_mut().for_each(|rank| rank.role = Some(u64::from(rank.rank / 2)));
    check(false, roles);
    check(true, ranks([448, 448, 20, 20], 30, 0));
}

#[test]
fn a_standstill_outlives_a_restart_and_follows_no_death() {
    let (mut shell, job) = (Shell::default(), Job::new(7));
    let hang = |seconds| ranks([448, 448, 396, 448], seconds, 0);
    shell.scan(&job, 30, hang(30));
    let record = shell.incident("inc-0001").clone();
    let mut again = Shell::default();
    again.incidents.restore(again.now(), record, Holder::default(), 396, None);
    // One node is not back yet, and the time begins again.
    again.scan(&job, 31, Ranks { heard: hang(0).heard[..2].to_vec(), ..hang(0) });
    again.scan(&job, 60, hang(29));
    assert!(again.incident("inc-0001").is_open() && again.incidents.len() == 1);
    // Where a rank has died its peers wait for it.
    let mut shell = Shell::default();
    let (wall_ns, kind) = (0, FailureKind::Died(End::Killed));
    let of = Failure { rank: 2, device: 0, step: 396, wall_ns, ranks: 4, kind, exit_status: None };
    shell.incidents.failed(shell.now(), &job, of, || "inc-death".to_string());
    shell.scan(&job, 60, hang(60));
    assert!(shell.incidents.is_empty(), "its death is held");
    shell.incidents.settle(shell.now(), &job, || "inc-death".to_string());
    shell.scan(&job, 61, hang(61));
    assert_eq!(shell.incidents.len(), 1);
}

#[test]
fn a_standstill_pages_after_a_restart_when_it_is_said_to() {
    let (mut before, job) = (Shell::default(), Job::new(7));
    let hang = |seconds| ranks([448, 448, 396, 448], seconds, 0);
    before.scan(&job, 30, hang(30));
    let known = before.incident("inc-0001").growth;
    before.diagnose("inc-0001", desynchronised(2, 396, &known));
    let record = before.incident("inc-0001").clone();
    let mut shell = Shell::default();
    shell.incidents.restore(shell.now(), record, Holder::default(), 396, None);
    // Nothing tells how long a step takes.
    let stands = |seconds| Ranks { step_time_ns: None, ..hang(seconds) };
    let due = |shell: &Shell, ranks: Ranks| {
        ranks.pages_in_ns(shell.now().wall_ns, shell.incident("inc-0001"))
    };
    let alone = Ranks { heard: stands(9).heard[..1].to_vec(), ..stands(9) };
    assert_eq!(due(&shell, alone), None, "one rank is no standstill");
    assert_eq!(due(&shell, stands(79)), Some(401 * SECOND));
    // It has lasted since it was found, and the ranks have 20 s to move.
    shell.now_ns = 330 * SECOND;
    assert_eq!(due(&shell, stands(1)), Some(180 * SECOND));
    shell.now_ns = 520 * SECOND;
    assert_eq!(due(&shell, stands(1)), Some(19 * SECOND));
    shell.scan(&job, 520, stands(19));
    assert!(!shell.incident("inc-0001").growth.is_sure);
    // What was about a rank alone before was not found as a standstill then.
    let mut turned = shell.incident("inc-0001").clone();
    turned.former.push(GrowthKey { scope: Scope::OneRank, ..turned.growth.key() });
    assert_eq!(stands(79).pages_in_ns(shell.now().wall_ns, &turned), Some(401 * SECOND));
    shell.scan(&job, 479, stands(479));
    assert_eq!((shell.requests(), shell.incident("inc-0001").growth.is_sure), (0, false));
    shell.scan(&job, 480, stands(480));
    assert_eq!((shell.requests(), due(&shell, stands(481))), (1, None));
    shell.diagnose("inc-0001", desynchronised(2, 396, &known));
    assert_eq!(shell.pages(), 1);
    // Without an incident it is not known whether the job stands still.
    assert_eq!(found(&stands(10_000)), None);
}

#[test]
fn the_first_pause_of_a_job_is_not_certain_for_long() {
    // The others wait in a barrier while rank 0 saves the first checkpoint.
    assert_eq!(found(&ranks([448; 4], 479, 3)), Some(false));
    assert_eq!(found(&ranks([448; 4], 480, 3)), Some(true));
    assert_eq!(found(&ranks([448, 448, 396, 448], 479, 3)), Some(false));
    assert_eq!(ranks([448; 4], 79, 3).due_in_ns(0, None), Some([0, 401 * SECOND]));
    // It has paused before.
    assert_eq!(found(&ranks([448; 4], 179, 20)), Some(false));
    assert_eq!(found(&ranks([448; 4], 180, 20)), Some(true));
}

#[test]
fn a_rank_that_is_behind_waits_as_long_as_the_job_has_paused_before() {
    // The roles are not known: rank 2 learns while the actors wait for 25 s.
    let apart = |seconds| found(&ranks([448, 448, 408, 448], seconds, 25));
    assert_eq!((apart(49), apart(50)), (None, Some(false)));
}

#[test]
fn a_pause_is_counted_as_far_as_the_rank_was_heard() {
    let mut pauses = Pauses::default();
    assert!(!pauses.moved(0, 0));
    // Its agent hung for 10 minutes, and was disconnected for 10 more.
    assert!(!pauses.moved(600 * SECOND, SECOND));
    pauses.reconnected(1_200 * SECOND);
    assert!(!pauses.moved(1_210 * SECOND, 1_205 * SECOND));
    assert_eq!(found(&Ranks { pauses, ..ranks([448; 4], 60, 0) }), Some(false));
    // It has stood for 100 seconds. That is stored.
    assert!(pauses.moved(1_312 * SECOND, 1_310 * SECOND));
    assert!(!pauses.moved(1_412 * SECOND, 1_410 * SECOND), "as long as before");
    assert_eq!(found(&Ranks { pauses, ..ranks([448; 4], 199, 0) }), None);
}
