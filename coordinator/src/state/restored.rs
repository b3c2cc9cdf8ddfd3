//! The state as an earlier process left it in the store.
//!
//! Each part takes up its own records. Captures that were cut short go on when their agents are
//! back; open incidents are found again rather than opened twice.

use memtape_core::detector::Finding;
use memtape_core::identity::ids::Ids;

use crate::config::Config;
use crate::state::actions::Actions;
use crate::state::captures::Captures;
use crate::state::captures::retention::Retention;
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Limits;
use memtape_disk::clock::Now;
use memtape_store::{Loaded, Store};

/// The parts of the state, ready to go on.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) jobs: Jobs,
    pub(crate) captures: Captures,
    pub(crate) incidents: Incidents,
    pub(crate) actions: Actions,
    /// The last finding of each detector on each growth, after looking back.
    pub(crate) findings: Vec<(u32, Finding)>,
}

impl Restored {
    /// Restores the state from loaded records; `ids` are those of its shard. Blocks: it reads steps
    /// from the store.
    pub(crate) fn new(now: Now, config: &Config, loaded: Loaded, store: &Store, ids: &Ids) -> Self {
        let limits = Limits {
            capture: config.capture_limits(),
            triggers: config.triggers.clone(),
            ranks_max: config.memory().ranks_max(),
        };
        let retention = Retention {
            bytes_max: config.snapshots_bytes_max,
            age_ns_max: i64::try_from(config.captures_age_max.as_nanos()).unwrap_or(i64::MAX),
        };
        let Loaded { attempts, ranks, captures, parts, incidents, actions, changes_lost, .. } =
            loaded;
        let (mut jobs, findings) = Jobs::restore(now, limits, attempts, ranks, store);
        jobs.skip_serials(changes_lost);
        let of_captures = (captures, parts, ids.clone());
        let captures = Captures::restore(now, retention, of_captures, &mut jobs, store);
        let of_incidents = (incidents, ids.clone());
        let incidents = Incidents::restore(now, config.horizons(), of_incidents, &jobs, &captures);
        let (interval_ns, of_actions) = (config.interval_ns(), (actions, ids.clone()));
        let actions = Actions::restore(now, &config.restart, interval_ns, of_actions, store);
        Self { jobs, captures, incidents, actions, findings }
    }
}
