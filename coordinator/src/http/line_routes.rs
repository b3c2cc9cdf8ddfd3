//! `/jobs/{job}/lines`: which lines of code hold the live memory of a job, since when, and on which
//! ranks.

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_core::census::Census;
use memtape_core::census::comparison::Counted;
use memtape_proto::api::{Lines, LinesQuery};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::Rank;

/// Why no rank of a job that is heard has a census.
const NONE_YET: &str = "an agent counts a rank soon after its first use of a GPU; a rank that \
                        ended before that, or whose agent is older, has no census";

/// Why no rank of a job that is not heard has one.
const NOT_HEARD: &str = "no rank of the job is heard, and the census of a rank is stored when the \
                         rank ends";

/// Why no rank has one, where some were sent.
const LEFT_OUT: &str = "the censuses of the job are left out: they need more memory than the \
                        coordinator keeps for them";

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/lines", "The lines that hold the live memory of a job.", lines)
}

async fn lines(asking: Asking, path: PathOf<JobPath>, query: QueryOf<LinesQuery>) -> Answer<Lines> {
    let (Path(JobPath { job }), Query(LinesQuery { attempt, rank })) = (path?, query?);
    asking.reserve(censuses_bytes(&asking, &job, attempt).await?).await?;
    let found = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, attempt)?;
        let of_rank = |of: &Rank| -> Vec<Counted> {
            let (rank, detector) = (of.record.rank, attempt.detectors.of(of.record.rank));
            let counted = of.censuses.values().map(|census| {
                let growths = detector.line_growths(rank, census);
                Counted { rank, census: census.clone(), growths }
            });
            counted.collect()
        };
        let censuses: Vec<_> = attempt.ranks.values().flat_map(of_rank).collect();
        let is_left_out = attempt.ranks.values().any(|rank| rank.censuses.is_left_out);
        let missing = match censuses.is_empty() {
            true if is_left_out => LEFT_OUT,
            true if attempt.has_ended() || attempt.ranks_here() > 0 => NONE_YET,
            true => NOT_HEARD,
            false => "",
        };
        let of = (attempt.record.job.clone(), attempt.record.attempt, attempt.clock());
        Ok::<_, Problem>((of, missing.to_string(), censuses))
    });
    // A comparison of thousands of censuses would hold up the loop.
    let ((job, attempt, clock), missing, censuses) = found.await??;
    Ok(Json(Lines { job, attempt, clock, missing, ..Lines::new(&censuses, rank) }))
}

/// Memory of the censuses of an attempt, while they are compared.
async fn censuses_bytes(asking: &Asking, job: &str, attempt: Option<u32>) -> Result<u64, Problem> {
    let job = job.to_string();
    let found = asking.ask(move |view| {
        let ranks = attempt_of(view, &job, attempt)?.ranks.values();
        let bytes = ranks.flat_map(|rank| rank.censuses.values()).map(Census::bytes);
        Ok(bytes.sum::<usize>() as u64)
    });
    found.await?
}
