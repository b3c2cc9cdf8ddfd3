//! `/captures`: captures, their manifests and the stored snapshots of their ranks; and the request
//! for one.

use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use memtape_core::capture::{Part, shown};
use memtape_core::limits::{CAPTURES_LISTED_MAX, PARTS_LISTED_MAX};
use memtape_proto::api::{
    Capture, CaptureRequest, CaptureState, Captures, JobQuery, Missing, RequestedCapture,
};
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::http::asking::Asking;
use crate::http::job_routes::count;
use crate::http::rank_routes::JobPath;
use crate::http::request::{
    Accepted, Answer, IdPath, PathOf, Problem, QueryOf, Sent, attempt_of, shared,
};
use crate::http::route_list::Routes;
use crate::ingest::event::Event;
use crate::state::captures;
use crate::state::effects::CaptureRefused;
use crate::state::jobs::attempt::Attempt;
use crate::state::visible::Visible;
use crate::work::collectives;
use crate::work::decoding::NotRead;
use crate::work::parts::{Parts, parts};
use memtape_store::Kind;
use memtape_store::records::snapshot_of;

/// Bytes of an answer that is sent in parts, with the unsent bytes of the connection.
const DOWNLOAD_BYTES: u64 = 1 << 20;

/// Memory of a list of captures: `PARTS_LISTED_MAX` parts, as values and as JSON.
const LIST_BYTES: u64 = 16 << 20;

/// Memory of one part of a capture, as a value and as JSON, and of a capture without parts.
const PART_BYTES: u64 = 4 << 10;
const CAPTURE_BYTES: u64 = 64 << 10;

pub(crate) fn add(routes: Routes) -> Routes {
    routes
        .get("/captures", "The newest captures.", list)
        .get("/captures/{id}", "One capture with all its parts.", one)
        .get("/captures/{id}/ranks/{rank}", "The stored snapshot of one rank.", snapshot)
        .get(
            "/captures/{id}/ranks/{rank}/pickle",
            "The snapshot of one rank as PyTorch's pickle, for pytorch.org/memory_viz.",
            pickle,
        )
        .get("/captures/{id}/collectives", "How its ranks stand in their collectives.", compare)
        .post("/jobs/{job}/captures", "Requests a capture of all ranks of a job.", request)
}

async fn list(asking: Asking, query: QueryOf<JobQuery>) -> Answer<Captures> {
    let Query(query) = query?;
    asking.reserve(LIST_BYTES).await?;
    let captures = asking.ask(move |view| {
        let newest = view.captures(|record| query.has(&record.job));
        let listed = shared(newest, CAPTURES_LISTED_MAX, |known| {
            let node = known.parts.first().map_or("", |part| &part.node);
            (node, view.attempt_of(known.record.serial).map(|of| of.record.owner.key()))
        });
        let mut parts = 0;
        let list = listed.into_iter().map(|known| {
            parts += known.parts.len();
            capture(view, known, parts <= PARTS_LISTED_MAX)
        });
        list.collect()
    });
    Ok(Json(Captures { captures: captures.await?, ..Captures::default() }))
}

/// Reads something of a capture.
async fn of_capture<T: Send + 'static>(
    asking: &Asking,
    id: &str,
    read: fn(&Visible<'_>, &captures::CaptureState) -> T,
) -> Result<T, Problem> {
    let id = id.to_string();
    let found = asking.ask(move |view| {
        let known = view.capture(&id).ok_or_else(|| Problem::unknown("capture", id))?;
        Ok(read(view, known))
    });
    found.await?
}

/// Reserves the bytes for a capture's parts.
async fn room_for(asking: &Asking, id: &str) -> Result<(), Problem> {
    let parts = of_capture(asking, id, |_, known| known.parts.len()).await?;
    asking.reserve(CAPTURE_BYTES + parts as u64 * PART_BYTES).await
}

