//! Tokens at all coordinators: the owner of the first shard keeps them.
//!
//! Another coordinator asks that owner what a token grants, with the token itself: who has the
//! token may know. So no coordinator needs a right over another, and no list of tokens leaves the
//! first shard. The answer is asked for again after 10 s, so a token that was revoked is refused
//! after that time; it counts for 15 minutes while the owner does not answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use memtape_core::access::Scope;
use memtape_core::limits::REQUEST_BYTES_MAX;
use memtape_proto::api::{SignIn, Token};

use super::Gather;
use crate::access::tokens::Knows;
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
        let knows = api.door.tokens.knows(token, clock::now().mono_ns);
        if knows != Knows::Enough {
            let admitted = api.door.admit_unknown_token(call.connection().peer());
            let asked = match admitted {
                Ok(()) => self.ask_about(token).await,
                Err(why) => Err(refused(api, &why)),
            };
            match asked {
                Ok(record) => {
                    if api.door.tokens.learn(token, record, clock::now().mono_ns) {
                        // Its calls in progress end.
                        api.door.change();
                    }
                }
                Err(problem) if knows == Knows::Nothing => return Err(problem),
                Err(_) => {}
            }
        }
        Ok(request)
    }

    /// What the owner of the first shard says of a token; none where it is not valid.
    async fn ask_about(&self, token: &str) -> Result<Option<TokenRecord>, Problem> {
        let answer = async {
            let (passed, deadline) =
                (Passed::about_token(token)?, Deadline::after(TOKEN_TIME_MAX));
            let answered =
                self.owners.ask((0, &self.api.members.url(0)), &passed, deadline).await?;
            let is_refused = [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND];
            if is_refused.contains(&answered.status()) {
                return Ok(None);
            }
            let answered = answered.accepted()?;
            if answered.length.is_none_or(|length| length > TOKEN_BYTES_MAX) {
                return Err(Absent::NoList);
            }
            let content = answered.whole().await?;
            let token: Token = serde_json::from_slice(&content).map_err(|_| Absent::NoList)?;
            record(token).map(Some).ok_or(Absent::NoList)
        };
        answer.await.map_err(|why| {
            let line = format!("the token cannot be checked: shard 0 keeps tokens, and {why}");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, line)
        })
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
