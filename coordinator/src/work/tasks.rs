//! Runs the work that takes its time: comparisons of snapshots, and restarts.
//!
//! The loop hands work out and goes on. Each piece runs in a task of its own, and its result comes
//! back as an event. A simulation runs the pieces itself. An order gets here what its target proves
//! the ownership by.

use std::sync::Arc;
use std::time::Duration;

use memtape_core::action::{ActionKind, Outcome};
use memtape_core::limits::COMPARISONS_MAX;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::Door;
use crate::ingest::event::Event;
use crate::restart::proving::Prover;
use crate::restart::target::{Order, Target};
use crate::state::effects::{Work, WorkDone};
use crate::work::decoding::Snapshots;
use crate::work::diagnosing;

/// Time for work to end when the coordinator stops. What takes longer is cut, as a kill would do:
/// the next coordinator observes what came of it.
const END_TIME: Duration = Duration::from_secs(10);

/// Does work until every sender is gone. No task goes on then. What still runs on a thread that may
/// block has the bytes of snapshots and no store, or waits for one read of a file.
pub(crate) async fn carry_out(
    mut works: mpsc::UnboundedReceiver<Work>,
    snapshots: Snapshots,
    door: Arc<Door>,
    prover: Prover,
    events: mpsc::Sender<Event>,
) {
    let snapshots = snapshots.apart();
    let turns = Arc::new(Semaphore::new(COMPARISONS_MAX));
    let nodes = Arc::new(Semaphore::new(1));
    let mut tasks = JoinSet::new();
    while let Some(work) = works.recv().await {
        while tasks.try_join_next().is_some() {}
        let (snapshots, events, turns) = (snapshots.clone(), events.clone(), turns.clone());
        let (door, nodes, prover) = (door.clone(), nodes.clone(), prover.clone());
        tasks.spawn(async move {
            let done = match work {
                Work::Compare(task) => {
                    // Never closed, so that this cannot fail.
                    let _turn = turns.acquire().await;
                    diagnosing::compare(*task, &snapshots).await
                }
                Work::Act { kind, target, order } => {
                    act(kind, target, Order { prover, ..*order }, (&door, &nodes)).await
                }
                Work::Resume { kind, target, order } => resume(kind, target, *order, &door).await,
            };
            // The loop is gone: the coordinator stops.
            let _ = events.send(Event::Worked(done)).await;
        });
    }
    let ending = async { while tasks.join_next().await.is_some() {} };
    let _ = timeout(END_TIME, ending).await;
    tasks.shutdown().await;
}

/// Words of the audit for an action: begun, done, refused, failed, resumed.
fn words(kind: ActionKind) -> [&'static str; 5] {
    match kind {
        ActionKind::KeepOut => {
            ["keep out", "keep out done", "keep out refused", "keep out failed", "keep out resumed"]
        }
        ActionKind::Gc | ActionKind::EmptyCache | ActionKind::Restart => {
            ["restart", "restart done", "restart refused", "restart failed", "restart resumed"]
        }
    }
}

/// Subject of an action: a job or a node, and the action's id.
fn subject(kind: ActionKind, order: &Order) -> String {
    let of = if kind == ActionKind::KeepOut { &order.node } else { &order.job };
    format!("{of} {}", order.action)
}

/// Writes the request into the audit, asks the target, then writes the outcome. Nodes are kept out
/// one after the other: the target counts the nodes that are out before it keeps out one more.
async fn act(
    kind: ActionKind,
    target: Arc<dyn Target>,
    order: Order,
    (door, nodes): (&Door, &Semaphore),
) -> WorkDone {
    let is_of_node = kind == ActionKind::KeepOut;
    // Never closed, so that this cannot fail.
    let _turn = if is_of_node { nodes.acquire().await.ok() } else { None };
    let [asked, done, refused, failed, _] = words(kind);
    let subject = format!("{} {}", subject(kind, &order), target.kind().as_str());
    let outcome = match door.audit_own(asked, subject.clone()).await {
        Ok(()) => target.run(&order).await,
        Err(why) => Outcome::Refused { why: why.to_string() },
    };
    let ended = match &outcome {
        Outcome::Finished { .. } => done,
        Outcome::Refused { .. } => refused,
        _ => failed,
    };
    // It is done: whether this can be written changes nothing. A loss is counted and logged.
    let _ = door.audit_own(ended, subject).await;
    WorkDone::Acted { action: order.action, outcome }
}