async fn one(asking: Asking, path: PathOf<IdPath>) -> Answer<Capture> {
    let Path(IdPath { id }) = path?;
    room_for(&asking, &id).await?;
    of_capture(&asking, &id, |view, known| capture(view, known, true)).await.map(Json)
}

async fn compare(asking: Asking, path: PathOf<IdPath>) -> Answer<memtape_proto::api::Collectives> {
    let Path(IdPath { id }) = path?;
    room_for(&asking, &id).await?;
    let parts = of_capture(&asking, &id, |_, known| known.parts.clone()).await?;
    asking.audit_read("read collectives", id).await?;
    Ok(Json(collectives::of(asking.api.store.blobs(), parts).await))
}

/// A rank of a capture in a path.
#[derive(Debug, Deserialize)]
struct PartPath {
    /// Id of the capture.
    id: String,
    /// The rank.
    rank: u32,
}

/// The file of one rank's snapshot: protobuf, compressed with zstd.
struct Snapshot {
    name: String,
    bytes: u64,
    parts: Parts,
}

/// A snapshot as a file of PyTorch.
struct Pickle {
    name: String,
    parts: Parts,
}

async fn snapshot(asking: Asking, path: PathOf<PartPath>) -> Result<Snapshot, Problem> {
    let Path(PartPath { id, rank }) = path?;
    let capture = id.clone();
    let hash = asking.ask(move |view| hash_of(view, &id, rank)).await??;
    asking.audit_read("read snapshot", format!("{capture}, rank {rank}")).await?;
    asking.reserve(DOWNLOAD_BYTES).await?;
    let reading = asking.api.store.blobs().read(hash).await;
    let mut reading = reading.map_err(|why| unreadable(&why.into()))?;
    let bytes = reading.bytes();
    let (sender, parts) = parts();
    tokio::spawn(async move {
        loop {
            match reading.next().await {
                Ok(Some(part)) => match sender.send(part).await {
                    Ok(()) => {}
                    Err(_) => return,
                },
                Ok(None) => return sender.finish(),
                Err(why) => return tracing::error!("a snapshot cannot be sent to its end: {why}"),
            }
        }
    });
    Ok(Snapshot { name: format!("rank{rank}.snapshot.zst"), bytes, parts })
}

async fn pickle(asking: Asking, path: PathOf<PartPath>) -> Result<Pickle, Problem> {
    let Path(PartPath { id, rank }) = path?;
    // The id of an agent-initiated capture is the agent's word, and this is a header.
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '-';
    let name: String = id.chars().filter(is_plain).collect();
    let name = format!("{name}-rank{rank}.pickle");
    let capture = id.clone();
    let hash = asking.ask(move |view| hash_of(view, &id, rank)).await??;
    asking.audit_read("read pickle", format!("{capture}, rank {rank}")).await?;
    asking.reserve(DOWNLOAD_BYTES).await?;
    let parts = asking.pickle(hash).await?.map_err(|why| unreadable(&why))?;
    Ok(Pickle { name, parts })
}

