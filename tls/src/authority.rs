//! A small authority for users without one: `memtape tls`.
//!
//! The authority's own key lies in one folder, which no service needs. Each party gets a folder of
//! its own, as [`crate::folder`] reads it. Agents are named `spiffe://memtape/agent/NODE`, people
//! and programs `spiffe://memtape/user/NAME`, the coordinator by its hosts. Nothing is replaced
//! unless it is asked for.

#[cfg(not(feature = "authority"))]
use std::path::Path;

#[cfg(not(feature = "authority"))]
use crate::folder::TlsError;
#[cfg(feature = "authority")]
pub use crate::signing::{issue, make};

/// Whom a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Party {
    /// The coordinator, under these host names and addresses.
    Coordinator(Vec<String>),
    /// The agent of a node.
    Agent(String),
    /// A user or a program.
    User(String),
}

impl Party {
    /// The name in a certificate of this party; none for the coordinator, which has hosts.
    pub fn uri(&self) -> Option<String> {
        match self {
            Self::Coordinator(_) => None,
            Self::Agent(node) => Some(format!("spiffe://memtape/agent/{node}")),
            Self::User(name) => Some(format!("spiffe://memtape/user/{name}")),
        }
    }

    /// Name of its folder and of its certificate.
    pub fn name(&self) -> String {
        match self {
            Self::Coordinator(_) => "coordinator".to_string(),
            Self::Agent(node) => format!("agent-{node}"),
            Self::User(name) => format!("user-{name}"),
        }
    }
}

/// As with the feature `authority`, which this build lacks.
///
/// # Errors
/// Always.
#[cfg(not(feature = "authority"))]
pub fn make(_: &Path) -> Result<(), TlsError> {
    Err(TlsError::NotBuilt)
}

/// As with the feature `authority`, which this build lacks.
///
/// # Errors
/// Always.
#[cfg(not(feature = "authority"))]
pub fn issue(_: &Path, _: &Path, _: &Party, _: u64) -> Result<(), TlsError> {
    Err(TlsError::NotBuilt)
}
