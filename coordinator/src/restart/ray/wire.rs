//! Ray's Global Control Service (GCS), asked over gRPC: which nodes there are, on which of them the
//! drivers of jobs run, and to drain one.
//!
//! Each request has a limit of time and of bytes, and none is repeated. The id of the cluster goes
//! with each: a GCS that was restarted, and remembers nothing, refuses what was decided before. The
//! connection has no TLS.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_core::identity::cut;
use memtape_core::limits::RAY_ANSWER_BYTES_MAX;
use memtape_proto::ray::autoscaler::autoscaler_state_service_client::AutoscalerStateServiceClient;
use memtape_proto::ray::autoscaler::{DrainNodeReason, DrainNodeRequest};
use memtape_proto::ray::gcs_node_info::GcsNodeState;
use memtape_proto::ray::job_info_gcs_service_client::JobInfoGcsServiceClient;
use memtape_proto::ray::node_death_info::Reason;
use memtape_proto::ray::node_info_gcs_service_client::NodeInfoGcsServiceClient;
use memtape_proto::ray::node_snapshot::State as Snapshot;
use memtape_proto::ray::{
    GcsNodeInfo, GcsStatus, GetAllJobInfoRequest, GetAllNodeInfoRequest, GetClusterIdRequest,
};
use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::RayCluster;

/// Bytes of Ray's words in an error.
const WORDS_BYTES_MAX: usize = 300;

/// How Ray's words begin when the GCS is another one than the request was made for, in
/// Ray 2.60 and 2.40.
const OTHER_CLUSTER: [&str; 2] = ["WrongClusterID", "AuthError"];

/// Why there is no answer to go on with.
#[derive(Debug, thiserror::Error)]
pub(super) enum GcsError {
    #[error("the address or the token of Ray cannot be sent")]
    NotSendable,
    #[error("Ray at {address} cannot be reached")]
    Unreachable { address: String },
    #[error("Ray refuses the token (--keep-out-ray-token-file): {words}")]
    Token { words: String },
    #[error("the cluster of Ray was started again meanwhile")]
    OtherCluster,
    #[error("Ray's {request} failed: {words}")]
    Failed { request: &'static str, words: String, is_sure: bool },
    #[error("Ray did not answer {request} within {limit:?}")]
    TooLong { request: &'static str, limit: Duration },
}

impl GcsError {
    /// Is it sure that Ray did not do what was asked?
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::NotSendable
            | Self::Unreachable { .. }
            | Self::Token { .. }
            | Self::OtherCluster => true,
            Self::Failed { is_sure, .. } => *is_sure,
            Self::TooLong { .. } => false,
        }
    }

    fn of(request: &'static str, status: &Status) -> Self {
        let words = words(status.message());
        let is_other = OTHER_CLUSTER.iter().any(|begin| words.starts_with(begin));
        match status.code() {
            Code::Unauthenticated | Code::Aborted if is_other => Self::OtherCluster,
            Code::Unauthenticated | Code::PermissionDenied => Self::Token { words },
            code => {
                let is_sure = matches!(code, Code::Unimplemented | Code::InvalidArgument);
                let words = if words.is_empty() { code.to_string() } else { words };
                Self::Failed { request, words, is_sure }
            }
        }
    }
}

/// What Ray says of a request for a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The node drains, has ended, or was never there.
    Accepted,
    /// It does not, because it runs something.
    Refused { words: String },
}

/// A node of Ray: one raylet, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// No other raylet ever has it.
    pub(super) id: Vec<u8>,
    /// As `ray start --node-name` gave it; else its address.
    pub(super) name: String,
    pub(super) host: String,
    pub(super) is_head: bool,
    pub(super) state: State,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It takes work.
    Alive,
    /// It takes no new work, and ends when it runs nothing.
    Draining,
    /// It was drained and has ended, with the reason that the request gave.
    Drained { reason: String },
    /// It has ended otherwise.
    Dead,
}

impl Node {
    fn read(node: GcsNodeInfo) -> Self {
        let is_dead = node.state == GcsNodeState::Dead as i32;
        let snapshot = node.state_snapshot.map(|snapshot| snapshot.state);
        let death = node.death_info.unwrap_or_default();
        let is_drained = [Reason::AutoscalerDrainIdle, Reason::AutoscalerDrainPreempted]
            .iter()
            .any(|reason| death.reason == *reason as i32);
        let state = match (is_dead, is_drained) {
            (true, true) => State::Drained { reason: death.reason_message },
            (true, false) => State::Dead,
            (false, _) if snapshot == Some(Snapshot::Draining as i32) => State::Draining,
            (false, _) => State::Alive,
        };
        Self {
            id: node.node_id,
            name: node.node_name,
            host: node.node_manager_hostname,
            is_head: node.is_head_node,
            state,
        }
    }
}

