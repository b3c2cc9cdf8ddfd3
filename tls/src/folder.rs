//! The folder that holds the certificate, the key and the authorities of one party.
//!
//! The files have the names that Kubernetes and cert-manager give them (`tls.crt`, `tls.key`,
//! `ca.crt`) or the names of SPIFFE's helper (`svid.pem`, `svid_key.pem`, `svid_bundle.pem`).
//! Certificates that were revoked stand in `ca.crl`, which may be absent. Nothing is written here.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::certificate::{Named, minute, named};
use crate::steady;

/// Time between two polls of a folder.
pub const POLL_EVERY: Duration = Duration::from_secs(5);

/// Largest file.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Certificate, key and authorities, as each of two worlds calls them.
const NAMES: [[&str; 3]; 2] =
    [["tls.crt", "tls.key", "ca.crt"], ["svid.pem", "svid_key.pem", "svid_bundle.pem"]];

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
    /// The file holds something else.
    #[error("{0} holds no {1} in PEM")]
    NoPem(PathBuf, &'static str),
    /// Every user can read or write the file.
    #[error("every user reaches {0}: chmod 600, or chmod go-w where others may read it")]
    Open(PathBuf),
    /// The certificate is no longer valid since this minute.
    #[error("the certificate in {0} ended on {1}: issue a new one, as with `memtape tls issue`")]
    Ended(PathBuf, String),
    /// The certificate is not valid before this minute.
    #[error("the certificate in {0} is not valid before {1}: check this machine's clock")]
    NotYet(PathBuf, String),
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
    #[error("{0} is there already: name another folder, or move this one away")]
    Exists(PathBuf),
    /// A certificate or a file cannot be made.
    #[error("{0} cannot be made: {1}")]
    Unmade(String, String),
}

impl TlsError {
    /// The error of files that TLS cannot be made of.
    pub(crate) fn unfit(folder: &Path, error: &rustls::Error) -> Self {
        let why = match error {
            rustls::Error::InconsistentKeys(_) => {
                "the key does not belong to the certificate".to_string()
            }
            other => other.to_string(),
        };
        Self::Unfit(folder.into(), why)
    }
}

/// Contents of a folder or a file, which is read again when it changes.
pub trait Contents: Sized + Send + Sync + 'static {
    /// What the contents are called in the log.
    const WHAT: &'static str;
    /// Why they cannot be used.
    type Error: std::fmt::Display + Send;

    /// Reads them, with the hash of their files. Blocks.
    ///
    /// # Errors
    /// Something is missing, or does not fit.
    fn read(path: &Path) -> Result<(blake3::Hash, Self), Self::Error>;
}

/// Present contents of a folder or a file, such as [`crate::server::ServerTls`].
#[derive(Debug)]
pub struct Followed<T> {
    path: PathBuf,
    current: RwLock<(blake3::Hash, Arc<T>)>,
}

