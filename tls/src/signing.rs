//! Makes the certificates of [`crate::authority`].

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::authority::Party;
use crate::folder::TlsError;

/// Time that the authority's own certificate is valid.
const AUTHORITY_DAYS: u64 = 3650;

/// Clocks of the cluster may be behind by this much.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);

const DAY: Duration = Duration::from_secs(86_400);

/// Makes an authority in a folder that has none: `ca.crt` and `ca.key`.
///
/// # Errors
/// There is one, or a file cannot be written.
pub fn make(folder: &Path) -> Result<(), TlsError> {
    let what = || format!("an authority in {}", folder.display());
    let mut params = named("Memtape authority", AUTHORITY_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(|error| unmade(what(), error))?;
    let certificate = params.self_signed(&key).map_err(|error| unmade(what(), error))?;
    make_folder(folder)?;
    write(&folder.join("ca.key"), &key.serialize_pem(), 0o600)?;
    write(&folder.join("ca.crt"), &certificate.pem(), 0o644)
}

/// Makes a party's folder: its certificate, its key, and the authority's certificate.
///
/// # Errors
/// The authority cannot be read, the name makes no certificate, the folder has a certificate, or a
/// file cannot be written.
pub fn issue(authority: &Path, folder: &Path, party: &Party, days: u64) -> Result<(), TlsError> {
    let what = || format!("a certificate for {}", party.name());
    let read = |name: &str| {
        let path = authority.join(name);
        fs::read_to_string(&path).map_err(|error| TlsError::Unread(path, error))
    };
    let (certificate, key) = (read("ca.crt")?, read("ca.key")?);
    let key = KeyPair::from_pem(&key).map_err(|error| unmade(what(), error))?;
    let issuer = Issuer::from_ca_cert_pem(&certificate, key);
    let issuer = issuer.map_err(|error| unmade(what(), error))?;
    let mut params = named(&party.name(), days);
    params.subject_alt_names = alternatives(party).map_err(|error| unmade(what(), error))?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match party {
        Party::Coordinator(_) => ExtendedKeyUsagePurpose::ServerAuth,
        Party::Agent(_) | Party::User(_) => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    let own_key = KeyPair::generate().map_err(|error| unmade(what(), error))?;
    let made = params.signed_by(&own_key, &issuer).map_err(|error| unmade(what(), error))?;
    make_folder(folder)?;
    write(&folder.join("tls.key"), &own_key.serialize_pem(), 0o600)?;
    write(&folder.join("tls.crt"), &made.pem(), 0o644)?;
    write(&folder.join("ca.crt"), &certificate, 0o644)
}

fn alternatives(party: &Party) -> Result<Vec<SanType>, rcgen::Error> {
    if let Some(uri) = party.uri() {
        return Ok(vec![SanType::URI(uri.try_into()?)]);
    }
    let Party::Coordinator(hosts) = party else { return Ok(Vec::new()) };
    let of_host = |host: &String| match host.parse::<IpAddr>() {
        Ok(address) => Ok(SanType::IpAddress(address)),
        Err(_) => Ok(SanType::DnsName(host.clone().try_into()?)),
    };
    hosts.iter().map(of_host).collect()
}

fn named(name: &str, days: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SLACK).into();
    let days = u32::try_from(days).unwrap_or(u32::MAX).min(36_500);
    params.not_after = (now + DAY * days).into();
    params
}

fn make_folder(folder: &Path) -> Result<(), TlsError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| unmade(folder.display().to_string(), error))
}

/// Writes a new file, whole or not at all.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => TlsError::Exists(path.to_path_buf()),
        _ => unmade(path.display().to_string(), error),
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

fn unmade(what: String, why: impl ToString) -> TlsError {
    TlsError::Unmade(what, why.to_string())
}
