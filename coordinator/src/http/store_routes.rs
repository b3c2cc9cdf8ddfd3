//! `/store`: a backup of the store, while it is in use.
//!
//! A blocking thread reads the store and hands over one piece at a time. It waits for its client
//! and ends with the connection. An answer that was cut has no end, and no reader takes it for a
//! backup.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use memtape_core::access::Role;
use memtape_core::placement::JobsShard;
use memtape_proto::api::{BackupQuery, SHARD_HEADER};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use crate::http::asking::Asking;
use crate::http::capture_routes::attachment;
use crate::http::request::{Problem, QueryOf};
use crate::http::route_list::Routes;
use memtape_store::Point;
use memtape_store::Store;
use memtape_store::WithSnapshots;

/// Pieces on their way to a client.
const PIECES_WAITING_MAX: usize = 2;

/// Media type of a backup.
const TAR: &str = "application/x-tar";

pub(crate) fn add(routes: Routes) -> Routes {
    let about = "A backup of the store as it is now, for memtape store restore.";
    routes.get("/store/backup", about, backup)
}

/// The file of a backup, as it is made, and its shard.
struct Backup(Body, JobsShard);

async fn backup(asking: Asking, query: QueryOf<BackupQuery>) -> Result<Backup, Problem> {
    asking.needs(Role::Admin)?;
    let Query(BackupQuery { snapshots, shard }) = query?;
    let (own, shards) = (asking.api.members.own(), asking.api.members.shards());
    if let Some(shard) = shard.filter(|shard| *shard != own) {
        let line = format!("there is no shard {shard} here: the cluster has {shards}");
        return Err(Problem::new(StatusCode::NOT_FOUND, line));
    }
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
    let (pieces, waiting) = mpsc::channel(PIECES_WAITING_MAX);
    asking.send(move || make(&store, &point, with, &pieces));
    let part = JobsShard { shard: own, shards };
    Ok(Backup(Body::from_stream(ReceiverStream::new(waiting)), part))
}

fn make(
    store: &Store,
    point: &Point,
    with: WithSnapshots,
    pieces: &mpsc::Sender<io::Result<Bytes>>,
) {
    if let Err(why) = store.back_up(point, with, &mut Pieces(pieces)) {
        tracing::warn!("a backup was not made: {why}");
        // Cuts the answer.
        let _ = pieces.blocking_send(Err(io::Error::other(why)));
    }
}

/// Sends written bytes, and waits while the channel is full.
struct Pieces<'a>(&'a mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| io::Error::other("the backup was not taken to its end"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl IntoResponse for Backup {
    fn into_response(self) -> Response {
        let Self(file, JobsShard { shard, shards }) = self;
        let part = [(SHARD_HEADER, format!("{shard}/{shards}"))];
        (part, attachment("memtape.backup", TAR, file)).into_response()
    }
}
