//! Work that blocks a thread.

use tokio::runtime::Handle;
use tokio::task::JoinError;

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
