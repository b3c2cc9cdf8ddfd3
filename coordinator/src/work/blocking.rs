//! Work that blocks a thread.
//!
//! Work on an answer goes on when its client leaves, until it looks for the client. So it goes
//! through [`for_client`], which keeps the request's permits until the work ends. The number of
//! threads for such work is bounded ([`Quotas::begin_work`]), and far below the number of the
//! pool's: the store, the file of roles and readiness need threads of it, too.
//!
//! [`Quotas::begin_work`]: crate::quota::Quotas::begin_work

use std::ops::ControlFlow;

use tokio::runtime::Handle;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// The client of an answer, for the work on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client(CancellationToken);

impl Client {
    /// Whether the work goes on: not once the client has left.
    pub(crate) fn waits(&self) -> ControlFlow<()> {
        match self.0.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Does work on an answer that blocks. The client has left when this future is dropped; `permits`
/// are kept until the work ends.
///
/// # Errors
/// It panicked.
pub(crate) async fn for_client<T: Send + 'static>(
    permits: impl Send + 'static,
    work: impl FnOnce(&Client) -> T + Send + 'static,
) -> Result<T, JoinError> {
    let client = Client::default();
    let _leaves = client.0.clone().drop_guard();
    blocking(move || {
        let done = work(&client);
        drop(permits);
        done
    })
    .await
}

/// Begins blocking work that sends an answer in parts, and learns by them that the client has left.
/// `permits` are kept until the work ends.
pub(crate) fn sending(permits: impl Send + 'static, work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(move || {
        work();
        drop(permits);
    });
}

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
