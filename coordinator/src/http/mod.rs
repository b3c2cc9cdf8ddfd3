//! The HTTP API, the metrics and the page.

pub(crate) mod api;
pub(crate) mod collectives;
pub(crate) mod page;
pub(crate) mod requests;
pub(crate) mod series;
pub(crate) mod server;
pub(crate) mod views;
