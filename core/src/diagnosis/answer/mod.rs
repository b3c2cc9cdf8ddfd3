//! What is said: the answer of the judges in words and figures, how sure it is, whether it pages,
//! and whether a restart helps.

pub(crate) mod aftermath;
mod confidence;
pub(crate) mod diagnose;
pub(crate) mod diagnosis;
pub(crate) mod failure;
mod live;
mod report;
pub(crate) mod restart;
pub(crate) mod sentence;
mod standstill;
pub(crate) mod urgency;
