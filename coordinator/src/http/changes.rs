//! `/changes`: which jobs have changed, as server-sent events. A page then asks again only for what
//! it shows of them.
//!
//! Once a second the visible jobs are marked by what the API shows of them, and a job whose mark
//! differs from that of the second before is in an event. The id of an event is a mark of all jobs:
//! a client that connects again with it learns at once whether a job has changed meanwhile, and
//! nothing is kept for it here. A stream ends after a few minutes, so that a caller whose rights
//! were withdrawn learns nothing more; browsers connect again by themselves. Other shards' jobs are
//! in no event: `is_whole` says whether there are any.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, KeepAliveStream, Sse};
use memtape_core::limits::CHANGES_SECONDS_MAX;
use memtape_proto::api::Changes;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_stream::wrappers::ReceiverStream;

use crate::http::asking::Asking;
use crate::http::request::Problem;
use crate::http::route_list::Routes;
use crate::state::jobs::attempt::Attempt;
use crate::state::visible::Visible;

/// Time between two marks.
const EVERY: Duration = Duration::from_secs(1);

/// Memory of a stream: two marks of each job.
const STREAM_BYTES: u64 = 256 << 10;

/// Time after which a client that lost its stream comes again.
const RETRY: Duration = Duration::from_secs(2);

/// Header with the id of the last event that a client has seen.
const LAST: &str = "last-event-id";

pub(crate) fn add(routes: Routes) -> Routes {
    routes.get("/changes", "Which jobs have changed, as server-sent events.", changes)
}

type Sent = Result<Event, Infallible>;

async fn changes(
    asking: Asking,
    headers: HeaderMap,
) -> Result<Sse<KeepAliveStream<ReceiverStream<Sent>>>, Problem> {
    let last = headers.get(LAST).and_then(|id| id.to_str().ok()?.parse().ok());
    asking.reserve_stream(STREAM_BYTES).await?;
    let marks = asking.ask(marks).await?;
    let (sender, events) = mpsc::channel(1);
    tokio::spawn(send(asking, marks, last, sender));
    Ok(Sse::new(ReceiverStream::new(events)).keep_alive(KeepAlive::default()))
}

/// Reports changes to a client until it leaves, or its time is over.
async fn send(asking: Asking, mut known: Marks, last: Option<u64>, sender: mpsc::Sender<Sent>) {
    let is_whole = asking.api.members.shards() <= 1;
    let end = Instant::now() + Duration::from_secs(CHANGES_SECONDS_MAX);
    let mut ticks = interval_at(Instant::now() + EVERY, EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first event comes at once: everything may have changed, unless the client has all of it.
    let mut jobs = Some(Vec::new());
    let mut is_all = last != Some(of_all(&known));
    loop {
        if let Some(jobs) = jobs.take() {
            let changes = Changes { is_whole, is_all, jobs };
            let event = Event::default().id(of_all(&known).to_string()).retry(RETRY);
            let Ok(event) = event.json_data(&changes) else { return };
            if sender.send(Ok(event)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            _ = ticks.tick() => {}
            () = sender.closed() => return,
        }
        if Instant::now() >= end {
            return;
        }
        let Ok(now) = asking.ask(marks).await else { return };
        is_all = false;
        jobs = Some(differing(&known, &now)).filter(|jobs| !jobs.is_empty());
        known = now;
    }
}

/// What the API shows of each job, as a number.
type Marks = BTreeMap<String, u64>;

fn marks(view: &Visible<'_>) -> Marks {
    let mut marks: BTreeMap<String, DefaultHasher> = BTreeMap::new();
    let standing: Vec<&Attempt> = view.jobs().collect();
    for attempt in standing.into_iter().flat_map(|of| view.attempts_at(&of.record.job)) {
        let mark = marks.entry(attempt.record.job.clone()).or_default();
        attempt.record.serial.hash(mark);
        for rank in attempt.ranks.values() {
            (rank.record.rank, rank.step, rank.rss_bytes, rank.presence as u8).hash(mark);
            (rank.record.end_wall_ns, rank.totals.len()).hash(mark);
        }
    }
    for incident in view.incidents().map(|known| known.incident()) {
        if let Some(mark) = marks.get_mut(&incident.job) {
            (&incident.id, incident.updated_wall_ns, incident.is_open()).hash(mark);
        }
    }
    for capture in view.captures(|_| true) {
        if let Some(mark) = marks.get_mut(&capture.record.job) {
            (&capture.record.id, capture.record.closed_wall_ns, capture.parts.len()).hash(mark);
        }
    }
    marks.into_iter().map(|(job, mark)| (job, mark.finish())).collect()
}

fn of_all(marks: &Marks) -> u64 {
    let mut all = DefaultHasher::new();
    marks.hash(&mut all);
    all.finish()
}

/// The jobs that came, went or changed.
fn differing(before: &Marks, now: &Marks) -> Vec<String> {
    let came = now.iter().filter(|(job, mark)| before.get(*job) != Some(mark));
    let went = before.iter().filter(|(job, _)| !now.contains_key(*job));
    came.chain(went).map(|(job, _)| job.clone()).collect()
}
