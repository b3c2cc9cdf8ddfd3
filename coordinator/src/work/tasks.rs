//! What takes its time: comparing states, and running restart hooks.
//!
//! The loop never waits, so it hands such work out and goes on; each piece runs in a task of its
//! own and comes back as an event. What there is to do is data until somebody does it: a
//! simulation does it when it likes.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::event::Event;
use crate::store::Blobs;
use crate::work::diagnosing;
use crate::work::hooks::{Hooks, Kind, Order};

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Work {
    /// Compare the states of a capture.
    Compare(Box<diagnosing::Task>),
    /// Ask the orchestrator for a restart.
    Restart(Kind, Order),
}

/// Comparisons at the same time: their memory is bounded each by each.
const COMPARISONS_MAX: usize = 1;

/// Where the loop puts work. Bounded by what makes it: a comparison for each open incident, a
/// hook for each restart that the policy allows.
pub(crate) type Works = mpsc::UnboundedSender<Work>;

/// Does what blocks where that is allowed: on a thread for it, or here where there is no runtime,
/// as in a simulation.
///
/// # Errors
/// It panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.map_err(|error| error.to_string()),
        Err(_) => Ok(work()),
    }
}

/// Does work until there is nobody left who hands it out.
pub(crate) async fn carry_out(
    mut works: mpsc::UnboundedReceiver<Work>,
    blobs: Blobs,
    hooks: Hooks,
    events: mpsc::Sender<Event>,
) {
    let turns = Arc::new(Semaphore::new(COMPARISONS_MAX));
    while let Some(work) = works.recv().await {
        let (blobs, hooks, events) = (blobs.clone(), hooks.clone(), events.clone());
        let turns = turns.clone();
        tokio::spawn(async move {
            let event = match work {
                Work::Compare(task) => {
                    // Never closed, so that this cannot fail.
                    let _turn = turns.acquire().await;
                    diagnosing::compare(*task, blobs).await
                }
                Work::Restart(kind, order) => hooks.run(kind, order).await,
            };
            // The loop is gone: the coordinator stops.
            let _ = events.send(event).await;
        });
    }
}
