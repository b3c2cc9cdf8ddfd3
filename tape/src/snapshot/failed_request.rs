//! A request for memory that failed for good, and the memory of its device at that time.
//!
//! The time is the request's, not the snapshot's: a capture shows all ranks at the end of a step,
//! and a request fails within one.

use alloc::vec::Vec;

use super::StackUse;

/// The last request of a rank that failed for good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedRequest {
    /// Device index in the process.
    pub device: u8,
    /// Steps finished at the time of the failure.
    pub step: u64,
    /// Unix time of the failure, in nanoseconds.
    pub wall_ns: i64,
    /// Bytes asked for, rounded as the allocator rounds.
    pub bytes: u64,
    /// Index into [`super::RankSnapshot::stacks`]: who asked.
    pub stack: u32,
    /// Bytes handed out to tensors.
    pub allocated: u64,
    /// Bytes that the allocator held from the device.
    pub reserved: u64,
    /// Free bytes of the device by the driver; `None` where unknown.
    pub device_free: Option<u64>,
    /// Live memory of the stacks that held most, most first; at most
    /// [`crate::limits::FAILED_USES_MAX`].
    pub uses: Vec<StackUse>,
}

impl FailedRequest {
    /// Bytes that the allocator held and no tensor used.
    pub fn free_reserved(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}
