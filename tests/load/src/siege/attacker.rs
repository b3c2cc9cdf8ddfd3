//! One task of an attack, and the counts of all tasks of it. What it does is in `network.rs` and
//! `stolen.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustls::ClientConfig;

use crate::coordinator::Target;
use crate::job::Node;

/// One task of an attack.
pub(super) struct Attacker {
    pub(super) target: Target,
    pub(super) tls: Arc<ClientConfig>,
    /// Number of the task among those of all attacks.
    pub(super) index: u32,
    /// Node of a stolen certificate.
    pub(super) node: String,
    /// One of the honest nodes.
    pub(super) honest: Node,
    /// A capture with snapshots.
    pub(super) capture: String,
    pub(super) count: Arc<Count>,
}

/// How many of an attack are there, how often one was ended, and what they sent.
#[derive(Debug, Default)]
pub(super) struct Count {
    there: AtomicU32,
    pub(super) there_max: AtomicU32,
    pub(super) closed: AtomicU64,
    /// Requests or messages of which an answer has come.
    pub(super) answered: AtomicU64,
}

/// One that is there, until it is dropped.
pub(super) struct There<'a>(&'a Count);

impl Count {
    pub(super) fn enter(&self) -> There<'_> {
        let there = self.there.fetch_add(1, Relaxed) + 1;
        self.there_max.fetch_max(there, Relaxed);
        There(self)
    }

    pub(super) fn answer(&self) {
        self.answered.fetch_add(1, Relaxed);
    }
}

impl Drop for There<'_> {
    fn drop(&mut self) {
        self.0.there.fetch_sub(1, Relaxed);
        self.0.closed.fetch_add(1, Relaxed);
    }
}
