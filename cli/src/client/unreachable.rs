//! Why a coordinator gave no answer, and what to do, in one line.
//!
//! The kinds are found by the types of the errors below, not by their words. A name that cannot be
//! resolved has no type of its own there, so it is resolved once more.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::ToSocketAddrs;
use std::time::Duration;

use memtape_tls::certificate::minute;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unreachable {
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
    /// The kind of a failed request.
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        let mut below: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(cause) = below {
            if let Some(kind) = tls(cause) {
                return kind;
            }
            if let Some(kind) = cause.downcast_ref::<io::Error>().and_then(socket) {
                return kind;
            }
            if cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
                return Self::NotPlain;
            }
            below = cause.source();
        }
        match error {
            error if error.is_timeout() => Self::TimedOut,
            error if error.is_connect() && has_no_address(error.url()) => Self::NoSuchHost,
            error if error.is_connect() => Self::Other,
            _ => Self::BrokenOff,
        }
    }

    /// States the failure and what to do.
    pub(crate) fn sentence(self, base: &str) -> String {
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
            Self::BrokenOff => format!(
                "{base} broke off its answer: check that it is a coordinator, and try again"
            ),
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

fn has_no_address(url: Option<&reqwest::Url>) -> bool {
    let address = url.and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    address.is_some_and(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let found = (host, port).to_socket_addrs();
        !found.is_ok_and(|mut addresses| addresses.next().is_some())
    })
}

fn host(base: &str) -> String {
    let url = reqwest::Url::parse(base).ok();
    url.and_then(|url| url.host_str().map(str::to_string)).unwrap_or_else(|| base.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn kind_of(url: &str) -> Unreachable {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(2)).no_proxy().build();
        let http = http.expect("client");
        let answer = runtime.expect("runtime").block_on(async { http.get(url).send().await });
        Unreachable::of(&answer.expect_err(url))
    }

    /// A server that reads a little of one request, answers this and closes.
    fn server(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            let Ok((mut connection, _)) = listener.accept() else { return };
            let _ = connection.read(&mut [0; 64]);
            let _ = connection.write_all(answer);
        });
        format!("127.0.0.1:{port}")
    }

    #[test]
    fn failures_are_distinguished_and_give_advice() {
        let check = |url: &str, kind: Unreachable, words: &str| {
            let found = kind_of(url);
            let line = found.sentence("https://node7:7771");
            assert_eq!(found, kind, "{url}");
            assert!(line.contains(words) && !line.contains('\n'), "{line}");
        };
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let closed = format!("http://{}/", closed.expect("a port"));
        check(&closed, Unreachable::Refused, "`memtape coordinator`");
        check("http://no-such-host.invalid:7771/", Unreachable::NoSuchHost, "host name node7");
        let plain = format!("https://{}/", server(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        check(&plain, Unreachable::NotTls, "write http://node7:7771 instead");
        let tls = format!("http://{}/", server(b"\x15\x03\x03\0\x02\x02\x46"));
        check(&tls, Unreachable::NotPlain, "--tls-dir");
        let broken = format!("http://{}/", server(b"HT"));
        check(&broken, Unreachable::BrokenOff, "broke off its answer");
        // It listens and never accepts.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = format!("http://{}/", listener.local_addr().expect("an address"));
        check(&silent, Unreachable::TimedOut, "firewall");
    }
}
