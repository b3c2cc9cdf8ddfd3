//! Decisions of the policy, and their reasons.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::*;
use crate::action::{Observation, Outcome, Progress, Verdict, Why};
use crate::tape::mailbox::Offers;

const MINUTE: u64 = 60 * 1_000_000_000;

/// A policy, and its earlier decisions.
pub(super) struct Policy {
    settings: Settings,
    pub(super) past: Vec<Action>,
}

/// An outcome with this progress.
pub(super) fn outcome(progress: Progress) -> Outcome {
    match progress {
        Progress::Dropped => Outcome::Lost,
        Progress::Refused => Outcome::Refused { why: String::new() },
        Progress::Made => Outcome::Finished { said: String::new() },
        Progress::UnderWay => Outcome::Running,
    }
}

impl Policy {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, past: Vec::new() }
    }

    /// Decides, and puts down an action that follows.
    pub(super) fn decide(&mut self, now_ns: u64, facts: &Facts<'_>) -> Decision {
        let decision = self.settings.decide(now_ns, facts, &self.past);
        let outcome = match &decision {
            Decision::Act(..) => Outcome::Running,
            Decision::WouldAct(..) => Outcome::DryRun,
            Decision::Nothing(_) => return decision,
        };
        let serial = facts.serial;
        self.past.push(Action {
            kind: decision.kind().unwrap_or_default(),
            incident_id: facts.incident.to_string(),
            job: facts.job.to_string(),
            owner: facts.owner.cloned(),
            node: facts.node.to_string(),
            attempt: facts.attempt,
            dry_run: outcome == Outcome::DryRun,
            // Each is a decision of its own, also at the same time.
            wall_ns: self.past.len() as i64,
            at_ns: now_ns,
            outcome,
            observation: Some(Observation { serial, ..Observation::default() }),
            ..Action::default()
        });
        decision
    }

    /// Settles the action under way on a job.
    pub(super) fn settle(&mut self, job: &str, progress: Progress) {
        let is_meant = |it: &&mut Action| it.job == job && it.progress() == Progress::UnderWay;
        if let Some(action) = self.past.iter_mut().find(is_meant) {
            action.outcome = outcome(progress);
        }
    }

    /// Whether the last action helped, and the attempt that showed it.
    fn prove(&mut self, next: Option<u32>, has_helped: bool) {
        let (last, why) = (self.past.last_mut().expect("an action"), Why::Finished);
        last.verdict = Some(if has_helped { Verdict::Helped(why) } else { Verdict::NoEffect(why) });
        last.observation.as_mut().expect("an observation").next = next;
    }

    fn explain(&self, now_ns: u64, facts: &Facts<'_>) -> Explanation {
        self.settings.explain(now_ns, facts, &self.past)
    }
}

pub(super) fn leak() -> Facts<'static> {
    Facts {
        job: "job",
        owner: None,
        node: "",
        is_proved: true,
        is_current: true,
        attempt: 0,
        serial: 0,
        incident: "inc-1",
        class: Class::Leak,
        restart: RestartAnswer::GivesBack,
        oom_in_ns: Some(10 * MINUTE),
        job_ends_first: false,
        urgent: false,
        objection: None,
        ended: false,
        observed: None,
        offers: Offers::default(),
        reach: Reach::Unknown,
        is_approved: false,
    }
}

fn settings(mode: Mode) -> Settings {
    Settings { rest: Rule { mode, ..Rule::default() }, ..Settings::default() }
}

/// Restarts without regard to the horizon.
fn always() -> Settings {
    let rest = Rule { mode: Mode::Act, always: true, ..Rule::default() };
    Settings { rest, ..Settings::default() }
}

