//! `/jobs/{job}/lines`: which lines of code hold the live memory of a job, since when, and on which
//! ranks.

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_core::census::Census;
use memtape_proto::api::{Lines, LinesQuery};

use crate::http::asking::Asking;
use crate::http::rank_routes::{JobPath, ranks_of};
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::Rank;

/// Memory of the censuses of one rank, while they are compared.
const CENSUSES_BYTES: u64 = 32 << 10;

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/lines", "The lines that hold the live memory of a job.", lines)
}

async fn lines(asking: Asking, path: PathOf<JobPath>, query: QueryOf<LinesQuery>) -> Answer<Lines> {
    let (Path(JobPath { job }), Query(LinesQuery { attempt, rank })) = (path?, query?);
    asking.reserve(ranks_of(&asking, &job, attempt).await? * CENSUSES_BYTES).await?;
    let found = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, attempt)?;
        let of_rank = |of: &Rank| -> Vec<(u32, Census)> {
            of.censuses.values().map(|census| (of.record.rank, census.clone())).collect()
        };
        let censuses: Vec<_> = attempt.ranks.values().flat_map(of_rank).collect();
        let of = (attempt.record.job.clone(), attempt.record.attempt, attempt.clock());
        Ok::<_, Problem>((of, censuses))
    });
    // Only copied in the loop; a comparison of thousands of censuses would hold it up.
    let ((job, attempt, clock), censuses) = found.await??;
    let censuses: Vec<(u32, &Census)> = censuses.iter().map(|(of, census)| (*of, census)).collect();
    Ok(Json(Lines { job, attempt, clock, ..Lines::new(&censuses, rank) }))
}
