//! Admits requests to a name of this coordinator, from its own pages or from a program.
//!
//! A browser can be made to send requests here by a page of another site, and to take that site's
//! name for this address (DNS rebinding). The name in the request reveals the second, `Origin` and
//! `Sec-Fetch-Site` the first. Calls of gRPC may use any name, because agents reach the coordinator
//! by names that it does not know; they are refused where a browser sent them.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use crate::access::Door;
use crate::http::request::Problem;

/// Time for a request that brings something, and for its answer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// Time until the answer to another request begins: more than one waits for its memory.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Number of a request, as in its answer. It reveals nothing about other requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestNumber(pub(crate) u64);

/// Bits of a number that a program reads exactly from JSON.
const NUMBER_BITS: u32 = 53;

/// The names that this coordinator has, beside localhost and all addresses.
#[derive(Clone)]
pub(crate) struct Site {
    names: Arc<[String]>,
    door: Option<Arc<Door>>,
}

impl Site {
    /// The site of these names, without ports, and of the names in the door's certificate.
    pub(crate) fn new(names: &[String], door: Option<Arc<Door>>) -> Self {
        Self { names: names.into(), door }
    }

    /// Answers what may be answered, and gives each answer an id.
    pub(crate) async fn admit(
        State(site): State<Self>,
        mut request: Request,
        next: Next,
    ) -> Response {
        // The keys of each `RandomState` are others.
        let number = RandomState::new().hash_one(()) >> (u64::BITS - NUMBER_BITS);
        request.extensions_mut().insert(RequestNumber(number));
        let is_health = matches!(request.uri().path(), "/healthz" | "/readyz");
        let refused = site.refuse(request.method(), request.uri(), request.headers());
        let mut response = match refused.filter(|_| !is_health) {
            Some(problem) => {
                tracing::debug!(number, "a request is refused: {}", problem.line);
                problem.into_response()
            }
            None => {
                let (time_max, line) = match request.method().is_safe() {
                    true => (ANSWER_TIME_MAX, "no answer within 60 s: the coordinator is busy"),
                    false => {
                        let line = "no answer within 30 s: the request came slowly, or the \
                                    coordinator is busy; it may have been carried out";
                        (REQUEST_TIME_MAX, line)
                    }
                };
                let late = |_| Problem::new(StatusCode::SERVICE_UNAVAILABLE, line).into_response();
                timeout(time_max, next.run(request)).await.unwrap_or_else(late)
            }
        };
        response.headers_mut().insert("x-request-id", HeaderValue::from(number));
        response
    }

    fn refuse(&self, method: &Method, uri: &uri::Uri, headers: &HeaderMap) -> Option<Problem> {
        // A header that is no text equals nothing.
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let asked = uri.authority().map(uri::Authority::as_str).or(text(header::HOST));
        // Of two, a proxy may have looked at the other one.
        let has_more = headers.get_all(header::HOST).iter().nth(1).is_some();
        let Some(asked) = asked.filter(|_| !has_more) else {
            let line = "the request names no host, or more than one";
            return Some(Problem::new(StatusCode::BAD_REQUEST, line));
        };
        let name = asked.parse::<uri::Authority>().ok().map(|asked| asked.host().to_string());
        let name = name.unwrap_or_default();
        if !self.has(&name) {
            let line = format!(
                "this coordinator is not called {name:?}: start it with --host {name}, or use its \
                 address"
            );
            return Some(Problem::new(StatusCode::MISDIRECTED_REQUEST, line));
        }
        // A proxy before a port without TLS may have TLS.
        let has_tls = self.door.as_ref().is_some_and(|door| door.tls().is_some());
        let schemes = if has_tls { &["https"][..] } else { &["http", "https"] };
        let of_origin = text(header::ORIGIN).map(|origin| {
            let own = origin.split_once("://").filter(|(scheme, _)| schemes.contains(scheme));
            own.is_some_and(|(_, origin)| origin.eq_ignore_ascii_case(asked))
        });
        let of_site = text(header::HeaderName::from_static("sec-fetch-site"))
            .map(|site| site == "same-origin" || site == "none");
        // A link from another page to a page of ours may be followed, nothing else.
        let is_page = method.is_safe() && !uri.path().starts_with("/api/");
        let is_foreign = of_origin == Some(false) || (of_site == Some(false) && !is_page);
        is_foreign.then(|| {
            let line = "a page of another site asked: use the coordinator's own page";
            Problem::new(StatusCode::FORBIDDEN, line)
        })
    }

