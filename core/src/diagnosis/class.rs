//! The kinds of trouble, by the names that users, the API and the restart policy know them by.

use strum::VariantArray;

crate::tape::names! {
    /// What kind of trouble it is. Where several hold the first of them answers: the more special
    /// ones stand first, and what can be wrong about the recording last.
    #[derive(Default)]
    pub enum Class in "snake_case" {
        /// A request for memory failed for good.
        OutOfMemory,
        /// The process of a rank died: by a signal, by the kernel, or with an error.
        Died,
        /// Memory of the host: the process, its pinned and shared memory, its workers.
        Host,
        /// Memory of the device that PyTorch's allocator did not give out.
        NonTorch,
        /// Blocks were freed, but other streams still use them, so that no request can have them.
        DeferredFrees,
        /// Private pools of compiled graphs, one more with each recompilation.
        CompilePools,
        /// Tensors in cycles of Python objects: they wait for the garbage collector, which frees
        /// many at once.
        ReferenceCycles,
        /// Blocks of more and more steps stay alive, or larger ones replace a block repeatedly.
        Leak,
        /// The rank is at another collective than its peers; memory is not to blame.
        Desynchronised,
        /// The allocator's cache is emptied and filled again in most steps.
        CacheThrash,
        /// The allocator holds memory that no tensor uses.
        Fragmentation,
        /// This rank has more work than its peers.
        Imbalance,
        /// The job needs this much: nothing is kept that should not be.
        Pressure,
        /// The recorder does not see enough to say anything else.
        Telemetry,
        /// The snapshots do not explain the growth.
        #[default]
        Unknown,
    }
}

impl Class {
    /// All of them.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// What a growth of this class is called within a sentence, with its article.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Leak => "a leak",
            Self::Fragmentation => "fragmentation",
            Self::Host => "growth of host memory",
            Self::NonTorch => "growth outside the allocator",
            Self::DeferredFrees => "a backlog of pending frees",
            Self::CompilePools => "growth of compiled graphs",
            Self::ReferenceCycles => "growth of reference cycles",
            Self::OutOfMemory
            | Self::Died
            | Self::Desynchronised
            | Self::CacheThrash
            | Self::Imbalance
            | Self::Pressure
            | Self::Telemetry
            | Self::Unknown => "growth",
        }
    }
}
