//! `/whoami`, `/tokens` and `/audit`: who the caller is; the tokens that admins give out; and who
//! did what.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use memtape_core::access::{Caller, Role, Scope};
use memtape_core::limits::{ROWS_LISTED_MAX, TOKEN_DAYS_MAX};
use memtape_proto::api::{
    Audit, AuditQuery, CreatedToken, SignIn, Token, TokenRequest, Tokens, WhoAmI,
};

use crate::access::tokens::{TokenError, is_valid};
use crate::access::{Refused, latest_ns};
use crate::connections::Call;
use crate::http::asking::{Asking, cookie, cookie_name, refuse, token as token_of};
use crate::http::request::{Accepted, Answer, Api, IdPath, PathOf, Problem, QueryOf, Sent};
use crate::http::route_list::Routes;
use memtape_store::records::TokenRecord;

const DAY_NS: i64 = 86_400_000_000_000;

/// Longest name of a token, in bytes.
const TOKEN_NAME_BYTES_MAX: usize = 128;

pub(crate) fn add(routes: Routes) -> Routes {
    routes
        .get("/whoami", "Who the caller is, and what they may do.", whoami)
        .post("/session", "Signs a page in with a token, which its cookie then holds.", sign_in)
        .post(
            "/session/end",
            "Signs a page out: deletes its cookie. The token stays valid.",
            sign_out,
        )
        .get("/tokens", "All tokens, without the tokens themselves.", list)
        .post("/tokens", "Makes a token; it is shown this once.", create)
        .get("/tokens/own", "The token that the request has, without the token itself.", own)
        .post("/tokens/{id}/revoke", "Revokes a token.", revoke)
        .get("/audit", "Who did what, when and from where; oldest first.", audit)
}

async fn whoami(asking: Asking, headers: HeaderMap) -> Answer<WhoAmI> {
    let signed_in = cookie(&asking.api, &headers).is_some();
    Ok(Json(WhoAmI { signed_in, ..who(&asking.caller) }))
}

/// A page is signed in or out. Its cookie goes along with every request of its own, and with none
/// of another site.
struct SignedIn {
    cookie: HeaderValue,
    who: WhoAmI,
}

async fn sign_in(
    State(api): State<Api>,
    Extension(call): Extension<Arc<Call>>,
    Sent(body): Sent,
) -> Result<SignedIn, Problem> {
    let SignIn { token } = serde_json::from_slice(&body)?;
    let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let found = match is_plain {
        true => api.door.caller(call.connection().peer(), Some(&token)),
        false => Err(Refused::BadToken),
    };
    let from = (call.connection().peer(), 0, None);
    let caller = found.map_err(|why| refuse(&api, from, "sign in".to_string(), &why))?;
    let who = WhoAmI { signed_in: true, ..who(&caller) };
    Ok(SignedIn { cookie: set_cookie(&api, &token)?, who })
}

/// Also signs out a page whose token is no longer valid. The token itself stays valid until an
/// admin revokes it.
async fn sign_out(State(api): State<Api>, _: Sent) -> Result<SignedIn, Problem> {
    Ok(SignedIn { cookie: set_cookie(&api, "; Max-Age=0")?, who: WhoAmI::default() })
}

fn set_cookie(api: &Api, value: &str) -> Result<HeaderValue, Problem> {
    let has_tls = api.door.tls().is_some();
    let (name, secure) = (cookie_name(has_tls), if has_tls { "; Secure" } else { "" });
    let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&cookie).map_err(Problem::broken)
}

impl IntoResponse for SignedIn {
    fn into_response(self) -> Response {
        ([(header::SET_COOKIE, self.cookie)], Json(self.who)).into_response()
    }
}

fn who(caller: &Caller) -> WhoAmI {
    WhoAmI {
        name: caller.name.clone(),
        sees_all_jobs: caller.has(Role::Viewer, None),
        administers: caller.has(Role::Admin, None),
        signed_in: false,
    }
}

async fn list(asking: Asking) -> Answer<Tokens> {
    asking.needs(Role::Admin)?;
    let now_ns = latest_ns();
    let tokens = asking.api.door.tokens.list();
    Ok(Json(Tokens { tokens: tokens.iter().map(|record| token(record, now_ns)).collect() }))
}

async fn own(asking: Asking, headers: HeaderMap) -> Answer<Token> {
    let tokens = &asking.api.door.tokens;
    let kept = token_of(&asking.api, &headers).ok().flatten().and_then(|token| tokens.kept(token));
    let kept = kept.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "the request has no token of this coordinator")
    });
    Ok(Json(token(&kept?, latest_ns())))
}