    fn has(&self, name: &str) -> bool {
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let tls = self.door.as_ref().and_then(|door| door.tls());
        let hosts = tls.map(|tls| tls.hosts()).unwrap_or_default();
        name.eq_ignore_ascii_case("localhost")
            || address.parse::<IpAddr>().is_ok()
            || self.names.iter().chain(&hosts).any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Answers calls of gRPC, and no request of a browser: a request that a page can send without a
/// preflight has another content type, and every other request has browser headers.
pub(crate) async fn admit_agents(request: Request, next: Next) -> Response {
    match is_of_agent(request.headers()) {
        true => next.run(request).await,
        false => {
            let line = "this path is for agents: they call it by gRPC";
            Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, line).into_response()
        }
    }
}

fn is_of_agent(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let is_of_browser = |name: &header::HeaderName| {
        *name == header::ORIGIN || name.as_str().starts_with("sec-fetch-")
    };
    let is_grpc = [&b"application/grpc"[..], b"application/grpc+proto"].contains(&content_type);
    is_grpc && !headers.keys().any(is_of_browser)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &Method, headers: &[(&'static str, &str)], expected: Option<u16>) {
        let site = Site::new(&["memtape.example".to_string()], None);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            // As bytes, each a character.
            let value: Vec<u8> = value.chars().map(|of| of as u32 as u8).collect();
            let value = HeaderValue::from_bytes(&value).unwrap();
            map.append(header::HeaderName::from_static(name), value);
        }
        let refused = site.refuse(method, &uri::Uri::from_static("/api/v1/jobs"), &map);
        let status = refused.map(|problem| problem.status.as_u16());
        assert_eq!(status, expected, "{method} {headers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_no_fault_of_the_client() {
        let admit = axum::middleware::from_fn_with_state(Site::new(&[], None), Site::admit);
        let router = axum::Router::new().fallback(std::future::pending::<()>).layer(admit);
        let router = hyper_util::service::TowerToHyperService::new(router);
        for request in [Request::post("/"), Request::get("/")] {
            let request = request.header("host", "localhost").body(axum::body::Body::empty());
            let answer = hyper::service::Service::call(&router, request.unwrap()).await.unwrap();
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
    }

    #[test]
    fn no_page_is_an_agent() {
        let check = |headers: &[(&'static str, &'static str)], expected: bool| {
            let pairs = headers.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            assert_eq!(is_of_agent(&pairs.collect()), expected, "{headers:?}");
        };
        let grpc = ("content-type", "application/grpc");
        check(&[grpc], true);
        check(&[("content-type", "application/grpc+proto"), ("te", "trailers")], true);
        check(&[], false);
        // What a page sends without being asked, and what it sends where it took a name.
        for plain in ["text/plain", "application/x-www-form-urlencoded", "application/json", ""] {
            check(&[("content-type", plain)], false);
        }
        check(&[("content-type", "application/grpc-web")], false);
        check(&[grpc, ("origin", "http://127.0.0.1:7771")], false);
        check(&[grpc, ("origin", "null")], false);
        check(&[grpc, ("sec-fetch-site", "same-origin")], false);
        check(&[grpc, ("sec-fetch-mode", "no-cors")], false);
    }

    #[test]
    fn other_sites_are_refused() {
        let (get, post) = (&Method::GET, &Method::POST);
        for host in ["127.0.0.1:7771", "[::1]:7771", "localhost", "MEMTAPE.example:7771"] {
            check(get, &[("host", host)], None);
            check(post, &[("host", host), ("sec-fetch-site", "same-origin")], None);
        }
        check(get, &[], Some(400));
        check(get, &[("host", "127.0.0.1"), ("host", "evil.example")], Some(400));
        check(get, &[("host", "127.0.0.1"), ("host", "127.0.0.1")], Some(400));
        for host in ["evil.example", "memtape.example.evil", "localhost.evil:7771", "a b", ""] {
            check(get, &[("host", host)], Some(421));
        }
        let local = ("host", "127.0.0.1:7771");
        check(post, &[local, ("origin", "http://127.0.0.1:7771")], None);
        check(post, &[local, ("origin", "https://127.0.0.1:7771")], None);
        check(post, &[local, ("origin", "http://127.0.0.1:8000")], Some(403));
        check(get, &[local, ("origin", "http://evil.example")], Some(403));
        check(post, &[local, ("origin", "null")], Some(403));
        check(post, &[local, ("origin", "ftp://127.0.0.1:7771")], Some(403));
        // No text.
        check(post, &[local, ("origin", "http://evil\u{ff}.example")], Some(403));
        check(post, &[local, ("sec-fetch-site", "\u{ff}")], Some(403));
        check(post, &[local, ("sec-fetch-site", "cross-site")], Some(403));
        check(get, &[local, ("sec-fetch-site", "cross-site")], Some(403));
        check(get, &[local, ("sec-fetch-site", "same-origin")], None);
        check(get, &[local, ("sec-fetch-site", "none")], None);
        // A link to the page itself may be followed.
        let site = Site::new(&[], None);
        let cross: HeaderMap = [("host", "localhost"), ("sec-fetch-site", "cross-site")]
            .into_iter()
            .map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_static(value))
            })
            .collect();
        assert_eq!(site.refuse(get, &uri::Uri::from_static("/"), &cross), None);
    }
}
