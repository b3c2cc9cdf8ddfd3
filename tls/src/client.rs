//! TLS of a client: whom it trusts, and the certificate that it shows.
//!
//! Replacing the files changes the next connection.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;

use crate::folder::{LOOK_EVERY, Material, TlsError};
use crate::server::roots;
use crate::steady::SteadyTime;

/// TLS of a client.
#[derive(Debug)]
pub struct ClientTls {
    folder: PathBuf,
    current: RwLock<([u8; 32], Arc<ClientConfig>)>,
}

impl ClientTls {
    /// TLS with what a folder holds: authorities, and a certificate if there is one. Blocks.
    ///
    /// # Errors
    /// The folder lacks something, or its files do not fit each other.
    pub fn open(folder: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(read(folder)?);
        Ok(Self { folder: folder.to_path_buf(), current })
    }

    /// The settings of the next connection; protocols are the caller's to name.
    pub fn config(&self) -> ClientConfig {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        ClientConfig::clone(&current.1)
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
        let digest = Material::read(&self.folder)?.digest;
        if digest == self.current.read().unwrap_or_else(PoisonError::into_inner).0 {
            return Ok(());
        }
        let read = read(&self.folder)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        tracing::info!("certificates are replaced");
        Ok(())
    }
}

fn read(folder: &Path) -> Result<([u8; 32], Arc<ClientConfig>), TlsError> {
    let material = Material::read(folder)?;
    let unfit = |error: rustls::Error| TlsError::Unfit {
        folder: folder.to_path_buf(),
        why: error.to_string(),
    };
    let config =
        ClientConfig::builder_with_details(Arc::new(default_provider()), Arc::new(SteadyTime))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_root_certificates(roots(&material).map_err(unfit)?);
    let mut config = match material.key.is_some() {
        true => {
            let (chain, key) = material.own(folder)?;
            config.with_client_auth_cert(chain, key).map_err(unfit)?
        }
        false => config.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    Ok((material.digest, Arc::new(config)))
}
