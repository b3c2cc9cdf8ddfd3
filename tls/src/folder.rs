//! The folder that holds the certificate, the key and the authorities of one party.
//!
//! The files have the names that Kubernetes and cert-manager give them (`tls.crt`, `tls.key`,
//! `ca.crt`) or the names of SPIFFE's helper (`svid.pem`, `svid_key.pem`, `svid_bundle.pem`).
//! Certificates that were revoked stand in `ca.crl`, which may be absent. Nothing is written here.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tokio::sync::watch;

/// Time between two polls of a folder.
pub const POLL_EVERY: Duration = Duration::from_secs(5);

/// Larger files are none of certificates.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Certificate, key and authorities, as each of two worlds calls them.
const NAMES: [[&str; 3]; 2] =
    [["tls.crt", "tls.key", "ca.crt"], ["svid.pem", "svid_key.pem", "svid_bundle.pem"]];

/// List of certificates that were revoked.
const REVOKED: &str = "ca.crl";

/// Bits of a mode by which other users read a key. A group may, as in a mounted secret.
const READ_BY_OTHERS: u32 = 0o007;

/// Why a folder of certificates cannot be used, or made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unread(PathBuf, io::Error),
    /// No file has one of the possible names.
    #[error(
        "{0} holds no {1}: put tls.crt, tls.key and ca.crt there, or svid.pem, svid_key.pem and \
         svid_bundle.pem; `memtape tls init` makes them"
    )]
    Absent(PathBuf, &'static str),
    /// The file is larger than any such file.
    #[error("{0} is larger than 4 MiB: it cannot be a file of certificates")]
    TooLarge(PathBuf),
    /// The file holds something else.
    #[error("{0} holds no {1} in PEM")]
    NoPem(PathBuf, &'static str),
    /// Every user can read the key.
    #[error("{0} can be read by every user: make it private with chmod 600")]
    OpenKey(PathBuf),
    /// Certificate, key and authorities do not fit each other.
    #[error("the certificates in {0} cannot be used: {1}")]
    Unfit(PathBuf, String),
    /// The program was built without the feature `authority`.
    #[error(
        "this build makes no certificates: add `--features full` to the build, or take the wheel \
         or the image"
    )]
    NotBuilt,
    /// There is a file already, which is not replaced.
    #[error("{0} is there already: name another folder with --out, or move this one away")]
    Exists(PathBuf),
    /// A certificate or a file cannot be made.
    #[error("{0} cannot be made: {1}")]
    Unmade(String, String),
}

/// Contents that a party needs of its folder. The folder is read again when its files change.
pub trait Contents: Sized + Send + Sync + 'static {
    /// Makes it of the files.
    ///
    /// # Errors
    /// The folder lacks something, or its files do not fit each other.
    fn of(folder: &Path, material: Material) -> Result<Self, TlsError>;
}

/// Present contents of a folder: [`crate::server::ServerTls`] and [`crate::client::ClientTls`].
#[derive(Debug)]
pub struct Followed<T> {
    folder: PathBuf,
    /// Contents, with the hash of their files.
    current: RwLock<([u8; 32], Arc<T>)>,
    replaced: watch::Sender<u64>,
}

impl<T: Contents> Followed<T> {
    /// Reads a folder. Blocks.
    ///
    /// # Errors
    /// The folder lacks something, or its files do not fit each other.
    pub fn open(folder: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(Self::read(folder)?);
        Ok(Self { folder: folder.to_path_buf(), current, replaced: watch::channel(0).0 })
    }

    /// The contents in use.
    pub fn current(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Changes each time when other files are in use.
    pub fn replaced(&self) -> watch::Receiver<u64> {
        self.replaced.subscribe()
    }

    /// Polls the folder for ever. Unusable files are reported once; the previous ones stay in use.
    pub async fn follow(self: Arc<Self>) {
        let mut is_reported = false;
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            let this = self.clone();
            match tokio::task::spawn_blocking(move || this.poll()).await {
                Ok(Ok(())) => is_reported = false,
                Ok(Err(error)) if !std::mem::replace(&mut is_reported, true) => {
                    tracing::error!("the certificates stay those from before: {error}");
                }
                _ => {}
            }
        }
    }

