//! Records as bytes, of today's format and of older ones.

pub(crate) mod encoding;
pub(crate) mod format_2;
pub(crate) mod migration;