/// A connection to the GCS of one cluster.
pub(super) struct Gcs {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    /// In hexadecimal digits.
    cluster_id: Option<MetadataValue<Ascii>>,
    timeout: Duration,
}

impl Gcs {
    /// Connects, and asks which cluster this is.
    pub(super) async fn connect(to: &RayCluster, limit: Duration) -> Result<Self, GcsError> {
        let endpoint = Endpoint::from_shared(format!("http://{}", to.address));
        let endpoint = endpoint.map_err(|_| GcsError::NotSendable)?;
        let token =
            to.token.as_ref().map(|token| secret(&format!("Bearer {token}"))).transpose()?;
        let unreachable = || GcsError::Unreachable { address: to.address.clone() };
        let channel = match timeout(limit, endpoint.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(_)) | Err(_) => return Err(unreachable()),
        };
        let mut gcs = Self { channel, token, cluster_id: None, timeout: limit };
        let asked = gcs.request(GetClusterIdRequest {});
        let answer = gcs.answer("GetClusterId", gcs.nodes_client().get_cluster_id(asked)).await?;
        check("GetClusterId", answer.status)?;
        gcs.cluster_id = Some(hex(&answer.cluster_id)?);
        Ok(gcs)
    }

    /// All nodes that the cluster remembers.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, GcsError> {
        let asked = self.request(GetAllNodeInfoRequest {});
        let mut client = self.nodes_client();
        let answer = self.answer("GetAllNodeInfo", client.get_all_node_info(asked)).await?;
        check("GetAllNodeInfo", answer.status)?;
        Ok(answer.node_info_list.into_iter().map(Node::read).collect())
    }

    /// The ids of the nodes on which drivers of jobs run.
    pub(super) async fn drivers(&self) -> Result<BTreeSet<Vec<u8>>, GcsError> {
        let asked = self.request(GetAllJobInfoRequest {
            skip_submission_job_info_field: Some(true),
            skip_is_running_tasks_field: Some(true),
        });
        let mut client = JobInfoGcsServiceClient::new(self.channel.clone())
            .max_decoding_message_size(RAY_ANSWER_BYTES_MAX);
        let answer = self.answer("GetAllJobInfo", client.get_all_job_info(asked)).await?;
        check("GetAllJobInfo", answer.status)?;
        let alive = answer.job_info_list.into_iter().filter(|job| !job.is_dead);
        Ok(alive.filter_map(|job| Some(job.driver_address?.node_id)).collect())
    }

    /// Drains a node if it runs nothing. Accepted, too, where no such node is there any more.
    pub(super) async fn drain(&self, node: &Node, reason: String) -> Result<Answer, GcsError> {
        let asked = self.request(DrainNodeRequest {
            node_id: node.id.clone(),
            reason: DrainNodeReason::IdleTermination as i32,
            reason_message: reason,
        });
        let mut client = AutoscalerStateServiceClient::new(self.channel.clone())
            .max_decoding_message_size(RAY_ANSWER_BYTES_MAX);
        let answer = self.answer("DrainNode", client.drain_node(asked)).await?;
        Ok(match answer.is_accepted {
            true => Answer::Accepted,
            false => Answer::Refused { words: words(&answer.rejection_reason_message) },
        })
    }

    fn nodes_client(&self) -> NodeInfoGcsServiceClient<Channel> {
        NodeInfoGcsServiceClient::new(self.channel.clone())
            .max_decoding_message_size(RAY_ANSWER_BYTES_MAX)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let named = [("authorization", &self.token), ("ray_cluster_id", &self.cluster_id)];
        for (name, value) in named {
            if let Some(value) = value {
                request.metadata_mut().insert(name, value.clone());
            }
        }
        request
    }

    async fn answer<T>(
        &self,
        request: &'static str,
        asked: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, GcsError> {
        match timeout(self.timeout, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(GcsError::of(request, &status)),
            Err(_) => Err(GcsError::TooLong { request, limit: self.timeout }),
        }
    }
}

/// Fails where the answer says that the request was not carried out.
fn check(request: &'static str, status: Option<GcsStatus>) -> Result<(), GcsError> {
    let status = status.unwrap_or_default();
    let words = words(&status.message);
    if status.code == 0 { Ok(()) } else { Err(GcsError::Failed { request, words, is_sure: true }) }
}

/// A value that no trace of requests shows.
fn secret(text: &str) -> Result<MetadataValue<Ascii>, GcsError> {
    let mut value = MetadataValue::try_from(text).map_err(|_| GcsError::NotSendable)?;
    value.set_sensitive(true);
    Ok(value)
}

fn hex(bytes: &[u8]) -> Result<MetadataValue<Ascii>, GcsError> {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    MetadataValue::try_from(digits).map_err(|_| GcsError::NotSendable)
}

/// The first line of what Ray says, within bounds.
fn words(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    cut(line, WORDS_BYTES_MAX).to_string()
}
