//! Requests of handlers to the loop, and answers to clients: [`Api`] and [`Problem`].
//!
//! A handler sends the loop a function; the loop runs it on its state between two events, so it
//! must be short. JSON, the store and snapshots are left to the task that asked.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, Path, Query, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use memtape_core::identity::owner::meant;
use memtape_core::sharing::equal_parts;
use memtape_proto::api;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::access::Door;
use crate::coordinator::Shared;
use crate::ingest::event::{Event, Question};
use crate::members::Members;
use crate::quota::Quotas;
use crate::state::counters::Counters;
use crate::state::jobs::attempt::Attempt;
use crate::state::view::View;
use crate::state::visible::Visible;
use crate::work::decoding::Snapshots;
use crate::work::pickling::Pickling;
use memtape_disk::clock;
use memtape_store::Store;

/// Maximum jobs of one name that an error lists.
const IDS_NAMED_MAX: usize = 4;

/// The id of an incident or a capture in a path.
#[derive(Debug, Deserialize)]
pub(crate) struct IdPath {
    /// The id.
    pub(crate) id: String,
}

/// State shared by handlers.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) door: Arc<Door>,
    pub(crate) counters: Arc<Counters>,
    /// The loop's queue of requests.
    pub(crate) requests: mpsc::Sender<Event>,
    pub(crate) store: Store,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) pickling: Pickling,
    pub(crate) snapshots: Snapshots,
    /// The owners of all shards.
    pub(crate) members: Members,
    /// Folders whose sources are shown.
    pub(crate) source_dirs: Arc<[PathBuf]>,
    /// Since when this coordinator owns its shard, in nanoseconds of Unix time.
    pub(crate) owned_since_wall_ns: i64,
}

/// An error as the client sees it: `{"error":"one line"}`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) line: String,
    /// Time after which the client may retry.
    pub(crate) retry_after: Option<Duration>,
}

/// The answer of a handler, as JSON by default.
pub(crate) type Answer<T> = Result<Json<T>, Problem>;

/// Values in the path, and values behind the question mark.
pub(crate) type PathOf<T> = Result<Path<T>, PathRejection>;
pub(crate) type QueryOf<T> = Result<Query<T>, QueryRejection>;

/// The body of a request; one that cannot be read is a problem.
pub(crate) struct Sent(pub(crate) Bytes);

/// A JSON answer with status 202: the request was accepted and goes on.
pub(crate) struct Accepted<T>(pub(crate) T);

impl Api {
    /// Builds the handlers' shared state from a coordinator's. It shows no sources.
    pub(crate) fn new(
        shared: Shared,
        requests: mpsc::Sender<Event>,
        door: Arc<Door>,
        (quotas, members): (Arc<Quotas>, Members),
        snapshots: Snapshots,
    ) -> Self {
        let Shared { store, counters, .. } = shared;
        let pickling = Pickling::new(snapshots.clone(), counters.clone());
        let owned_since_wall_ns = clock::now().wall_ns;
        Self {
            door,
            counters,
            requests,
            store,
            quotas,
            pickling,
            snapshots,
            members,
            source_dirs: Arc::default(),
            owned_since_wall_ns,
        }
    }

    /// Asks the loop, which shows everything; handlers ask by [`super::asking::Asking`].
    ///
    /// # Errors
    /// When the coordinator is stopping.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let question: Question = Box::new(move |view| {
            // The question of a client that has left is not carried out.
            if !reply.is_closed() {
                let _ = reply.send(question(view));
            }
        });
        self.requests.send(Event::Asked(question)).await.map_err(|_| Problem::stopping())?;
        answer.await.map_err(|_| Problem::stopping())
    }
}

impl Problem {
    pub(crate) fn new(status: StatusCode, line: impl Into<String>) -> Self {
        Self { status, line: line.into(), retry_after: None }
    }

