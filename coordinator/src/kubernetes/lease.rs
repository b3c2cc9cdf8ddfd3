//! The hint of a shard as a Lease of Kubernetes (`--cluster-leases`): a renewal reads the bucket
//! and does not write it, and `kubectl get leases` shows the owners.
//!
//! The whole hint is an annotation, in the words of the hint in the bucket; the fields of the Lease
//! are for people and their tools, and are never read here. The API server refuses a write on
//! another `resourceVersion`.
//!
//! A Lease is written by a coordinator for which the bucket answers: an owner that is cut off from
//! the bucket renews nothing, and while the bucket is away no coordinator claims anything. What is
//! read there is the hint in the bucket, as a note: an owner writes it when it took the shard and
//! when it left, for `memtape doctor` and `memtape store check`, which know the bucket alone.

use std::sync::Arc;
use std::time::Duration;

use memtape_core::placement::{HINT_LASTS_NS, Owner};
use memtape_disk::clock;
use memtape_store::cluster::hint::{Hint, Placement, Version, parse};
use memtape_store::cluster::shard::ShardId;
use memtape_store::{Error, Kind, Result};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kubernetes::api::{Api, ApiError, is_name};

/// Annotation with the hint.
const OWNER: &str = "memtape.io/owner";

/// Label of the pod whose coordinator owns a shard.
const SERVES: &str = "memtape.io/serves";

/// Time between two tries to label the pod.
const LABEL_EVERY: Duration = Duration::from_secs(1);

/// Time for a request: an owner has several tries before another coordinator may claim the hint.
const REQUEST_TIME: Duration = Duration::from_secs(2);

/// The API server, and the names of the Leases of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    api: Arc<Api>,
    name: String,
}

/// The hint of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    of: Leases,
    shard: ShardId,
    /// The hint in the bucket.
    note: Hint,
}

impl Leases {
    /// The Leases of this name, in the namespace of the pod or of the kubeconfig, by the settings
    /// that [`Api::connect`] takes. Nothing is sent.
    ///
    /// # Errors
    /// There are no credentials, or no object can have this name.
    pub(crate) async fn connect(
        config: Option<&kube::Config>,
        name: &str,
    ) -> std::result::Result<Self, ApiError> {
        if !is_name(name) {
            return Err(ApiError::NoAddress { what: format!("Leases {name:?}") });
        }
        let api = Arc::new(Api::connect(config, REQUEST_TIME).await?);
        Ok(Self { api, name: name.to_string() })
    }

    /// Labels this pod of the namespace when its coordinator owns a shard, for the Service that
    /// leads to it, and takes the label off when not. Tries until the API server has done it.
    pub(crate) async fn label(&self, pod: &str, serves: bool) {
        let change = json!({ "metadata": { "labels": { SERVES: serves.then_some("true") } } });
        let namespace = self.api.namespace();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
        let what = format!("pod {namespace}/{pod}");
        while let Err(why) = self.api.patch(&path, &what, &change).await {
            tracing::warn!("the label {SERVES} is not as it should be: {why}");
            sleep(LABEL_EVERY).await;
        }
    }

    /// The Lease of a shard whose hint in the bucket is this one.
    pub(crate) fn shard(&self, shard: ShardId, note: Hint) -> Lease {
        Lease { of: self.clone(), shard, note }
    }
}

impl Lease {
    fn collection(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.of.api.namespace())
    }

    /// Name of the object.
    fn name(&self) -> String {
        format!("{}-{}", self.of.name, self.shard.0)
    }

    /// The version of an answered Lease.
    fn version(&self, lease: &Value) -> Result<Version> {
        let version = lease["metadata"]["resourceVersion"].as_str();
        version.map(|version| Version(version.to_string())).ok_or_else(|| self.damaged())
    }

    fn damaged(&self) -> Error {
        Error::new(Kind::Damaged, format!("{} is no hint: delete it", self.what()))
    }

    /// The object, or its change from this version.
    fn content(&self, from: Option<&Version>, owner: &Owner) -> Value {
        let now = clock::now().wall_ns.div_euclid(1_000);
        let now = jiff::Timestamp::from_microsecond(now).unwrap_or_default();
        // By the words of Kubernetes, a Lease without a holder was given up.
        let holder = if owner.has_left { "" } else { owner.process.as_str() };
        json!({
            "metadata": {
                "name": self.name(),
                "resourceVersion": from.map(|Version(version)| version),
                "annotations": { OWNER: serde_json::to_string(owner).unwrap_or_default() },
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": HINT_LASTS_NS / 1_000_000_000,
                "leaseTransitions": owner.epoch,
                "renewTime": format!("{now:.6}"),
            },
        })
    }
}

impl Placement for Lease {
    fn what(&self) -> String {
        format!("Lease {}/{}", self.of.api.namespace(), self.name())
    }

    async fn read(&self) -> Result<Option<(Owner, Version)>> {
        let path = format!("{}/{}", self.collection(), self.name());
        let lease = match self.of.api.get(&path, &self.what()).await {
            Ok(lease) => lease,
            Err(ApiError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(unusable(&error)),
        };
        let owner = lease["metadata"]["annotations"][OWNER].as_str();
        let owner = owner.and_then(|owner| parse(owner.as_bytes()));
        let owner = owner.ok_or_else(|| self.damaged())?;
        Ok(Some((owner, self.version(&lease)?)))
    }

    async fn put(&self, from: Option<&Version>, owner: &Owner) -> Result<Option<Version>> {
        let noted = self.note.read().await?;
        let collection = self.collection();
        let (lease, what) = (self.content(from, owner), self.what());
        let put = match from {
            None => self.of.api.create(&collection, &what, &lease).await,
            Some(_) => {
                let path = format!("{collection}/{}", self.name());
                self.of.api.patch(&path, &what, &lease).await
            }
        };
        match put {
            Ok(lease) => {
                let renewals = owner.renewals;
                let is_same =
                    |(known, _): &(Owner, Version)| Owner { renewals, ..known.clone() } == *owner;
                if !noted.as_ref().is_some_and(is_same) {
                    let known = noted.map(|(_, version)| version);
                    if let Err(why) = self.note.write(known, owner).await {
                        // The next renewal tries it again.
                        tracing::debug!("the owner of the shard is not noted: {why}");
                    }
                }
                Ok(Some(self.version(&lease)?))
            }
            Err(ApiError::Conflict { .. }) => Ok(None),
            // Deleted by hand: it is claimed again.
            Err(ApiError::NotFound { .. }) if from.is_some() => Ok(None),
            Err(error) => Err(unusable(&error)),
        }
    }
}

fn unusable(error: &ApiError) -> Error {
    Error::new(Kind::Io, error.to_string())
}
