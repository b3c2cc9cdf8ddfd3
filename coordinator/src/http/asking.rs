//! The caller of a request and its permissions: [`Asking`], which every handler of the API takes.
//!
//! Handlers reach the state only through it, and see only what the caller may see. A caller without
//! any permission is refused here.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use memtape_core::access::{Caller, Role};

use crate::access::audit::{self, NotWritten};
use crate::access::{Peer, Refused};
use crate::connections::Call;
use crate::http::request::{Api, Problem};
use crate::http::sending::{self, Size};
use crate::http::site::RequestNumber;
use crate::quota::CallerQuota;
use crate::quota::unsent::Unsent;
use crate::state::counters::Loss;
use crate::state::view::View;
use crate::state::visible::Visible;
use crate::work::blocking::{self, Client, for_client};
use crate::work::decoding::NotRead;
use crate::work::parts;
use memtape_disk::clock;
use memtape_store::records::{AuditRecord, Cause};

/// The cookie in which a page that was signed in has its token. With TLS its name lets browsers
/// take it from this very host alone, and only by TLS.
pub(crate) fn cookie_name(has_tls: bool) -> &'static str {
    if has_tls { "__Host-memtape_token" } else { "memtape_token" }
}

/// Characters of a refused path that the audit has.
const PATH_AUDITED_MAX: usize = 128;

/// A request, and who sends it.
#[derive(Clone)]
pub(crate) struct Asking {
    pub(crate) api: Api,
    pub(crate) caller: Arc<Caller>,
    call: Arc<Call>,
    quota: Arc<CallerQuota>,
    unsent: Arc<Unsent>,
    /// The request asks for an answer, and does nothing else.
    is_read: bool,
    request: u64,
}

impl Asking {
    /// Asks the loop for something that the caller may see.
    ///
    /// # Errors
    /// When the coordinator is stopping.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Visible<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let caller = self.caller.clone();
        self.ask_all(move |view| question(&Visible::new(view, &caller))).await
    }

    /// Asks the loop, which shows everything. The caller's other questions wait for the answer. The
    /// value of a request that only reads has its memory before.
    ///
    /// # Errors
    /// When its memory is not free for long, or the coordinator is stopping.
    pub(super) async fn ask_all<T: Send + 'static>(
        &self,
        question: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if self.is_read {
            sending::reserve(&self.api, &self.unsent, Size::Value).await?;
        }
        let _alone = self.quota.begin_question().await;
        self.api.ask(question).await
    }

    /// Reserves an answer of about this many bytes, and keeps them until it is sent.
    ///
    /// # Errors
    /// They are not free for long, or the coordinator is stopping.
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<(), Problem> {
        sending::reserve(&self.api, &self.unsent, Size::Large(bytes)).await
    }

    /// Reserves what a stream takes, and keeps it until the stream ends: its questions reserve
    /// nothing more.
    ///
    /// # Errors
    /// It is not free for long, or the coordinator is stopping.
    pub(crate) async fn reserve_stream(&self, bytes: u64) -> Result<(), Problem> {
        sending::reserve(&self.api, &self.unsent, Size::Made(bytes)).await
    }

    /// Does work on the answer that blocks, on one of few threads. The request and its
    /// reservations count until the work ends, also when the client has left.
    ///
    /// # Errors
    /// The work panicked, or the coordinator is stopping.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Client) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let thread = self.api.quotas.begin_work(&self.quota).await;
        let thread = thread.ok_or_else(Problem::stopping)?;
        let permits = (thread, self.call.clone(), self.unsent.clone());
        for_client(permits, work).await.map_err(Problem::broken)
    }

    /// Begins the pickle of a snapshot, one at a time for each caller.
    ///
    /// # Errors
    /// The coordinator is stopping.
    pub(crate) async fn pickle(
        &self,
        hash: blake3::Hash,
    ) -> Result<Result<parts::Parts, NotRead>, Problem> {
        let own = self.quota.begin_pickle().await;
        let own = own.ok_or_else(Problem::stopping)?;
        let permits = (own, self.call.clone(), self.unsent.clone());
        Ok(self.api.pickling.pickle(permits, hash).await)
    }

    /// Begins blocking work that sends the answer. The request counts until the work ends.
    pub(crate) fn send(&self, work: impl FnOnce() + Send + 'static) {
        blocking::sending((self.call.clone(), self.unsent.clone()), work);
    }

    /// Admits only callers who have a role over all jobs.
    ///
    /// # Errors
    /// The caller does not.
    pub(crate) fn needs(&self, role: Role) -> Result<(), Problem> {
        match self.caller.has(role, None) {
            true => Ok(()),
            false => Err(self.lacks(&format!("{} of all jobs", role.as_str()))),
        }
    }

    /// The problem that the caller lacks this role.
    pub(crate) fn lacks(&self, role: &str) -> Problem {
        self.api.counters.lose(Loss::CallerRefused, 1);
        let name = self.caller.name.escape_debug();
        let line = format!("{name} lacks the role {role}: ask an admin for it");
        let (peer, who) = (self.call.connection().peer(), Some(&*self.caller.name));
        self.api.door.note_refusal(peer, self.request, who, line.clone());
        Problem::new(StatusCode::FORBIDDEN, line)
    }

    /// Writes an action that the caller is about to take into the audit.
    ///
    /// # Errors
    /// It cannot be written, and the file of roles requires it, or the store would not take what
    /// the request changes either.
    pub(crate) async fn audit(&self, action: &'static str, subject: String) -> Result<(), Problem> {
        self.admit_audited()?;
        self.audited(self.api.door.audit.write(self.entry(action, subject)).await)
    }

    /// Takes a permit for one more action that is audited.
    ///
    /// # Errors
    /// The caller had too many lately.
    pub(crate) fn admit_audited(&self) -> Result<(), Problem> {
        let admitted = self.api.door.admit_audited(self.call.connection().peer(), &self.caller);
        admitted.map_err(|why| refused(&self.api, &why))
    }

    /// As [`Self::audit`], about a read: the same read makes one entry a minute. Reads have a chain
    /// of their own, and no rate but that of requests.
    ///
    /// # Errors
    /// As [`Self::audit`].
    pub(crate) async fn audit_read(
        &self,
        action: &'static str,
        subject: String,
    ) -> Result<(), Problem> {
        let entry = AuditRecord { cause: Cause::Read, ..self.entry(action, subject) };
        self.audited(self.api.door.audit.write_read(clock::now().mono_ns, entry).await)
    }

    /// An entry of the audit about an action of the caller.
    pub(crate) fn entry(&self, action: &'static str, subject: String) -> AuditRecord {
        let (who, from) = (self.caller.name.clone(), self.call.connection().peer().address);
        let own = audit::entry(clock::now(), None, action, subject);
        AuditRecord { who, from: from.to_string(), request: self.request, ..own }
    }

    fn audited(&self, written: Result<(), NotWritten>) -> Result<(), Problem> {
        let line = |why| format!("{why}: the request was refused, and nothing was done");
        let audited = self.api.door.audited(written, self.is_read);
        audited.map_err(|why| Problem::new(StatusCode::SERVICE_UNAVAILABLE, line(why)))
    }
}