#[test]
fn one_decision() {
    let check = |settings: Settings, facts: Facts<'_>, act: bool, dry_run: bool, why: &str| {
        let decision = Policy::new(settings).decide(0, &facts);
        assert_eq!(decision.to_string(), why);
        assert_eq!(matches!(decision, Decision::Act(..)), act);
        assert_eq!(matches!(decision, Decision::WouldAct(..)), dry_run);
    };
    let (on, off) = (settings(Mode::Act), settings(Mode::Off));
    let reason = "restart: leak (inc-1), out of memory in 10 min";
    check(off, leak(), false, false, "did nothing: the policy is off");
    check(on.clone(), leak(), true, false, reason);
    let would = "would restart: leak (inc-1), out of memory in 10 min";
    check(settings(Mode::DryRun), leak(), false, true, would);
    let first = Facts { job_ends_first: true, ..leak() };
    let why = "did nothing: the job ends as planned before memory is full";
    check(on.clone(), first, false, false, why);
    let restart = RestartAnswer::NeededAgain;
    let pressure = Facts { class: Class::Pressure, restart, ..leak() };
    let why = "did nothing: a restart does not help against pressure";
    check(on.clone(), pressure, false, false, why);
    let far = Facts { oom_in_ns: Some(300 * MINUTE), ..leak() };
    let why = "did nothing: out of memory only in 5 h, beyond the horizon of 30 min";
    check(on.clone(), far.clone(), false, false, why);
    check(always(), far.clone(), true, false, "restart: leak (inc-1), out of memory in 5 h");
    let urgent = Facts { urgent: true, ..far };
    check(on.clone(), urgent, true, false, "restart: leak (inc-1), memory already fails");
    let blind = Facts { oom_in_ns: None, ..leak() };
    let why = "did nothing: it is not known when memory runs out";
    check(on.clone(), blind, false, false, why);
    let ended = Facts { ended: true, ..leak() };
    check(on.clone(), ended, false, false, "did nothing: attempt 0 is over");
    let notice = Facts { objection: Some(Objection::NotCertain), ..leak() };
    let why = "did nothing: it is not certain that the growth goes on";
    check(on.clone(), notice, false, false, why);
    let observed = Facts { observed: Some(ActionKind::Restart), ..leak() };
    let why = "did nothing: whether the last action helped is not known yet";
    check(on, observed, false, false, why);
}

#[test]
fn memory_of_other_processes_is_no_reason_for_a_restart() {
    let decide = |restart: RestartAnswer| {
        let non_torch = Facts { class: Class::NonTorch, restart, ..leak() };
        Policy::new(always()).decide(0, &non_torch)
    };
    assert!(matches!(decide(RestartAnswer::GivesBack), Decision::Act(..)));
    let why = "did nothing: a restart does not help against non_torch: other processes hold \
               the memory";
    assert_eq!(decide(RestartAnswer::OtherProcesses).to_string(), why);
    let why = "did nothing: it is not known whether a restart helps against non_torch";
    assert_eq!(decide(RestartAnswer::Unknown).to_string(), why);
}

#[test]
fn a_dry_run_does_not_claim_that_a_restart_was_made() {
    let mut policy = Policy::new(settings(Mode::DryRun));
    let mut why = || policy.decide(MINUTE, &leak()).to_string();
    assert_eq!(why(), "would restart: leak (inc-1), out of memory in 10 min");
    let again = "did nothing: the dry run already decided to restart; it decides again in 30 min";
    assert_eq!(why(), again);
}

#[test]
fn a_job_is_not_restarted_over_and_over() {
    let mut policy = Policy::new(settings(Mode::Act));
    let mut check = |minute: u64, attempt: u32, expected: &str| {
        let decision = policy.decide(minute * MINUTE, &Facts { attempt, ..leak() });
        assert_eq!(decision.to_string(), expected, "minute {minute}");
        assert_eq!(matches!(decision, Decision::Act(..)), expected.starts_with("restart"));
        policy.settle("job", Progress::Made);
    };
    let restart = "restart: leak (inc-1), out of memory in 10 min";
    check(0, 0, restart);
    check(1, 0, "did nothing: it is too early to restart again: 29 min of cool-down left");
    check(10, 1, "did nothing: it is too early to restart again: 20 min of cool-down left");
    check(31, 1, restart);
    check(90, 2, restart);
    let spent = "did nothing: the budget of the job is spent: 3 restarts within 24 h; inspect \
                 the jobs before you raise the budget";
    check(180, 3, spent);
    // A day after the first one there is room for another.
    check(24 * 60, 3, restart);
    check(24 * 60 + 30, 4, spent);
}

