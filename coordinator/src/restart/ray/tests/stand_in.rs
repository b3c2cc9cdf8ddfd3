//! A stand-in for the Global Control Service of Ray: what the target depends on, in the words of
//! Ray 2.60.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memtape_proto::ray::autoscaler::autoscaler_state_service_server::{
    AutoscalerStateService, AutoscalerStateServiceServer,
};
use memtape_proto::ray::autoscaler::{DrainNodeReason, DrainNodeReply, DrainNodeRequest};
use memtape_proto::ray::gcs_node_info::GcsNodeState;
use memtape_proto::ray::job_info_gcs_service_server::{JobInfoGcsService, JobInfoGcsServiceServer};
use memtape_proto::ray::node_death_info::Reason;
use memtape_proto::ray::node_info_gcs_service_server::{
    NodeInfoGcsService, NodeInfoGcsServiceServer,
};
use memtape_proto::ray::node_snapshot::State as Snapshot;
use memtape_proto::ray::{
    Address, GcsNodeInfo, GetAllJobInfoReply, GetAllJobInfoRequest, GetAllNodeInfoReply,
    GetAllNodeInfoRequest, GetClusterIdReply, GetClusterIdRequest, JobTableData, NodeDeathInfo,
    NodeSnapshot,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::super::{Drain, RayCluster};

/// The token that the server requires.
pub(super) const TOKEN: &str = "a-token-of-a-test-with-32-letters";

/// What becomes of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// The node ends at once.
    #[default]
    Ends,
    /// It stays in the state of draining.
    KeepsDraining,
    /// It goes on as before.
    GoesOn,
    /// The node ends, and the answer is lost.
    LosesAnswer,
    /// Nothing is done, and the answer is lost.
    Breaks,
    /// The GCS was started again, and has another id.
    HasRestarted,
}

/// The nodes, and what was asked.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) nodes: Vec<GcsNodeInfo>,
    pub(super) behaviour: Behaviour,
    /// Ids of nodes that run something.
    busy: BTreeSet<Vec<u8>>,
    /// Ids of nodes on which drivers run.
    drivers: Vec<Vec<u8>>,
    /// Reason, and its words, of every drain that was accepted.
    pub(super) drains: Vec<(i32, String)>,
    generation: u8,
}

impl Cluster {
    /// Adds a node of this name on this host.
    pub(super) fn add(&mut self, name: &str, host: &str, state: Snapshot) {
        let node_id = vec![u8::try_from(self.nodes.len()).unwrap(); 28];
        if name.contains("driver") {
            self.drivers.push(node_id.clone());
        }
        if state == Snapshot::Active {
            self.busy.insert(node_id.clone());
        }
        self.nodes.push(GcsNodeInfo {
            node_id,
            state: GcsNodeState::Alive as i32,
            node_manager_hostname: host.to_string(),
            node_name: name.to_string(),
            is_head_node: name.contains("head"),
            state_snapshot: Some(NodeSnapshot { state: state as i32 }),
            death_info: None,
        });
    }

    /// Ends the node of this name.
    pub(super) fn end(&mut self, name: &str, reason: Reason, words: &str) {
        let mut named = self.nodes.iter_mut().filter(|node| node.node_name == name);
        end(named.next_back().unwrap(), reason, words);
    }

    fn id(&self) -> Vec<u8> {
        vec![self.generation; 28]
    }
}

fn end(node: &mut GcsNodeInfo, reason: Reason, words: &str) {
    node.state = GcsNodeState::Dead as i32;
    let (reason, reason_message) = (reason as i32, words.to_string());
    node.death_info = Some(NodeDeathInfo { reason, reason_message });
}

#[derive(Clone)]
struct Service {
    cluster: Arc<Mutex<Cluster>>,
    token: Option<&'static str>,
}

impl Service {
    /// The cluster, for a request that may be answered.
    fn open<T>(&self, request: &Request<T>) -> Result<std::sync::MutexGuard<'_, Cluster>, Status> {
        let said = |name: &str| request.metadata().get(name).map(|value| value.to_str().unwrap());
        let cluster = self.cluster.lock().unwrap();
        let expected = self.token.map(|token| format!("Bearer {token}"));
        if expected.is_some() && said("authorization") != expected.as_deref() {
            let why = "InvalidAuthToken: Authentication token is missing or incorrect";
            return Err(Status::unauthenticated(why));
        }
        let id: String = cluster.id().iter().map(|byte| format!("{byte:02x}")).collect();
        if said("ray_cluster_id").is_some_and(|said| said != id) {
            let why = "WrongClusterID: Perhaps the client is accessing GCS after it has restarted.";
            return Err(Status::unauthenticated(why));
        }
        Ok(cluster)
    }
}

