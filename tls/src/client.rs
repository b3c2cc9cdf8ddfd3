//! TLS of a client: whom it trusts, and the certificate that it shows.
//!
//! Replacing the files changes the next connection.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;

use crate::certificate::Named;
use crate::folder::{Contents, Followed, Material, Owned, TlsError};
use crate::steady::SteadyTime;

/// TLS of a client: authorities, and a certificate if its folder has one.
pub type ClientTls = Followed<Client>;

/// TLS configuration from the files of a client's folder.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    own: Option<Named>,
}

impl ClientTls {
    /// The settings of the next connection; the caller adds protocols.
    pub fn config(&self) -> ClientConfig {
        self.current().config.clone()
    }
}

impl Owned for Client {
    fn own(&self) -> Option<&Named> {
        self.own.as_ref()
    }
}

impl Contents for Client {
    const WHAT: &'static str = "certificates";
    type Error = TlsError;

    fn read(folder: &Path) -> Result<(blake3::Hash, Self), TlsError> {
        let material = Material::read(folder)?;
        let unfit = |error: rustls::Error| TlsError::unfit(folder, &error);
        let own = material.own();
        let provider = Arc::new(default_provider());
        let config = ClientConfig::builder_with_details(provider, Arc::new(SteadyTime))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_root_certificates(material.roots().map_err(unfit)?);
        let mut config = match material.key {
            Some(key) => config.with_client_auth_cert(material.chain, key).map_err(unfit)?,
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok((material.hash, Self { config, own }))
    }
}
