//! The kinds of trouble, by the names that users, the API and the restart policy know them by.

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Class {
    /// Blocks of more and more steps stay alive.
    Leak,
    /// Tensors in cycles of Python objects: they wait for the garbage collector, which frees many
    /// at once.
    ReferenceCycles,
    /// Blocks were freed, but other streams still use them, so that nobody can have them.
    DeferredFrees,
    /// The allocator holds memory that no tensor uses.
    Fragmentation,
    /// The job needs this much: nothing is kept that should not be.
    Pressure,
    /// This rank has more work than its peers.
    Imbalance,
    /// Private pools of compiled graphs, one more with each recompilation.
    CompilePools,
    /// The allocator's cache is emptied and filled again in most steps.
    CacheThrash,
    /// Memory of the device that PyTorch's allocator did not give out.
    NonTorch,
    /// Memory of the host: the process, its pinned and shared memory, its workers.
    Host,
    /// The rank is at another collective than its peers; memory is not to blame.
    Desynchronised,
    /// The recorder does not see enough to say anything else.
    Telemetry,
    /// The snapshots do not explain the growth.
    #[default]
    Unknown,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Leak,
        Self::ReferenceCycles,
        Self::DeferredFrees,
        Self::Fragmentation,
        Self::Pressure,
        Self::Imbalance,
        Self::CompilePools,
        Self::CacheThrash,
        Self::NonTorch,
        Self::Host,
        Self::Desynchronised,
        Self::Telemetry,
        Self::Unknown,
    ];

    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::ReferenceCycles => "reference_cycles",
            Self::DeferredFrees => "deferred_frees",
            Self::Fragmentation => "fragmentation",
            Self::Pressure => "pressure",
            Self::Imbalance => "imbalance",
            Self::CompilePools => "compile_pools",
            Self::CacheThrash => "cache_thrash",
            Self::NonTorch => "non_torch",
            Self::Host => "host",
            Self::Desynchronised => "desynchronised",
            Self::Telemetry => "telemetry",
            Self::Unknown => "unknown",
        }
    }

    /// The class of this name; of a name that this version does not know, [`Self::Unknown`].
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|class| class.as_str() == name).unwrap_or_default()
    }

    /// Is it something that goes on until the job dies or stands still, and that a person can
    /// repair? Pressure and imbalance are how the job was set up, emptying the cache costs time
    /// only, and what cycles hold comes back by itself.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Leak
            | Self::DeferredFrees
            | Self::Fragmentation
            | Self::CompilePools
            | Self::NonTorch
            | Self::Host
            | Self::Desynchronised => true,
            Self::ReferenceCycles
            | Self::Pressure
            | Self::Imbalance
            | Self::CacheThrash
            | Self::Telemetry
            | Self::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_class() {
        for class in Class::ALL {
            assert_eq!(Class::from_name(class.as_str()), class);
        }
        assert_eq!(Class::from_name("something newer"), Class::Unknown);
        assert_eq!(Class::from_name(""), Class::Unknown);
    }
}
