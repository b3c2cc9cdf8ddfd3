//! TLS of a client: whom it trusts, and the certificate that it shows.
//!
//! Replacing the files changes the next connection.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;

use crate::folder::{Contents, Followed, Material, TlsError};
use crate::steady::SteadyTime;

/// TLS of a client: authorities, and a certificate if its folder has one.
pub type ClientTls = Followed<ClientConfig>;

impl ClientTls {
    /// The settings of the next connection; the caller adds protocols.
    pub fn config(&self) -> ClientConfig {
        ClientConfig::clone(&self.current())
    }
}

impl Contents for ClientConfig {
    const WHAT: &'static str = "certificates";
    type Error = TlsError;

    fn read(folder: &Path) -> Result<(blake3::Hash, Self), TlsError> {
        let material = Material::read(folder)?;
        let unfit = |error: rustls::Error| TlsError::Unfit(folder.into(), error.to_string());
        let config = Self::builder_with_details(Arc::new(default_provider()), Arc::new(SteadyTime))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_root_certificates(material.roots().map_err(unfit)?);
        let mut config = match material.key {
            Some(key) => config.with_client_auth_cert(material.chain, key).map_err(unfit)?,
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok((material.hash, config))
    }
}
