//! The folder that holds the certificate, the key and the authorities of one party.
//!
//! The files have the names that Kubernetes and cert-manager give them (`tls.crt`, `tls.key`,
//! `ca.crt`) or those of SPIFFE's helper (`svid.pem`, `svid_key.pem`, `svid_bundle.pem`).
//! Certificates that were revoked stand in `ca.crl`, which may be absent. Nothing is written here.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Time between two looks at a folder.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Larger files are none of certificates.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Certificate, key and authorities, as each of two worlds calls them.
const NAMES: [[&str; 3]; 2] =
    [["tls.crt", "tls.key", "ca.crt"], ["svid.pem", "svid_key.pem", "svid_bundle.pem"]];

/// List of certificates that were revoked.
const REVOKED: &str = "ca.crl";

/// Bits of a mode by which other users read a key. A group may, as in a mounted secret.
const READ_BY_OTHERS: u32 = 0o007;

/// Why a folder of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {error}")]
    Unread {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is none of the names that such a file can have.
    #[error(
        "{folder} holds no {what}: put tls.crt, tls.key and ca.crt there, or svid.pem, \
         svid_key.pem and svid_bundle.pem; `memtape tls init` makes them"
    )]
    Absent {
        /// The folder.
        folder: PathBuf,
        /// What it lacks.
        what: &'static str,
    },
    /// It is larger than any such file.
    #[error("{0} is larger than 4 MiB: it cannot be a file of certificates")]
    TooLarge(PathBuf),
    /// It holds something else.
    #[error("{path} holds no {what} in PEM")]
    NoPem {
        /// The file.
        path: PathBuf,
        /// What was expected.
        what: &'static str,
    },
    /// Every user can read the key.
    #[error("{0} can be read by every user: make it private with chmod 600")]
    OpenKey(PathBuf),
    /// Certificate, key and authorities do not fit each other.
    #[error("the certificates in {folder} cannot be used: {why}")]
    Unfit {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        why: String,
    },
    /// The program was built without the feature `authority`.
    #[error(
        "this build makes no certificates: add `--features full` to the build, or take the wheel \
         or the image"
    )]
    NotBuilt,
    /// There is a file already, which is not replaced.
    #[error("{path} is there already: name another folder with --out, or move this one away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A certificate or a file cannot be made.
    #[error("{what} cannot be made: {why}")]
    Unmade {
        /// The file or the certificate.
        what: String,
        /// Why not.
        why: String,
    },
}

/// What a folder holds.
#[derive(Debug)]
pub struct Material {
    /// Certificate of this party, with those between it and its authority; empty for a client that
    /// has none.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key; none where there is no certificate.
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
        let absent = |what| TlsError::Absent { folder: folder.to_path_buf(), what };
        let [certificate, key, authorities] =
            names.ok_or(absent("certificate of an authority"))?.map(|name| folder.join(name));
        let mut digest = blake3::Hasher::new();
        let text = file(&authorities, &mut digest)?;
        let authorities = certificates(&authorities, &text)?;
        let revoked = folder.join(REVOKED);
        let revoked = match revoked.exists() {
            true => lists(&revoked, &file(&revoked, &mut digest)?)?,
            false => Vec::new(),
        };
        let mut material =
            Self { chain: Vec::new(), key: None, authorities, revoked, digest: [0; 32] };
        if certificate.exists() || key.exists() {
            check_mode(&key)?;
            material.chain = certificates(&certificate, &file(&certificate, &mut digest)?)?;
            let text = file(&key, &mut digest)?;
            let read = PrivateKeyDer::from_pem_slice(&text);
            material.key =
                Some(read.map_err(|_| TlsError::NoPem { path: key, what: "private key" })?);
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
        let absent = TlsError::Absent { folder: folder.to_path_buf(), what: "certificate and key" };
        Ok((self.chain.clone(), key.ok_or(absent)?))
    }
}

fn file(path: &Path, digest: &mut blake3::Hasher) -> Result<Vec<u8>, TlsError> {
    let unread = |error| TlsError::Unread { path: path.to_path_buf(), error };
    if fs::metadata(path).map_err(unread)?.len() > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge(path.to_path_buf()));
    }
    let bytes = fs::read(path).map_err(unread)?;
    digest.update(&(bytes.len() as u64).to_le_bytes());
    digest.update(&bytes);
    Ok(bytes)
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = read.ok().filter(|found| !found.is_empty());
    found.ok_or(TlsError::NoPem { path: path.to_path_buf(), what: "certificate" })
}

fn lists(path: &Path, text: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(text).collect();
    let found = read.ok().filter(|found| !found.is_empty());
    found.ok_or(TlsError::NoPem { path: path.to_path_buf(), what: "list of revoked certificates" })
}

fn check_mode(key: &Path) -> Result<(), TlsError> {
    let metadata =
        fs::metadata(key).map_err(|error| TlsError::Unread { path: key.to_path_buf(), error })?;
    match metadata.permissions().mode() & READ_BY_OTHERS {
        0 => Ok(()),
        _ => Err(TlsError::OpenKey(key.to_path_buf())),
    }
}