/// Asks a target to finish a half-done action of a killed coordinator, and audits the outcome.
async fn resume(kind: ActionKind, target: Arc<dyn Target>, order: Order, door: &Door) -> WorkDone {
    let outcome = target.resume(&order).await;
    if let Some(outcome) = &outcome {
        let subject = format!("{}: {outcome}", subject(kind, &order));
        // It is done: whether this can be written changes nothing.
        let _ = door.audit_own(words(kind)[4], subject).await;
    }
    WorkDone::Resumed { action: order.action, outcome }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use memtape_core::action::TargetKind;
    use memtape_core::capacity::Division;
    use tokio::task::yield_now;

    use super::*;
    use crate::access::audit::Audit;
    use crate::access::tokens::Tokens;
    use crate::restart::target::Running;
    use crate::state::counters::Counters;
    use memtape_simulated_disk::SimulatedDisk;
    use memtape_store::Store;

    #[derive(Debug, Default)]
    struct Asked(AtomicBool);

    impl Target for Asked {
        fn kind(&self) -> TargetKind {
            TargetKind::Command
        }

        fn run<'a>(&'a self, _: &'a Order) -> Running<'a> {
            self.0.store(true, Ordering::Relaxed);
            Box::pin(async { Outcome::Finished { said: "done".to_string() } })
        }
    }

    /// Whether the target is asked, and the actions that are in the audit then.
    async fn check(roles: &str, is_disk_full: bool, is_asked: bool, audited: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("access.toml");
        std::fs::write(&file, roles).unwrap();
        let disk = SimulatedDisk::new(1);
        let store = Store::open_in_turns(&disk.process()).unwrap().0;
        let audit = Audit::new(store.clone(), Arc::new(Counters::default()), Vec::new());
        let tokens = Tokens::new(audit.clone(), Vec::new());
        let door = Door::new(Some(file), None, tokens, audit.clone()).unwrap();
        if is_disk_full {
            disk.fail_writes(1 << 20);
        }
        let target = Arc::new(Asked::default());
        let order =
            Order { job: "train".to_string(), action: "act-1".to_string(), ..Order::default() };
        let writing = async {
            loop {
                store.turn();
                yield_now().await;
            }
        };
        let nodes = Semaphore::new(1);
        let done = tokio::select! {
            done = act(ActionKind::Restart, target.clone(), order, (&door, &nodes)) => done,
            () = writing => unreachable!("it never ends"),
        };
        assert_eq!(target.0.load(Ordering::Relaxed), is_asked, "{roles}");
        let WorkDone::Acted { outcome, .. } = done else { panic!("{done:?}") };
        assert_eq!(matches!(outcome, Outcome::Finished { .. }), is_asked, "{outcome:?}");
        assert_eq!(matches!(outcome, Outcome::Refused { .. }), !is_asked, "{outcome:?}");
        let (entries, _) = audit.read(0, 10);
        let entries: Vec<_> = entries.iter().map(|entry| entry.action.as_str()).collect();
        assert_eq!(entries, audited);
    }

    #[tokio::test]
    async fn a_restart_that_cannot_be_audited_is_refused() {
        let both = ["restart", "restart done"];
        check("audit = \"required\"\n", false, true, &both).await;
        // The audit has no entry that is not stored.
        check("audit = \"required\"\n", true, false, &[]).await;
        check("audit = \"best-effort\"\n", true, true, &[]).await;
    }

    /// A target that does not end.
    #[derive(Debug)]
    struct Endless(mpsc::Sender<()>);

    impl Target for Endless {
        fn kind(&self) -> TargetKind {
            TargetKind::Command
        }

        fn run<'a>(&'a self, _: &'a Order) -> Running<'a> {
            Box::pin(async {
                let _ = self.0.send(()).await;
                std::future::pending().await
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_target_that_does_not_end_does_not_hold_the_store_open() {
        let disk = SimulatedDisk::new(1);
        let store = Store::open_in_turns(&disk.process()).unwrap().0;
        let counters = Arc::<Counters>::default();
        let audit = Audit::new(store.clone(), counters.clone(), Vec::new());
        let tokens = Tokens::new(audit.clone(), Vec::new());
        let door = Arc::new(Door::new(None, None, tokens, audit).unwrap());
        let snapshots = Snapshots::new(store.blobs().clone(), counters, Division::of(None));
        let (works, to_do) = mpsc::unbounded_channel();
        let (begun, mut begins) = mpsc::channel(1);
        let target = Arc::new(Endless(begun));
        let order = Box::new(Order::default());
        works.send(Work::Act { kind: ActionKind::Restart, target, order }).unwrap();
        let (events, _loop) = mpsc::channel(1);
        let prover = Prover::Store(store.clone());
        let working = tokio::spawn(carry_out(to_do, snapshots, door, prover, events));
        while begins.try_recv().is_err() {
            store.turn();
            yield_now().await;
        }
        drop(works);
        working.await.unwrap();
        assert!(store.closed()());
    }

    /// Counts the nodes that are out, takes its time, and keeps out one more where there is none.
    #[derive(Debug, Default)]
    struct OneNode(AtomicUsize);

    impl Target for OneNode {
        fn kind(&self) -> TargetKind {
            TargetKind::Slurm
        }

        fn run<'a>(&'a self, _: &'a Order) -> Running<'a> {
            Box::pin(async {
                let out = self.0.load(Ordering::Relaxed);
                for _ in 0..10 {
                    yield_now().await;
                }
                if out > 0 {
                    return Outcome::Refused { why: "one is out".to_string() };
                }
                self.0.store(out + 1, Ordering::Relaxed);
                Outcome::Finished { said: "done".to_string() }
            })
        }
    }

    #[tokio::test]
    async fn nodes_that_are_found_at_once_are_kept_out_one_after_the_other() {
        let disk = SimulatedDisk::new(1);
        let store = Store::open_in_turns(&disk.process()).unwrap().0;
        let audit = Audit::new(store.clone(), Arc::new(Counters::default()), Vec::new());
        let tokens = Tokens::new(audit.clone(), Vec::new());
        let door = Door::new(None, None, tokens, audit).unwrap();
        let (target, nodes) = (Arc::new(OneNode::default()), Semaphore::new(1));
        let ask = || act(ActionKind::KeepOut, target.clone(), Order::default(), (&door, &nodes));
        let writing = async {
            loop {
                store.turn();
                yield_now().await;
            }
        };
        let (first, second, third) = tokio::select! {
            done = async { tokio::join!(ask(), ask(), ask()) } => done,
            () = writing => unreachable!("it never ends"),
        };
        let is_out = |done: &&WorkDone| {
            matches!(done, WorkDone::Acted { outcome: Outcome::Finished { .. }, .. })
        };
        let done = [first, second, third];
        assert_eq!(done.iter().filter(is_out).count(), 1, "{done:?}");
    }
}
