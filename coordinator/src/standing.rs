//! What a coordinator knows of itself and of the others in its cluster, for the list of shards: its
//! sign of life, its requests to the bucket, the signs of life of others, and who waits.
//!
//! The tasks of `cluster.rs` write it, and handlers read it: no request of a caller asks the
//! bucket. A coordinator that keeps its data in a folder has none of it.

#![cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "nothing has a standing"))]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::HeaderName;
use memtape_core::traffic::{RequestCounts, RequestWatch};
use memtape_core::waiting::WaitingNote;
use memtape_disk::clock;
use memtape_proto::api::{MissingShard, Shard, WaitingCoordinator};

/// Header of `/healthz` with the mark of an owner's process.
pub(crate) const MARK: HeaderName = HeaderName::from_static("memtape-mark");

/// The end of a coordinator whose shard another one took.
pub(crate) const REPLACED: &str = "another coordinator owns the shard: start this one again";

/// A claimed sign of life.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// Epoch of the ownership; of the one before, until there is one.
    pub(crate) epoch: AtomicU64,
    /// When it was renewed last, by the monotonic clock.
    pub(crate) renewed_ns: AtomicU64,
}

impl Claim {
    /// Time since it was renewed, in nanoseconds.
    pub(crate) fn age_ns(&self) -> u64 {
        clock::now().mono_ns.saturating_sub(self.renewed_ns.load(Relaxed))
    }
}

/// The standing of a coordinator in its cluster. Clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    /// Name of the process.
    name: String,
    claim: Arc<Claim>,
    requests: Counting,
    watch: Mutex<RequestWatch>,
    seen: Mutex<Seen>,
    /// What is wrong with its URL; empty where nothing is known to be.
    address_problem: Mutex<String>,
}

/// Tells the requests so far; none where the bucket is a folder.
struct Counting(Box<dyn Fn() -> Option<RequestCounts> + Send + Sync>);

impl std::fmt::Debug for Counting {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{:?}", (self.0)())
    }
}

/// What was seen of others.
#[derive(Debug, Default)]
struct Seen {
    /// The newest sign of life of each shard, and when it was seen first.
    signs: Vec<Option<(Sign, u64)>>,
    waiting: Waiting,
}

/// A sign of life in a hint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sign {
    pub(crate) name: String,
    pub(crate) epoch: u64,
    /// Of the hint.
    pub(crate) version: String,
}

/// The coordinators that wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    /// With the times at which they were seen to change, by the monotonic clock.
    pub(crate) notes: Vec<(WaitingNote, u64)>,
    pub(crate) left_out: u64,
    /// Why they are not known now.
    pub(crate) unknown: String,
}

impl Standing {
    /// The standing of an owner in a cluster of this number of shards.
    pub(crate) fn new(
        (name, claim): (String, Arc<Claim>),
        shards: usize,
        requests: impl Fn() -> Option<RequestCounts> + Send + Sync + 'static,
    ) -> Self {
        let seen = Seen { signs: vec![None; shards], ..Seen::default() };
        let requests = Counting(Box::new(requests));
        let (watch, seen, address_problem) = (Mutex::default(), Mutex::new(seen), Mutex::default());
        Self(Some(Arc::new(Inner { name, claim, requests, watch, seen, address_problem })))
    }

    /// Notes the requests so far, for the rate of the last minute.
    pub(crate) fn sample(&self) {
        let Some(inner) = &self.0 else { return };
        if let Some(counts) = (inner.requests.0)() {
            lock(&inner.watch).sample(clock::now().mono_ns, counts);
        }
    }

    /// Notes the sign of life of a shard's owner, which was read now.
    pub(crate) fn note_sign(&self, shard: usize, sign: Option<Sign>) {
        let Some(inner) = &self.0 else { return };
        let mut seen = lock(&inner.seen);
        if let Some(known) = seen.signs.get_mut(shard)
            && known.as_ref().map(|(sign, _)| sign) != sign.as_ref()
        {
            *known = sign.map(|sign| (sign, clock::now().mono_ns));
        }
    }

    /// Notes who waits.
    pub(crate) fn set_waiting(&self, waiting: Waiting) {
        if let Some(inner) = &self.0 {
            lock(&inner.seen).waiting = waiting;
        }
    }

    /// Notes what is wrong with the URL of this coordinator; nothing, where it is empty.
    pub(crate) fn note_address(&self, problem: String) {
        if let Some(inner) = &self.0 {
            *lock(&inner.address_problem) = problem;
        }
    }

    /// A mark of the process, which does not tell its name; none without a cluster.
    pub(crate) fn mark(&self) -> Option<String> {
        let inner = self.0.as_ref()?;
        Some(blake3::hash(inner.name.as_bytes()).to_hex()[..16].to_string())
    }

    /// Notes that it cannot be read who waits.
    pub(crate) fn set_waiting_unknown(&self, why: String) {
        if let Some(inner) = &self.0 {
            lock(&inner.seen).waiting.unknown = why;
        }
    }

    /// The requests to the bucket so far, which are 0 in a folder; none without a cluster.
    pub(crate) fn requests(&self) -> Option<RequestCounts> {
        self.0.as_ref().map(|inner| (inner.requests.0)().unwrap_or_default())
    }

    /// The shard of this coordinator, with what it knows of itself.
    pub(crate) fn with_own(&self, shard: Shard) -> Shard {
        let Some(inner) = &self.0 else { return shard };
        let now_ns = clock::now().mono_ns;
        Shard {
            name: inner.name.clone(),
            epoch: inner.claim.epoch.load(Relaxed),
            sign_of_life_age_ns: Some(inner.claim.age_ns()),
            requests: (inner.requests.0)()
                .and_then(|counts| lock(&inner.watch).rates(now_ns, counts)),
            address_problem: lock(&inner.address_problem).clone(),
            ..shard
        }
    }

    /// A shard without an answer, with the last sign of life of its owner.
    pub(crate) fn with_last_sign(&self, missing: MissingShard) -> MissingShard {
        let Some(inner) = &self.0 else { return missing };
        let seen = lock(&inner.seen);
        match seen.signs.get(usize::from(missing.shard)).and_then(Option::as_ref) {
            Some((sign, since_ns)) => MissingShard {
                name: sign.name.clone(),
                epoch: sign.epoch,
                sign_of_life_age_ns: Some(clock::now().mono_ns.saturating_sub(*since_ns)),
                ..missing
            },
            None => missing,
        }
    }

    /// Those who wait, how many more do, and why they are not known.
    pub(crate) fn waiting(&self) -> (Vec<WaitingCoordinator>, u64, String) {
        let Some(inner) = &self.0 else { return Default::default() };
        let now_ns = clock::now().mono_ns;
        let Waiting { notes, left_out, unknown } = lock(&inner.seen).waiting.clone();
        let shown = |(note, since_ns): (WaitingNote, u64)| WaitingCoordinator {
            name: note.process,
            address: note.address,
            version: note.version,
            sign_of_life_age_ns: now_ns.saturating_sub(since_ns),
        };
        (notes.into_iter().map(shown).collect(), left_out, unknown)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change of it is whole.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