    /// Asks the client to retry after this time.
    pub(crate) fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// The problem that an object does not exist.
    pub(crate) fn unknown(what: &str, name: impl ToString) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what} {:?}", name.to_string()))
    }

    /// The problem that jobs of several owners have a name; some of their ids.
    fn ambiguous(name: &str, jobs: &[&Attempt]) -> Self {
        let ids: Vec<&str> =
            jobs.iter().take(IDS_NAMED_MAX).map(|of| of.record.job.as_str()).collect();
        let (count, ids) = (jobs.len(), ids.join(", "));
        let line = format!("{count} owners have a job {name:?}: name one by its id, such as {ids}");
        Self::new(StatusCode::CONFLICT, line)
    }

    /// The client cannot do anything about it.
    pub(crate) fn broken(why: impl ToString) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, why.to_string())
    }

    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping")
    }

    pub(crate) fn bad(text: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text.lines().next().unwrap_or_default())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad(&rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        let why = rejection.source().map_or(rejection.body_text(), ToString::to_string);
        Self::bad(&format!("the query string of this URL cannot be read: {why}"))
    }
}

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let read = Bytes::from_request(request, state).await;
        read.map(Self).map_err(|why| Problem::new(why.status(), why.body_text()))
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        Self::bad(&format!("the body must be JSON as in /api/v1/openapi.json: {error}"))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(api::Problem { error: self.line })).into_response();
        if let Some(wait) = self.retry_after {
            // Whole seconds, and not too soon.
            let seconds = wait.as_secs().saturating_add(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl<T: Serialize> IntoResponse for Accepted<T> {
    fn into_response(self) -> Response {
        (StatusCode::ACCEPTED, Json(self.0)).into_response()
    }
}

/// The first `max` of a list, in its order. Of a longer list nodes take turns, and so do owners on
/// a node: what one node makes up hides nothing of another.
pub(crate) fn shared<'a, T, Owner: Copy + Ord>(
    all: Vec<&'a T>,
    max: usize,
    holder: impl Fn(&'a T) -> (&'a str, Owner),
) -> Vec<&'a T> {
    let holders: Vec<_> = all.iter().map(|one| holder(one)).collect();
    let is_kept = equal_parts(&holders, max);
    all.into_iter().zip(is_kept).filter_map(|(one, is_kept)| is_kept.then_some(one)).collect()
}

/// The attempt of a job with this id or name. Without a number it is the attempt that stands for
/// the job. Of several jobs with one name the running job counts.
///
/// # Errors
/// When there is no such job or attempt, or several jobs have that name.
pub(crate) fn attempt_of<'a>(
    view: &Visible<'a>,
    job: &str,
    attempt: Option<u32>,
) -> Result<&'a Attempt, Problem> {
    let called = view.called(job);
    let Some(current) = meant(&called, |of| of.ranks_here() > 0) else {
        return Err(match called.as_slice() {
            [] => Problem::unknown("job", job),
            several => Problem::ambiguous(job, several),
        });
    };
    let found = view.attempt(&current.record.job, attempt);
    found.ok_or_else(|| Problem::unknown("attempt", attempt.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_hides_nothing_of_another() {
        let mut newest: Vec<(&str, u32, u32)> = (0..200).map(|of| ("stolen", of, 0)).collect();
        newest.extend((0..150).map(|of| ("honest", 1, of)));
        newest.extend((0..30).map(|of| ("honest", 2, of)));
        let listed = shared(newest.iter().collect(), 100, |of| (of.0, of.1));
        assert_eq!(listed.len(), 100);
        assert!(listed.is_sorted_by_key(|of| newest.iter().position(|all| all == *of)));
        let count = |node, owner| {
            listed.iter().filter(|of| of.0 == node && (node == "stolen" || of.1 == owner)).count()
        };
        assert_eq!((count("stolen", 0), count("honest", 1), count("honest", 2)), (50, 25, 25));
        assert!(listed.contains(&&("honest", 1, 0)) && !listed.contains(&&("honest", 1, 25)));
        assert_eq!(shared(newest.iter().collect(), 1000, |of| (of.0, of.1)).len(), newest.len());
    }
}
