//! The HTTP API: JSON under `/api/v1`, health, metrics and the page.
//!
//! Handlers turn a request into a question to the loop and its answer into JSON. Errors are
//! `{"error":"one line"}`. The only request that changes anything is the one for a capture; a
//! browser may send it only from the coordinator's own page.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::event::Event;
use crate::http::collectives;
use crate::http::page;
use crate::http::requests::{Refused, Request};
use crate::http::series;
use crate::http::server::STREAM_WINDOW_BYTES;
use crate::ingest::admission::Admission;
use crate::ingest::grpc::MESSAGE_BYTES_MAX;
use crate::store::Store;
use crate::telemetry::metrics;

/// Largest body of a request to the API.
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// What handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) store: Store,
    pub(crate) admission: Arc<Admission>,
}

/// An error as the client sees it.
pub(crate) struct Problem(StatusCode, String);

type Answer<T = Json<Value>> = Result<T, Problem>;

/// All routes.
pub(crate) fn router(api: Api) -> Router {
    let v1 = Router::new()
        .route("/jobs", get(jobs))
        .route("/jobs/{job}/ranks", get(ranks))
        .route("/jobs/{job}/series", get(job_series))
        .route("/jobs/{job}/captures", post(take_capture))
        .route("/captures", get(captures))
        .route("/captures/{id}", get(capture))
        .route("/captures/{id}/collectives", get(capture_collectives))
        .route("/captures/{id}/ranks/{rank}", get(body))
        .route("/incidents", get(incidents))
        .route("/incidents/{id}", get(incident))
        .route("/actions", get(actions))
        .route("/nodes", get(nodes))
        .fallback(async || Problem(StatusCode::NOT_FOUND, "there is no such path".to_string()))
        .method_not_allowed_fallback(async || {
            Problem(StatusCode::METHOD_NOT_ALLOWED, "the path has other methods".to_string())
        });
    Router::new()
        .nest("/api/v1", v1)
        .route("/healthz", get(async || "ok"))
        .route("/metrics", get(metrics_text))
        .merge(page::router())
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .layer(middleware::from_fn(add_headers))
        .with_state(api)
}

/// Nothing but the page itself may run on the page, and no other site may frame or sniff it.
async fn add_headers(request: HttpRequest, next: Next) -> Response {
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

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::NotFound(line) => Self(StatusCode::NOT_FOUND, line),
            Refused::Conflict(line) => Self(StatusCode::CONFLICT, line),
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self(StatusCode::BAD_REQUEST, one_line(&rejection.body_text()))
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self(StatusCode::BAD_REQUEST, one_line(&rejection.body_text()))
    }
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

fn unavailable() -> Problem {
    Problem(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping".to_string())
}

impl Api {
    /// Puts a question to the loop.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let asked = self.events.send(Event::Asked(request(reply))).await;
        asked.map_err(|_| unavailable())?;
        answer.await.map_err(|_| unavailable())
    }
}

type Named<T> = Result<Path<T>, PathRejection>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Filter {
    job: Option<String>,
    attempt: Option<u32>,
}

type Filtered = Result<Query<Filter>, QueryRejection>;

async fn jobs(State(api): State<Api>) -> Answer {
    Ok(Json(json!({ "jobs": api.ask(Request::Jobs).await? })))
}

async fn ranks(State(api): State<Api>, job: Named<String>, filter: Filtered) -> Answer<Response> {
    let (Path(job), Query(Filter { attempt, .. })) = (job?, filter?);
    let ranks = api.ask(|reply| Request::Ranks { job, attempt, reply }).await??;
    Ok(Json(ranks).into_response())
}

async fn job_series(
    State(api): State<Api>,
    job: Named<String>,
    wanted: Result<Query<series::Wanted>, QueryRejection>,
) -> Answer {
    let (Path(job), Query(wanted)) = (job?, wanted?);
    let series::Wanted { rank, device, attempt, .. } = wanted;
    let place = api.ask(|reply| Request::Series { job, attempt, rank, device, reply }).await??;
    let store = api.store.clone();
    let read = tokio::task::spawn_blocking(move || {
        let rows = store.series(place.key, place.from_wall_ns, place.to_wall_ns)?;
        Ok::<_, String>(series::thin_out(&rows, &wanted))
    });
    let broken = |why: String| Problem(StatusCode::INTERNAL_SERVER_ERROR, why);
    let thinned = read.await.map_err(|error| broken(error.to_string()))?.map_err(broken)?;
    Ok(Json(serde_json::to_value(thinned).unwrap_or_default()))
}

