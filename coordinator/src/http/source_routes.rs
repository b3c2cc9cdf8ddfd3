//! `/jobs/{job}/source`: a line of a program's file with its neighbours, for operators of the job.

use axum::extract::{Path, Query};
use axum::response::Json;
use memtape_proto::api::{SourceLines, SourceQuery};

use crate::http::asking::Asking;
use crate::http::rank_routes::JobPath;
use crate::http::request::{Answer, PathOf, Problem, QueryOf, attempt_of};
use crate::http::route_list::Routes;
use crate::source::{self, FILE_NAME_BYTES_MAX, NotShown, Readable};

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/jobs/{job}/source", "A line of a job's file with its neighbours.", lines)
}

async fn lines(
    asking: Asking,
    path: PathOf<JobPath>,
    query: QueryOf<SourceQuery>,
) -> Answer<SourceLines> {
    let (Path(JobPath { job }), Query(SourceQuery { attempt, file, line })) = (path?, query?);
    if file.len() > FILE_NAME_BYTES_MAX {
        return Err(Problem::bad("the name of the file is too long: it has at most 1,024 bytes"));
    }
    let subject = format!("{job}: {file}:{line}");
    let known = asking.ask(move |view| {
        let attempt = attempt_of(view, &job, attempt)?;
        let (owner, began) = (attempt.record.owner.uid, attempt.record.started_wall_ns);
        Ok::<_, Problem>((view.may_operate(attempt), owner, began))
    });
    let (may_read, owner, began_wall_ns) = known.await??;
    let not_shown = |file: String, why: &NotShown| {
        let not_shown = Some(why.to_string());
        Json(SourceLines { file, line, not_shown, ..SourceLines::default() })
    };
    let folders = asking.api.source_dirs.clone();
    let refused = match (folders.is_empty(), may_read) {
        (true, _) => Some(NotShown::NoFolder),
        (false, false) => Some(NotShown::NotOperator),
        (false, true) => None,
    };
    if let Some(why) = refused {
        return Ok(not_shown(file, &why));
    }
    asking.audit_read("read source", subject).await?;
    asking.reserve(source::FILE_BYTES_MAX).await?;
    let name = file.clone();
    let read = asking.work(move |_| {
        source::lines((&name, line), began_wall_ns, Readable { folders: &folders, owner })
    });
    Ok(read.await?.map_or_else(|why| not_shown(file, &why), Json))
}
