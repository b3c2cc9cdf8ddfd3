//! TLS of a client: whom it trusts, and the certificate that it shows.
//!
//! A service whose certificate is in the list of revoked ones is not trusted. Replacing the files
//! changes the next connection.

use std::path::Path;
use std::sync::Arc;

use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, ConfigBuilder};

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
        let config = trusting(folder, &material)?;
        let mut config = match material.key {
            Some(key) => config.with_client_auth_cert(material.chain, key).map_err(unfit)?,
            None => config.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        Ok((material.hash, Self { config, own }))
    }
}

/// A client that trusts services below the authorities of a folder, but for those that are revoked.
pub(crate) fn trusting(
    folder: &Path,
    material: &Material,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsError> {
    let unfit = |error: rustls::Error| TlsError::unfit(folder, &error);
    let (roots, provider) = (material.roots().map_err(unfit)?, Arc::new(default_provider()));
    let mut verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    if !material.revoked.is_empty() {
        verifier = verifier
            .with_crls(material.revoked.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    let verifier = verifier.build();
    let verifier = verifier.map_err(|why| TlsError::Unfit(folder.into(), why.to_string()))?;
    let config = ClientConfig::builder_with_details(provider, Arc::new(SteadyTime));
    let config = config.with_safe_default_protocol_versions().map_err(unfit)?;
    Ok(config.with_webpki_verifier(verifier))
}