async fn take_capture(
    State(api): State<Api>,
    job: Named<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Response> {
    let Path(job) = job?;
    // A page of another site can make a browser send this; browsers say so.
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    if site.is_some_and(|site| site != "same-origin" && site != "none") {
        let line = "captures are asked for from the coordinator's own page".to_string();
        return Err(Problem(StatusCode::FORBIDDEN, line));
    }
    #[derive(Default, Deserialize)]
    struct Wish {
        step: Option<u64>,
    }
    let wish = if body.trim_ascii().is_empty() {
        Wish::default()
    } else {
        serde_json::from_slice(&body).map_err(|error| {
            let line = format!("the body must be JSON such as {{\"step\":100}}: {error}");
            Problem(StatusCode::BAD_REQUEST, one_line(&line))
        })?
    };
    // Nobody has finished step 0; it is what "now" looks like on the wire.
    let step = wish.step.filter(|step| *step > 0);
    let id = api.ask(|reply| Request::TakeCapture { job, step, reply }).await??;
    Ok((StatusCode::ACCEPTED, Json(json!({ "id": id }))).into_response())
}

async fn captures(State(api): State<Api>, filter: Filtered) -> Answer {
    let Query(Filter { job, .. }) = filter?;
    let captures = api.ask(|reply| Request::Captures { job, reply }).await?;
    Ok(Json(json!({ "captures": captures })))
}

async fn capture(State(api): State<Api>, id: Named<String>) -> Answer<Response> {
    let Path(id) = id?;
    let capture = api.ask(|reply| Request::Capture { id, reply }).await??;
    Ok(Json(capture).into_response())
}

async fn capture_collectives(State(api): State<Api>, id: Named<String>) -> Answer {
    let Path(id) = id?;
    let parts = api.ask(|reply| Request::Parts { id, reply }).await??;
    Ok(Json(collectives::of(&api.store, parts).await))
}

async fn body(State(api): State<Api>, place: Named<(String, u32)>) -> Answer<Response> {
    let Path((id, rank)) = place?;
    let name = format!("attachment; filename=\"rank{rank}.rankbody.zst\"");
    let hash = api.ask(|reply| Request::Body { id, rank, reply }).await??;
    let body = api.store.blobs().get(hash).await;
    let body = body.map_err(|why| Problem(StatusCode::INTERNAL_SERVER_ERROR, why))?;
    let headers = [
        (header::CONTENT_TYPE, "application/zstd".to_string()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, body).into_response())
}

async fn incidents(State(api): State<Api>, filter: Filtered) -> Answer {
    let Query(Filter { job, .. }) = filter?;
    let incidents = api.ask(|reply| Request::Incidents { job, reply }).await?;
    Ok(Json(json!({ "incidents": incidents })))
}

async fn incident(State(api): State<Api>, id: Named<String>) -> Answer<Response> {
    let Path(id) = id?;
    let incident = api.ask(|reply| Request::Incident { id, reply }).await??;
    Ok(Json(incident).into_response())
}

async fn actions(State(api): State<Api>) -> Answer {
    Ok(Json(json!({ "actions": api.ask(Request::Actions).await? })))
}

async fn nodes(State(api): State<Api>) -> Answer {
    Ok(Json(json!({ "nodes": api.ask(Request::Nodes).await? })))
}

async fn metrics_text(State(api): State<Api>) -> Answer<Response> {
    let view = api.ask(Request::Metrics).await?;
    let store = api.store.clone();
    let figures = api.admission.figures(MESSAGE_BYTES_MAX as u64, STREAM_WINDOW_BYTES.into());
    let text = tokio::task::spawn_blocking(move || metrics::text(view, &store, &figures)).await;
    let broken = |why: String| Problem(StatusCode::INTERNAL_SERVER_ERROR, why);
    let text = text.map_err(|error| broken(error.to_string()))?.map_err(broken)?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}
