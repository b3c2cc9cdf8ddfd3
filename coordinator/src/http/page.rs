//! The page, embedded: nothing to install beside the binary, nothing loaded from elsewhere.

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::http::request::Api;

const INDEX: &str = include_str!("../../web/index.html");
const SCRIPT: &str = include_str!("../../web/app.js");
const STYLE: &str = include_str!("../../web/style.css");

/// The page and its parts; everything else is not found.
pub(crate) fn router() -> Router<Api> {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", INDEX)))
        .route("/index.html", get(async || file("text/html; charset=utf-8", INDEX)))
        .route("/app.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/style.css", get(async || file("text/css; charset=utf-8", STYLE)))
        .fallback(async || (StatusCode::NOT_FOUND, "there is no such page\n"))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    // A new version of the coordinator has a new page: it is always asked for again.
    let headers = [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, "no-cache")];
    (headers, text).into_response()
}