async fn create(asking: Asking, Sent(body): Sent) -> Result<Accepted<CreatedToken>, Problem> {
    asking.needs(Role::Admin)?;
    let wish: TokenRequest = serde_json::from_slice(&body)?;
    let bad = |line: String| Problem::new(StatusCode::BAD_REQUEST, line);
    let name = wish.name.trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > TOKEN_NAME_BYTES_MAX || !name.chars().all(is_name) {
        let line = "the name of a token must be letters, digits and -_.@, and not empty";
        return Err(bad(line.to_string()));
    }
    let role = wish.role.known().filter(|role| *role != Role::Agent);
    let Some(role) = role else {
        return Err(bad(format!("{:?} is no role: viewer, operator or admin", wish.role)));
    };
    let uids: BTreeSet<u32> = wish.uids.iter().copied().collect();
    let scope = Scope { uids, namespaces: wish.namespaces.iter().cloned().collect() };
    if role == Role::Admin && !scope.is_all() {
        return Err(bad("an admin reaches every job: leave uids and namespaces out".to_string()));
    }
    if !(1..=TOKEN_DAYS_MAX).contains(&wish.days) {
        return Err(bad(format!("a token is valid for 1 to {TOKEN_DAYS_MAX} days")));
    }
    asking.admit_audited()?;
    let entry = asking.entry("create token", format!("{name}, {}", role.as_str()));
    let now_ns = latest_ns();
    let days = i64::try_from(wish.days).unwrap_or(1);
    let wanted = TokenRecord {
        name: name.to_string(),
        role,
        scope,
        created_by: asking.caller.name.clone(),
        created_wall_ns: now_ns,
        expires_wall_ns: now_ns.saturating_add(DAY_NS.saturating_mul(days)),
        ..TokenRecord::default()
    };
    let made = asking.api.door.tokens.create(wanted, entry).await;
    let (secret, record) = made.map_err(|why| problem(&why))?;
    Ok(Accepted(CreatedToken { id: record.id, token: secret }))
}

async fn revoke(
    asking: Asking,
    path: PathOf<IdPath>,
    // Read, so that a client that sends one gets its answer over HTTP/2.
    _: Sent,
) -> Answer<Token> {
    asking.needs(Role::Admin)?;
    let Path(IdPath { id }) = path?;
    let now_ns = latest_ns();
    let entry = asking.entry("revoke token", id.clone());
    let door = asking.api.door.clone();
    // To the end where the client leaves, at any rate, and whether it can be audited or not: it
    // takes rights away.
    let revoking = tokio::spawn(async move {
        let revoked = door.tokens.revoke(&id, now_ns, entry).await;
        door.change();
        revoked
    });
    let revoked = revoking.await.map_err(Problem::broken)?.map_err(|why| problem(&why))?;
    Ok(Json(token(&revoked, now_ns)))
}

async fn audit(asking: Asking, query: QueryOf<AuditQuery>) -> Answer<Audit> {
    asking.needs(Role::Admin)?;
    let Query(AuditQuery { after }) = query?;
    asking.audit_read("read audit", String::new()).await?;
    let kept = asking.api.door.audit.clone();
    let read = asking.work(move |_| kept.read(after.unwrap_or(0), ROWS_LISTED_MAX));
    let (entries, broken_at) = read.await?;
    Ok(Json(Audit { entries, broken_at }))
}

fn token(record: &TokenRecord, now_ns: i64) -> Token {
    Token {
        id: record.id.clone(),
        name: record.name.clone(),
        role: record.role.into(),
        uids: record.scope.uids.iter().copied().collect(),
        namespaces: record.scope.namespaces.iter().cloned().collect(),
        valid: is_valid(record, now_ns),
        created_by: record.created_by.clone(),
        created_wall_ns: record.created_wall_ns,
        expires_wall_ns: record.expires_wall_ns,
        revoked_wall_ns: record.revoked_wall_ns,
    }
}

fn problem(why: &TokenError) -> Problem {
    let status = match why {
        TokenError::TooMany => StatusCode::CONFLICT,
        TokenError::Unknown(_) => StatusCode::NOT_FOUND,
        TokenError::NoRandom | TokenError::NotMade(_) | TokenError::Revoked(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    Problem::new(status, why.to_string())
}
