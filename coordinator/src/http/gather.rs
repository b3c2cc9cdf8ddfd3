//! Answers of the whole cluster: a person asks any coordinator, which asks the owners of the other
//! shards.
//!
//! One layer around all routes. What a request is about stands in its path (`gather/reach.rs`). A
//! list is the own list and those of all others, in the order of the route (`gather/lists.rs`). One
//! thing is asked of the owner of its shard, which the name of a job and the id of an incident
//! tell; where that owner does not know it, the others are asked, too: a job in another shard than
//! its name says, and a capture that an agent named. A backup is of the shard in its query. A
//! change is asked of one owner after the other, and of none after one that knows the thing or may
//! have done it. What goes to an owner and comes back is in `gather/owners.rs`, and how a token of
//! another coordinator is known in `gather/tokens.rs`.
//!
//! Each coordinator decides by itself what the caller may do, by the token that is passed on. The
//! own coordinator decides first, once and before it reads a body, so a stranger makes no other one
//! work. A shard that did not answer is named, in [`MISSING`] and in the answer. With one shard,
//! and for a request that was gathered, nothing of this happens. A request that names another shard
//! than the own one is refused: its sender knew an owner from before. This file reads no state.

mod lists;
pub(crate) mod own_address;
mod owners;
mod reach;
#[cfg(test)]
mod tests;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequestParts, MatchedPath, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use memtape_core::limits::{
    GATHERED_BYTES_MAX, GATHERED_CHANGE_SECONDS_MAX, GATHERED_IDLE_SECONDS_MAX,
    GATHERED_LIST_SECONDS_MAX, GATHERED_READ_SECONDS_MAX, REQUEST_BYTES_MAX,
};
use memtape_proto::api::{BackupQuery, MissingShard};
use tokio::task::JoinSet;

use crate::http::asking::Asking;
use crate::http::gather::lists::{List, Owned};
use crate::http::gather::owners::{Absent, Answered, Deadline, GATHERED, Owners, Passed};
use crate::http::gather::reach::{Named, Reach};
use crate::http::gather::tokens::Keeper;
use crate::http::request::{Api, Problem};
use crate::http::sending::{self, Size};
use crate::quota::unsent::Unsent;
use crate::state::counters::Loss;

/// The shards whose part an answer lacks, separated by commas.
pub(crate) const MISSING: HeaderName = HeaderName::from_static("memtape-missing");

const LIST_TIME_MAX: Duration = Duration::from_secs(GATHERED_LIST_SECONDS_MAX);
const READ_TIME_MAX: Duration = Duration::from_secs(GATHERED_READ_SECONDS_MAX);
const CHANGE_TIME_MAX: Duration = Duration::from_secs(GATHERED_CHANGE_SECONDS_MAX);
const IDLE_MAX: Duration = Duration::from_secs(GATHERED_IDLE_SECONDS_MAX);

/// Memory of an answer on its way from an owner to a client.
const PASSED_BYTES: u64 = 1 << 20;

/// Asks the owners of the other shards.
#[derive(Clone)]
pub(crate) struct Gather {
    api: Api,
    owners: Arc<Owners>,
    keeper: Arc<Keeper>,
}

/// A request about one thing, as other owners are asked it.
struct Question {
    passed: Result<Passed, Absent>,
    unsent: Arc<Unsent>,
    deadline: Deadline,
    is_read: bool,
}

/// The shards that did not answer, and why.
type Missing = Vec<(u16, String, Absent)>;

impl Gather {
    pub(crate) fn new(api: Api) -> Self {
        let owners = Arc::new(Owners::new(api.door.clone(), IDLE_MAX));
        Self { api, owners, keeper: Arc::default() }
    }

    /// Answers a request, together with the other owners where it is not about this shard alone.
    pub(crate) async fn answer(
        State(gather): State<Self>,
        request: Request,
        next: Next,
    ) -> Response {
        let members = &gather.api.members;
        let asked = request.headers().get(GATHERED).cloned();
        let own = members.own().to_string();
        if asked.as_ref().is_some_and(|shard| shard != own.as_str()) {
            let line =
                format!("this coordinator owns shard {own} now: its cluster knows the others");
            return Problem::new(StatusCode::MISDIRECTED_REQUEST, line).into_response();
        }
        let request = match gather.learn(request).await {
            Ok(request) => request,
            Err(problem) => return problem.into_response(),
        };
        let matched = request.extensions().get::<MatchedPath>();
        let reach = matched.map_or(Reach::Own, |path| Reach::of(path.as_str()));
        if asked.is_some() || reach == Reach::Own || members.shards() <= 1 {
            return next.run(request).await;
        }
        match reach {
            Reach::List(list) if request.method() == Method::GET => {
                gather.list(list, request, next).await
            }
            Reach::List(_) | Reach::Own => next.run(request).await,
            Reach::One(named) => {
                gather.one(named, request, next).await.unwrap_or_else(IntoResponse::into_response)
            }
        }
    }

