//! The uploads of one connection, which wait for each other before they wait for those of others.
//!
//! What gives the turns to all connections is `ingest/admission.rs`.

use std::sync::Arc;

use memtape_core::limits::UPLOADS_PER_CONNECTION_MAX;
use tokio::sync::Semaphore;

/// Uploads of one connection whose first chunk is read, or that wait for their turn among all.
pub(crate) const FIRST_CHUNKS_PER_CONNECTION_MAX: usize = 2;

/// The line of one connection's uploads.
#[derive(Debug)]
pub(crate) struct UploadLine {
    /// Room for one that waits.
    pub(crate) waiting: Arc<Semaphore>,
    /// Turns for a first chunk.
    pub(crate) first_chunks: Arc<Semaphore>,
}

impl Default for UploadLine {
    fn default() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self {
            waiting: of(UPLOADS_PER_CONNECTION_MAX),
            first_chunks: of(FIRST_CHUNKS_PER_CONNECTION_MAX),
        }
    }
}
