//! Why a coordinator gave no answer, and what to do, in one line.
//!
//! The kinds are found by the types of the errors below, not by their words.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use hyper::http::Uri;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;

use crate::certificate::minute;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unreachable {
    /// The host's name has no address.
    NoSuchHost,
    /// The host answers; nothing listens on the port.
    Refused,
    /// Nothing answered in time.
    TimedOut,
    /// No way leads to the host.
    NoRoute,
    /// A server answers, but not by TLS.
    NotTls,
    /// A server answers, but not by plain HTTP.
    NotPlain,
    /// The server's certificate ended at this time, since the Unix epoch.
    Ended(Duration),
    /// The server's certificate is valid from this time on, since the Unix epoch.
    NotYet(Duration),
    /// A server answers by TLS with a certificate that is not trusted, or another failure of TLS.
    Tls,
    /// A server accepted the connection and closed it before its answer was whole.
    BrokenOff,
    /// Another cause.
    Other,
}

impl Unreachable {
    /// The kind of an error; none where its causes are of no known type.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut below = Some(error);
        while let Some(cause) = below {
            let io = cause.downcast_ref::<io::Error>();
            let h2 = cause.downcast_ref::<h2::Error>();
            let io = io.or_else(|| h2.and_then(h2::Error::get_io));
            // The answer of another protocol is no frame of HTTP/2.
            let is_no_frame = h2.is_some_and(|h2| {
                h2.is_library() && h2.reason() == Some(h2::Reason::FRAME_SIZE_ERROR)
            });
            let is_no_answer = cause.downcast_ref().is_some_and(hyper::Error::is_parse);
            match tls(cause).or_else(|| io.and_then(socket)) {
                Some(kind) => return Some(kind),
                None if is_no_frame || is_no_answer => return Some(Self::NotPlain),
                None => below = cause.source(),
            }
        }
        None
    }

    /// States the failure and what to do.
    pub fn sentence(self, base: &str) -> String {
        let host = host(base);
        let where_it_is = "say where it is with --coordinator or MEMTAPE_COORDINATOR";
        match self {
            Self::NoSuchHost => format!(
                "the host name {host} of the coordinator {base} is not known here: check its \
                 spelling and this machine's DNS"
            ),
            Self::Refused => format!(
                "nothing listens at {base}: start a coordinator there with `memtape coordinator`, \
                 or {where_it_is}"
            ),
            Self::TimedOut => format!(
                "{base} does not answer in time: check that the host runs, and that no firewall \
                 is between"
            ),
            Self::NoRoute => format!(
                "no network leads from here to {host}: check the address {base} and this \
                 machine's network"
            ),
            Self::NotTls => format!(
                "the server at {base} does not speak TLS: write {} instead, if that is meant",
                base.replacen("https://", "http://", 1)
            ),
            Self::NotPlain => format!(
                "the server at {base} does not speak plain HTTP: write {} instead, and name its \
                 ca.crt with --tls-dir, if it is a coordinator with TLS",
                base.replacen("http://", "https://", 1)
            ),
            Self::Ended(at) => format!(
                "the certificate of the coordinator at {base} ended on {}: renew it in the \
                 coordinator's --tls-dir",
                minute(at)
            ),
            Self::NotYet(at) => format!(
                "the certificate of the coordinator at {base} is not valid before {}: check the \
                 clocks of this machine and of the coordinator's",
                minute(at)
            ),
            Self::Tls => format!(
                "TLS with {base} failed: check that --tls-dir names the coordinator's ca.crt, that \
                 the certificate there names this host, and that none has expired"
            ),
            Self::BrokenOff => {
                format!("{base} broke off the connection: check that a coordinator runs there")
            }
            Self::Other => format!("no coordinator answers at {base}: {where_it_is}"),
        }
    }
}

fn tls(cause: &(dyn Error + 'static)) -> Option<Unreachable> {
    // A connection wraps errors of TLS into those of sockets, more than once.
    let mut cause = cause;
    while let Some(inner) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        cause = inner;
    }
    let seconds = |at: &UnixTime| Duration::from_secs(at.as_secs());
    let found = cause.downcast_ref::<rustls::Error>();
    let kind = match found? {
        rustls::Error::InvalidMessage(_) => Unreachable::NotTls,
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        }) => Unreachable::Ended(seconds(not_after)),
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        }) => Unreachable::NotYet(seconds(not_before)),
        _ => Unreachable::Tls,
    };
    Some(kind)
}

fn socket(error: &io::Error) -> Option<Unreachable> {
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(Unreachable::Refused),
        ErrorKind::TimedOut => Some(Unreachable::TimedOut),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Some(Unreachable::NoRoute),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => {
            Some(Unreachable::BrokenOff)
        }
        _ => None,
    }
}

fn host(base: &str) -> String {
    let uri = base.parse::<Uri>().ok();
    uri.and_then(|uri| uri.host().map(str::to_string)).unwrap_or_else(|| base.to_string())
}
