//! The HTTP API, the metrics and the page.

mod access_routes;
mod accounts;
mod area;
pub(crate) mod asking;
mod capture_routes;
mod changes;
mod differences;
#[cfg(feature = "cluster")]
pub(crate) mod gather;
mod hint_routes;
mod incident_routes;
mod job_routes;
mod kept_routes;
mod line_routes;
mod node_routes;
pub(crate) mod page;
mod policy_routes;
pub(crate) mod rank_routes;
pub(crate) mod request;
pub(crate) mod route_list;
pub(crate) mod routes;
mod segment_routes;
pub(crate) mod sending;
mod series;
pub(crate) mod server;
pub(crate) mod site;
mod source_routes;
mod store_routes;
