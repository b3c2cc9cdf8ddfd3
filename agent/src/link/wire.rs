//! Converts between messages and core's types. No other agent file reads or builds one.
//!
//! Outgoing messages are made from readings of tapes and host, with every text cut to its bound:
//! the writer of a tape is not trusted to keep a message small. Incoming messages become
//! [`Incoming`]; a message of a newer coordinator that this version does not know is `None`.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_core::capture::{Outcome, Part};
use memtape_core::identity::owner::{Namespace, Owner, Workload};
use memtape_core::identity::{Identity, cut};
use memtape_core::limits::{
    ALLOCATOR_SETTINGS_BYTES_MAX, CHUNK_BYTES_MAX, COMMAND_BYTES_MAX, LIMITATIONS_MAX,
    NAME_BYTES_MAX, ROLE_BYTES_MAX,
};
use memtape_core::placement::{JobsShard, SHARDS_MAX};
use memtape_core::tape::read::Status;
use memtape_proto::readings::{Gpu, Host, RefusedTapes, SpoolReport};
use memtape_proto::{PROTOCOL, v1};
use prost::Message as _;
use tonic::Code;

use crate::node::nvml;
use crate::tapes::death::{Cause, Death};

mod asks;
mod facts;
mod kept;

pub(crate) use asks::{BadAsk, RemedyRequest, remedy_answer};
pub(crate) use facts::{
    HostFacts, RankFacts, add_steps_of, device_totals, rank_report, steps_of, update,
};
pub(crate) use kept::{agent_capture, drop_snapshot, encode, kept};
pub(crate) use memtape_proto::step_message;
pub(crate) use memtape_proto::v1::{
    AgentCapture, AgentCaptureReason, CaptureAnswer, RankDown, RankReport, RankUp, Report,
};

/// The client of the coordinator's service.
pub(crate) type Client = v1::coordinator_client::CoordinatorClient<tonic::transport::Channel>;

/// A message as the agent sends it.
pub(crate) type FromAgent = v1::AgentMessage;

/// A message as the coordinator sent it.
pub(crate) type FromCoordinator = v1::CoordinatorMessage;

/// A message to the coordinator.
pub(crate) type Outgoing = v1::agent_message::Body;

/// The message as it is sent.
pub(crate) fn raw(message: Outgoing) -> FromAgent {
    v1::AgentMessage { body: Some(message) }
}

/// A message from the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// The stream was taken.
    Welcome {
        /// Version of the protocol.
        protocol: u32,
        /// Version of the coordinator.
        version: String,
        /// Report interval; none leaves it to the agent.
        report_interval: Option<Duration>,
        /// Id of the coordinator's store; empty when not stated.
        store: String,
    },
    /// Asks for the state of ranks.
    Capture(CaptureRequest),
    /// Reports up to this number were taken.
    Ack(u64),
    /// Asks ranks for a remedy.
    Remedy(RemedyRequest),
    /// The coordinator leaves; wait this long.
    Goodbye(Duration),
}

/// Asks for the state of ranks at one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaptureRequest {
    /// Id of the capture.
    pub(crate) capture_id: String,
    /// Ids of the tapes.
    pub(crate) tape_ids: Vec<String>,
    /// T; none means the present.
    pub(crate) step: Option<u64>,
    /// T0, if any.
    pub(crate) before: Option<u64>,
    /// Time left until answers are refused; none leaves it to the agent.
    pub(crate) deadline: Option<Duration>,
    /// The tape whose rank's worker processes are to be sampled; empty for none.
    pub(crate) sample_workers: String,
}

/// Understands a message.
pub(crate) fn incoming(raw: FromCoordinator) -> Option<Incoming> {
    use v1::coordinator_message::Body;
    let millis = |ms: u32| (ms > 0).then(|| Duration::from_millis(u64::from(ms)));
    Some(match raw.body? {
        Body::Welcome(welcome) => Incoming::Welcome {
            protocol: welcome.protocol,
            version: cut(&welcome.version, NAME_BYTES_MAX).to_string(),
            report_interval: millis(welcome.report_interval_ms),
            store: cut(&welcome.store, NAME_BYTES_MAX).to_string(),
        },
        Body::CaptureRequest(request) => Incoming::Capture(CaptureRequest {
            capture_id: request.capture_id,
            tape_ids: request.tape_ids,
            step: (request.step > 0).then_some(request.step),
            before: (request.before_step > 0).then_some(request.before_step),
            deadline: millis(request.deadline_ms),
            sample_workers: request.sample_workers,
        }),
        Body::ReportAck(ack) => Incoming::Ack(ack.number),
        Body::RemedyRequest(request) => Incoming::Remedy(asks::request(request)),
        Body::Goodbye(goodbye) => {
            Incoming::Goodbye(millis(goodbye.reconnect_after_ms).unwrap_or_default())
        }
    })
}

