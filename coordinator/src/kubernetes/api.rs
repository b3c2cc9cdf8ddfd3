//! Requests to the API server: each with a limit of time and of bytes, none repeated.
//!
//! `kube` finds the credentials, renews them and makes the connection. Its typed requests are not
//! used: they read answers of any size, and repeat a write whose first try may have been taken.

use std::fmt::{Debug, Display};
use std::time::Duration;

use axum::http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use memtape_core::identity::cut;
use memtape_core::limits::KUBERNETES_ANSWER_BYTES_MAX;
use serde_json::Value;
use tokio::time::timeout;

/// Bytes of the server's reason in an error.
const REASON_BYTES_MAX: usize = 300;

/// Name of the coordinator in the managed fields of objects.
const FIELD_MANAGER: &str = "memtape";

/// Why there is no answer to go on with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("no credentials for Kubernetes: neither KUBECONFIG nor a service account can be used")]
    NoCredentials,
    #[error("the name of {what} cannot be part of an address")]
    NoAddress { what: String },
    #[error("the coordinator has no right to {verb} {what}")]
    Forbidden { verb: &'static str, what: String },
    #[error("there is no {what}")]
    NotFound { what: String },
    #[error("{what} has changed meanwhile")]
    Conflict { what: String },
    #[error("{verb} {what} was answered with {status}: {reason}")]
    Answered { verb: &'static str, what: String, status: u16, reason: String },
    #[error("{verb} {what} was not answered within {limit:?}")]
    TooLong { verb: &'static str, what: String, limit: Duration },
    #[error("the API server of Kubernetes cannot be reached: {why}")]
    Unreachable { why: &'static str },
    #[error("{verb} {what} has an answer that cannot be read")]
    Unreadable { verb: &'static str, what: String },
}

impl ApiError {
    /// True if the server certainly did not carry out the request.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::NoCredentials
            | Self::NoAddress { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Conflict { .. } => true,
            Self::Answered { status, .. } => (400..500).contains(status),
            Self::TooLong { .. } | Self::Unreachable { .. } | Self::Unreadable { .. } => false,
        }
    }
}

/// A connection to the API server.
#[derive(Clone)]
pub(crate) struct Api {
    client: Client,
    timeout: Duration,
}

/// Leaves out the client, which holds credentials.
impl Debug for Api {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Api").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Api {
    /// Connects as `config` says, or else as `KUBECONFIG`, `~/.kube/config` or the pod's service
    /// account do. Nothing is sent yet.
    pub(crate) async fn connect(
        config: Option<&Config>,
        limit: Duration,
    ) -> Result<Self, ApiError> {
        let mut config = match config {
            Some(config) => config.clone(),
            // The error may quote the file.
            None => Config::infer().await.map_err(|_| ApiError::NoCredentials)?,
        };
        // A write whose answer is lost may have been taken: its second try would seem refused.
        config.default_retry = false;
        let client = ClientBuilder::try_from(config).map_err(|_| ApiError::NoCredentials)?.build();
        Ok(Self { client, timeout: limit })
    }

    /// Namespace of the pod, or of the kubeconfig.
    #[cfg(feature = "cluster")]
    pub(crate) fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Reads the object at this path.
    pub(crate) async fn get(
        &self,
        path: &str,
        what: &(impl Display + Sync),
    ) -> Result<Value, ApiError> {
        self.send("get", Method::GET, path, what, None).await
    }

    /// Reads the list at this path, at most `items_max` of its items.
    pub(crate) async fn list(
        &self,
        path: &str,
        selector: &str,
        items_max: usize,
        what: &(impl Display + Sync),
    ) -> Result<Vec<Value>, ApiError> {
        let path = format!("{path}?labelSelector={selector}&limit={items_max}");
        let mut list = self.send("list", Method::GET, &path, what, None).await?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// Changes the fields of this object that are in `change`, by a merge patch.
    pub(crate) async fn patch(
        &self,
        path: &str,
        what: &(impl Display + Sync),
        change: &Value,
    ) -> Result<Value, ApiError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        self.send("patch", Method::PATCH, &path, what, Some(change)).await
    }

    /// Deletes an object on these conditions.
    pub(crate) async fn delete(
        &self,
        path: &str,
        what: &(impl Display + Sync),
        options: &Value,
    ) -> Result<Value, ApiError> {
        self.send("delete", Method::DELETE, path, what, Some(options)).await
    }

    /// Makes an object.
    pub(crate) async fn create(
        &self,
        path: &str,
        what: &(impl Display + Sync),
        object: &Value,
    ) -> Result<Value, ApiError> {
        self.send("create", Method::POST, path, what, Some(object)).await
    }

    async fn send(
        &self,
        verb: &'static str,
        method: Method,
        path: &str,
        what: &(impl Display + Sync),
        content: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let (limit, what) = (self.timeout, what.to_string());
        match timeout(limit, self.exchange(verb, method, path, &what, content)).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiError::TooLong { verb, what, limit }),
        }
    }

    async fn exchange(
        &self,
        verb: &'static str,
        method: Method,
        path: &str,
        what: &str,
        content: Option<&Value>,
    ) -> Result<Value, ApiError> {
        let content_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", "application/json")
            .body(
                content.map_or_else(Body::empty, |content| content.to_string().into_bytes().into()),
            )
            .map_err(|_| ApiError::NoAddress { what: what.to_string() })?;
        let answer = self.client.send(request).await.map_err(|error| unreachable(&error))?;
        let status = answer.status();
        let unreadable = || ApiError::Unreadable { verb, what: what.to_string() };
        let bytes = Limited::new(answer.into_body(), KUBERNETES_ANSWER_BYTES_MAX);
        let bytes = bytes.collect().await.map(|read| read.to_bytes());
        if status.is_success() {
            return serde_json::from_slice(&bytes.map_err(|_| unreadable())?)
                .map_err(|_| unreadable());
        }
        let what = what.to_string();
        Err(match status {
            StatusCode::FORBIDDEN => ApiError::Forbidden { verb, what },
            StatusCode::NOT_FOUND => ApiError::NotFound { what },
            StatusCode::CONFLICT => ApiError::Conflict { what },
            _ => {
                let bytes = bytes.unwrap_or_default();
                let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let reason = answer["message"].as_str().unwrap_or("no reason");
                let reason = cut(reason.lines().next().unwrap_or_default(), REASON_BYTES_MAX);
                let (status, reason) = (status.as_u16(), reason.to_string());
                ApiError::Answered { verb, what, status, reason }
            }
        })
    }
}

/// Reason why no answer came, without quotes from the error: they may hold a credential.
fn unreachable(error: &kube::Error) -> ApiError {
    let why = match error {
        kube::Error::Auth(_) => "the credentials cannot be used",
        _ => "no connection, or it broke",
    };
    ApiError::Unreachable { why }
}

/// True for what can be a name of an object or a namespace, and so a part of a path.
pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = |part: &str| !part.is_empty() && part.bytes().all(is_plain);
    text.len() <= 253 && text.split('.').all(is_name)
}