    /// The list of all shards.
    async fn list(&self, list: &List, request: Request, next: Next) -> Response {
        let unsent = request.extensions().get::<Arc<Unsent>>().cloned().unwrap_or_default();
        let (parts, body) = request.into_parts();
        let passed = Passed::of(&self.api, &parts, Bytes::new());
        let own = next.run(Request::from_parts(parts, body)).await;
        if own.status() != StatusCode::OK {
            return own;
        }
        // It is in memory.
        let (head, own) = own.into_parts();
        let own = to_bytes(own, usize::MAX).await.unwrap_or_default();
        let (begun, mut missing) = self.begin_lists(passed).await;
        let bytes = begun.iter().map(|(_, _, answered)| answered.length.unwrap_or(0)).sum::<u64>();
        // They, the rows that are kept, and the answer.
        let size = Size::Large(3 * (bytes + own.len() as u64));
        if let Err(problem) = sending::reserve(&self.api, &unsent, size).await {
            return problem.into_response();
        }
        let mut rows = Vec::from([Owned { shard: self.api.members.own(), list: own }]);
        let mut reading = JoinSet::new();
        for (shard, url, answered) in begun {
            reading.spawn(async move { (shard, url, answered.whole().await) });
        }
        while let Some(Ok((shard, url, whole))) = reading.join_next().await {
            match whole.and_then(|whole| list.check(whole)) {
                Ok(list) => rows.push(Owned { shard, list }),
                Err(why) => missing.push((shard, url, why)),
            }
        }
        missing.sort_by_key(|(shard, ..)| *shard);
        let merged = match list.merge(&rows, &self.named(&missing)) {
            Ok(merged) => merged,
            Err(error) => return Problem::broken(error).into_response(),
        };
        let mut answer = Response::from_parts(head, Body::from(merged));
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        mark(&mut answer, &missing);
        answer
    }

    /// Asks all others for their lists. Returns the answers that begin in time and fit together.
    async fn begin_lists(
        &self,
        passed: Result<Passed, Absent>,
    ) -> (Vec<(u16, String, Answered)>, Missing) {
        let (mut begun, mut missing, mut asking) = (Vec::new(), Vec::new(), JoinSet::new());
        let deadline = Deadline::after(LIST_TIME_MAX);
        for (shard, url) in self.api.members.others() {
            let (owners, passed) = (self.owners.clone(), passed.clone());
            asking.spawn(async move {
                let asked = async { owners.ask((shard, &url), &passed?, deadline).await };
                let answered = asked.await.and_then(Answered::accepted);
                (shard, url, answered)
            });
        }
        let mut left = GATHERED_BYTES_MAX;
        while let Some(Ok((shard, url, answered))) = asking.join_next().await {
            let fitting = answered.and_then(|answered| {
                let length = answered.length.ok_or(Absent::NoList)?;
                left = left.checked_sub(length).ok_or(Absent::TooLarge)?;
                Ok(answered)
            });
            match fitting {
                Ok(answered) => begun.push((shard, url, answered)),
                Err(why) => missing.push((shard, url, why)),
            }
        }
        (begun, missing)
    }

    /// The answer about one thing: of the owner of its shard, else of the first that knows it.
    async fn one(&self, named: Named, request: Request, next: Next) -> Result<Response, Problem> {
        let (mut parts, body) = request.into_parts();
        let is_read = parts.method.is_safe();
        let deadline = Deadline::after(if is_read { READ_TIME_MAX } else { CHANGE_TIME_MAX });
        // Who the caller is, and whether they ask too often. The handler takes this one.
        let asking = Asking::from_request_parts(&mut parts, &self.api).await?;
        parts.extensions.insert(asking);
        let shard = self.shard_of(named, &mut parts).await;
        let own = self.api.members.own();
        let too_large = |why: axum::Error| {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body cannot be read: {why}"))
        };
        let body = to_bytes(body, REQUEST_BYTES_MAX).await.map_err(too_large)?;
        let again = || Request::from_parts(parts.clone(), Body::from(body.clone()));
        let passed = Passed::of(&self.api, &parts, body.clone());
        let unsent = parts.extensions.get::<Arc<Unsent>>().cloned().unwrap_or_default();
        let question = Question { passed, unsent, deadline, is_read };
        let may_be_elsewhere = matches!(named, Named::Job | Named::Id);
        let is_unknown = |status: StatusCode| status == StatusCode::NOT_FOUND && may_be_elsewhere;
        if shard != own {
            let url = self.api.members.url(shard);
            sending::reserve(&self.api, &question.unsent, Size::Made(PASSED_BYTES)).await?;
            match self.ask((shard, &url), &question).await {
                Ok(answered) if is_unknown(answered.status()) => {}
                Ok(answered) => return Ok(answered.passed_on(self.api.counters.clone())),
                Err(why) => return Ok(self.unanswered(is_read, vec![(shard, url, why)])),
            }
            // The own answer reserves as much as it takes.
            drop(question.unsent.take());
        }
        let unknown = next.run(again()).await;
        if !is_unknown(unknown.status()) {
            return Ok(unknown);
        }
        let others = self.api.members.others().into_iter();
        let others = others.filter(|(other, _)| *other != shard).collect();
        sending::reserve(&self.api, &question.unsent, Size::Made(PASSED_BYTES)).await?;
        match self.first_that_knows(others, Arc::new(question)).await {
            Ok(answered) => Ok(answered.passed_on(self.api.counters.clone())),
            Err(missing) if missing.is_empty() => Ok(unknown),
            Err(missing) => Ok(self.unanswered(is_read, missing)),
        }
    }

