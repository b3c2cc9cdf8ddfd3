//! What the recorder does on threads of its own.

pub(crate) mod control;

pub(crate) mod optimizer_hook;

pub(crate) mod collectives;

pub(crate) mod flight_recorder;

pub(crate) mod cupti;
