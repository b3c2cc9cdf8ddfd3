//! What takes its time: comparing states, and running restart hooks.
//!
//! The loop never waits, so it hands such work out and goes on; each piece runs in a task of its
//! own and comes back as an event. What there is to do is data until somebody does it: a
//! simulation does it when it likes.

use tokio::sync::mpsc;

use crate::coordinator::Event;
use crate::diagnosing;
use crate::hooks::{Hooks, Kind, Order};
use crate::store::Blobs;

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Work {
    /// Compare the states of a capture.
    Compare(diagnosing::Task),
    /// Ask the orchestrator for a restart.
    Restart(Kind, Order),
}

/// Where the loop puts work. Bounded by what makes it: a comparison for each open incident, a
/// hook for each restart that the policy allows.
pub(crate) type Works = mpsc::UnboundedSender<Work>;

/// Does work until there is nobody left who hands it out.
pub(crate) async fn carry_out(
    mut works: mpsc::UnboundedReceiver<Work>,
    blobs: Blobs,
    hooks: Hooks,
    events: mpsc::Sender<Event>,
) {
    while let Some(work) = works.recv().await {
        let (blobs, hooks, events) = (blobs.clone(), hooks.clone(), events.clone());
        tokio::spawn(async move {
            let event = match work {
                Work::Compare(task) => diagnosing::compare(task, blobs).await,
                Work::Restart(kind, order) => hooks.run(kind, order).await,
            };
            // The loop is gone: the coordinator stops.
            let _ = events.send(event).await;
        });
    }
}