    /// The shard that the path or the query leads to.
    async fn shard_of(&self, named: Named, parts: &mut Parts) -> u16 {
        let (own, shards) = (self.api.members.own(), self.api.members.shards());
        if named == Named::Query {
            let asked = Query::<BackupQuery>::try_from_uri(&parts.uri).ok();
            let shard = asked.and_then(|Query(asked)| asked.shard);
            return shard.filter(|shard| *shard < shards).unwrap_or(own);
        }
        let path = Path::<Vec<(String, String)>>::from_request_parts(parts, &()).await;
        let first = path.ok().and_then(|Path(path)| path.into_iter().next());
        let (_, name) = first.unwrap_or_default();
        named.shard(&name, shards).unwrap_or(own)
    }

    /// Asks owners for one thing: for reads all of them at once, else one after the other, until
    /// one may have done it. Returns the answer of the first that knows it, or who did not answer.
    async fn first_that_knows(
        &self,
        others: Vec<(u16, String)>,
        question: Arc<Question>,
    ) -> Result<Answered, Missing> {
        let (mut missing, mut asking) = (Vec::new(), JoinSet::new());
        let mut others = others.into_iter().peekable();
        while others.peek().is_some() || !asking.is_empty() {
            while (question.is_read || asking.is_empty())
                && let Some((shard, url)) = others.next()
            {
                let (gather, question) = (self.clone(), question.clone());
                asking.spawn(async move {
                    let answered = gather.ask((shard, &url), &question).await;
                    (shard, url, answered)
                });
            }
            let Some(Ok((shard, url, answered))) = asking.join_next().await else { continue };
            match answered.and_then(Answered::known) {
                Ok(Some(answered)) => return Ok(answered),
                Ok(None) => {}
                Err(why) => {
                    missing.push((shard, url, why));
                    if !question.is_read && why.may_have_acted() {
                        break;
                    }
                }
            }
        }
        missing.sort_by_key(|(shard, ..)| *shard);
        Err(missing)
    }

    /// Asks an owner for one thing; the answer is there, or has begun where it is a download.
    async fn ask(&self, owner: (u16, &str), question: &Question) -> Result<Answered, Absent> {
        let passed = question.passed.as_ref().map_err(|why| *why)?;
        let answered = self.owners.ask(owner, passed, question.deadline).await?;
        answered.settled(PASSED_BYTES).await
    }

    /// The problem that a thing may be in a shard that did not answer.
    fn unanswered(&self, is_read: bool, missing: Missing) -> Response {
        let named = self.named(&missing).into_iter();
        let causes: Vec<String> =
            named.map(|of| format!("shard {} {}: {}", of.shard, of.owner, of.why)).collect();
        let is_begun = !is_read && missing.iter().any(|(.., why)| why.may_have_acted());
        let done = if is_begun { "; it may have been carried out" } else { "" };
        let line = format!("it may be in a shard that did not answer{done}: {}", causes.join("; "));
        let mut answer = Problem::new(StatusCode::SERVICE_UNAVAILABLE, line).into_response();
        mark(&mut answer, &missing);
        answer
    }

    /// The missing shards as answers name them; each is counted.
    fn named(&self, missing: &Missing) -> Vec<MissingShard> {
        self.api.counters.lose(Loss::ShardMissing, missing.len() as u64);
        let standing = self.api.members.standing();
        let named = |(shard, owner, why): &(u16, String, Absent)| {
            standing.with_last_sign(MissingShard {
                shard: *shard,
                owner: owner.clone(),
                why: why.to_string(),
                ..MissingShard::default()
            })
        };
        missing.iter().map(named).collect()
    }
}

/// Names the missing shards in the header of an answer.
fn mark(answer: &mut Response, missing: &Missing) {
    let shards: Vec<String> = missing.iter().map(|(shard, ..)| shard.to_string()).collect();
    if let (false, Ok(shards)) = (shards.is_empty(), HeaderValue::from_str(&shards.join(","))) {
        answer.headers_mut().insert(MISSING, shards);
    }
}