/// The first message of a stream, about the jobs of this shard.
pub(crate) fn hello(node: &str, boot_id: &str, jobs: Option<JobsShard>) -> Outgoing {
    let shard = |JobsShard { shard, shards }| v1::Shard { number: shard.into(), of: shards.into() };
    Outgoing::Hello(v1::Hello {
        shard: jobs.map(shard),
        protocol: PROTOCOL,
        node: node.to_string(),
        boot_id: boot_id.to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
    })
}

/// Where the jobs of a stream are, if the coordinator refused it because it does not own them: the
/// number of shards, and the URL of the owner, empty when unknown.
pub(crate) fn not_owner(status: &tonic::Status) -> Option<(u16, String)> {
    if status.code() != Code::FailedPrecondition || status.details().is_empty() {
        return None;
    }
    let v1::NotOwner { shards, owner } = v1::NotOwner::decode(status.details()).ok()?;
    let shards = u16::try_from(shards).ok().filter(|shards| (1..=SHARDS_MAX).contains(shards))?;
    Some((shards, cut(&owner, NAME_BYTES_MAX).to_string()))
}

/// Owner and scheduler ids of a rank, read from the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership<'a> {
    /// Name of the tape.
    pub(crate) tape_id: &'a str,
    /// Owner of the tape.
    pub(crate) owner: &'a Owner,
    /// Scheduler ids of the process.
    pub(crate) workload: &'a Workload,
}

/// Builds the announcement of a rank. `pid` is in the agent's namespace, if known; `peer_groups`
/// are the groups of its peers.
pub(crate) fn rank_up(
    of: Ownership<'_>,
    identity: &Identity,
    status: &Status,
    uuids: &[(u8, String)],
    pid: Option<u32>,
    peer_groups: Vec<u64>,
) -> RankUp {
    let count = uuids.iter().map(|(device, _)| usize::from(*device) + 1).max().unwrap_or(0);
    let mut device_uuids = vec![String::new(); count];
    for (device, uuid) in uuids {
        device_uuids[usize::from(*device)] = cut(uuid, NAME_BYTES_MAX).to_string();
    }
    let disabled = status.disabled.as_ref().map(|why| format!("recording stopped: {why}"));
    let lines = disabled.iter().chain(&status.limitations).take(LIMITATIONS_MAX);
    RankUp {
        tape_id: of.tape_id.to_string(),
        job: cut(&identity.job, NAME_BYTES_MAX).to_string(),
        attempt: identity.attempt,
        rank: identity.rank,
        world_size: identity.world_size,
        local_rank: identity.local_rank,
        pid: pid.unwrap_or(0),
        start_wall_ns: status.start_wall_ns,
        command: cut(&identity.command, COMMAND_BYTES_MAX).to_string(),
        device_uuids,
        limitations: lines.map(|line| cut(line, NAME_BYTES_MAX).to_string()).collect(),
        role: cut(&identity.role, ROLE_BYTES_MAX).to_string(),
        peer_groups,
        owner: Some(v1::Owner {
            uid: of.owner.uid,
            account: of.owner.account,
            namespace: of.owner.namespace.name().to_string(),
            is_namespace_unknown: of.owner.namespace == Namespace::Unknown,
            slurm_job: of.workload.slurm_job.clone(),
            pod: of.workload.pod.clone(),
            pod_uid: of.workload.pod_uid.clone(),
        }),
        offered: memtape_proto::remedies::offered(status.offered),
        allocator_settings: identity.allocator.as_deref().map(settings),
        applied_hints: settings(&identity.hints),
        ends_at_wall_ns: identity.planned_end.ends_at_wall_ns.unwrap_or(0),
        total_steps: identity.planned_end.total_steps.unwrap_or(0),
    }
}

fn settings(text: &str) -> String {
    cut(text, ALLOCATOR_SETTINGS_BYTES_MAX).to_string()
}

/// Builds a report. `gpus` is the NVML reading or why there is none; `pids` are the ranks' pids.
pub(crate) fn report(
    number: u64,
    wall_ns: i64,
    ranks: Vec<RankReport>,
    memory: Host,
    gpus: Result<&nvml::Reading, &nvml::NoReading>,
    pids: &BTreeSet<u32>,
    (spool, refused): (Option<SpoolReport>, RefusedTapes),
) -> Outgoing {
    let of_ranks = |uuid: &str| gpus.map_or(0, |reading| reading.count_on(uuid, pids));
    let gpu = |gpu: &Gpu| {
        let ranks = gpu.processes.map(|_| of_ranks(&gpu.uuid));
        Gpu { ranks, ..gpu.clone() }
    };
    Outgoing::Report(v1::Report {
        number,
        wall_ns,
        ranks,
        gpus: gpus.map(|reading| reading.gpus.iter().map(gpu).collect()).unwrap_or_default(),
        host: Some(Host {
            nvml_missing: gpus.err().map(ToString::to_string).unwrap_or_default(),
            ..memory
        }),
        spool,
        refused: (refused != RefusedTapes::default()).then_some(refused),
    })
}

