//! Requests to the owners of other shards, and their answers.
//!
//! What goes along is named here, and nothing else does: the path, the kind of the body, the token
//! of the caller, and the mark against gathering twice. No certificate does, this coordinator's
//! least of all: the caller has no part in it. Redirects are not followed, no proxy is used, and an
//! owner has the scheme of this coordinator, so a token is not sent in the clear behind TLS. All
//! owners of one answer have one deadline; a download has a limit of idle time instead.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt as _;
use memtape_core::limits::CONNECTION_IDLE_SECONDS_MAX;
use memtape_core::placement::Address;
use memtape_proto::api::SHARD_HEADER;
use tokio::time::{Instant, timeout_at};

use crate::access::Door;
use crate::http::asking::token;
use crate::http::request::Api;
use crate::standing::MARK;
use crate::state::counters::{Counters, Loss};

/// Marks a request of another coordinator, with the shard that it is about. It is answered for that
/// shard alone.
pub(super) const GATHERED: HeaderName = HeaderName::from_static("memtape-gathered");

/// Time for a connection to an owner.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// Time for which a connection is kept for the next request: less than the owner keeps it, which
/// could otherwise close it while a change is on its way.
const POOLED_MAX: Duration = Duration::from_secs(CONNECTION_IDLE_SECONDS_MAX / 2);

/// What is passed on of an answer, beside its status.
const PASSED_ON: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_DISPOSITION,
    header::RETRY_AFTER,
    HeaderName::from_static(SHARD_HEADER),
];

/// Why a shard did not answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum Absent {
    #[error("its owner is not known: no coordinator has taken it, or the bucket is away")]
    NoOwner,
    #[error("the URL of its owner has another scheme: give all coordinators TLS, or none")]
    OtherScheme,
    #[error("a certificate cannot be passed on to its owner: use a token, or ask there")]
    CertificateAlone,
    #[error("its owner cannot be reached")]
    Unreachable,
    #[error("its owner ended the connection before its answer")]
    Broken,
    #[error("its owner gave no answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error(
        "another coordinator answers at the URL of its owner: `memtape cluster` shows whether one \
         waits; where the owner runs, correct its --cluster-address"
    )]
    Elsewhere,
    #[error("its owner answered {0}")]
    Refused(StatusCode),
    #[error("its owner answered something else: compare the versions")]
    NoList,
    #[error("its answer does not fit beside those of the others: ask its owner")]
    TooLarge,
}

impl Absent {
    /// May its owner have done what it was asked for?
    pub(super) fn may_have_acted(self) -> bool {
        match self {
            Self::Broken | Self::Late(_) => true,
            Self::Refused(status) => status.is_server_error(),
            _ => false,
        }
    }
}

/// The end of the time in which owners answer, and that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    ends: Instant,
    time_max: Duration,
}

impl Deadline {
    /// This time from now.
    pub(super) fn after(time_max: Duration) -> Self {
        Self { ends: Instant::now() + time_max, time_max }
    }

    async fn of<T>(self, work: impl Future<Output = T>) -> Result<T, Absent> {
        timeout_at(self.ends, work).await.map_err(|_| Absent::Late(self.time_max))
    }
}

/// The HTTP client for all owners.
#[derive(Debug)]
pub(super) struct Owners {
    door: Arc<Door>,
    /// Time without a byte after which an answer ends.
    idle_max: Duration,
    /// With the hash of the certificates that it was made with.
    client: Mutex<Option<(Option<blake3::Hash>, reqwest::Client)>>,
}

/// A request as it is passed on.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    method: Method,
    path: String,
    headers: HeaderMap,
    content: Bytes,
}

/// An answer that has begun.
#[derive(Debug)]
pub(super) struct Answered {
    answer: reqwest::Response,
    /// Bytes of its content, where they are known.
    pub(super) length: Option<u64>,
    deadline: Deadline,
}

impl Owners {
    pub(super) fn new(door: Arc<Door>, idle_max: Duration) -> Self {
        Self { door, idle_max, client: Mutex::new(None) }
    }

    /// Asks the owner of a shard; its answer begins before the deadline.
    ///
    /// # Errors
    /// It does not answer, or must not be asked.
    pub(super) async fn ask(
        &self,
        (shard, url): (u16, &str),
        passed: &Passed,
        deadline: Deadline,
    ) -> Result<Answered, Absent> {
        let address = Address::parse(url).ok_or(Absent::NoOwner)?;
        if address.is_https != self.door.tls().is_some() {
            return Err(Absent::OtherScheme);
        }
        let url = format!("{url}{}", passed.path);
        let request = self.client()?.request(passed.method.clone(), url);
        let request = request.headers(passed.headers.clone()).header(GATHERED, shard);
        let request = request.body(passed.content.clone());
        let answer = deadline.of(request.send()).await?.map_err(|error| {
            tracing::debug!("the owner of a shard cannot be asked: {error}");
            if error.is_connect() { Absent::Unreachable } else { Absent::Broken }
        })?;
        // By mistake, or because that coordinator owns another shard by now.
        if answer.status() == StatusCode::MISDIRECTED_REQUEST {
            return Err(Absent::Elsewhere);
        }
        let length = answer.content_length();
        Ok(Answered { answer, length, deadline })
    }

