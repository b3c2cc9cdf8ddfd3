//! Certificates of the services and their clients: read from a folder, checked, replaced while a
//! service runs, and made for users without an authority.
//!
//! One folder holds all that one party needs ([`folder`]). A service and an agent poll it every few
//! seconds, so a renewed certificate is used without a restart. The names in a certificate are read
//! here ([`certificate`]); `memtape-core` decides their rights.

pub mod authority;
pub mod certificate;
pub mod client;
pub mod folder;
pub mod server;
#[cfg(feature = "authority")]
mod signing;
pub mod steady;
pub mod unreachable;

pub use folder::TlsError;
