//! What a running coordinator answers.

pub(crate) mod capture;
pub(crate) mod list;
pub(crate) mod show;
