//! Authentication and authorization of requests: [`Door`].
//!
//! A caller proves who they are by the certificate of their connection or by a token in the
//! request. The file of roles says what each name may do (`file.rs`); core decides. Without that
//! file every caller may do everything, and the coordinator listens on the loopback only.

pub(crate) mod audit;
mod door;
pub(crate) mod file;
#[cfg(feature = "oidc")]
mod oidc;
mod peer;
pub(crate) mod tokens;

pub(crate) use door::{Door, Refused, latest_ns};
#[cfg(all(feature = "oidc", feature = "simulation"))]
pub(crate) use oidc::Keys;
pub(crate) use peer::Peer;
