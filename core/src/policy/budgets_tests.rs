//! Properties of the budgets: whatever happens in whatever order, no window holds more restarts, or
//! more refused tries, than its budget; a restart of the process changes nothing.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::remedy::Remedy;
use super::super::terms::{Levels, Terms};
use super::super::{Decision, Facts, Mode, Policy, Reach, Settings};
use super::*;
use crate::diagnosis::{Class, RestartAnswer};
use crate::tape::mailbox::Offers;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Pass {
        ns: u64,
    },
    Alarm {
        job: usize,
    },
    Settle {
        job: usize,
        progress: Progress,
    },
    /// The process is killed and started again.
    Kill,
}

/// A restart that was decided on.
#[derive(Clone, Debug)]
struct Made {
    at_ns: u64,
    job: usize,
    progress: Progress,
}

const JOBS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Owners of the jobs: a user, then two users of a namespace; of the last one it is not known.
fn owner(job: usize) -> Option<Owner> {
    match job {
        0 | 1 => Some(Owner { uid: 7, ..Owner::default() }),
        2 => Some(Owner { uid: 7, namespace: "a".to_string(), ..Owner::default() }),
        3 => Some(Owner { uid: 8, namespace: "a".to_string(), ..Owner::default() }),
        _ => None,
    }
}

/// Do two jobs share the budget of an owner?
fn is_shared(one: usize, other: usize) -> bool {
    one / 2 == other / 2
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..40_u64).prop_map(|ns| Step::Pass { ns }),
        (0..JOBS.len()).prop_map(|job| Step::Alarm { job }),
        (0..JOBS.len()).prop_map(|job| Step::Alarm { job }),
        (0..JOBS.len(), progress()).prop_map(|(job, progress)| Step::Settle { job, progress }),
        Just(Step::Kill),
    ]
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![Just(Progress::Dropped), Just(Progress::Refused), Just(Progress::Made)]
}

fn budget() -> impl Strategy<Value = Budget> {
    (0..5_u32, 1..150_u64).prop_map(|(restarts_max, window_ns)| Budget { restarts_max, window_ns })
}

fn limits() -> impl Strategy<Value = Limits> {
    (budget(), budget(), budget(), 0..60_u64, 0..20_u64).prop_map(
        |(job, owner, cluster, cooldown_ns, retry_ns)| Limits {
            job,
            owner,
            cluster,
            cooldown_ns,
            retry_ns,
        },
    )
}

fn facts(job: usize, owner: Option<&Owner>) -> Facts<'_> {
    Facts {
        job: JOBS[job],
        owner,
        node: "",
        is_agreed: true,
        is_current: true,
        attempt: 0,
        serial: 0,
        incident: "inc-1",
        class: Class::Leak,
        restart: RestartAnswer::GivesBack,
        oom_in_ns: None,
        urgent: true,
        ended: false,
        observed: None,
        offers: Offers::default(),
        reach: Reach::Unknown,
        levels: Levels::default(),
        is_approved: false,
        wall_ns: 0,
    }
}

fn policy(mode: Mode, budgets: &Limits) -> Policy {
    let terms = Terms { mode, ..Terms::default() };
    Policy::new(Settings { terms, budgets: budgets.clone(), ..Settings::default() })
}

/// A policy that takes up what an earlier one decided.
fn restored(now_ns: u64, limits: &Limits, made: &[Made]) -> Policy {
    let mut policy = policy(Mode::Act, limits);
    for Made { at_ns, job, progress } in made {
        let owner = owner(*job);
        let (job, owner) = (JOBS[*job], owner.as_ref());
        let restart = Restart { job, owner, node: "", attempt: 0, is_dry_run: false };
        policy.restore((now_ns, *at_ns), Remedy::Restart, &restart, *progress);
    }
    policy
}

/// Every window that ends with a restart holds no more than the budget.
fn is_kept(budget: Budget, made: &[Made], is_meant: impl Fn(&Made) -> bool) -> bool {
    let meant: Vec<&Made> = made.iter().filter(|made| is_meant(made)).collect();
    meant.iter().all(|last| {
        let window = meant.iter().filter(|made| {
            made.at_ns <= last.at_ns && is_within(made.at_ns, last.at_ns, budget.window_ns)
        });
        window.count() <= budget.restarts_max as usize
    })
}

