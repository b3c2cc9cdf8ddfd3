//! Work of the recorder on threads of its own.

pub(crate) mod control;

pub(crate) mod optimizer_hook;

mod activities;

mod python_api;

pub(crate) mod remedies;

pub(crate) mod collectives;

pub(crate) mod flight_recorder;

mod dump_json;

pub(crate) mod cupti;
