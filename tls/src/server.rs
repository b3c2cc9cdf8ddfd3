//! TLS of a service: its certificate, and which certificates of clients it takes.
//!
//! A client may come without a certificate, and with none that is not valid now. Sessions are not
//! resumed: each connection shows its certificate again. Replacing the files of the folder changes
//! the next handshake; connections that are open are asked about again with [`ServerTls::trusts`].

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certificate::Named;
use crate::client::trusting;
use crate::folder::{Contents, Followed, Material, Owned, TlsError};
use crate::steady::{self, SteadyTime};

/// The protocols of a service: gRPC, and HTTP of browsers and programs.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS of a service.
pub type ServerTls = Followed<Server>;

/// TLS configuration from the files of a service's folder.
#[derive(Debug)]
pub struct Server {
    config: Arc<ServerConfig>,
    client: ClientConfig,
    verifier: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    own: Named,
}

impl ServerTls {
    /// The settings of the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current().config.clone()
    }

    /// The settings of a client of other services below the same authorities. It shows no
    /// certificate: what it asks is asked by others.
    pub fn client(&self) -> ClientConfig {
        self.current().client.clone()
    }

    /// The names of hosts in its own certificate.
    pub fn hosts(&self) -> Vec<String> {
        let of = |name: &String| name.strip_prefix("dns:").map(String::from);
        self.current().own.names.iter().filter_map(of).collect()
    }

    /// Is a client's certificate valid now, with the intermediates that the client sent?
    pub fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((own, between)) = chain.split_first() else { return false };
        let (current, now) = (self.current(), UnixTime::since_unix_epoch(steady::now()));
        current.keeps_path_length(between)
            && current.verifier.verify_client_cert(own, between, now).is_ok()
    }
}

impl Owned for Server {
    fn own(&self) -> Option<&Named> {
        Some(&self.own)
    }
}

impl Server {
    /// Are there as few authorities between an authority and a client as it allows? rustls asks
    /// this of all authorities but the first.
    fn keeps_path_length(&self, between: &[CertificateDer<'_>]) -> bool {
        let below = between.iter().filter(|of| !self.authorities.iter().any(|own| own == *of));
        let below: Vec<_> = below.filter_map(|of| X509Certificate::from_der(of).ok()).collect();
        self.authorities.iter().all(|authority| {
            let Ok((_, own)) = X509Certificate::from_der(authority) else { return false };
            let constraints = own.basic_constraints().ok().flatten();
            let max = constraints.and_then(|of| of.value.path_len_constraint);
            max.is_none_or(|max| below.len() <= max as usize)
                || below.iter().all(|(_, of)| of.issuer() != own.subject())
        })
    }
}

impl Contents for Server {
    const WHAT: &'static str = "certificates";
    type Error = TlsError;

    fn read(folder: &Path) -> Result<(blake3::Hash, Self), TlsError> {
        let material = Material::read(folder)?;
        let own = material.own().unwrap_or_default();
        let unfit = |error: rustls::Error| TlsError::unfit(folder, &error);
        let roots = Arc::new(material.roots().map_err(unfit)?);
        let mut client = trusting(folder, &material)?.with_no_client_auth();
        client.resumption = Resumption::disabled();
        let key = material.key.ok_or(TlsError::Absent(folder.into(), "certificate and key"))?;
        let provider = Arc::new(default_provider());
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .allow_unauthenticated();
        if !material.revoked.is_empty() {
            verifier = verifier
                .with_crls(material.revoked)
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status();
        }
        let verifier = verifier.build();
        let verifier = verifier.map_err(|why| TlsError::Unfit(folder.into(), why.to_string()))?;
        let mut config = ServerConfig::builder_with_details(provider, Arc::new(SteadyTime))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(material.chain, key)
            .map_err(unfit)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let authorities = material.authorities;
        Ok((material.hash, Self { config: Arc::new(config), client, verifier, authorities, own }))
    }
}
