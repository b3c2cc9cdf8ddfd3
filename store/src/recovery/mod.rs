//! Opening a store in any state, checking it, and building its index again.

pub(crate) mod check;
pub(crate) mod format;
pub(crate) mod losses;
pub(crate) mod opening;
pub(crate) mod rebuild;