impl<T: Contents> Followed<T> {
    /// Reads the contents. Blocks.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn open(path: &Path) -> Result<Self, T::Error> {
        let (hash, contents) = T::read(path)?;
        let current = RwLock::new((hash, Arc::new(contents)));
        Ok(Self { path: path.to_path_buf(), current })
    }

    /// Where the contents are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hash of the files in use.
    pub fn hash(&self) -> blake3::Hash {
        self.current.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// The contents in use.
    pub fn current(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Polls until other contents are in use. Unusable ones are reported once; the previous ones
    /// stay in use.
    pub async fn replaced(self: &Arc<Self>) {
        let mut is_reported = false;
        loop {
            tokio::time::sleep(POLL_EVERY).await;
            let this = self.clone();
            match tokio::task::spawn_blocking(move || this.poll()).await {
                Ok(Ok(true)) => return tracing::info!("{} are replaced", T::WHAT),
                Ok(Ok(false)) => is_reported = false,
                Ok(Err(error)) if !std::mem::replace(&mut is_reported, true) => {
                    tracing::error!("the {} stay those from before: {error}", T::WHAT);
                }
                _ => {}
            }
        }
    }

    /// Polls for ever.
    pub async fn follow(self: Arc<Self>) {
        loop {
            self.replaced().await;
        }
    }

    /// Reads the contents once more; true where other ones are in use now. Blocks.
    ///
    /// # Errors
    /// They cannot be used; those from before stay in use.
    pub fn poll(&self) -> Result<bool, T::Error> {
        let (hash, contents) = T::read(&self.path)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = hash != current.0;
        if is_new {
            *current = (hash, Arc::new(contents));
        }
        Ok(is_new)
    }
}

/// Contents with a certificate of this party.
pub trait Owned: Contents {
    /// Names and time of the certificate; none without one.
    fn own(&self) -> Option<&Named>;
}

impl<T: Owned> Followed<T> {
    /// End of the time of its own certificate, since the Unix epoch; none without one.
    pub fn ends_unix(&self) -> Option<Duration> {
        self.current().own().map(|own| own.ends_unix)
    }

    /// The error of a certificate of its own that is not valid now.
    pub fn invalid(&self) -> Option<TlsError> {
        let (current, now) = (self.current(), steady::now());
        let (own, folder) = (current.own()?, || self.path().to_path_buf());
        match own {
            _ if now >= own.ends_unix => Some(TlsError::Ended(folder(), minute(own.ends_unix))),
            _ if now < own.begins_unix => Some(TlsError::NotYet(folder(), minute(own.begins_unix))),
            _ => None,
        }
    }

    /// Logs at the start, and whenever it begins or ends, that its own certificate is not valid.
    pub async fn report_invalid(&self) {
        let mut reported = None;
        loop {
            let invalid = self.invalid().map(|why| why.to_string());
            if let Some(why) = invalid.as_ref().filter(|_| invalid != reported) {
                tracing::error!("every client refuses this service: {why}");
            }
            reported = invalid;
            tokio::time::sleep(POLL_EVERY).await;
        }
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
    pub(crate) hash: blake3::Hash,
}

impl Material {
    /// Reads a folder. Blocks.
    ///
    /// # Errors
    /// A file that is absent, cannot be read, holds something else, or is a key that every user
    /// can read.
    pub fn read(folder: &Path) -> Result<Self, TlsError> {
        let names = NAMES.iter().find(|names| folder.join(names[2]).exists());
        let absent = TlsError::Absent(folder.to_path_buf(), "certificate of an authority");
        let [certificate, key, authorities] = names.ok_or(absent)?.map(|name| folder.join(name));
        let mut digest = blake3::Hasher::new();
        let mut read = |path: &Path, forbidden| {
            let text = file(path, forbidden)?;
            digest.update(&(text.len() as u64).to_le_bytes()).update(&text);
            Ok(text)
        };
        let authorities = all(&authorities, &read(&authorities, 0)?, "certificate")?;
        let revoked = folder.join("ca.crl");
        let revoked = match revoked.exists() {
            true => all(&revoked, &read(&revoked, 0)?, "list of revoked certificates")?,
            false => Vec::new(),
        };
        let (mut chain, mut own) = (Vec::new(), None);
        if certificate.exists() || key.exists() {
            let text = read(&key, READ_BY_OTHERS)?;
            chain = all(&certificate, &read(&certificate, 0)?, "certificate")?;
            let read = PrivateKeyDer::from_pem_slice(&text);
            own = Some(read.map_err(|_| TlsError::NoPem(key, "private key"))?);
        }
        Ok(Self { chain, key: own, authorities, revoked, hash: digest.finalize() })
    }

    /// Names and end of the certificate of this party; none without one.
    pub(crate) fn own(&self) -> Option<Named> {
        self.chain.first().map(named)
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

/// Reads a file that has none of these bits in its mode.
///
/// # Errors
/// It cannot be read, has such a bit, or is too large.
pub fn file(path: &Path, bits: u32) -> Result<Vec<u8>, TlsError> {
    let unread = |error| TlsError::Unread(path.to_path_buf(), error);
    let file = File::open(path).map_err(unread)?;
    if file.metadata().map_err(unread)?.permissions().mode() & bits != 0 {
        return Err(TlsError::Open(path.to_path_buf()));
    }
    // One byte more than is taken shows that it is too much.
    let mut text = Vec::new();
    let length = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(unread)?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(unread(io::Error::other("it is larger than 4 MiB")));
    }
    Ok(text)
}

/// All items of a kind in a file; at least one.
fn all<T: PemObject>(path: &Path, text: &[u8], what: &'static str) -> Result<Vec<T>, TlsError> {
    let read: Result<Vec<T>, _> = T::pem_slice_iter(text).collect();
    let found = read.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| TlsError::NoPem(path.to_path_buf(), what))
}
