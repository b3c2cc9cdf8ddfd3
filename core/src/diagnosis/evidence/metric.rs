//! Which account the growth is in, as far as the diagnosis goes about it differently.

use crate::detector::Layer;

/// The account that grows, or is out of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Bytes of tensors at the ends of steps.
    Tensors,
    /// Number of tensors.
    Count,
    /// Bytes of tensors at the highest moment of a step.
    Peaks,
    /// A peak that is higher than that of the peers, and stays so.
    Spread,
    /// What the allocator holds beyond what tensors ever needed.
    Reserved,
    /// Blocks that were taken back and are still used by other streams.
    Deferred,
    /// Steps in which the allocator had to try again.
    Retries,
    /// Steps that give segments back and take others.
    Churn,
    /// Memory of the process on the device beside PyTorch's.
    NonTorch,
    /// Memory of other processes on the device.
    Other,
    /// Anonymous memory of the process on the host.
    Host,
    /// Its pinned memory.
    Pinned,
    /// Its shared memory.
    Shared,
    /// Memory of its workers.
    Workers,
    /// Steps that its peers have finished and of which it says nothing.
    Progress,
}

impl Metric {
    /// What a layer of the detector is about.
    pub(crate) fn of(layer: Layer) -> Self {
        match layer {
            Layer::Allocated => Self::Tensors,
            Layer::Reserved => Self::Reserved,
            Layer::Blocks => Self::Count,
            Layer::Peak => Self::Peaks,
            Layer::Deferred => Self::Deferred,
            Layer::NonTorch => Self::NonTorch,
            Layer::Other => Self::Other,
            Layer::Host => Self::Host,
            Layer::Pinned => Self::Pinned,
            Layer::Shared => Self::Shared,
            Layer::Workers => Self::Workers,
            Layer::Spread => Self::Spread,
            Layer::Retries => Self::Retries,
            Layer::Churn => Self::Churn,
            Layer::Progress => Self::Progress,
        }
    }

    /// Are the snapshots' blocks what the growth is made of?
    pub(crate) fn is_in_blocks(self) -> bool {
        matches!(self, Self::Tensors | Self::Count | Self::Deferred)
    }

    /// Is it about the allocator and not about tensors?
    pub(crate) fn is_in_segments(self) -> bool {
        matches!(self, Self::Reserved | Self::Retries | Self::Churn)
    }

    /// Is it memory of the host?
    pub(crate) fn is_on_host(self) -> bool {
        matches!(self, Self::Host | Self::Pinned | Self::Shared | Self::Workers)
    }

    /// Is it memory of the device that PyTorch's allocator did not take?
    pub(crate) fn is_outside(self) -> bool {
        matches!(self, Self::NonTorch | Self::Other)
    }

    /// Does a rate in bytes a step make sense?
    pub(crate) fn has_rate(self) -> bool {
        !matches!(self, Self::Spread | Self::Retries | Self::Churn | Self::Progress)
    }
}