/// A rank's process is gone.
pub(crate) fn rank_down(tape_id: &str, death: &Death, step: u64) -> Outgoing {
    let end = match death.cause() {
        Cause::Exited | Cause::Failed => v1::RankEnd::Exited,
        Cause::Killed => v1::RankEnd::Killed,
        Cause::OomKilled => v1::RankEnd::OomKilled,
        Cause::Unknown => v1::RankEnd::Unspecified,
    };
    Outgoing::RankDown(v1::RankDown {
        tape_id: tape_id.to_string(),
        end: end.into(),
        detail: death.evidence.to_string(),
        wall_ns: death.wall_ns,
        step,
        exit_status: death.exit_status(),
    })
}

/// Builds the answer for one tape of a capture.
pub(crate) fn capture_answer(capture_id: &str, tape_id: &str, answer: &Part) -> CaptureAnswer {
    let outcome = match answer.outcome {
        Outcome::Aligned => v1::RankOutcome::Aligned,
        Outcome::Late => v1::RankOutcome::Late,
        Outcome::Behind => v1::RankOutcome::Behind,
        Outcome::Dead => v1::RankOutcome::Dead,
        Outcome::NoTape => v1::RankOutcome::NoTape,
        // Only the coordinator says so.
        Outcome::Awaited | Outcome::Unreachable => v1::RankOutcome::Unreachable,
    };
    v1::CaptureAnswer {
        capture_id: capture_id.to_string(),
        tape_id: tape_id.to_string(),
        outcome: outcome.into(),
        step: answer.step,
        wall_ns: answer.wall_ns,
        wall_error_ns: answer.wall_error_ns,
        dead: answer.dead,
        before_step: answer.before_step,
        snapshot_bytes: answer.bytes,
        snapshot_hash: answer.hash.map(|hash| hash.to_vec()).unwrap_or_default(),
        detail: answer.detail.clone(),
    }
}

/// The chunks of a snapshot, without copying it. An empty snapshot is one empty chunk.
pub(crate) fn chunks(
    capture_id: String,
    tape_id: String,
    snapshot: bytes::Bytes,
) -> impl Iterator<Item = v1::UploadChunk> + Send + 'static {
    let count = snapshot.len().div_ceil(CHUNK_BYTES_MAX).max(1);
    (0..count).map(move |index| {
        let first = index * CHUNK_BYTES_MAX;
        let end = (first + CHUNK_BYTES_MAX).min(snapshot.len());
        v1::UploadChunk {
            capture_id: capture_id.clone(),
            tape_id: tape_id.clone(),
            offset: first as u64,
            data: snapshot.slice(first..end),
        }
    })
}

#[cfg(test)]
mod tests {
    use memtape_core::identity::planned_end::PlannedEnd;
    use prost::Message as _;

    use super::*;

    #[test]
    fn chunks_put_together_are_the_snapshot() {
        for bytes in [0, 1, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX + 1, 3 * CHUNK_BYTES_MAX - 7] {
            let snapshot: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
            let mut whole = Vec::new();
            for chunk in chunks("c".into(), "t".into(), snapshot.clone().into()) {
                assert_eq!(chunk.offset, whole.len() as u64);
                assert!(chunk.data.len() <= CHUNK_BYTES_MAX);
                whole.extend_from_slice(&chunk.data);
            }
            assert!(whole == snapshot, "{bytes} bytes");
        }
    }

    #[test]
    fn texts_of_a_tape_are_cut() {
        let identity = Identity {
            job: "j".repeat(9_999),
            command: "é".repeat(9_999),
            planned_end: PlannedEnd { ends_at_wall_ns: Some(7), total_steps: Some(9) },
            ..Identity::default()
        };
        let status = Status {
            limitations: vec!["l".repeat(9_999); 9_999],
            disabled: Some("an inner failure".to_string()),
            ..Status::default()
        };
        let (owner, workload) = (Owner::default(), Workload::default());
        let of = Ownership { tape_id: "t", owner: &owner, workload: &workload };
        let up = rank_up(of, &identity, &status, &[(2, "GPU-1".to_string())], None, Vec::new());
        assert!(up.encoded_len() < 16 << 10, "{} bytes", up.encoded_len());
        assert_eq!(up.device_uuids, ["", "", "GPU-1"]);
        assert_eq!((up.ends_at_wall_ns, up.total_steps), (7, 9));
        assert_eq!(up.limitations[0], "recording stopped: an inner failure");
    }

    #[test]
    fn unknown_messages_are_ignored() {
        assert_eq!(incoming(FromCoordinator { body: None }), None);
        let zero = v1::CaptureRequest::default();
        let body = v1::coordinator_message::Body::CaptureRequest(zero);
        let request = CaptureRequest::default();
        assert_eq!(
            incoming(FromCoordinator { body: Some(body) }),
            Some(Incoming::Capture(request))
        );
    }
}
