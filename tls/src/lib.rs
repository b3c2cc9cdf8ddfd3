//! Certificates of the services and their clients: read from a folder, checked, replaced while a
//! service runs, and made for those who have no authority of their own.
//!
//! One folder holds all that one party needs ([`folder`]). A service and an agent poll it
//! every few seconds, so that whatever renews certificates has no more to do. Who a certificate
//! names is read here ([`certificate`]); what that name may do is decided in `memtape-core`.

pub mod authority;
pub mod certificate;
pub mod client;
pub mod folder;
pub mod server;
#[cfg(feature = "authority")]
mod signing;
pub mod steady;

pub use folder::TlsError;