/// Decides, settles the decision, and returns its reasons.
fn decided(policy: &mut Policy, minute: u64, job: &str, owner: u32, came: Progress) -> String {
    let owner = Owner { uid: owner, ..Owner::default() };
    let facts = Facts { job, owner: Some(&owner), ..leak() };
    let decision = policy.decide(minute * MINUTE, &facts);
    policy.settle(job, came);
    decision.to_string()
}

#[test]
fn a_restart_that_was_refused_is_tried_again_and_costs_no_cool_down() {
    let mut policy = Policy::new(settings(Mode::Act));
    let mut check = |minute, came, expected: &str| {
        let why = decided(&mut policy, minute, "job", 0, came);
        assert_eq!(why.strip_prefix("did nothing: ").unwrap_or(&why), expected, "{minute}");
    };
    let restart = "restart: leak (inc-1), out of memory in 10 min";
    let (refused, made) = (Progress::Refused, Progress::Made);
    check(0, refused, restart);
    check(1, refused, "the restart target refused 1 time: the next try is in 4 min");
    check(5, refused, restart);
    check(9, refused, "the restart target refused 2 times: the next try is in 6 min");
    // One that may have restarted the job counts as one that has.
    check(15, made, restart);
    check(40, made, "it is too early to restart again: 5 min of cool-down left");
    check(46, refused, restart);
    let spent = "the restart target refused 3 times for the job within 24 h: a person must look";
    check(24 * 60 - 1, made, spent);
    check(24 * 60, made, restart);
}

#[test]
fn two_restarts_that_did_not_help_are_the_last_of_an_attempt() {
    let mut policy = Policy::new(always());
    let mut check = |minute: u64, serial: u32, has_helped: bool, expected: &str| {
        let facts = Facts { serial, ..leak() };
        let why = policy.decide(minute * MINUTE, &facts).to_string();
        assert!(why.starts_with(expected), "{minute}: {why}");
        if why.starts_with("restart") {
            policy.settle("job", Progress::Made);
            policy.prove(Some(serial + 5), has_helped);
            // By two targets.
            policy.past.extend(policy.past.last().cloned());
        }
    };
    check(0, 1, false, "restart");
    check(31, 6, true, "restart");
    check(62, 11, false, "restart");
    // A day later, as far as the budgets are concerned.
    check(2_000, 16, false, "restart");
    let why = "did nothing: the last 2 restarts did not help";
    check(2_031, 21, false, why);
    check(4_000, 21, false, why);
    check(4_000, 16, false, why);
    // A person started the job again.
    check(4_001, 40, true, "restart");
    check(4_100, 45, true, "restart");
}

#[test]
fn a_target_that_refused_hides_no_proof_of_another() {
    let mut policy = Policy::new(always());
    for (minute, serial) in [(0, 1), (31, 6)] {
        let facts = Facts { serial, ..leak() };
        let why = policy.decide(minute * MINUTE, &facts).to_string();
        assert!(why.starts_with("restart"), "{why}");
        policy.settle("job", Progress::Made);
        policy.prove(Some(serial + 5), false);
        let made = policy.past.pop().expect("an action");
        let refused = outcome(Progress::Refused);
        let refused = Action { outcome: refused, observation: None, verdict: None, ..made.clone() };
        policy.past.extend([refused, made]);
    }
    let facts = Facts { serial: 11, ..leak() };
    let why = policy.decide(62 * MINUTE, &facts).to_string();
    assert!(why.starts_with("did nothing: the last 2 restarts did not help"), "{why}");
}

#[test]
fn an_alarm_about_all_jobs_restarts_few_of_them() {
    let mut policy = Policy::new(settings(Mode::Act));
    let mut whys = Vec::new();
    for job in 0..1000_u32 {
        whys.push(decided(&mut policy, 0, &job.to_string(), job % 3, Progress::Made));
    }
    let count = |start: &str| whys.iter().filter(|why| why.starts_with(start)).count();
    // The last two are for owners who had none.
    assert_eq!(count("restart: "), 8);
    for (owner, is_made) in [(0, false), (8, true), (8, false), (9, true), (10, false)] {
        let why =
            decided(&mut policy, 0, &format!("late {owner} {is_made}"), owner, Progress::Made);
        assert_eq!(why.starts_with("restart: "), is_made, "{owner}: {why}");
    }
    let owners = "did nothing: the budget of the owner is spent: 5 restarts within 60 min; \
                  inspect the jobs before you raise the budget";
    // Without a number: it is that of other owners' jobs.
    let all = "did nothing: the budget of the cluster is spent; inspect the jobs before you raise \
               the budget";
    assert_eq!(count(owners) + count(all), 992);
    let whys: Vec<String> =
        (0..7).map(|job| decided(&mut policy, 61, &job.to_string(), 7, Progress::Made)).collect();
    assert_eq!(whys[5], owners);
}

