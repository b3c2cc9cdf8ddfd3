//! The memory layers that the detector judges, and the smallest rise that counts in each.

use crate::account::Account;

crate::tape::names! {
    /// A kind of memory, or a condition, that the detector judges.
    pub enum Layer in "snake_case" {
        /// Bytes in tensors: the lowest level of each step.
        Allocated,
        /// Bytes held from the device beyond what the peaks ever needed.
        Reserved,
        /// Number of live blocks.
        Blocks,
        /// Bytes in tensors at the peak of each step.
        Peak,
        /// Pending frees: bytes of freed blocks that other streams still use.
        Deferred,
        /// Bytes of the device that the process holds beside PyTorch's allocator.
        NonTorch,
        /// Bytes of the device that other processes hold.
        Other,
        /// Anonymous memory of the process on the host.
        Host,
        /// Pinned memory of the process on the host.
        Pinned,
        /// Shared memory of the process on the host.
        Shared,
        /// Memory of the processes that the rank has started.
        Workers,
        /// Peak that stays beyond that of the peers: a difference, no growth.
        Spread,
        /// Steps in which the allocator had to try again: a recurring condition, no growth.
        Retries,
        /// Steps that give segments back and take others: a recurring condition, no growth.
        Churn,
        /// Steps that the peers have finished and the rank has not reported: silence, no growth.
        Progress,
        /// The process of the rank: it died, or could not get memory. A failure, no growth.
        Process,
    }
}

/// The layer whose readings are the values of an account; none of an account that is on the tape.
pub(in crate::detector) fn read_layer(account: Account) -> Option<Layer> {
    match account {
        Account::Allocated | Account::Peak | Account::Reserved => None,
        Account::Blocks | Account::StepTime => None,
        Account::Deferred => Some(Layer::Deferred),
        Account::NonTorch => Some(Layer::NonTorch),
        Account::Other => Some(Layer::Other),
        Account::Host => Some(Layer::Host),
        Account::Pinned => Some(Layer::Pinned),
        Account::Shared => Some(Layer::Shared),
        Account::Workers => Some(Layer::Workers),
    }
}

/// Number of tracked layers.
pub(in crate::detector) const TRACKS: usize = 11;

/// Those layers, in the order of their indices.
pub(in crate::detector) const TRACKED_LAYERS: [Layer; TRACKS] = [
    Layer::Allocated,
    Layer::Reserved,
    Layer::Blocks,
    Layer::Peak,
    Layer::Deferred,
    Layer::NonTorch,
    Layer::Other,
    Layer::Host,
    Layer::Pinned,
    Layer::Shared,
    Layer::Workers,
];

impl Layer {
    /// Are the layer's values bytes? Else they are blocks, or steps.
    pub fn is_bytes(self) -> bool {
        !matches!(self, Self::Blocks | Self::Retries | Self::Churn | Self::Progress | Self::Process)
    }

    /// Does the layer grow? Else it is a condition, or a failure.
    pub fn grows(self) -> bool {
        self.index().is_some()
    }

    /// Is the layer on the tape, step by step? Else it is read from outside.
    pub fn is_on_tape(self) -> bool {
        matches!(self, Self::Allocated | Self::Reserved | Self::Blocks | Self::Peak)
    }

    /// Is the layer what tensors hold, in bytes or in blocks?
    pub(in crate::detector) fn is_of_blocks(self) -> bool {
        matches!(self, Self::Allocated | Self::Blocks)
    }

    /// Is the layer memory of the device that grows, in bytes?
    pub fn is_on_device(self) -> bool {
        use Layer::{Allocated, Deferred, NonTorch, Other, Peak, Reserved};
        matches!(self, Allocated | Reserved | Peak | Deferred | NonTorch | Other)
    }

    /// Is the layer memory of the host?
    pub fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::Pinned | Self::Shared | Self::Workers)
    }

    /// Does the device of a finding matter? Memory of the host and steps have none.
    pub fn names_device(self) -> bool {
        !self.is_host() && self != Self::Progress
    }

    /// Is the layer memory that no line of code is known to have taken?
    pub(crate) fn has_no_lines(self) -> bool {
        self.is_host() || matches!(self, Self::NonTorch | Self::Other)
    }

    /// Index among the tracked layers.
    pub(in crate::detector) fn index(self) -> Option<usize> {
        // The tracked layers are declared first, in the order of `TRACKED_LAYERS`.
        let index = self as usize;
        (index < TRACKS).then_some(index)
    }

    /// Values are kept in units of two to this power: pages of 4 KiB.
    pub(in crate::detector) fn unit_shift(self) -> u32 {
        if self.is_bytes() { 12 } else { 0 }
    }

    /// Does growth of `self` on a rank explain growth of `other` there? One cause is reported once.
    pub fn explains(self, other: Self) -> bool {
        use Layer::{Allocated, Blocks, Churn, Deferred, Host, Peak, Pinned, Reserved, Retries};
        match self {
            Allocated => matches!(other, Reserved | Blocks | Peak | Retries | Churn),
            Deferred => matches!(other, Reserved | Retries | Churn),
            Reserved => matches!(other, Retries | Churn),
            Peak => matches!(other, Reserved | Retries | Churn),
            Pinned => matches!(other, Host),
            _ => false,
        }
    }

    /// Is growth of `self` the growth that was first seen in `other`? Then it is the same finding,
    /// seen more clearly: the same blocks, by number and by bytes.
    pub fn takes_over(self, other: Self) -> bool {
        self == Self::Allocated && other == Self::Blocks
    }

    /// Smallest rise that counts: in values, and in parts per million of the level.
    pub(in crate::detector) fn least_rise(self) -> (u64, u64) {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Allocated => (4 * MIB, 1_000),
            Self::Blocks => (256, 20_000),
            Self::Peak => (256 * MIB, 20_000),
            // Segments come in larger pieces than tensors.
            Self::Reserved | Self::Deferred | Self::NonTorch | Self::Pinned => (64 * MIB, 20_000),
            Self::Other | Self::Workers => (256 * MIB, 20_000),
            Self::Host | Self::Shared => (128 * MIB, 20_000),
            Self::Spread | Self::Retries | Self::Churn | Self::Progress | Self::Process => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::*;
    use crate::account::Source;

    /// What grows is shown by the word of its layer, and what is read is what is kept.
    #[test]
    fn each_layer_that_grows_is_an_account() {
        for layer in TRACKED_LAYERS {
            let account: Account = layer.as_str().parse().expect("an account");
            assert_eq!(account.source() == Source::StepRecords, layer.is_on_tape());
            assert_eq!(account.is_host(), layer.is_host());
        }
        for &account in Account::VARIANTS {
            let layer = read_layer(account);
            assert_eq!(layer.is_some(), account.source() == Source::Readings);
            assert!(layer.is_none_or(|layer| layer.as_str() == account.as_str()));
        }
    }

    #[test]
    fn names_and_indices_go_both_ways() {
        for &layer in Layer::VARIANTS {
            assert_eq!(layer.as_str().parse(), Ok(layer));
            assert!(!layer.explains(layer), "{layer:?}");
        }
        for (index, layer) in TRACKED_LAYERS.into_iter().enumerate() {
            assert_eq!(layer.index(), Some(index));
        }
        assert!("tensors".parse::<Layer>().is_err());
        assert_eq!(Layer::Churn.index(), None);
    }
}
