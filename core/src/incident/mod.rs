//! The life of an incident.

mod succession;
