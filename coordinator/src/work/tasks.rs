//! Runs the work that takes its time: comparisons of snapshots, and restarts.
//!
//! The loop hands work out and goes on. Each piece runs in a task of its own, and its result comes
//! back as an event. A simulation runs the pieces itself.

use std::sync::Arc;

use memtape_core::limits::COMPARISONS_MAX;
use memtape_core::policy::Outcome;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinError;

use crate::ingest::event::Event;
use crate::state::effects::{Work, WorkDone};
use crate::work::decoding::Snapshots;
use crate::work::diagnosing;

/// Does what blocks where that is allowed: on a thread for it, or here where there is no runtime,
/// as in a simulation.
///
/// # Errors
/// It panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await,
        Err(_) => Ok(work()),
    }
}

/// Does work until every sender is gone.
pub(crate) async fn carry_out(
    mut works: mpsc::UnboundedReceiver<Work>,
    snapshots: Snapshots,
    events: mpsc::Sender<Event>,
) {
    let turns = Arc::new(Semaphore::new(COMPARISONS_MAX));
    while let Some(work) = works.recv().await {
        let (snapshots, events, turns) = (snapshots.clone(), events.clone(), turns.clone());
        tokio::spawn(async move {
            let done = match work {
                Work::Compare(task) => {
                    // Never closed, so that this cannot fail.
                    let _turn = turns.acquire().await;
                    diagnosing::compare(*task, &snapshots).await
                }
                Work::Restart { target, order } => {
                    let outcome = match target.run(&order).await {
                        Ok(said) => Outcome::Finished { said },
                        Err(why) => Outcome::Failed { why: why.to_string() },
                    };
                    WorkDone::Restarted { action: order.action, outcome }
                }
            };
            // The loop is gone: the coordinator stops.
            let _ = events.send(Event::Worked(done)).await;
        });
    }
}
