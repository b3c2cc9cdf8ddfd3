//! All routes, and the headers of every answer.
//!
//! A route is added where its handler is, with one sentence, through [`Routes`]. The OpenAPI
//! document is the file beside this one; a test makes it of the routes' list and the types of
//! `memtape_proto::api` (`coordinator/tests/openapi/`), and refuses a route that it lacks.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Router};
use memtape_core::access::Role;
use memtape_core::limits::{METRICS_RANKS_MAX, REQUEST_BYTES_MAX};
use memtape_proto::api::Index;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::asking::Asking;
#[cfg(feature = "cluster")]
use crate::http::gather::Gather;
use crate::http::request::{Answer, Api, Problem};
use crate::http::route_list::Routes;
use crate::http::site::Site;
use crate::http::{
    access_routes, area, capture_routes, changes, differences, hint_routes, incident_routes,
    job_routes, kept_routes, line_routes, node_routes, page, policy_routes, rank_routes,
    segment_routes, sending, series, source_routes, store_routes,
};
use crate::quota::{ByteQuota, FIRST_CHUNKS_MAX, MESSAGE_BYTES_MAX};
use crate::standing::MARK;
use crate::telemetry::metrics::{self, AdmissionFigures};
use crate::work::blocking::blocking;
use memtape_disk::clock;

/// Time for the loop and the store to answer before the coordinator counts as not ready.
const READY_TIME_MAX: Duration = Duration::from_secs(5);

/// Time for which an answer about readiness is given to everybody who asks.
const READY_EVERY_NS: u64 = 1_000_000_000;

/// Memory of the metrics of one rank, as values and as text.
const RANK_METRICS_BYTES: u64 = 8 << 10;

/// Path of the OpenAPI document.
const DOCUMENT: &str = "/api/v1/openapi.json";

/// The whole HTTP side: API, document, health, metrics and page.
pub(crate) fn router(api: Api, names: &[String]) -> Router {
    let site = Site::new(names, Some(api.door.clone()));
    let routes = [
        changes::add,
        job_routes::add,
        rank_routes::add,
        line_routes::add,
        source_routes::add,
        series::add,
        area::add,
        differences::add,
        capture_routes::add,
        kept_routes::add,
        segment_routes::add,
        incident_routes::add,
        policy_routes::add,
        hint_routes::add,
        node_routes::add,
        access_routes::add,
        store_routes::add,
    ];
    let routes = routes.into_iter().fold(Routes::default(), |routes, add| add(routes));
    let routes = routes.get("/openapi.json", "This document.", async || {
        ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
    });
    let version = env!("CARGO_PKG_VERSION").to_string();
    let index = Index { version, document: DOCUMENT.to_string(), routes: routes.listed() };
    let routes =
        routes.get("", "This list of requests.", async move |_: Asking| -> Answer<Index> {
            Ok(Json(index.clone()))
        });
    let routes = routes.into_router();
    let router = Router::new()
        .merge(routes)
        .route("/api/v1/", get(async || Redirect::permanent("/api/v1")))
        .route("/api/v1/{*path}", get(no_path).post(no_path))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the path has other methods")
        })
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .merge(page::router())
        .layer(Extension(Readiness::default()))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX));
    of_cluster(router, &api)
        .layer(middleware::from_fn_with_state(api.clone(), sending::hold))
        .layer(middleware::from_fn_with_state(site, Site::admit))
        .layer(middleware::from_fn(add_headers))
        .with_state(api)
}

/// The process runs. In a cluster it says which one it is.
async fn healthy(State(api): State<Api>) -> Response {
    let mark = api.members.standing().mark();
    let mark = mark.and_then(|mark| HeaderValue::from_str(&mark).ok());
    (HeaderMap::from_iter(mark.map(|mark| (MARK, mark))), "ok").into_response()
}

/// The routes with the answers of the whole cluster.
#[cfg(feature = "cluster")]
fn of_cluster(router: Router<Api>, api: &Api) -> Router<Api> {
    let gather = Gather::new(api.clone());
    router.layer(middleware::from_fn_with_state(gather, Gather::answer))
}

#[cfg(not(feature = "cluster"))]
fn of_cluster(router: Router<Api>, _: &Api) -> Router<Api> {
    router
}

