//! What can be asked over HTTP, and the loop's answers.
//!
//! The loop answers with plain values; everything that takes time (JSON, the store, bodies) is
//! done by the task that asked.

use memtape_core::capture::Reason;
use tokio::sync::oneshot;

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::http::views::{self, CaptureView, IncidentView, JobView, NodeView, RanksView};
use crate::records::{ActionRecord, PartRecord, SeriesKey};
use crate::state::jobs::Attempt;
use crate::state::silence::Watch;
use crate::store::Changes;
use crate::telemetry::metrics::{self, MetricsView};

/// Captures in one list, the newest.
const CAPTURES_LISTED_MAX: usize = 200;

/// Parts in one list of captures; older captures come without theirs.
const PARTS_LISTED_MAX: usize = 8192;

/// Incidents and actions in one list, the newest.
const LISTED_MAX: usize = 1000;

/// Why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// There is no such thing.
    NotFound(String),
    /// Not now, or not so.
    Conflict(String),
}

/// Where the answer goes. Nobody waits any more when the client went away.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// A question.
pub(crate) enum Request {
    Jobs(Reply<Vec<JobView>>),
    Ranks {
        job: String,
        attempt: Option<u32>,
        reply: Reply<Result<RanksView, Refused>>,
    },
    Series {
        job: String,
        attempt: Option<u32>,
        rank: u32,
        device: Option<u8>,
        reply: Reply<Result<SeriesPlace, Refused>>,
    },
    TakeCapture {
        job: String,
        step: Option<u64>,
        reply: Reply<Result<String, Refused>>,
    },
    Captures {
        job: Option<String>,
        reply: Reply<Vec<CaptureView>>,
    },
    Capture {
        id: String,
        reply: Reply<Result<CaptureView, Refused>>,
    },
    Parts {
        id: String,
        reply: Reply<Result<Vec<PartRecord>, Refused>>,
    },
    Body {
        id: String,
        rank: u32,
        reply: Reply<Result<blake3::Hash, Refused>>,
    },
    Incidents {
        job: Option<String>,
        reply: Reply<Vec<IncidentView>>,
    },
    Incident {
        id: String,
        reply: Reply<Result<IncidentView, Refused>>,
    },
    Actions(Reply<Vec<ActionRecord>>),
    Nodes(Reply<Vec<NodeView>>),
    Metrics(Reply<MetricsView>),
}

/// Where the store has a series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeriesPlace {
    pub(crate) key: SeriesKey,
    pub(crate) from_wall_ns: i64,
    pub(crate) to_wall_ns: i64,
}

impl Coordinator {
    /// Answers a question. An answer that nobody waits for any more is dropped.
    pub(crate) fn answer(&mut self, now: Now, request: Request) {
        match request {
            Request::Jobs(reply) => {
                let _ = reply.send(views::jobs(
                    &self.cluster,
                    (now.mono_ns, self.interval_ns()),
                    self.incidents.values(),
                ));
            }
            Request::Ranks { job, attempt, reply } => {
                let shown = self.attempt_of(&job, attempt).map(|attempt| {
                    let interval_ns = self.interval_ns();
                    let watch = Watch::new(&self.cluster, attempt, now.mono_ns, interval_ns);
                    views::ranks(&self.cluster, attempt, &watch)
                });
                let _ = reply.send(shown);
            }
            Request::Series { job, attempt, rank, device, reply } => {
                let _ = reply.send(self.series_place(now, &job, attempt, rank, device));
            }
            Request::TakeCapture { job, step, reply } => {
                self.take_capture(now, &job, step, reply);
            }
            Request::Captures { job, reply } => {
                let _ = reply.send(self.list_captures(job.as_deref()));
            }
            Request::Capture { id, reply } => {
                let found = self.captures.get(&id).map(|state| views::capture(state, true));
                let _ = reply.send(found.ok_or_else(|| no("capture", &id)));
            }
            Request::Parts { id, reply } => {
                let found = self.captures.get(&id).map(|state| state.parts.clone());
                let _ = reply.send(found.ok_or_else(|| no("capture", &id)));
            }
            Request::Body { id, rank, reply } => {
                let _ = reply.send(self.body(&id, rank));
            }
            Request::Incidents { job, reply } => {
                let newest = self.incidents.values().rev();
                let of_job = newest.filter(|known| is_of(job.as_deref(), &known.record.job));
                let _ = reply.send(of_job.take(LISTED_MAX).map(views::incident).collect());
            }
            Request::Incident { id, reply } => {
                let found = self.incidents.get(&id).map(views::incident);
                let _ = reply.send(found.ok_or_else(|| no("incident", &id)));
            }
            Request::Actions(reply) => {
                let newest = self.actions.iter().rev().take(LISTED_MAX);
                let _ = reply.send(newest.cloned().collect());
            }
            Request::Nodes(reply) => {
                let nodes = self.cluster.nodes.iter();
                let _ = reply.send(nodes.map(|(name, node)| views::node(name, node)).collect());
            }
            Request::Metrics(reply) => {
                let _ = reply.send(metrics::view(now, self));
            }
        }
    }

