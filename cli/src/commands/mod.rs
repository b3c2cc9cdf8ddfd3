//! One file for each command.

pub(crate) mod run;

pub(crate) mod agent;
pub(crate) mod coordinator;
pub(crate) mod store;

pub(crate) mod list;
pub(crate) mod show;

pub(crate) mod capture;
pub(crate) mod export;

pub(crate) mod analyze;
pub(crate) mod diff;

pub(crate) mod tape;
pub(crate) mod tapes;

pub(crate) mod service;
