//! Tokens at all coordinators: the owner of the first shard keeps them.
//!
//! Another coordinator asks that owner what a token grants, with the token itself: who has the
//! token may know. So no coordinator needs a right over another, and no list of tokens leaves the
//! first shard. The answer is asked for again after 10 s, also while a call lasts, so a token that
//! was revoked is refused and its calls end after that time; it counts for 15 minutes while the
//! owner does not answer. An owner that gives no answer is not asked by each request, and a token
//! that it refused is not asked about again for a minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use memtape_core::access::Scope;
use memtape_core::limits::{REQUEST_BYTES_MAX, TOKENS_ASKED_AT_ONCE_MAX};
use memtape_proto::api::{SignIn, Token};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::Gather;
use crate::access::Refused;
use crate::access::tokens::{FRESH_NS, Knows};
use crate::connections::Call;
use crate::http::asking::{refused, token};
use crate::http::gather::owners::{Absent, Deadline, Passed};
use crate::http::request::Problem;
use memtape_disk::clock;
use memtape_store::records::TokenRecord;

/// Path of the route that signs a page in.
const SIGN_IN: &str = "/api/v1/session";

/// Time for the answer about a token.
const TOKEN_TIME_MAX: Duration = Duration::from_secs(5);

/// Largest answer about a token.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// Time for which an owner that gave no answer is not asked about tokens.
const AWAY_LASTS: Duration = Duration::from_secs(5);

/// Time between two questions about the token of a call in progress.
const RENEW_EVERY: Duration = Duration::from_nanos(FRESH_NS);

/// Time after which a client may ask again where too many questions were in progress.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Gather {
    /// Learns what the token of a request grants, where another coordinator keeps it; a page that
    /// signs in has it in its content.
    ///
    /// # Errors
    /// The peer asks for too many tokens, or the owner of the first shard does not answer.
    pub(super) async fn learn(&self, request: Request) -> Result<Request, Problem> {
        let (api, members) = (&self.api, &self.api.members);
        let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        // The files of the page are for everybody.
        let needs_caller = path.starts_with("/api/") || path == "/metrics";
        let is_kept_here = members.own() == 0 || members.shards() <= 1;
        if is_kept_here || !needs_caller || api.door.policy().rules.is_none() {
            return Ok(request);
        }
        let (request, of_page) = match path == SIGN_IN {
            true => {
                let (parts, content) = request.into_parts();
                let content = to_bytes(content, REQUEST_BYTES_MAX).await;
                let content = content
                    .map_err(|why| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why.to_string()))?;
                let of_page = serde_json::from_slice::<SignIn>(&content).ok().map(|of| of.token);
                (Request::from_parts(parts, Body::from(content)), of_page)
            }
            false => (request, None),
        };
        let of_request = token(api, request.headers()).ok().flatten();
        let (Some(token), Some(call)) =
            (of_page.as_deref().or(of_request), request.extensions().get::<Arc<Call>>())
        else {
            return Ok(request);
        };
        let admit = || api.door.admit_unknown_token(call.connection().peer());
        self.renew(token, admit).await?;
        if api.door.tokens.is_learned(token) {
            self.follow(token.to_string(), call);
        }
        Ok(request)
    }

    /// Asks what a token grants, where that is not known or was asked for a while ago. What is no
    /// longer valid ends its calls.
    ///
    /// # Errors
    /// Nothing is known of the token, and it cannot be asked about.
    pub(super) async fn renew(
        &self,
        token: &str,
        admit: impl FnOnce() -> Result<(), Refused>,
    ) -> Result<(), Problem> {
        let door = &self.api.door;
        let knows = door.tokens.knows(token, clock::now().mono_ns);
        if knows == Knows::Enough {
            return Ok(());
        }
        let asked = match admit() {
            Ok(()) => self.ask_about(token).await,
            Err(why) => Err(refused(&self.api, &why)),
        };
        match asked {
            Ok(record) => {
                if door.tokens.learn(token, record, clock::now().mono_ns) {
                    door.change();
                }
                Ok(())
            }
            Err(problem) if knows == Knows::Nothing => Err(problem),
            Err(_) => Ok(()),
        }
    }

    /// Asks about the token of a call again and again, until the call ends.
    fn follow(&self, token: String, call: &Call) {
        let gather = self.clone();
        let following = tokio::spawn(async move {
            loop {
                sleep(RENEW_EVERY).await;
                // The token of a call in progress is known.
                let _ = gather.renew(&token, || Ok(())).await;
            }
        });
        call.keep(Box::new(AbortOnDropHandle::new(following)));
    }

    /// What the owner of the first shard says of a token; none where it is not valid.
    async fn ask_about(&self, token: &str) -> Result<Option<TokenRecord>, Problem> {
        let Ok(_one) = self.keeper.at_once.try_acquire() else {
            return Err(refused(&self.api, &Refused::TooMany(ASK_AGAIN_AFTER)));
        };
        let answered = match self.keeper.absent() {
            Some(why) => Err(why),
            None => {
                let answered = self.ask_keeper(token).await;
                self.keeper.note(answered.as_ref().err().copied());
                answered
            }
        };
        answered.map_err(|why| {
            let line = format!("the token cannot be checked: shard 0 keeps tokens, and {why}");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, line)
        })
    }

    async fn ask_keeper(&self, token: &str) -> Result<Option<TokenRecord>, Absent> {
        let (passed, deadline) = (Passed::about_token(token)?, Deadline::after(TOKEN_TIME_MAX));
        let url = self.api.members.url(0);
        let answered = self.owners.ask((0, &url), &passed, deadline).await?;
        if [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND].contains(&answered.status()) {
            return Ok(None);
        }
        let answered = answered.accepted()?;
        if answered.length.is_none_or(|length| length > TOKEN_BYTES_MAX) {
            return Err(Absent::NoList);
        }
        let content = answered.whole().await?;
        let token: Token = serde_json::from_slice(&content).map_err(|_| Absent::NoList)?;
        record(token).map(Some).ok_or(Absent::NoList)
    }
}

/// The questions to the owner of the first shard.
pub(super) struct Keeper {
    /// Permits of questions that are in progress.
    pub(super) at_once: Semaphore,
    /// When it gave no answer last, and why; none since it gave one.
    away: Mutex<Option<(Instant, Absent)>>,
}

impl Default for Keeper {
    fn default() -> Self {
        Self { at_once: Semaphore::new(TOKENS_ASKED_AT_ONCE_MAX), away: Mutex::new(None) }
    }
}

impl Keeper {
    /// Why the owner is not asked now: it gave no answer lately. After a while one request tries.
    fn absent(&self) -> Option<Absent> {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, why) = away.as_mut()?;
        if since.elapsed() < AWAY_LASTS {
            return Some(*why);
        }
        *since = Instant::now();
        None
    }

    fn note(&self, absent: Option<Absent>) {
        let is_silent =
            |why: &Absent| matches!(why, Absent::Unreachable | Absent::Broken | Absent::Late(_));
        let away = absent.filter(is_silent).map(|why| (Instant::now(), why));
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = away;
    }
}

/// A token as a record, without its hash; none where its role is not known here.
fn record(token: Token) -> Option<TokenRecord> {
    let scope = Scope {
        uids: token.uids.into_iter().collect(),
        namespaces: token.namespaces.into_iter().collect(),
    };
    Some(TokenRecord {
        id: token.id,
        name: token.name,
        role: token.role.known()?,
        scope,
        expires_wall_ns: token.expires_wall_ns,
        revoked_wall_ns: token.revoked_wall_ns,
        ..TokenRecord::default()
    })
}