    /// Polls the folder once. Blocks.
    ///
    /// # Errors
    /// As [`Self::open`]; the files from before stay in use.
    pub fn poll(&self) -> Result<(), TlsError> {
        let digest = Material::read(&self.folder)?.digest;
        if digest == self.current.read().unwrap_or_else(PoisonError::into_inner).0 {
            return Ok(());
        }
        let read = Self::read(&self.folder)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        self.replaced.send_modify(|replaced| *replaced += 1);
        tracing::info!("certificates are replaced");
        Ok(())
    }

    fn read(folder: &Path) -> Result<([u8; 32], Arc<T>), TlsError> {
        let material = Material::read(folder)?;
        Ok((material.digest, Arc::new(T::of(folder, material)?)))
    }
}

/// Certificate, key and authorities in a folder.
#[derive(Debug)]
pub struct Material {
    /// Certificate of this party, with its intermediates; empty for a client without one.
    pub chain: Vec<CertificateDer<'static>>,
    /// Key of the certificate; none where there is no certificate.
    pub key: Option<PrivateKeyDer<'static>>,
    /// Authorities whose certificates others may show.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Certificates that were revoked.
    pub revoked: Vec<CertificateRevocationListDer<'static>>,
    /// Hash of all files, by which a change is seen.
    pub(crate) digest: [u8; 32],
}

impl Material {
    /// Reads a folder. Blocks.
    ///
    /// # Errors
    /// A file that is absent, cannot be read, holds something else, or is a key that every user
    /// can read.
    pub fn read(folder: &Path) -> Result<Self, TlsError> {
        let names = NAMES.iter().find(|names| folder.join(names[2]).exists());
        let absent = |what| TlsError::Absent(folder.to_path_buf(), what);
        let [certificate, key, authorities] =
            names.ok_or(absent("certificate of an authority"))?.map(|name| folder.join(name));
        let mut digest = blake3::Hasher::new();
        let text = file(&authorities, &mut digest)?;
        let authorities = all(&authorities, &text, "certificate")?;
        let revoked = folder.join(REVOKED);
        let revoked = match revoked.exists() {
            true => all(&revoked, &file(&revoked, &mut digest)?, "list of revoked certificates")?,
            false => Vec::new(),
        };
        let mut material =
            Self { chain: Vec::new(), key: None, authorities, revoked, digest: [0; 32] };
        if certificate.exists() || key.exists() {
            check_mode(&key)?;
            material.chain = all(&certificate, &file(&certificate, &mut digest)?, "certificate")?;
            let text = file(&key, &mut digest)?;
            let read = PrivateKeyDer::from_pem_slice(&text);
            material.key = Some(read.map_err(|_| TlsError::NoPem(key, "private key"))?);
        }
        material.digest = *digest.finalize().as_bytes();
        Ok(material)
    }

    /// The certificate and its key.
    ///
    /// # Errors
    /// The folder holds none.
    pub fn own(
        &self,
        folder: &Path,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key = self.key.as_ref().map(PrivateKeyDer::clone_key);
        let absent = || TlsError::Absent(folder.to_path_buf(), "certificate and key");
        Ok((self.chain.clone(), key.ok_or_else(absent)?))
    }

    /// The authorities, as rustls takes them.
    pub(crate) fn roots(&self) -> Result<RootCertStore, rustls::Error> {
        let mut roots = RootCertStore::empty();
        for authority in &self.authorities {
            roots.add(authority.clone())?;
        }
        Ok(roots)
    }
}

fn file(path: &Path, digest: &mut blake3::Hasher) -> Result<Vec<u8>, TlsError> {
    let unread = |error| TlsError::Unread(path.to_path_buf(), error);
    if fs::metadata(path).map_err(unread)?.len() > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge(path.to_path_buf()));
    }
    let bytes = fs::read(path).map_err(unread)?;
    digest.update(&(bytes.len() as u64).to_le_bytes());
    digest.update(&bytes);
    Ok(bytes)
}

/// All items of a kind in a file; at least one.
fn all<T: PemObject>(path: &Path, text: &[u8], what: &'static str) -> Result<Vec<T>, TlsError> {
    let read: Result<Vec<T>, _> = T::pem_slice_iter(text).collect();
    let found = read.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| TlsError::NoPem(path.to_path_buf(), what))
}

fn check_mode(key: &Path) -> Result<(), TlsError> {
    let unread = |error| TlsError::Unread(key.to_path_buf(), error);
    let metadata = fs::metadata(key).map_err(unread)?;
    match metadata.permissions().mode() & READ_BY_OTHERS {
        0 => Ok(()),
        _ => Err(TlsError::OpenKey(key.to_path_buf())),
    }
}
