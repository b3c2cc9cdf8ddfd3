//! The page, embedded: nothing to install beside the binary, nothing loaded from elsewhere.
//!
//! `build.rs` makes its three parts, of `web/src` where npm is, else of `web/plain`.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::http::request::Api;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A part of the page, as the build made it.
macro_rules! built {
    ($name:literal) => {
        include_str!(concat!(env!("OUT_DIR"), "/page/", $name))
    };
}

/// The style sheet of the page, for `memtape report`.
pub const PAGE_STYLE: &str = built!("app.css");

/// The script of the page, for `memtape report`.
pub const PAGE_SCRIPT: &str = built!("app.js");

const ICON: &str = include_str!("../../web/favicon.svg");

/// What is served: its path, its type and its content.
const FILES: [(&str, &str, &str); 6] = [
    ("/", HTML, built!("index.html")),
    ("/index.html", HTML, built!("index.html")),
    ("/app.js", SCRIPT, PAGE_SCRIPT),
    ("/app.css", STYLE, PAGE_STYLE),
    ("/favicon.svg", IMAGE, ICON),
    // Browsers ask for this one whatever the page says.
    ("/favicon.ico", IMAGE, ICON),
];

/// The page and its parts; everything else is not found.
pub(crate) fn router() -> Router<Api> {
    let router = FILES.into_iter().fold(Router::new(), |router, (path, content_type, text)| {
        router.route(path, get(async move || file(content_type, text)))
    });
    router.fallback(async || (StatusCode::NOT_FOUND, "there is no such page\n"))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    // A new version of the coordinator has a new page: it is always asked for again.
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-cache")];
    (headers, text).into_response()
}
