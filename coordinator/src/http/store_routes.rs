//! `/store`: a backup of the store, while it is in use.
//!
//! A blocking thread reads the store and hands over one record at a time. It waits for its client,
//! never reads faster than a limit, and ends with the connection. An answer that was cut has no
//! end, and no reader takes it for a backup.

use std::io;
use std::time::Duration;

use aide::OperationOutput;
use aide::generate::GenContext;
use aide::openapi::{MediaType, Operation, Response as Described};
use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use memtape_core::limits::BACKUP_BYTES_PER_SECOND_MAX;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use crate::http::asking::Asking;
use crate::http::request::{Problem, QueryOf};
use crate::http::route_list::Routes;
use memtape_store::Error;
use memtape_store::Point;
use memtape_store::Store;
use memtape_store::WithSnapshots;

/// Records on their way to a client.
const RECORDS_WAITING_MAX: usize = 2;

pub(crate) fn add(routes: Routes) -> Routes {
    let about = "A backup of the store as it is now, for memtape store restore.";
    routes.get("/store/backup", about, backup)
}

/// What is to be in a backup.
#[derive(Debug, Deserialize, JsonSchema)]
struct BackupQuery {
    /// Snapshots of captures, too; true without it.
    snapshots: Option<bool>,
}

/// The file of a backup, as it is made.
struct Backup(Body);

async fn backup(asking: Asking, query: QueryOf<BackupQuery>) -> Result<Backup, Problem> {
    asking.administers()?;
    let Query(BackupQuery { snapshots }) = query?;
    let with = match snapshots {
        Some(false) => WithSnapshots::No,
        _ => WithSnapshots::Yes,
    };
    asking.audit("back up store", String::new()).await?;
    let store = asking.api.store.clone();
    let (reply, taken) = oneshot::channel();
    let refused = store.point(Box::new(move |point| drop(reply.send(point))));
    refused.map_err(|why| {
        Problem::new(StatusCode::CONFLICT, why.to_string()).retry_after(Duration::from_secs(60))
    })?;
    let point = taken.await.map_err(|_| Problem::stopping())?.map_err(Problem::broken)?;
    let (records, waiting) = mpsc::channel(RECORDS_WAITING_MAX);
    tokio::task::spawn_blocking(move || make(&store, &point, with, &records));
    Ok(Backup(Body::from_stream(ReceiverStream::new(waiting))))
}

fn make(
    store: &Store,
    point: &Point,
    with: WithSnapshots,
    records: &mpsc::Sender<io::Result<Bytes>>,
) {
    let made = store.back_up(point, with, &mut |record| {
        let share = record.len() as f64 / BACKUP_BYTES_PER_SECOND_MAX as f64;
        std::thread::sleep(Duration::from_secs_f64(share));
        records.blocking_send(Ok(record.into())).map_err(|_| Error::BackupNotTaken)
    });
    if let Err(why) = made {
        tracing::warn!("a backup was not made: {why}");
        // Cuts the answer.
        let _ = records.blocking_send(Err(io::Error::other(why)));
    }
}

impl IntoResponse for Backup {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, "application/octet-stream"),
            (header::CONTENT_DISPOSITION, "attachment; filename=\"memtape.backup\""),
        ];
        (headers, self.0).into_response()
    }
}

impl OperationOutput for Backup {
    type Inner = Bytes;

    fn inferred_responses(_: &mut GenContext, _: &mut Operation) -> Vec<(Option<u16>, Described)> {
        let content = [("application/octet-stream".to_string(), MediaType::default())];
        let description = "The file of a backup; one without its end is none.".to_string();
        let content = content.into_iter().collect();
        vec![(Some(200), Described { description, content, ..Described::default() })]
    }
}
