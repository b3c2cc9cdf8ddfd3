//! What several tests of the tape share.

pub(crate) mod small;