#[tonic::async_trait]
impl NodeInfoGcsService for Service {
    async fn get_cluster_id(
        &self,
        request: Request<GetClusterIdRequest>,
    ) -> Result<Response<GetClusterIdReply>, Status> {
        let cluster_id = self.open(&request)?.id();
        Ok(Response::new(GetClusterIdReply { status: Some(Default::default()), cluster_id }))
    }

    async fn get_all_node_info(
        &self,
        request: Request<GetAllNodeInfoRequest>,
    ) -> Result<Response<GetAllNodeInfoReply>, Status> {
        let mut cluster = self.open(&request)?;
        let node_info_list = cluster.nodes.clone();
        if cluster.behaviour == Behaviour::HasRestarted {
            cluster.generation += 1;
        }
        Ok(Response::new(GetAllNodeInfoReply { status: Some(Default::default()), node_info_list }))
    }
}

#[tonic::async_trait]
impl JobInfoGcsService for Service {
    async fn get_all_job_info(
        &self,
        request: Request<GetAllJobInfoRequest>,
    ) -> Result<Response<GetAllJobInfoReply>, Status> {
        let cluster = self.open(&request)?;
        // A job that has ended on each node.
        let job = |node_id: &Vec<u8>, is_dead| {
            let driver_address = Some(Address { node_id: node_id.clone() });
            JobTableData { is_dead, driver_address }
        };
        let ended = cluster.nodes.iter().map(|node| job(&node.node_id, true));
        let job_info_list = ended.chain(cluster.drivers.iter().map(|id| job(id, false))).collect();
        Ok(Response::new(GetAllJobInfoReply { status: Some(Default::default()), job_info_list }))
    }
}

#[tonic::async_trait]
impl AutoscalerStateService for Service {
    async fn drain_node(
        &self,
        request: Request<DrainNodeRequest>,
    ) -> Result<Response<DrainNodeReply>, Status> {
        let mut cluster = self.open(&request)?;
        let DrainNodeRequest { node_id, reason, reason_message } = request.into_inner();
        let accepted = DrainNodeReply { is_accepted: true, ..DrainNodeReply::default() };
        let is_idle = reason == DrainNodeReason::IdleTermination as i32;
        if is_idle && cluster.busy.contains(&node_id) {
            let words = "The node to be idle terminated is no longer idle.".to_string();
            let refused = DrainNodeReply { is_accepted: false, rejection_reason_message: words };
            return Ok(Response::new(refused));
        }
        let behaviour = cluster.behaviour;
        if behaviour == Behaviour::Breaks {
            return Err(Status::unavailable("Socket closed"));
        }
        cluster.drains.push((reason, reason_message.clone()));
        let mut alive = cluster.nodes.iter_mut().filter(|node| node.death_info.is_none());
        // Ray counts an unknown node as drained.
        let Some(node) = alive.find(|node| node.node_id == node_id) else {
            return Ok(Response::new(accepted));
        };
        match behaviour {
            Behaviour::Ends | Behaviour::LosesAnswer | Behaviour::HasRestarted => {
                end(node, Reason::AutoscalerDrainIdle, &reason_message);
            }
            Behaviour::KeepsDraining => {
                node.state_snapshot = Some(NodeSnapshot { state: Snapshot::Draining as i32 });
            }
            Behaviour::GoesOn | Behaviour::Breaks => {}
        }
        match behaviour {
            Behaviour::LosesAnswer => Err(Status::unavailable("Socket closed")),
            _ => Ok(Response::new(accepted)),
        }
    }
}

/// Serves a cluster until the test ends, and gives the target that asks it.
pub(super) async fn serve(cluster: Cluster, wants_token: bool) -> (Arc<Mutex<Cluster>>, Drain) {
    let token = wants_token.then_some(TOKEN);
    let cluster = Arc::new(Mutex::new(cluster));
    let service = Service { cluster: cluster.clone(), token };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder()
        .add_service(NodeInfoGcsServiceServer::new(service.clone()))
        .add_service(JobInfoGcsServiceServer::new(service.clone()))
        .add_service(AutoscalerStateServiceServer::new(service));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let ray = RayCluster { address, token: token.map(String::from) };
    (cluster, Drain { cluster: ray, timeout: Duration::from_secs(10) })
}