/// An agent may lie about the owners of its ranks, not about its node.
#[test]
fn one_node_causes_half_of_all_restarts_at_most() {
    let mut policy = Policy::new(settings(Mode::Act));
    let mut decide = |job: u32, node: &str| {
        let (name, owner) = (job.to_string(), Owner { uid: job, ..Owner::default() });
        let facts = Facts { job: &name, owner: Some(&owner), node, ..leak() };
        let why = policy.decide(0, &facts).to_string();
        policy.settle(&name, Progress::Made);
        why
    };
    let whys: Vec<String> = (0..20).map(|job| decide(job, "thief")).collect();
    assert_eq!(whys.iter().filter(|why| why.starts_with("restart: ")).count(), 5);
    let spent = "did nothing: the budget of the node is spent: 5 restarts within 60 min; \
                 inspect the jobs before you raise the budget";
    assert_eq!(whys[19], spent);
    assert!(decide(20, "honest").starts_with("restart: "));
    // One owner does not use up what a node has for all.
    let mut policy = Policy::new(settings(Mode::Act));
    let mut decide = |job: u32, uid: u32| {
        let (name, owner) = (job.to_string(), Owner { uid, ..Owner::default() });
        let facts = Facts { job: &name, owner: Some(&owner), node: "shared", ..leak() };
        let decision = policy.decide(0, &facts);
        policy.settle(&name, Progress::Made);
        matches!(decision, Decision::Act(..))
    };
    assert_eq!((0..9).filter(|job| decide(*job, 1)).count(), 4);
    assert!(decide(9, 2) && !decide(10, 3));
}

#[test]
fn a_rank_that_its_job_did_not_prove_is_not_acted_for() {
    let decision =
        Policy::new(settings(Mode::Act)).decide(0, &Facts { is_proved: false, ..leak() });
    let why = "did nothing: the job has not proved this rank: not all its ranks are known, another \
               attempt stands for it, or the rank is in another Slurm job";
    assert_eq!(decision.to_string(), why);
}

#[test]
fn a_target_that_refuses_everything_is_not_asked_for_every_job() {
    let mut policy = Policy::new(settings(Mode::Act));
    let whys: Vec<String> = (0..1000_u32)
        .map(|job| decided(&mut policy, 0, &job.to_string(), job, Progress::Refused))
        .collect();
    assert_eq!(whys.iter().filter(|why| why.starts_with("restart: ")).count(), 10);
    let why = "did nothing: the restart target refused too often: a person must look";
    assert_eq!(whys[999], why);
}

/// A leak of a job whose ranks collect garbage when they are asked.
fn offering() -> Facts<'static> {
    let offers = Offers::from_names("gc,empty-cache");
    Facts { offers, reach: Reach::Known { proof_in_ns: MINUTE }, ..leak() }
}

#[test]
fn remedies_are_tried_mildest_first_and_never_again_after_two_failures() {
    let mut policy = Policy::new(settings(Mode::Act));
    let mut now = 0;
    let mut decide = |policy: &mut Policy, facts: &Facts<'_>| {
        now += 2 * MINUTE;
        let why = policy.decide(now, facts).to_string();
        policy.settle("job", Progress::Made);
        why
    };
    let far = Facts { oom_in_ns: Some(300 * MINUTE), ..offering() };
    let collected = "collect garbage: leak (inc-1), out of memory in 5 h";
    for _ in 0..2 {
        assert_eq!(decide(&mut policy, &far), collected);
        let waits = Facts { observed: Some(ActionKind::Gc), ..far.clone() };
        let why = "did nothing: whether the last action helped is not known yet";
        assert_eq!(decide(&mut policy, &waits), why);
        policy.prove(None, false);
    }
    let why = "did nothing: out of memory only in 5 h, beyond the horizon of 30 min";
    assert_eq!(decide(&mut policy, &far), why);
    assert_eq!(decide(&mut policy, &offering()), "restart: leak (inc-1), out of memory in 10 min");
    // The next attempt is another process.
    let next = Facts { serial: 1, ..far };
    assert_eq!(decide(&mut policy, &next), collected);
    // Each by the class it suits.
    let fragmentation = Facts { class: Class::Fragmentation, serial: 1, ..offering() };
    let emptied = "empty the cache: fragmentation (inc-1), out of memory in 10 min";
    assert_eq!(decide(&mut policy, &fragmentation), emptied);
}