impl FromRequestParts<Api> for Asking {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Problem> {
        // A request that may go on to other coordinators has its caller before its handler.
        if let Some(asking) = parts.extensions.get::<Self>() {
            return Ok(asking.clone());
        }
        let call = parts.extensions.get::<Arc<Call>>().cloned();
        let call = call.ok_or_else(|| Problem::broken("the call has no connection"))?;
        let request = parts.extensions.get::<RequestNumber>().map_or(0, |number| number.0);
        let peer = call.connection().peer();
        let refused = |why: Refused, who: Option<&str>| {
            let path: String = parts.uri.path().chars().take(PATH_AUDITED_MAX).collect();
            refuse(api, (peer, request, who), format!("{} {path}", parts.method), &why)
        };
        let token = token(api, &parts.headers).map_err(|why| refused(why, None))?;
        let caller = api.door.caller(peer, token).map_err(|why| match &why {
            Refused::NoRole(who) => refused(why.clone(), Some(who)),
            _ => refused(why, None),
        });
        let caller = Arc::new(caller?);
        let quota = api.quotas.caller(&api.door.bucket(peer, Some(&caller)));
        let permit = quota.begin_request();
        let why = Refused::TooMany(Duration::from_secs(1));
        let too_many = || refused(why, Some(&caller.name));
        call.keep(Box::new(permit.ok_or_else(too_many)?));
        let (door, token) = (api.door.clone(), token.map(str::to_string));
        call.admit((None, Box::new(move |peer| door.still_knows(peer, token.as_deref()))));
        let unsent = parts.extensions.get::<Arc<Unsent>>().cloned().unwrap_or_default();
        unsent.belongs_to(quota.clone());
        let (api, is_read) = (api.clone(), parts.method.is_safe());
        Ok(Self { api, caller, call, quota, unsent, is_read, request })
    }
}

/// The token of a request: in `Authorization` from a program, in the cookie from a page.
pub(super) fn token<'a>(api: &Api, headers: &'a HeaderMap) -> Result<Option<&'a str>, Refused> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let value = value.to_str().map_err(|_| Refused::BadToken)?;
        return value.strip_prefix("Bearer ").map(Some).ok_or(Refused::BadToken);
    }
    Ok(cookie(api, headers))
}

/// The token in the cookie of a page.
pub(crate) fn cookie<'a>(api: &Api, headers: &'a HeaderMap) -> Option<&'a str> {
    let wanted = cookie_name(api.door.tls().is_some());
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|of| of.split_once('='));
    pairs.find(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim())
}

/// Refuses a request of a peer, by its number and its caller's proven name. Too many requests are
/// counted only: their entries would use up the caller's rate of audited refusals.
pub(crate) fn refuse(
    api: &Api,
    (peer, request, who): (&Peer, u64, Option<&str>),
    what: String,
    why: &Refused,
) -> Problem {
    if !matches!(why, Refused::TooMany(_)) {
        api.door.note_refusal(peer, request, who, format!("{what}: {why}"));
    }
    refused(api, why)
}

pub(super) fn refused(api: &Api, why: &Refused) -> Problem {
    let (loss, status) = match why {
        Refused::Unproven | Refused::BadToken => (Loss::CallerRefused, StatusCode::UNAUTHORIZED),
        Refused::NoRole(_) => (Loss::CallerRefused, StatusCode::FORBIDDEN),
        Refused::TooMany(_) => (Loss::RequestsTooMany, StatusCode::TOO_MANY_REQUESTS),
    };
    api.counters.lose(loss, 1);
    let problem = Problem::new(status, why.to_string());
    match why {
        Refused::TooMany(wait) => problem.retry_after(*wait),
        _ => problem,
    }
}

#[cfg(test)]
pub(super) mod tests;
