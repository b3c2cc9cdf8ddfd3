//! TLS of a client: whom it trusts, and the certificate that it shows.
//!
//! Replacing the files changes the next connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use x509_parser::time::ASN1Time;

use crate::folder::{Contents, Followed, Material, TlsError};
use crate::steady::{self, SteadyTime};

/// TLS of a client: authorities, and a certificate if its folder has one.
pub type ClientTls = Followed<Client>;

/// TLS configuration from the files of a client's folder.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    ends_unix: Option<Duration>,
}

impl ClientTls {
    /// The settings of the next connection; the caller adds protocols.
    pub fn config(&self) -> ClientConfig {
        self.current().config.clone()
    }

    /// End of the time of its own certificate, since the Unix epoch; none without one.
    pub fn ends_unix(&self) -> Option<Duration> {
        self.current().ends_unix
    }

    /// The error of a certificate of its own that has ended.
    pub fn ended(&self) -> Option<TlsError> {
        let ends = self.ends_unix().filter(|ends| steady::now() >= *ends)?;
        let date = ASN1Time::from_timestamp(ends.as_secs().try_into().ok()?).ok()?;
        let date = date.to_datetime().date().to_string();
        Some(TlsError::Ended(self.path().to_path_buf(), date))
    }
}

impl Contents for Client {
    const WHAT: &'static str = "certificates";
    type Error = TlsError;

    fn read(folder: &Path) -> Result<(blake3::Hash, Self), TlsError> {
        let material = Material::read(folder)?;
        let unfit = |error: rustls::Error| TlsError::Unfit(folder.into(), error.to_string());
        let ends_unix = material.own().map(|own| own.ends_unix);
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
        Ok((material.hash, Self { config, ends_unix }))
    }
}