fn check_budgets(limits: &Limits, made: &[Made]) -> Result<(), TestCaseError> {
    let kinds: [fn(Progress) -> bool; 2] = [
        |progress| matches!(progress, Progress::Made | Progress::UnderWay),
        |progress| progress == Progress::Refused,
    ];
    for is_kind in kinds {
        for (job, name) in JOBS.iter().enumerate() {
            let of_job = |made: &Made| is_kind(made.progress) && made.job == job;
            prop_assert!(is_kept(limits.job, made, of_job), "job {}: {:?}", name, made);
            let of_owner = |made: &Made| is_kind(made.progress) && is_shared(made.job, job);
            prop_assert!(is_kept(limits.owner, made, of_owner), "owner of {}: {:?}", name, made);
        }
        let of_cluster = |made: &Made| is_kind(made.progress);
        prop_assert!(is_kept(limits.cluster, made, of_cluster), "cluster: {:?}", made);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_window_holds_more_than_its_budget(
        limits in limits(),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let (mut now_ns, mut made) = (1_000_u64, Vec::<Made>::new());
        let mut policy = policy(Mode::Act, &limits);
        for step in steps {
            match step {
                Step::Pass { ns } => now_ns += ns,
                Step::Alarm { job } => {
                    let owner = owner(job);
                    let decision = policy.decide(now_ns, &facts(job, owner.as_ref()));
                    if matches!(decision, Decision::Act(..)) {
                        made.push(Made { at_ns: now_ns, job, progress: Progress::UnderWay });
                    }
                }
                Step::Settle { job, progress } => {
                    policy.settle(JOBS[job], Remedy::Restart, progress);
                    let is_meant =
                        |made: &&mut Made| made.job == job && made.progress == Progress::UnderWay;
                    made.iter_mut().filter(is_meant).for_each(|made| made.progress = progress);
                }
                Step::Kill => {
                    // What had been under way may have been made.
                    let under_way = made.iter_mut()
                        .filter(|made| made.progress == Progress::UnderWay);
                    under_way.for_each(|made| made.progress = Progress::Made);
                    policy = restored(now_ns, &limits, &made);
                }
            }
            check_budgets(&limits, &made)?;
        }
    }

    /// One that is restored decides as one that was never killed.
    #[test]
    fn a_killed_process_forgets_nothing(
        limits in limits(),
        before in prop::collection::vec((0..30_u64, 0..JOBS.len(), progress()), 0..40),
        after in prop::collection::vec((0..30_u64, 0..JOBS.len(), progress()), 1..40),
    ) {
        let (mut now_ns, mut made) = (1_000_u64, Vec::new());
        let mut living = policy(Mode::Act, &limits);
        for (ns, job, progress) in before {
            now_ns += ns;
            let owner = owner(job);
            let decision = living.decide(now_ns, &facts(job, owner.as_ref()));
            living.settle(JOBS[job], Remedy::Restart, progress);
            if matches!(decision, Decision::Act(..)) {
                made.push(Made { at_ns: now_ns, job, progress });
            }
        }
        let mut restored = restored(now_ns, &limits, &made);
        for (ns, job, progress) in after {
            now_ns += ns;
            let owner = owner(job);
            let facts = facts(job, owner.as_ref());
            prop_assert_eq!(living.decide(now_ns, &facts), restored.decide(now_ns, &facts));
            living.settle(JOBS[job], Remedy::Restart, progress);
            restored.settle(JOBS[job], Remedy::Restart, progress);
        }
    }

    /// A dry run would restart what a policy that acts restarts, where every restart is made.
    #[test]
    fn a_dry_run_shows_what_act_does(
        limits in limits(),
        alarms in prop::collection::vec((0..30_u64, 0..JOBS.len()), 1..80),
    ) {
        let mut now_ns = 1_000_u64;
        let (mut acts, mut shows) = (policy(Mode::Act, &limits), policy(Mode::DryRun, &limits));
        for (ns, job) in alarms {
            now_ns += ns;
            let owner = owner(job);
            let facts = facts(job, owner.as_ref());
            let (done, shown) = (acts.decide(now_ns, &facts), shows.decide(now_ns, &facts));
            acts.settle(JOBS[job], Remedy::Restart, Progress::Made);
            let (done, shown) = (
                matches!(done, Decision::Act(..)),
                matches!(shown, Decision::WouldAct(..)),
            );
            prop_assert_eq!(done, shown);
        }
    }
}

/// A dry run blocks no restart. A restart counts for the dry runs after it.
#[test]
fn dry_runs_count_for_dry_runs_alone() {
    let budget = |restarts_max| Budget { restarts_max, window_ns: 100 };
    let limits = Limits {
        job: budget(2),
        owner: budget(2),
        cluster: budget(2),
        cooldown_ns: 10,
        retry_ns: 0,
    };
    let of = |is_dry_run| Restart { job: "job", owner: None, node: "", attempt: 0, is_dry_run };
    let mut budgets = Budgets::new(limits);
    for at_ns in [1_000, 1_020] {
        budgets.add(at_ns, at_ns, &of(true), Progress::Made);
    }
    assert!(matches!(budgets.objection(1_021, &of(true)), Some(Objection::CoolDown { .. })));
    assert!(matches!(budgets.objection(1_040, &of(true)), Some(Objection::BudgetSpent { .. })));
    assert_eq!(budgets.objection(1_021, &of(false)), None);
    budgets.add(1_021, 1_021, &of(false), Progress::Made);
    assert!(matches!(budgets.objection(1_022, &of(false)), Some(Objection::CoolDown { .. })));
    assert!(matches!(budgets.objection(1_030, &of(true)), Some(Objection::CoolDown { .. })));
    // As many as are remembered push out no restart.
    for _ in 0..=RESTARTS_REMEMBERED_MAX {
        budgets.add(1_022, 1_022, &of(true), Progress::Made);
    }
    assert!(matches!(budgets.objection(1_022, &of(false)), Some(Objection::CoolDown { .. })));
    assert_eq!(budgets.objection(1_040, &of(false)), None);
}

/// Budgets without end are bounded by what is remembered.
#[test]
fn restarts_without_a_budget_are_bounded() {
    let budget = Budget { restarts_max: u32::MAX, window_ns: 100 };
    let limits =
        Limits { job: budget, owner: budget, cluster: budget, cooldown_ns: 0, retry_ns: 0 };
    let mut budgets = Budgets::new(limits);
    let restart = Restart { job: "job", owner: None, node: "", attempt: 0, is_dry_run: false };
    for _ in 0..RESTARTS_REMEMBERED_MAX {
        assert_eq!(budgets.objection(1_000, &restart), None);
        budgets.add(1_000, 1_000, &restart, Progress::Made);
    }
    assert!(matches!(
        budgets.objection(1_000, &restart),
        Some(Objection::BudgetSpent { restarts: RESTARTS_REMEMBERED_MAX, .. })
    ));
    assert_eq!(budgets.objection(1_100, &restart), None);
    budgets.add(1_100, 1_100, &restart, Progress::Made);
    assert_eq!(budgets.known.len(), 1);
}

/// Pods choose their user ids: a namespace has one budget, whatever they choose.
#[test]
fn users_of_a_namespace_share_a_budget() {
    let budget = |restarts_max| Budget { restarts_max, window_ns: 100 };
    let limits = Limits {
        job: budget(9),
        owner: budget(1),
        cluster: budget(9),
        cooldown_ns: 0,
        retry_ns: 0,
    };
    let mut budgets = Budgets::new(limits);
    let owners = [(0, "a"), (1, "a"), (0, "b"), (0, "")];
    let owners = owners.map(|(uid, namespace)| {
        let namespace = namespace.to_string();
        Owner { uid, namespace, ..Owner::default() }
    });
    let restart = |job, index: usize| Restart {
        job,
        owner: Some(&owners[index]),
        node: "",
        attempt: 0,
        is_dry_run: false,
    };
    budgets.add(1_000, 1_000, &restart("first", 0), Progress::Made);
    assert!(matches!(
        budgets.objection(1_000, &restart("second", 1)),
        Some(Objection::BudgetSpent { scope: Scope::Owner, restarts: 1, .. })
    ));
    for other in [2, 3] {
        assert_eq!(budgets.objection(1_000, &restart("other", other)), None);
    }
}