/// The problem of a snapshot that is stored and cannot be read.
pub(super) fn unreadable(why: &NotRead) -> Problem {
    let status = match why {
        NotRead::Undecodable(_) => StatusCode::UNPROCESSABLE_ENTITY,
        NotRead::Store(error) if error.kind == Kind::Damaged => StatusCode::UNPROCESSABLE_ENTITY,
        NotRead::Store(error) if error.kind == Kind::Gone => StatusCode::GONE,
        NotRead::Store(_) | NotRead::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Problem::new(status, why.to_string())
}

/// The stored snapshot of a rank.
///
/// # Errors
/// There is no such capture or rank, or nothing of the rank is stored.
pub(super) fn hash_of(view: &Visible<'_>, id: &str, rank: u32) -> Result<blake3::Hash, Problem> {
    let state = view.capture(id).ok_or_else(|| Problem::unknown("capture", id))?;
    let part = state.part(rank).ok_or_else(|| Problem::unknown("rank", rank))?;
    snapshot_of(part).ok_or_else(|| {
        let (outcome, detail) = (part.outcome.as_str(), &part.detail);
        let line = format!("capture {id} has no snapshot of rank {rank} ({outcome}): {detail}");
        Problem::new(StatusCode::NOT_FOUND, line.trim_end_matches([':', ' ']))
    })
}

/// A file that the browser saves under this name.
pub(super) fn attachment(name: &str, content_type: &'static str, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    (headers, body).into_response()
}

impl IntoResponse for Snapshot {
    fn into_response(self) -> Response {
        let mut answer = attachment(&self.name, "application/zstd", Body::from_stream(self.parts));
        // A client knows then that an answer which ends early is not whole.
        answer.headers_mut().insert(header::CONTENT_LENGTH, self.bytes.into());
        answer
    }
}

impl IntoResponse for Pickle {
    fn into_response(self) -> Response {
        attachment(&self.name, "application/octet-stream", Body::from_stream(self.parts))
    }
}

async fn request(
    asking: Asking,
    path: PathOf<JobPath>,
    Sent(body): Sent,
) -> Result<Accepted<RequestedCapture>, Problem> {
    let Path(JobPath { job }) = path?;
    let wish = match body.trim_ascii() {
        [] => CaptureRequest::default(),
        body => serde_json::from_slice(body)?,
    };
    // No rank has finished step 0; on the wire 0 is "now".
    let step = wish.step.filter(|step| *step > 0);
    let known = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, None)?;
        Ok::<_, Problem>((view.may_operate(attempt), attempt.record.job.clone()))
    });
    let (may_operate, job) = known.await??;
    if !may_operate {
        return Err(asking.lacks("operator of that job"));
    }
    asking.audit("capture", job.clone()).await?;
    let (reply, id) = oneshot::channel();
    let wanted = Event::CaptureWanted { job, step, reply };
    asking.api.requests.send(wanted).await.map_err(|_| Problem::stopping())?;
    let id = id.await.map_err(|_| Problem::stopping())?.map_err(|why| {
        let status = match why {
            CaptureRefused::NoJob(_) => StatusCode::NOT_FOUND,
            CaptureRefused::Refused(_) => StatusCode::CONFLICT,
            CaptureRefused::NotStored { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        Problem::new(status, why.to_string())
    })?;
    Ok(Accepted(RequestedCapture { id }))
}

/// A capture; with its parts or without.
fn capture(view: &Visible<'_>, known: &captures::CaptureState, with_parts: bool) -> Capture {
    let record = &known.record;
    let clock = view.attempt_of(record.serial).map(Attempt::clock).unwrap_or_default();
    let is_closed = record.is_closed();
    let missing = known.parts.iter().filter(|part| is_closed && with_parts && !part.is_aligned());
    let parts: &[Part] = if with_parts { &known.parts } else { &[] };
    Capture {
        id: record.id.clone(),
        job: record.job.clone(),
        attempt: record.attempt,
        trigger: record.reason.as_str().to_string(),
        trigger_rank: record.reason.rank(),
        step: record.step,
        before_step: record.before_step,
        requested_wall_ns: record.requested_wall_ns,
        closed_wall_ns: record.closed_wall_ns,
        state: match (is_closed, record.complete) {
            (false, _) => CaptureState::Collecting.into(),
            (true, true) => CaptureState::Complete.into(),
            (true, false) => CaptureState::Partial.into(),
        },
        ranks: count(known.parts.len()),
        aligned: count(known.aligned()),
        shown: clock.in_words(&shown(record.step, &record.reason, &known.parts)),
        missing: missing
            .map(|part| Missing {
                rank: part.rank,
                outcome: part.outcome,
                detail: part.detail.clone(),
            })
            .collect(),
        parts: parts.to_vec(),
        parts_left_out: !with_parts,
    }
}
