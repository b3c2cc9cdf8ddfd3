//! What a diagnosis asks about the account that grows.

use crate::detector::Layer;

impl Layer {
    /// Are the snapshots' blocks what the growth is made of?
    pub(crate) fn is_in_blocks(self) -> bool {
        matches!(self, Self::Allocated | Self::Blocks | Self::Deferred)
    }

    /// Is it about the allocator and not about tensors?
    pub(crate) fn is_in_segments(self) -> bool {
        matches!(self, Self::Reserved | Self::Retries | Self::Churn)
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
