//! The atomics that a tape's writer uses, so that a model checker can put its own in their place.

pub(super) use core::sync::atomic::AtomicU64;

/// Lets another thread go on.
#[inline(always)]
pub(super) fn spin_loop() {
    core::hint::spin_loop();
}