/// The port of health: `/healthz` and `/readyz`, for every client.
pub(crate) fn health_router(api: Api) -> Router {
    let router = Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(ready));
    router.layer(Extension(Readiness::default())).with_state(api)
}

/// The port of health of a coordinator that waits to take over. It is ready to do so.
pub(crate) fn waiting_router() -> Router {
    let waits = async || "waits to take over";
    Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(waits))
}

async fn no_path() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is no such path: GET /api/v1 lists those there are")
}

/// Last readiness answer of a port, and its time. Any client may ask, so the check runs once a
/// second at most.
#[derive(Clone, Default)]
struct Readiness(Arc<Mutex<Option<(u64, Ready)>>>);

/// Text of a ready coordinator, or the reason why it is not ready.
type Ready = Result<String, Problem>;

/// Can the coordinator write and answer? `/healthz` only shows that the process runs.
async fn ready(State(api): State<Api>, Extension(last): Extension<Readiness>) -> Ready {
    let mut last = last.0.lock_owned().await;
    let now_ns = clock::now().mono_ns;
    if let Some((at_ns, known)) = &*last
        && now_ns.saturating_sub(*at_ns) < READY_EVERY_NS
    {
        return known.clone();
    }
    // To the end, also where the client leaves: others wait for the same.
    let checking = tokio::spawn(async move {
        let late = "the coordinator does not answer";
        let late = |_| Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, late));
        let checked = timeout(READY_TIME_MAX, check_ready(api)).await.unwrap_or_else(late);
        *last = Some((clock::now().mono_ns, checked.clone()));
        checked
    });
    checking.await.map_err(Problem::broken)?
}

/// Checks readiness. Permanent losses are reported, and do not make the coordinator unready.
async fn check_ready(api: Api) -> Ready {
    api.ask(|_| ()).await?;
    if let Some(why) = api.door.tls().and_then(|tls| tls.invalid()) {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why.to_string()));
    }
    let checked = blocking(move || (api.store.unready(), api.store.losses()));
    match checked.await.map_err(Problem::broken)? {
        (Some(why), _) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why.to_string())),
        (None, losses) if losses.is_empty() => Ok("ready".to_string()),
        (None, losses) => {
            let parts: Vec<String> = losses.iter().map(|loss| loss.part.to_string()).collect();
            Ok(format!("ready; lost: {}", parts.join(", ")))
        }
    }
}

async fn metrics_text(asking: Asking) -> Result<impl IntoResponse, Problem> {
    asking.needs(Role::Viewer)?;
    let ranks_max = asking.api.quotas.answers.bytes_max / RANK_METRICS_BYTES;
    let ranks_max = METRICS_RANKS_MAX.min(ranks_max as usize);
    let ranks = asking.ask_all(|view| view.jobs.ranks().0).await?;
    asking.reserve(ranks.min(ranks_max) as u64 * RANK_METRICS_BYTES).await?;
    let view = asking.ask_all(move |view| metrics::view(view, ranks_max)).await?;
    let store = asking.api.store.clone();
    let figures = figures(&asking.api);
    let text = asking.work(move |_| metrics::text(view, &store, &figures)).await?;
    let text = text.map_err(Problem::broken)?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text))
}

/// Present reservations, and the certificate's end. Uploads may take: snapshots, first chunks, and
/// the bytes that HTTP/2 lets waiting agents send unread.
fn figures(Api { quotas, door, members, .. }: &Api) -> AdmissionFigures {
    let waits = |of: &ByteQuota| of.waits.load(Relaxed);
    let first_chunks = (FIRST_CHUNKS_MAX * MESSAGE_BYTES_MAX) as u64;
    AdmissionFigures {
        certificate_ends: door.tls().and_then(|tls| tls.ends_unix()),
        upload_bytes: quotas.uploads.bytes(),
        upload_bytes_max: quotas.uploads.bytes_max + first_chunks + quotas.memory.waiting_uploads,
        report_bytes: quotas.reports.bytes(),
        report_bytes_max: quotas.reports.bytes_max,
        answer_bytes: quotas.answers.bytes(),
        waits: [
            ("upload", waits(&quotas.uploads)),
            ("upload_deferred", quotas.deferred.load(Relaxed)),
            ("report", waits(&quotas.reports)),
        ],
        bucket: members.standing().requests(),
    }
}

/// Adds headers: only the page's own code may run on the page, and no other site may frame it.
async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let fixed = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(no_store);
    response
}
