//! Why a request got no answer.
//!
//! A name that cannot be resolved has no type of its own among the errors below, so it is resolved
//! once more.

use std::net::ToSocketAddrs;

use memtape_tls::unreachable::Unreachable;

/// The kind of a failed request.
pub(crate) fn of(error: &reqwest::Error) -> Unreachable {
    Unreachable::of(error).unwrap_or_else(|| match error {
        error if error.is_timeout() => Unreachable::TimedOut,
        error if error.is_connect() && has_no_address(error.url()) => Unreachable::NoSuchHost,
        error if error.is_connect() => Unreachable::Other,
        _ => Unreachable::BrokenOff,
    })
}

fn has_no_address(url: Option<&reqwest::Url>) -> bool {
    let address = url.and_then(|url| Some((url.host_str()?, url.port_or_known_default()?)));
    address.is_some_and(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let found = (host, port).to_socket_addrs();
        !found.is_ok_and(|mut addresses| addresses.next().is_some())
    })
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
        of(&answer.expect_err(url))
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
        check(&broken, Unreachable::BrokenOff, "broke off the connection");
        // It listens and never accepts.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = format!("http://{}/", listener.local_addr().expect("an address"));
        check(&silent, Unreachable::TimedOut, "firewall");
    }
}