    /// The mark of the coordinator at a URL; none where something else answers. Sends no token.
    ///
    /// # Errors
    /// Nothing answers.
    pub(super) async fn mark(
        &self,
        url: &str,
        deadline: Deadline,
    ) -> Result<Option<String>, Absent> {
        let request = self.client()?.get(format!("{url}/healthz")).send();
        let answer = deadline.of(request).await?.map_err(|error| {
            tracing::debug!("{url} cannot be asked: {error}");
            Absent::Unreachable
        })?;
        let mark = answer.headers().get(MARK).and_then(|mark| mark.to_str().ok());
        Ok(mark.map(String::from))
    }

    /// The client, made again where the certificates were replaced.
    fn client(&self) -> Result<reqwest::Client, Absent> {
        let tls = self.door.tls();
        let hash = tls.map(|tls| tls.hash());
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = client.as_ref().filter(|(of, _)| *of == hash) {
            return Ok(known.clone());
        }
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME_MAX)
            .read_timeout(self.idle_max)
            .pool_idle_timeout(POOLED_MAX)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let builder = match tls {
            Some(tls) => builder.tls_backend_preconfigured(tls.client()),
            None => builder,
        };
        let made = builder.build().map_err(|error| {
            tracing::error!("no client for the owners of other shards can be made: {error}");
            Absent::Unreachable
        })?;
        *client = Some((hash, made.clone()));
        Ok(made)
    }
}

impl Passed {
    /// What is passed on of a request with this content.
    ///
    /// # Errors
    /// Its caller is known by nothing that can be passed on.
    pub(super) fn of(api: &Api, parts: &Parts, content: Bytes) -> Result<Self, Absent> {
        let mut headers = HeaderMap::new();
        if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, kind.clone());
        }
        // Where the token is no text the own coordinator refuses it.
        match token(api, &parts.headers).ok().flatten() {
            Some(token) => {
                headers.insert(header::AUTHORIZATION, bearer(token)?);
            }
            None if api.door.policy().rules.is_some() => return Err(Absent::CertificateAlone),
            None => {}
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_string();
        Ok(Self { method: parts.method.clone(), path, headers, content })
    }

    /// The question of a coordinator what a token grants.
    ///
    /// # Errors
    /// No header can hold the token.
    pub(super) fn about_token(token: &str) -> Result<Self, Absent> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer(token)?)]);
        let path = "/api/v1/tokens/own".to_string();
        Ok(Self { method: Method::GET, path, headers, content: Bytes::new() })
    }
}

fn bearer(token: &str) -> Result<HeaderValue, Absent> {
    let bearer = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut bearer = bearer.map_err(|_| Absent::CertificateAlone)?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

impl Answered {
    pub(super) fn status(&self) -> StatusCode {
        self.answer.status()
    }

    /// An answer with a list.
    ///
    /// # Errors
    /// The owner refuses to give one.
    pub(super) fn accepted(self) -> Result<Self, Absent> {
        match self.answer.status() {
            StatusCode::OK => Ok(self),
            status => Err(Absent::Refused(status)),
        }
    }

    /// The answer of an owner that knows the thing it was asked for; none where it does not.
    ///
    /// # Errors
    /// The owner cannot say, or not to this caller.
    pub(super) fn known(self) -> Result<Option<Self>, Absent> {
        let status = self.answer.status();
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                Err(Absent::Refused(status))
            }
            status if status.is_server_error() || status.is_redirection() => {
                Err(Absent::Refused(status))
            }
            _ => Ok(Some(self)),
        }
    }

    /// All of its content.
    ///
    /// # Errors
    /// The content does not come in time, or to its end.
    pub(super) async fn whole(self) -> Result<Bytes, Absent> {
        // It has a length, and no more is read.
        self.deadline.of(self.answer.bytes()).await?.map_err(|_| Absent::Broken)
    }

    /// The answer, with its content where that is no download: JSON of no more than these bytes.
    ///
    /// # Errors
    /// The content does not come in time, or to its end.
    pub(super) async fn settled(self, bytes_max: u64) -> Result<Self, Absent> {
        let kind = self.answer.headers().get(header::CONTENT_TYPE);
        let is_json = kind.is_some_and(|kind| kind == "application/json");
        if !is_json || self.length.is_none_or(|length| length > bytes_max) {
            return Ok(self);
        }
        let (length, deadline) = (self.length, self.deadline);
        let (head, content) = axum::http::Response::from(self.answer).into_parts();
        let content = deadline.of(content.collect()).await?.map_err(|_| Absent::Broken)?;
        let answer = axum::http::Response::from_parts(head, content.to_bytes()).into();
        Ok(Self { answer, length, deadline })
    }

    /// The answer as it is passed on, part by part as it comes. One that breaks off is counted.
    pub(super) fn passed_on(self, counters: Arc<Counters>) -> Response {
        let (head, content) = axum::http::Response::from(self.answer).into_parts();
        let content = content.map_err(move |error| {
            counters.lose(Loss::ShardMissing, 1);
            error
        });
        // As a stream: its length is known, but it is not in memory.
        let mut answer = Response::new(Body::from_stream(content.into_data_stream()));
        *answer.status_mut() = head.status;
        for name in PASSED_ON {
            if let Some(value) = head.headers.get(&name) {
                answer.headers_mut().insert(name, value.clone());
            }
        }
        answer
    }
}
