//! The uploads of each node, which wait for each other before they wait for those of other nodes.
//!
//! A line belongs to the node that a connection's stream has proven: a node that opens many
//! connections has one line all the same. A line lasts as long as an upload of its node does, also
//! after the stream is replaced. What gives turns and room to all nodes is `admission.rs`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memtape_core::limits::{UPLOADS_BYTES_PER_NODE_MAX, UPLOADS_PER_NODE_MAX, UPLOADS_WAITING_MAX};
use tokio::sync::Semaphore;

use crate::ingest::admission::ByteBudget;

/// Uploads of one node that are past its line: their first chunk is read, or they wait for room,
/// or they have it.
pub(crate) const TURNS_PER_NODE_MAX: usize = 2;

/// The line of one node's uploads.
#[derive(Debug)]
pub(crate) struct UploadLine {
    /// Room for one that waits.
    pub(crate) waiting: Arc<Semaphore>,
    /// Turns, each for one upload until its snapshot is stored.
    pub(crate) turns: Arc<Semaphore>,
    /// Room of the node's uploads, of which some also wait for room among all.
    pub(crate) bytes: ByteBudget,
}

impl Default for UploadLine {
    fn default() -> Self {
        let of = |count| Arc::new(Semaphore::new(count));
        Self {
            waiting: of(UPLOADS_PER_NODE_MAX),
            turns: of(TURNS_PER_NODE_MAX),
            bytes: ByteBudget::new(UPLOADS_BYTES_PER_NODE_MAX),
        }
    }
}

/// The lines of all nodes with an upload.
#[derive(Debug, Default)]
pub(crate) struct UploadLines(Mutex<BTreeMap<String, Weak<UploadLine>>>);

impl UploadLines {
    /// The line of a node.
    pub(crate) fn of(&self, node: &str) -> Arc<UploadLine> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(node).and_then(Weak::upgrade) {
            return line;
        }
        if lines.len() >= UPLOADS_WAITING_MAX {
            lines.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::new(UploadLine::default());
        lines.insert(node.to_string(), Arc::downgrade(&line));
        line
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_lasts_as_long_as_its_uploads() {
        let lines = UploadLines::default();
        let line = lines.of("node-a");
        assert!(Arc::ptr_eq(&line, &lines.of("node-a")));
        assert!(!Arc::ptr_eq(&line, &lines.of("node-b")));
        let permit = line.turns.clone().try_acquire_owned();
        assert!(permit.is_ok() && lines.of("node-a").turns.available_permits() == 1);
        // Those without uploads are forgotten.
        for number in 0..3 * UPLOADS_WAITING_MAX {
            lines.of(&format!("node-{number}"));
        }
        assert!(lines.count() <= UPLOADS_WAITING_MAX);
        assert!(Arc::ptr_eq(&line, &lines.of("node-a")));
    }
}
