//! In the place of `cluster.rs` where the feature `cluster` is off: the settings refuse its option.

use std::future::Ready;
use std::sync::Arc;
use std::time::Duration;

use memtape_store::{Loaded, Recovery, Store};

use crate::access::Door;
use crate::config::Config;
use crate::members::Members;
use crate::state::counters::Counters;

/// The ownership of a shard in builds without one: it has no value.
#[derive(Debug)]
pub(crate) enum Ownership {}

/// As [`Ownership`].
#[derive(Clone, Debug)]
pub(crate) enum OwnedShard {}

pub(crate) async fn own(
    _: &str,
    _: &Config,
    _: impl Future<Output = ()>,
) -> anyhow::Result<Option<Ownership>> {
    anyhow::bail!("--cluster needs memtape with the feature full")
}

impl OwnedShard {
    pub(crate) fn open_store(&self) -> memtape_store::Result<(Store, Loaded, Recovery)> {
        match *self {}
    }

    pub(crate) fn keep_tables(&self, _: Store, _: Duration, _: Arc<Counters>) -> Ready<()> {
        match *self {}
    }

    pub(crate) fn watch_address(&self, _: Arc<Door>) -> Ready<()> {
        match *self {}
    }

    pub(crate) fn is_hint_old(&self) -> bool {
        match *self {}
    }

    pub(crate) async fn keep_snapshots(&self, _: &Store) -> memtape_store::Result<()> {
        match *self {}
    }

    pub(crate) fn members(&self) -> &Members {
        match *self {}
    }
}

impl Ownership {
    pub(crate) fn shard(&self) -> OwnedShard {
        match *self {}
    }

    pub(crate) fn is_lost(&self) -> bool {
        match *self {}
    }

    pub(crate) async fn lost(&mut self) {
        match *self {}
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        match self {}
    }
}
