//! `/captures/{id}/segments`: the segments of a rank at the step of a capture, with their blocks.
//!
//! The snapshot is read in `work/segments.rs`; this file chooses it.

use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Json;
use memtape_core::limits::{MAPPED_PARTS_MAX, MAPPED_STACKS_BYTES_MAX};
use memtape_proto::api::{Segments, SegmentsQuery};

use crate::http::asking::Asking;
use crate::http::capture_routes::{hash_of, unreadable};
use crate::http::request::{Answer, IdPath, PathOf, Problem, QueryOf};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::Attempt;
use crate::work::segments::{self, NotMapped};

/// Memory of a block, or of a merged run of blocks, as values and as JSON, whose buffers may be
/// half empty.
const PART_BYTES: u64 = 512;

/// Memory of an answer: its blocks, and its stacks as a table, as a value and as JSON.
const SEGMENTS_BYTES: u64 = MAPPED_PARTS_MAX as u64 * PART_BYTES + 3 * MAPPED_STACKS_BYTES_MAX;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get(
        "/captures/{id}/segments",
        "The segments of one rank with their blocks, as a map of its memory shows them.",
        segments,
    )
}

async fn segments(
    asking: Asking,
    path: PathOf<IdPath>,
    query: QueryOf<SegmentsQuery>,
) -> Answer<Segments> {
    let (Path(IdPath { id }), Query(SegmentsQuery { rank, device })) = (path?, query?);
    let capture = id.clone();
    let found = asking.ask(move |view| {
        let hash = hash_of(view, &id, rank)?;
        let state = view.capture(&id).ok_or_else(|| Problem::unknown("capture", &id))?;
        let attempt = view.attempt_of(state.record.serial);
        let known = Segments {
            job: state.record.job.clone(),
            attempt: state.record.attempt,
            clock: attempt.map(Attempt::clock).unwrap_or_default().into(),
            ..Segments::default()
        };
        Ok::<_, Problem>((known, hash))
    });
    let (known, hash) = found.await??;
    asking.audit_read("read segments", format!("{capture}, rank {rank}")).await?;
    asking.reserve(SEGMENTS_BYTES).await?;
    let mapped = segments::mapped(&asking.api.snapshots, hash, device).await;
    let mapped = mapped.map_err(|why| match (why, device) {
        (NotMapped::Unreadable(why), _) => unreadable(&why),
        (NotMapped::NoDevice, Some(device)) => Problem::unknown("device", device),
        (NotMapped::NoDevice, None) => {
            let line = format!("rank {rank} had no memory of a device in capture {capture}");
            Problem::new(StatusCode::NOT_FOUND, line)
        }
    })?;
    let Segments { job, attempt, clock, .. } = known;
    Ok(Json(Segments { capture, job, attempt, rank, clock, ..mapped }))
}
