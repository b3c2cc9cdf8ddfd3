//! Kubernetes: requests to its API server in `api.rs`, and the Leases that say which coordinator
//! owns a shard in `lease.rs`. Restarts of jobs and taints of nodes are in `restart/kubernetes/`.

pub(crate) mod api;
#[cfg(feature = "cluster")]
pub(crate) mod lease;
#[cfg(all(test, feature = "cluster"))]
mod tests;
