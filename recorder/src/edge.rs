//! The edge between the host and the guest: nothing unwinds across it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::guest;

/// Runs the guest's part of a hook. A panic in it, which should be impossible, turns the recorder
/// off for good instead of tearing down the training process.
#[inline]
pub(crate) fn guarded(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        guest::disable_after_inner_failure();
    }
}
