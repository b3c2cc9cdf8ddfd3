//! Properties of the budgets: for any events in any order, no window holds more restarts, or more
//! refused tries, than its budget.

use alloc::string::ToString;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::tests::{Policy, leak, outcome};
use super::super::{Decision, Facts, Mode, Rule, Settings};
use super::*;

/// The next event.
#[derive(Clone, Copy, Debug)]
enum Step {
    Pass { ns: u64 },
    Alarm { job: usize },
    Settle { job: usize, progress: Progress },
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
        2 => Some(Owner { uid: 7, namespace: "a".to_string().into(), ..Owner::default() }),
        3 => Some(Owner { uid: 8, namespace: "a".to_string().into(), ..Owner::default() }),
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
    ]
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![Just(Progress::Dropped), Just(Progress::Refused), Just(Progress::Made)]
}

fn budget() -> impl Strategy<Value = Budget> {
    (0..5_u32, 1..150_u64).prop_map(|(restarts_max, window_ns)| Budget { restarts_max, window_ns })
}

fn budgets() -> impl Strategy<Value = Budgets> {
    (budget(), budget(), budget(), 0..60_u64, 0..20_u64).prop_map(
        |(job, owner, cluster, cool_down_ns, retry_ns)| Budgets {
            job,
            owner,
            cluster,
            cool_down_ns,
            cool_down_inside_ns: 0,
            retry_ns,
        },
    )
}

fn facts(job: usize, owner: Option<&Owner>) -> Facts<'_> {
    Facts { job: JOBS[job], owner, oom_in_ns: None, urgent: true, ..leak() }
}

fn policy(mode: Mode, budgets: Budgets) -> Policy {
    let rest = Rule { mode, ..Rule::default() };
    Policy::new(Settings { rest, budgets, ..Settings::default() })
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

fn check_budgets(budgets: &Budgets, made: &[Made]) -> Result<(), TestCaseError> {
    let kinds: [fn(Progress) -> bool; 2] = [
        |progress| matches!(progress, Progress::Made | Progress::UnderWay),
        |progress| progress == Progress::Refused,
    ];
    for is_kind in kinds {
        for (job, name) in JOBS.iter().enumerate() {
            let of_job = |made: &Made| is_kind(made.progress) && made.job == job;
            prop_assert!(is_kept(budgets.job, made, of_job), "job {}: {:?}", name, made);
            let of_owner = |made: &Made| is_kind(made.progress) && is_shared(made.job, job);
            prop_assert!(is_kept(budgets.owner, made, of_owner), "owner of {}: {:?}", name, made);
        }
        let of_cluster = |made: &Made| is_kind(made.progress);
        prop_assert!(is_kept(budgets.cluster, made, of_cluster), "cluster: {:?}", made);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_window_holds_more_than_its_budget(
        budgets in budgets(),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let (mut now_ns, mut made) = (1_000_u64, Vec::<Made>::new());
        let mut policy = policy(Mode::Act, budgets);
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
                    policy.settle(JOBS[job], progress);
                    let is_meant =
                        |made: &&mut Made| made.job == job && made.progress == Progress::UnderWay;
                    made.iter_mut().filter(is_meant).for_each(|made| made.progress = progress);
                }
            }
            check_budgets(&budgets, &made)?;
        }
    }

    /// A dry run would restart the same jobs as an acting policy whose restarts all succeed.
    #[test]
    fn a_dry_run_shows_what_act_does(
        budgets in budgets(),
        alarms in prop::collection::vec((0..30_u64, 0..JOBS.len()), 1..80),
    ) {
        let mut now_ns = 1_000_u64;
        let (mut acts, mut shows) = (policy(Mode::Act, budgets), policy(Mode::DryRun, budgets));
        for (ns, job) in alarms {
            now_ns += ns;
            let owner = owner(job);
            let facts = facts(job, owner.as_ref());
            let (done, shown) = (acts.decide(now_ns, &facts), shows.decide(now_ns, &facts));
            acts.settle(JOBS[job], Progress::Made);
            let (done, shown) = (
                matches!(done, Decision::Act(..)),
                matches!(shown, Decision::WouldAct(..)),
            );
            prop_assert_eq!(done, shown);
        }
    }
}

const NONE: Budgets = {
    let budget = Budget { restarts_max: u32::MAX, window_ns: 100 };
    Budgets {
        job: budget,
        owner: budget,
        cluster: budget,
        cool_down_ns: 0,
        cool_down_inside_ns: 0,
        retry_ns: 0,
    }
};

