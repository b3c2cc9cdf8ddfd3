//! Whether this coordinator can be reached at the URL that it tells agents and other coordinators.
//!
//! An owner asks its own URL when it listens, and again until the right one answers: a name may be
//! resolved later. The answer of `/healthz` has a mark of the process, so another coordinator at
//! that URL is told from this one. Nothing else rests on it: other machines may resolve the name
//! in another way.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::access::Door;
use crate::http::gather::owners::{Absent, Deadline, Owners};
use crate::standing::Standing;

/// Time for the answer.
const ASK_TIME_MAX: Duration = Duration::from_secs(5);

/// Time until the URL is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// What is wrong with the URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum AddressProblem {
    #[error("another coordinator answers there")]
    OtherCoordinator,
    #[error("another program answers there")]
    Stranger,
    #[error("nothing answers there, or with a certificate of another host or authority")]
    Unreachable,
    #[error("there is no answer within {} s", ASK_TIME_MAX.as_secs())]
    Late,
}

/// Asks the URL until this coordinator answers, and notes what is wrong until then.
pub(crate) async fn watch(door: Arc<Door>, url: String, standing: Standing) {
    let (owners, mut shown) = (Owners::new(door, ASK_TIME_MAX), None);
    loop {
        let problem = ask(&owners, &url, &standing).await.err();
        let line = problem.map(|why| {
            format!(
                "{url}, the URL of this coordinator for agents and others, does not lead to it: \
                 {why}; correct --cluster-address"
            )
        });
        standing.note_address(line.clone().unwrap_or_default());
        match line {
            Some(line) if problem != shown => tracing::warn!("{line}"),
            Some(_) => {}
            None if shown.is_some() => {
                tracing::info!("{url} leads to this coordinator now");
                return;
            }
            None => return,
        }
        shown = problem;
        sleep(AGAIN_AFTER).await;
    }
}

/// Does this coordinator answer at its URL?
pub(super) async fn ask(
    owners: &Owners,
    url: &str,
    standing: &Standing,
) -> Result<(), AddressProblem> {
    match owners.mark(url, Deadline::after(ASK_TIME_MAX)).await {
        Ok(Some(mark)) if standing.mark().is_some_and(|own| own == mark) => Ok(()),
        Ok(Some(_)) => Err(AddressProblem::OtherCoordinator),
        Ok(None) => Err(AddressProblem::Stranger),
        Err(Absent::Late(_)) => Err(AddressProblem::Late),
        Err(_) => Err(AddressProblem::Unreachable),
    }
}