    /// How often agents report.
    pub(crate) fn interval_ns(&self) -> u64 {
        u64::try_from(self.config.report_interval.as_nanos()).unwrap_or(u64::MAX)
    }

    fn attempt_of(&self, job: &str, attempt: Option<u32>) -> Result<&Attempt, Refused> {
        if !self.cluster.jobs.contains_key(job) {
            return Err(no("job", job));
        }
        let found = self.cluster.attempt(job, attempt);
        found.ok_or_else(|| no("attempt", &attempt.unwrap_or(0).to_string()))
    }

    fn series_place(
        &self,
        now: Now,
        job: &str,
        attempt: Option<u32>,
        number: u32,
        device: Option<u8>,
    ) -> Result<SeriesPlace, Refused> {
        let attempt = self.attempt_of(job, attempt)?;
        let Some(rank) = attempt.ranks.get(&number) else {
            return Err(no("rank", &number.to_string()));
        };
        // Without a device: the one that holds most.
        let home = rank.totals.iter().max_by_key(|totals| totals.allocated);
        let device = device.or(home.map(|totals| totals.device)).unwrap_or(0);
        Ok(SeriesPlace {
            key: SeriesKey { serial: attempt.record.serial, rank: number, device },
            from_wall_ns: attempt.record.first_seen_wall_ns,
            // Steps may be packed some time after the end.
            to_wall_ns: attempt.record.ended_wall_ns.map_or(now.wall_ns, |ended_ns| {
                now.wall_ns.min(ended_ns.saturating_add(600_000_000_000))
            }),
        })
    }

    /// A capture is taken when it is written down: from then on it ends in a manifest, whatever
    /// becomes of this process.
    fn take_capture(
        &mut self,
        now: Now,
        job: &str,
        step: Option<u64>,
        reply: Reply<Result<String, Refused>>,
    ) {
        let serial = self.attempt_of(job, None).map(|attempt| attempt.record.serial);
        let taken = serial.and_then(|serial| {
            let requested = self.request_capture(now, serial, Reason::Person, step);
            requested.map_err(|refusal| Refused::Conflict(refusal.to_string()))
        });
        let answer = move |written: Result<(), String>| {
            let written = written.map_err(|why| {
                Refused::Conflict(format!("the capture cannot be written down now: {why}"))
            });
            // The client may have gone.
            let _ = reply.send(taken.and_then(|id| written.map(|()| id)));
        };
        // Behind the capture's own record; refusals wait for nothing that matters.
        self.store.try_write(Changes::default(), Box::new(answer));
    }

    fn list_captures(&self, job: Option<&str>) -> Vec<CaptureView> {
        let newest = self.captures.values().rev();
        let of_job = newest.filter(|state| is_of(job, &state.record.job));
        let mut parts = 0;
        let list = of_job.take(CAPTURES_LISTED_MAX).map(|state| {
            parts += state.parts.len();
            views::capture(state, parts <= PARTS_LISTED_MAX)
        });
        list.collect()
    }

    fn body(&self, id: &str, rank: u32) -> Result<blake3::Hash, Refused> {
        let state = self.captures.get(id).ok_or_else(|| no("capture", id))?;
        let part = state.part(rank).ok_or_else(|| no("rank", &rank.to_string()))?;
        part.hash().ok_or_else(|| {
            let (outcome, detail) = (&part.outcome, &part.detail);
            let line = format!("capture {id} has no state of rank {rank} ({outcome}): {detail}");
            Refused::NotFound(line.trim_end_matches([':', ' ']).to_string())
        })
    }
}

fn is_of(wanted: Option<&str>, job: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == job)
}

fn no(what: &str, name: &str) -> Refused {
    Refused::NotFound(format!("there is no {what} {name:?}"))
}
