//! The owners of the cluster's shards, as this coordinator last read them. A coordinator that keeps
//! its data in a folder owns the only shard.

use memtape_core::placement::JobsShard;
use tokio::sync::watch;

use crate::standing::Standing;

/// URLs of the owners of all shards, in order; empty where the owner is not known.
pub(crate) type Owners = Vec<String>;

/// The shard of this coordinator, and who owns the others.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    own: u16,
    owners: watch::Receiver<Owners>,
    standing: Standing,
}

impl Members {
    /// The owner of this shard; the owners of all shards are read again and again.
    pub(crate) fn new(own: u16, owners: watch::Receiver<Owners>) -> Self {
        Self { own, owners, standing: Standing::default() }
    }

    /// The same, with what this coordinator knows of itself and the others.
    #[cfg(feature = "cluster")]
    pub(crate) fn with(self, standing: Standing) -> Self {
        Self { standing, ..self }
    }

    /// A coordinator without others.
    pub(crate) fn alone() -> Self {
        Self::new(0, watch::channel(vec![String::new()]).1)
    }

    /// What this coordinator knows of itself and the others.
    pub(crate) fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The shard of this coordinator.
    pub(crate) fn own(&self) -> u16 {
        self.own
    }

    /// Number of shards.
    pub(crate) fn shards(&self) -> u16 {
        u16::try_from(self.owners.borrow().len()).unwrap_or(u16::MAX)
    }

    /// The shards of others, and the URLs of their owners; empty where the owner is not known.
    #[cfg(feature = "cluster")]
    pub(crate) fn others(&self) -> Vec<(u16, String)> {
        let owners = self.owners.borrow();
        let shards = (0..).zip(owners.iter().cloned());
        shards.filter(|(shard, _)| *shard != self.own).collect()
    }

    /// URL of the owner of a shard; empty when it is not known.
    pub(crate) fn url(&self, shard: u16) -> String {
        self.owners.borrow().get(usize::from(shard)).cloned().unwrap_or_default()
    }

    /// URL of the owner of these jobs; empty when it is not known.
    pub(crate) fn owner(&self, jobs: Option<JobsShard>) -> String {
        let jobs = jobs.filter(|jobs| jobs.shards == self.shards());
        jobs.map(|jobs| self.url(jobs.shard)).unwrap_or_default()
    }

    /// Are these jobs here? All jobs are, where there is one shard.
    pub(crate) fn is_own(&self, jobs: Option<JobsShard>) -> bool {
        let own = JobsShard { shard: self.own, shards: self.shards() };
        jobs.map_or(own.shards == 1, |jobs| jobs == own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_taken_by_the_owner_of_its_jobs() {
        let owners = ["", "http://two", ""].map(String::from).to_vec();
        let members = Members::new(2, watch::channel(owners).1);
        let of = |shard, shards| Some(JobsShard { shard, shards });
        assert!(members.is_own(of(2, 3)));
        for refused in [of(1, 3), of(2, 4), of(0, 1), None] {
            assert!(!members.is_own(refused), "{refused:?}");
        }
        assert_eq!(members.owner(of(1, 3)), "http://two");
        for unknown in [of(0, 3), of(1, 2), of(9, 3), None] {
            assert_eq!(members.owner(unknown), "", "{unknown:?}");
        }
        let others = [(0, String::new()), (1, "http://two".to_string())];
        assert_eq!((members.own(), members.others()), (2, others.to_vec()));
        let alone = Members::alone();
        assert!(alone.is_own(None) && alone.is_own(of(0, 1)) && !alone.is_own(of(0, 2)));
    }
}
