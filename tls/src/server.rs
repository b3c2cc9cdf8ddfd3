//! TLS of a service: its certificate, and which certificates of clients it takes.
//!
//! A client may come without a certificate, and with none that is not valid now. Sessions are not
//! resumed: each connection shows its certificate again. Replacing the files of the folder changes
//! the next handshake; connections that are open are asked about again with [`ServerTls::trusts`].

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;

use crate::certificate::named;
use crate::folder::{LOOK_EVERY, Material, TlsError};
use crate::steady::{self, SteadyTime};

/// The protocols of a service: gRPC, and HTTP of browsers and programs.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS of a service.
#[derive(Debug)]
pub struct ServerTls {
    folder: PathBuf,
    current: RwLock<Current>,
    replaced: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
struct Current {
    config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    digest: [u8; 32],
    hosts: Vec<String>,
}

impl ServerTls {
    /// TLS with what a folder holds. Blocks.
    ///
    /// # Errors
    /// The folder lacks something, or its files do not fit each other.
    pub fn open(folder: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(read(folder)?);
        Ok(Self { folder: folder.to_path_buf(), current, replaced: watch::channel(0).0 })
    }

    /// The settings of the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current().config
    }

    /// The names of hosts in its own certificate.
    pub fn hosts(&self) -> Vec<String> {
        self.current().hosts
    }

    /// Is this certificate of a client, with those that it sent along, valid now?
    pub fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((own, between)) = chain.split_first() else { return false };
        self.current().verifier.verify_client_cert(own, between, steady::now()).is_ok()
    }

    /// Changes each time when other files are in use.
    pub fn replaced(&self) -> watch::Receiver<u64> {
        self.replaced.subscribe()
    }

    /// Looks at the folder again and again. Files that cannot be used are reported once; those from
    /// before stay in use.
    pub async fn follow(self: Arc<Self>) {
        let mut is_reported = false;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let this = self.clone();
            let looked = tokio::task::spawn_blocking(move || this.look()).await;
            match looked {
                Ok(Ok(())) => is_reported = false,
                Ok(Err(error)) if !std::mem::replace(&mut is_reported, true) => {
                    tracing::error!("the certificates stay those from before: {error}");
                }
                _ => {}
            }
        }
    }

    /// Looks at the folder once. Blocks.
    ///
    /// # Errors
    /// As [`Self::open`]; the files from before stay in use.
    pub fn look(&self) -> Result<(), TlsError> {
        if Material::read(&self.folder)?.digest == self.current().digest {
            return Ok(());
        }
        let read = read(&self.folder)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        self.replaced.send_modify(|replaced| *replaced += 1);
        tracing::info!("certificates are replaced");
        Ok(())
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(folder: &Path) -> Result<Current, TlsError> {
    let material = Material::read(folder)?;
    let unfit = |why: String| TlsError::Unfit { folder: folder.to_path_buf(), why };
    let (chain, key) = material.own(folder)?;
    let names = chain.first().map(named).unwrap_or_default().names;
    let hosts = names.iter().filter_map(|name| name.strip_prefix("dns:")).map(String::from);
    let hosts = hosts.collect();
    let roots = Arc::new(roots(&material).map_err(|error| unfit(error.to_string()))?);
    let provider = Arc::new(default_provider());
    let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .allow_unauthenticated();
    if !material.revoked.is_empty() {
        verifier = verifier
            .with_crls(material.revoked)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    let verifier = verifier.build().map_err(|error| unfit(error.to_string()))?;
    let config = ServerConfig::builder_with_details(provider, Arc::new(SteadyTime))
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(error.to_string()))?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain, key);
    let mut config = config.map_err(|error| unfit(error.to_string()))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Current { config: Arc::new(config), verifier, digest: material.digest, hosts })
}

/// The authorities of a folder.
pub(crate) fn roots(material: &Material) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for authority in &material.authorities {
        roots.add(authority.clone())?;
    }
    Ok(roots)
}
