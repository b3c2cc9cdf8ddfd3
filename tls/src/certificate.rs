//! Names in a certificate.
//!
//! Each name says its kind: `spiffe://…` and other URIs as they are, `dns:HOST`, `email:ADDRESS`
//! and `cn:NAME`, the last only where the certificate has no other. The certificate itself has
//! been checked when this is asked.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// Names in one certificate. One with more has none: a refusal has to see each of them.
const NAMES_MAX: usize = 64;

/// Longest name; longer ones are left out.
const NAME_BYTES_MAX: usize = 512;

/// Names in a certificate, each with its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// All names, each with its kind.
    pub names: Vec<String>,
    /// Begin of its time, since the Unix epoch.
    pub begins_unix: Duration,
    /// End of its time, since the Unix epoch.
    pub ends_unix: Duration,
}

/// The names in a certificate; empty where it cannot be read, or has too many.
pub fn named(certificate: &CertificateDer<'_>) -> Named {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return Named::default() };
    let alternative = read.subject_alternative_name().ok().flatten();
    let general = alternative.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let mut names: Vec<String> = general.iter().filter_map(name).collect();
    if names.is_empty() {
        let common = read.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        names = common.map(|name| format!("cn:{name}")).collect();
    }
    let is_plain = |name: &String| {
        name.len() <= NAME_BYTES_MAX && name.chars().all(|c| !c.is_control() && !c.is_whitespace())
    };
    names.retain(is_plain);
    if general.len() > NAMES_MAX {
        names.clear();
    }
    let unix = |of: ASN1Time| Duration::from_secs(of.timestamp().try_into().unwrap_or(0));
    let (begins_unix, ends_unix) =
        (unix(read.validity().not_before), unix(read.validity().not_after));
    Named { names, begins_unix, ends_unix }
}

/// Minute of a time since the Unix epoch, in words; empty for one that no certificate can have.
pub fn minute(unix: Duration) -> String {
    let time = i64::try_from(unix.as_secs()).ok().and_then(|it| ASN1Time::from_timestamp(it).ok());
    let Some(time) = time.map(|time| time.to_datetime()) else { return String::new() };
    format!("{} {:02}:{:02} UTC", time.date(), time.hour(), time.minute())
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::URI(uri) => Some((*uri).to_string()).filter(|uri| uri.contains("://")),
        GeneralName::DNSName(host) => Some(format!("dns:{}", host.to_ascii_lowercase())),
        GeneralName::RFC822Name(address) => Some(format!("email:{address}")),
        _ => None,
    }
}