/// The second try waits for its time, and the restart for the second try.
#[test]
fn a_remedy_that_was_just_done_is_no_reason_for_the_next() {
    let act = "it is too early to collect garbage again: 30 s of cool-down left";
    let dry_run = "the dry run already decided to collect garbage; it decides again in 30 s";
    for (mode, why) in [(Mode::Act, act), (Mode::DryRun, dry_run)] {
        let mut policy = Policy::new(settings(mode));
        let mut decide = |second: u64| {
            let decision = policy.decide(second * 1_000_000_000, &offering());
            policy.settle("job", Progress::Made);
            decision
        };
        assert_eq!(decide(0).kind(), Some(ActionKind::Gc));
        let again = decide(30).to_string();
        assert_eq!(again, format!("did nothing: {why}"));
        assert_eq!(decide(61).kind(), Some(ActionKind::Gc));
    }
}

/// Agents without the right to write tapes refuse each time: the job is restarted all the same.
#[test]
fn a_remedy_that_is_refused_twice_does_not_block_the_restart() {
    let mut policy = Policy::new(settings(Mode::Act));
    let mut decide = |minute: u64, facts: &Facts<'_>, progress| {
        let why = policy.decide(minute * MINUTE, facts).to_string();
        policy.settle("job", progress);
        why
    };
    let (far, near) = (Facts { oom_in_ns: Some(300 * MINUTE), ..offering() }, offering());
    let collected = "collect garbage: leak (inc-1), out of memory in 5 h";
    let waits = "did nothing: the ranks refused 1 time: the next try is in 60 s";
    assert_eq!(decide(0, &far, Progress::Refused), collected);
    // The request may have come too late for its step: it is made once more.
    assert_eq!(decide(0, &near, Progress::Refused), waits);
    // One that was done ends the row.
    assert_eq!(decide(2, &far, Progress::Made), collected);
    assert_eq!(decide(4, &far, Progress::Refused), collected);
    assert_eq!(decide(4, &near, Progress::Refused), waits);
    assert_eq!(decide(6, &far, Progress::Refused), collected);
    let restart = "restart: leak (inc-1), out of memory in 10 min";
    let explained = policy.explain(7 * MINUTE, &near);
    let why = explained.remedies[0].1.map(|why| why.to_string());
    assert_eq!(why.as_deref(), Some("the ranks refused 2 times: the next try is in 60 s"));
    assert_eq!(explained.decision.to_string(), restart);
    // It is tried again after waits that double.
    assert_eq!(policy.explain(8 * MINUTE, &near).decision.kind(), Some(ActionKind::Gc));
}