fn planned(subject: &str, is_dry_run: bool) -> Planned<'_> {
    Planned { kind: ActionKind::Restart, subject, owner: None, node: "", is_dry_run }
}

/// A restart that was made.
fn made(at_ns: u64, job: &str, dry_run: bool) -> Action {
    let (job, outcome) = (job.to_string(), outcome(Progress::Made));
    Action { job, at_ns, wall_ns: at_ns as i64, dry_run, outcome, ..Action::default() }
}

/// A dry run blocks no restart. A restart counts for the dry runs after it.
#[test]
fn dry_runs_count_for_dry_runs_alone() {
    let budget = Budget { restarts_max: 2, window_ns: 100 };
    let budgets = Budgets { job: budget, owner: budget, cluster: budget, cool_down_ns: 10, ..NONE };
    let mut past = [1_000, 1_020].map(|at_ns| made(at_ns, "job", true)).to_vec();
    let check = |now_ns, is_dry_run, past: &[Action]| {
        budgets.objection(now_ns, &planned("job", is_dry_run), past)
    };
    assert!(matches!(check(1_021, true, &past), Some(Objection::CoolDown { .. })));
    assert!(matches!(check(1_040, true, &past), Some(Objection::BudgetSpent { .. })));
    assert_eq!(check(1_021, false, &past), None);
    past.push(made(1_021, "job", false));
    assert!(matches!(check(1_022, false, &past), Some(Objection::CoolDown { .. })));
    assert!(matches!(check(1_030, true, &past), Some(Objection::CoolDown { .. })));
    assert_eq!(check(1_040, false, &past), None);
}

/// Budgets without end are bounded.
#[test]
fn restarts_without_a_budget_are_bounded() {
    let mut past = Vec::new();
    for number in 0..RESTARTS_REMEMBERED_MAX {
        past.push(Action { wall_ns: number as i64, ..made(1_000, "job", false) });
    }
    let check = |now_ns, past: &[Action]| NONE.objection(now_ns, &planned("job", false), past);
    assert_eq!(check(1_000, &past[1..]), None);
    assert!(matches!(
        check(1_000, &past),
        Some(Objection::BudgetSpent { count: RESTARTS_REMEMBERED_MAX, .. })
    ));
    assert_eq!(check(1_100, &past), None);
}

/// Pods choose their user ids: all user ids of a namespace share one budget.
#[test]
fn users_of_a_namespace_share_a_budget() {
    let budgets = Budgets { owner: Budget { restarts_max: 1, window_ns: 100 }, ..NONE };
    let owners = [(0, "a"), (1, "a"), (0, "b"), (0, "")];
    let owners = owners.map(|(uid, namespace)| {
        let namespace = namespace.to_string();
        Owner { uid, namespace: namespace.into(), ..Owner::default() }
    });
    let past = [Action { owner: Some(owners[0].clone()), ..made(1_000, "first", false) }];
    let check = |job, index: usize| {
        let planned = Planned { owner: Some(&owners[index]), ..planned(job, false) };
        budgets.objection(1_000, &planned, &past)
    };
    assert!(matches!(
        check("second", 1),
        Some(Objection::BudgetSpent { scope: Scope::Owner, count: 1, .. })
    ));
    for other in [2, 3] {
        assert_eq!(check("other", other), None);
    }
}

/// Remedies inside the ranks have more of the same budgets, and none of them counts for a restart.
#[test]
fn each_kind_has_its_budget() {
    let budget = Budget { restarts_max: 1, window_ns: 100 };
    let budgets = Budgets { job: budget, ..NONE };
    let gc = |at_ns| Action { kind: ActionKind::Gc, ..made(at_ns, "job", false) };
    let past: Vec<Action> = (1_000..1_010).map(gc).collect();
    let check = |kind, past: &[Action]| {
        budgets.objection(1_020, &Planned { kind, ..planned("job", false) }, past)
    };
    assert_eq!(check(ActionKind::Gc, &past[1..]), None);
    let spent = Some(Objection::BudgetSpent {
        kind: ActionKind::Gc,
        scope: Scope::Job,
        count: 10,
        window_ns: 100,
    });
    assert_eq!(check(ActionKind::Gc, &past), spent);
    assert_eq!(check(ActionKind::Restart, &past), None);
}
