//! `/jobs/{job}/source`: the lines of the program's file around one that holds its memory, for
//! operators of the job.

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_proto::api::{SourceLines, SourceQuery};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::source::{self, Readable};

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/source", "The lines of a job's file around one.", lines)
}

async fn lines(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<SourceQuery>,
) -> Answer<SourceLines> {
    let (Path(JobPath { job }), Query(SourceQuery { attempt, file, line })) = (path?, query?);
    let subject = format!("{job}: {file}:{line}");
    let known = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, attempt)?;
        let (owner, began) = (attempt.record.owner.uid, attempt.record.started_wall_ns);
        Ok::<_, Problem>((view.may_operate(attempt), owner, began))
    });
    let (may_read, owner, began_wall_ns) = known.await??;
    if !may_read {
        return Err(asking.lacks("operator of that job"));
    }
    asking.audit_read("read source", subject).await?;
    asking.reserve(source::FILE_BYTES_MAX).await?;
    let (folders, named) = (asking.api.source_dirs.clone(), (file.clone(), line));
    let read = asking.work(move |_| {
        let readable = Readable { folders: &folders, owner: Some(owner) };
        source::lines((&file, line), began_wall_ns, readable)
    });
    let not_shown = |why: source::NotShown| SourceLines {
        file: named.0,
        line: named.1,
        not_shown: Some(why.to_string()),
        ..SourceLines::default()
    };
    Ok(Json(read.await?.unwrap_or_else(not_shown)))
}