#[test]
fn a_remedy_inside_the_ranks_needs_a_step_and_the_time_for_its_proof() {
    let decide = |facts: Facts<'_>| {
        let explained = Policy::new(settings(Mode::Act)).explain(0, &facts);
        let gc = explained.remedies[0].1.map(|why| why.to_string()).unwrap_or_default();
        (gc, explained.decision.kind())
    };
    let slow = Reach::Known { proof_in_ns: 10 * MINUTE };
    let soon = |minutes, reach| Facts { oom_in_ns: Some(minutes * MINUTE), reach, ..offering() };
    assert_eq!(decide(soon(11, slow)), (String::new(), Some(ActionKind::Gc)));
    assert_eq!(decide(Facts { oom_in_ns: None, ..soon(0, slow) }).1, Some(ActionKind::Gc));
    let no_time = "memory fails already, or before its effect is known: too late to collect \
                   garbage";
    assert_eq!(decide(soon(10, slow)), (no_time.into(), Some(ActionKind::Restart)));
    let no_step = "no step is known at which to collect garbage";
    assert_eq!(decide(soon(11, Reach::Unknown)), (no_step.into(), Some(ActionKind::Restart)));
    // An agent that is started again is waited for, as long as there is time.
    let (second, just_gone) = (MINUTE / 60, Reach::new(Some(10 * MINUTE), Some(0)));
    let away = "an agent of the job is not connected: it is too early to collect garbage";
    assert_eq!(decide(soon(11, just_gone)), (away.into(), None));
    assert_eq!(just_gone, Reach::Away { proof_in_ns: 10 * MINUTE + 30 * second });
    // Its proof would come too late, whenever it is back.
    assert_eq!(decide(soon(10, just_gone)), (no_time.into(), Some(ActionKind::Restart)));
    let soon_over = Reach::new(Some(10 * MINUTE), Some(29 * second));
    assert_eq!(soon_over, Reach::Away { proof_in_ns: 10 * MINUTE + second });
    assert_eq!(Reach::new(Some(10 * MINUTE), Some(30 * second)), Reach::Unknown);
    assert_eq!(Reach::new(None, Some(0)), Reach::Unknown);
}

#[test]
fn no_action_is_taken_before_the_agents_are_back() {
    let decision =
        Policy::new(settings(Mode::Act)).decide(0, &Facts { is_current: false, ..offering() });
    let why = "did nothing: the agents of the job are not back since the coordinator was started";
    assert_eq!(decision.to_string(), why);
}

#[test]
fn an_unsuitable_remedy_is_skipped() {
    let decide = |facts: Facts<'_>| Policy::new(settings(Mode::Act)).decide(0, &facts).to_string();
    let restart = "restart: leak (inc-1), out of memory in 10 min";
    assert_eq!(decide(leak()), restart, "not offered");
    let fails = Facts { urgent: true, observed: Some(ActionKind::Gc), ..offering() };
    assert_eq!(decide(fails), "restart: leak (inc-1), memory already fails");
    let explained = Policy::new(settings(Mode::Act)).explain(0, &leak());
    let reasons: Vec<Option<String>> =
        explained.remedies.iter().map(|(_, why)| why.as_ref().map(ToString::to_string)).collect();
    let offer = "not all ranks were started with `memtape run --actions gc`".to_string();
    let suits = "emptied caches do not help against leak".to_string();
    assert_eq!(reasons, [Some(offer), Some(suits), None]);
    assert_eq!(explained.decision.to_string(), restart);
}

#[test]
fn terms_hold_for_the_jobs_and_classes_of_their_rule() {
    let rule = |line, job: &str| Rule {
        line,
        jobs: [rule::Pattern::new(job)].into(),
        mode: Mode::Act,
        ..Rule::default()
    };
    let rules = [Rule { approval: true, ..rule(1, "approved") }];
    rule::check(&rules).expect("sound");
    let settings = Settings { rules: rules.into(), ..settings(Mode::DryRun) };
    let decide = |facts: Facts<'_>| Policy::new(settings.clone()).decide(0, &facts).to_string();
    let job = |job| Facts { job, ..leak() };
    let restart = "restart: leak (inc-1), out of memory in 10 min";
    assert_eq!(decide(job("other")), alloc::format!("would {restart}"));
    let why = "did nothing: a person must approve the restart, by `memtape policy approve`";
    assert_eq!(decide(job("approved")), why);
    assert_eq!(decide(Facts { is_approved: true, ..job("approved") }), restart);
    let why = "did nothing: it is not known when memory runs out";
    assert_eq!(decide(Facts { oom_in_ns: None, is_approved: true, ..job("approved") }), why);
}

/// A dry run shows the same text as the real action, except for the mode.
#[test]
fn a_dry_run_says_what_the_real_thing_does() {
    let cases = [
        leak(),
        offering(),
        Facts { class: Class::Fragmentation, ..offering() },
        Facts { urgent: true, ..offering() },
        Facts { oom_in_ns: None, ..leak() },
        Facts { ended: true, ..leak() },
    ];
    for facts in cases {
        let [dry, act] = [Mode::DryRun, Mode::Act]
            .map(|mode| Policy::new(settings(mode)).decide(0, &facts).to_string());
        assert_eq!(dry.strip_prefix("would ").unwrap_or(&dry), act);
    }
}
