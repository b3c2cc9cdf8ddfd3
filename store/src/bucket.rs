//! The connection to a prefix of an S3-compatible bucket, by `object_store`.
//!
//! Of the environment only `AWS_…` variables count. Failed requests are tried again within the
//! bounds that the caller gives. Nothing is written here.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

use crate::blobs::environment;
use crate::counting::Requests;
use crate::error::{During, Error, Result};
#[cfg(feature = "cluster")]
use crate::folder;

/// Time limit of one attempt at a request. `AWS_TIMEOUT` overrides it.
const REQUEST_TIME: &str = "60 seconds";

/// Retries of a request where the caller tries again itself.
const RETRIES_MAX: usize = 3;
const RETRY_TIME: Duration = Duration::from_secs(10);

/// A prefix of a bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    pub(crate) url: Arc<str>,
    /// Where random numbers begin in a simulation.
    #[cfg(feature = "cluster")]
    pub(crate) seed: Option<u64>,
    /// None where the bucket is a folder, or simulated.
    #[cfg(feature = "cluster")]
    pub(crate) requests: Option<Requests>,
}

impl Bucket {
    /// As [`Self::new`], with the variables of this process and few retries.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_environment(url: &str) -> Result<Self> {
        Self::with_few_retries(url, environment())
    }

    /// As [`Self::new`], for callers that try again themselves.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_few_retries(url: &str, settings: Vec<(String, String)>) -> Result<Self> {
        let retry = RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIME,
            backoff: BackoffConfig::default(),
        };
        Self::new(url.trim_end_matches('/'), settings, retry)
    }

    /// As the operator wrote it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The error of a request, with what to do.
    #[cfg(feature = "cluster")]
    pub(crate) fn refused(&self, error: object_store::Error) -> Error {
        use object_store::Error as ObjectError;
        let url = &self.url;
        match error {
            error if url.starts_with("file:") => {
                Error::io(format!("{url} cannot be used: {}", folder::reason(error)))
            }
            // An object that may be absent is no error where it is read.
            ObjectError::NotFound { .. } => Error::foreign(format!(
                "the bucket of {url} does not exist: make it, or check its name and \
                 AWS_ENDPOINT_URL"
            )),
            ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } => {
                Error::io(format!(
                    "access to {url} is denied: check AWS_ACCESS_KEY_ID and \
                     AWS_SECRET_ACCESS_KEY, and that the key may list, get, put and delete objects"
                ))
            }
            error => Error::io(format!(
                "{url} cannot be reached: check AWS_ENDPOINT_URL: {}",
                Error::from(error)
            )),
        }
    }

    /// The error of a bucket that did not answer for so long.
    #[cfg(feature = "cluster")]
    pub(crate) fn silent(&self, time: Duration) -> Error {
        Error::io(format!(
            "{} did not answer within {} s: check AWS_ENDPOINT_URL, and that AWS_ACCESS_KEY_ID is \
             set",
            self.url,
            time.as_secs()
        ))
    }

    /// As [`Self::counted`], with a counter of its own.
    ///
    /// # Errors
    /// As [`Self::counted`].
    pub fn new(url: &str, settings: Vec<(String, String)>, retry: RetryConfig) -> Result<Self> {
        Self::counted(url, settings, retry, &Requests::default())
    }

    /// Prepares the connection to `s3://BUCKET/PREFIX`, with these variables, and counts its
    /// requests. Sends nothing yet.
    ///
    /// A URL `file:///PATH` is a folder of this machine.
    ///
    /// # Errors
    /// The URL is none of a bucket, or a variable makes no sense.
    pub(crate) fn counted(
        url: &str,
        settings: Vec<(String, String)>,
        retry: RetryConfig,
        requests: &Requests,
    ) -> Result<Self> {
        #[cfg(feature = "cluster")]
        if let Some(path) = folder::path(url)? {
            let prefix = Path::from_absolute_path(path).map_err(|_| {
                Error::foreign(format!("{url} cannot be used: name another folder"))
            })?;
            return Ok(Self::uncounted(Arc::new(folder::Folder::new()), prefix, url));
        }
        let (bucket, prefix) = parse(url).ok_or_else(|| {
            Error::foreign(format!(
                "{url:?} is no bucket: write s3://BUCKET/PREFIX, or file:///PATH to try it out"
            ))
        })?;
        let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
        let mut builder = AmazonS3Builder::new().with_config(timeout, REQUEST_TIME);
        for (name, value) in settings.into_iter().filter(|(name, _)| name.starts_with("AWS_")) {
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        let builder = builder.with_http_connector(requests.clone());
        let built = builder.with_bucket_name(bucket).with_retry(retry).build();
        let objects = built.during(|| format!("{url} cannot be used: check the AWS_ variables"))?;
        Ok(Self {
            objects: Arc::new(objects),
            prefix,
            url: url.into(),
            #[cfg(feature = "cluster")]
            seed: None,
            #[cfg(feature = "cluster")]
            requests: Some(requests.clone()),
        })
    }

    /// A prefix that is not in a bucket.
    #[cfg(feature = "cluster")]
    pub(crate) fn uncounted(objects: Arc<dyn ObjectStore>, prefix: Path, url: &str) -> Self {
        Self { objects, prefix, url: url.into(), seed: None, requests: None }
    }

    /// The counter of the requests; none where the bucket is a folder, or simulated.
    #[cfg(feature = "cluster")]
    pub fn requests(&self) -> Option<&Requests> {
        self.requests.as_ref()
    }

    /// A bucket that a simulation brings, whose clients draw their random numbers from this seed.
    #[cfg(feature = "simulation")]
    pub fn simulated(objects: Arc<dyn ObjectStore>, seed: u64) -> Self {
        let bucket = Self::uncounted(objects, Path::from("cluster"), "s3://simulated/cluster");
        Self { seed: Some(seed), ..bucket }
    }
}

/// Bucket and prefix.
pub(crate) fn parse(url: &str) -> Option<(&str, Path)> {
    let rest = url.strip_prefix("s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = Path::parse(prefix.trim_matches('/')).ok()?;
    (!bucket.is_empty()).then_some((bucket, prefix))
}
