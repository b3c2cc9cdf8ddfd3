//! Converts between messages and the coordinator's types. No other file builds or reads a message.
//!
//! Agents are on other machines and read tapes of untrusted processes, so nothing here is trusted:
//! texts are cut, and a number or a count beyond its bound makes the whole message an error, which
//! closes the stream. A report is accepted without the ranks that break a bound, so one tape cannot
//! suppress other ranks of the node.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_core::capture::{Outcome, Part};
use memtape_core::identity::cut;
use memtape_core::identity::ids::is_agent_capture;
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::limits::{
    CENSUSES_PER_REPORT_MAX, COMMAND_BYTES_MAX, DEVICES_MAX, GPUS_PER_NODE_MAX, ID_BYTES_MAX,
    LIMITATIONS_MAX, MESSAGE_MIB_SECONDS_MAX, NAME_BYTES_MAX, PEER_GROUPS_MAX, RANKS_PER_JOB_MAX,
    RANKS_PER_REPORT_MAX, STEPS_PER_REPORT_MAX,
};
use memtape_core::placement::JobsShard;
use memtape_core::redaction::Redaction;
use memtape_core::tape::layout::Clock;
use memtape_proto::decoding::NotDecoded;
use memtape_proto::readings::{Gpu, RefusedTapes, SpoolReport};
use memtape_proto::{OtherProtocol, PROTOCOL, Side, check_protocol, step_record, v1};
use prost::Message as _;
use tonic::{Code, Status};

use crate::members::Members;
use crate::state::effects::SnapshotRequest;
use crate::state::messages::{
    AgentCapture, AgentCaptureReason, Hello, Incoming, RankEnd, RankReport, RankUp, Report,
};
use memtape_store::records::{End, StepRecord, Totals};

mod census;
mod host;
mod owner;
mod remedies;

/// A message to an agent, ready to be sent.
pub(crate) type Outgoing = v1::CoordinatorMessage;

/// A message of an agent before validation.
#[cfg(feature = "simulation")]
pub(crate) type Raw = v1::AgentMessage;

/// Maximum number of bytes or steps: 9 PB, and the largest exact integer of JavaScript.
const NUMBER_MAX: u64 = 1 << 53;

/// Why a message is refused; its stream is closed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum BadMessage {
    #[error("the first message must be Hello")]
    NotHello,
    #[error("the connection broke")]
    Broken,
    #[error("a message of {length} bytes is compressed, or longer than {bytes_max} bytes")]
    Frame { length: usize, bytes_max: usize },
    #[error("a message came more slowly than 1 MiB in {MESSAGE_MIB_SECONDS_MAX} s")]
    Slow,
    #[error("Hello was said twice")]
    SecondHello,
    #[error(transparent)]
    Protocol(OtherProtocol),
    #[error("rank {rank} of {world} is beyond the bound of {RANKS_PER_JOB_MAX}")]
    Rank { rank: u32, world: u32 },
    #[error("a report of {ranks} ranks, {steps} steps and {gpus} GPUs is too long")]
    Report { ranks: usize, steps: usize, gpus: usize },
    #[error("a report has a tape twice")]
    TapeTwice,
    #[error("a report of {0} censuses is too long")]
    Censuses(usize),
    #[error("a census is not well-formed: {0}")]
    Census(&'static str),
    #[error("a rank with {0} devices is too large")]
    Devices(usize),
    #[error("a rank with {0} origins is too large")]
    Origins(usize),
    #[error("device {0} is beyond the bound of {DEVICES_MAX}")]
    Device(u32),
    #[error("a record of steps {first} to {last} is reversed")]
    Reversed { first: u64, last: u64 },
    #[error("{0} is beyond any real number")]
    Number(u64),
    #[error("{what} must have 1 to {bytes_max} printable bytes")]
    Name { what: &'static str, bytes_max: usize },
    #[error("a message cannot be decoded: {0}")]
    NotDecoded(NotDecoded),
    #[error("a rank has no owner: its agent is too old")]
    NoOwner,
    #[error("an agent-initiated capture has no answer")]
    NoAnswer,
    #[error("{0:?} is no name of an agent-initiated capture")]
    CaptureName(String),
    // Only the coordinator says so.
    #[error("an agent cannot be unreachable")]
    Unreachable,
    #[error("{0:?} is no name of an action")]
    ActionName(String),
}

/// Understands the first message of a stream.
///
/// # Errors
/// One line.
pub(crate) fn hello(raw: v1::AgentMessage) -> Result<(Hello, Option<JobsShard>), BadMessage> {
    let Some(v1::agent_message::Body::Hello(hello)) = raw.body else {
        return Err(BadMessage::NotHello);
    };
    check_protocol(Side::Agent, hello.protocol).map_err(BadMessage::Protocol)?;
    // No cluster has a shard beyond 16 bits.
    let number = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    let jobs = |of: v1::Shard| JobsShard { shard: number(of.number), shards: number(of.of) };
    let jobs = hello.shard.map(jobs);
    let hello = Hello {
        node: named(&hello.node, "a node's name", NAME_BYTES_MAX)?,
        boot_id: short(&hello.boot_id),
        version: short(&hello.version),
    };
    Ok((hello, jobs))
}

/// Refuses a stream whose shard another coordinator owns.
pub(crate) fn not_owner(members: &Members, jobs: Option<JobsShard>) -> Status {
    let details = v1::NotOwner { shards: members.shards().into(), owner: members.owner(jobs) };
    let line = "another coordinator of the cluster owns the jobs of this stream";
    Status::with_details(Code::FailedPrecondition, line, details.encode_to_vec().into())
}

/// Understands a later message; none is one without a known body.
///
/// # Errors
/// One line on the bound it broke.
pub(crate) fn incoming(raw: v1::AgentMessage) -> Result<Option<Incoming>, BadMessage> {
    use v1::agent_message::Body;
    Ok(Some(match raw.body {
        None => return Ok(None),
        Some(Body::Hello(_)) => return Err(BadMessage::SecondHello),
        Some(Body::RankUp(up)) => Incoming::RankUp(Box::new(rank_up(up)?)),
        Some(Body::Report(sent)) => Incoming::Report(report(sent)?),
        Some(Body::RankDown(down)) => Incoming::RankDown {
            tape_id: id(&down.tape_id)?,
            end: RankEnd {
                end: match down.end() {
                    v1::RankEnd::Exited if down.exit_status.unwrap_or(0) != 0 => End::Failed,
                    v1::RankEnd::Exited => End::Exited,
                    v1::RankEnd::Killed => End::Killed,
                    v1::RankEnd::OomKilled => End::OomKilled,
                    v1::RankEnd::Unspecified => End::Unknown,
                },
                exit_status: down.exit_status,
                detail: short(&down.detail),
                wall_ns: down.wall_ns,
                step: number(down.step)?,
            },
        },
        Some(Body::CaptureAnswer(answer)) => Incoming::Answer(capture_answer(&answer)?),
        Some(Body::AgentCapture(taken)) => Incoming::AgentCapture(agent_capture(&taken)?),
        Some(Body::RemedyAnswer(answer)) => Incoming::Remedied(remedies::answer(&answer)?),
    }))
}

fn rank_up(up: v1::RankUp) -> Result<RankUp, BadMessage> {
    if up.rank >= RANKS_PER_JOB_MAX || up.world_size > RANKS_PER_JOB_MAX {
        return Err(BadMessage::Rank { rank: up.rank, world: up.world_size });
    }
    let uuids = up.device_uuids.iter().take(DEVICES_MAX);
    let limitations = up.limitations.iter().take(LIMITATIONS_MAX);
    let offered = memtape_proto::remedies::offers(up.offered());
    let of = up.owner.ok_or(BadMessage::NoOwner)?;
    let allocator = up.allocator_settings.as_deref().map(host::settings);
    let (hints, unknown_hints) = host::settings(&up.applied_hints);
    let peer_groups: BTreeSet<u64> = up.peer_groups.into_iter().take(PEER_GROUPS_MAX).collect();
    Ok(RankUp {
        tape_id: id(&up.tape_id)?,
        job: named(&up.job, "a job's name", NAME_BYTES_MAX)?,
        attempt: up.attempt,
        rank: up.rank,
        world_size: up.world_size,
        local_rank: up.local_rank,
        pid: up.pid,
        start_wall_ns: up.start_wall_ns,
        command: cut(&Redaction::default().line(&up.command), COMMAND_BYTES_MAX).to_string(),
        device_uuids: uuids.map(|uuid| short(uuid)).collect(),
        limitations: limitations.map(|line| short(line)).collect(),
        role: host::role(&up.role),
        peer_groups: peer_groups.into_iter().collect(),
        owner: owner::owner(&of)?,
        workload: owner::workload(&of)?,
        offered,
        settings_left_out: unknown_hints + allocator.as_ref().map_or(0, |(_, unknown)| *unknown),
        allocator: allocator.map(|(known, _)| known),
        hints,
        planned_end: PlannedEnd {
            ends_at_wall_ns: Some(up.ends_at_wall_ns),
            total_steps: Some(up.total_steps),
        }
        .of_process(up.start_wall_ns),
    })
}

fn report(sent: v1::Report) -> Result<Report, BadMessage> {
    let steps: usize = sent.ranks.iter().map(|rank| rank.steps.len()).sum();
    let censuses: usize = sent.ranks.iter().map(|rank| rank.censuses.len()).sum();
    if censuses > CENSUSES_PER_REPORT_MAX {
        return Err(BadMessage::Censuses(censuses));
    }
    if sent.ranks.len() > RANKS_PER_REPORT_MAX
        || steps > STEPS_PER_REPORT_MAX
        || sent.gpus.len() > GPUS_PER_NODE_MAX as usize
    {
        let (ranks, gpus) = (sent.ranks.len(), sent.gpus.len());
        return Err(BadMessage::Report { ranks, steps, gpus });
    }
    let tapes: BTreeSet<&str> = sent.ranks.iter().map(|rank| rank.tape_id.as_str()).collect();
    if tapes.len() < sent.ranks.len() {
        return Err(BadMessage::TapeTwice);
    }
    let gpus = sent.gpus.into_iter().map(|gpu| Gpu {
        uuid: short(&gpu.uuid),
        total_bytes: gpu.total_bytes.min(NUMBER_MAX),
        used_bytes: gpu.used_bytes.min(NUMBER_MAX),
        free_bytes: gpu.free_bytes.min(NUMBER_MAX),
        ..gpu
    });
    // One rank with a wrong number takes nothing from the others of its node.
    let (mut ranks, mut bad) = (Vec::new(), Vec::new());
    for rank in sent.ranks {
        match rank_report(rank) {
            Ok(rank) => ranks.push(rank),
            Err(why) => bad.push(why),
        }
    }
    let mut host = sent.host.unwrap_or_default();
    host::bound([
        &mut host.memory_total_bytes,
        &mut host.memory_available_bytes,
        &mut host.cgroup_bytes,
        &mut host.cgroup_limit_bytes,
    ]);
    host.nvml_missing = short(&host.nvml_missing);
    Ok(Report {
        number: sent.number,
        ranks,
        bad_ranks: bad.len() as u64,
        bad_rank: bad.first().map(ToString::to_string).unwrap_or_default(),
        gpus: gpus.collect(),
        host,
        spool: sent.spool.map_or_else(SpoolReport::default, |spool| SpoolReport {
            bytes: spool.bytes.min(NUMBER_MAX),
            steps_dropped: spool.steps_dropped.min(NUMBER_MAX),
            snapshots_dropped: spool.snapshots_dropped.min(NUMBER_MAX),
            facts_dropped: spool.facts_dropped.min(NUMBER_MAX),
        }),
        refused: sent.refused.map_or_else(RefusedTapes::default, |refused| RefusedTapes {
            copies: refused.copies.min(NUMBER_MAX),
            wrong_holder: refused.wrong_holder.min(NUMBER_MAX),
            other_boot: refused.other_boot.min(NUMBER_MAX),
            no_room: refused.no_room.min(NUMBER_MAX),
        }),
    })
}

fn rank_report(rank: v1::RankReport) -> Result<RankReport, BadMessage> {
    if rank.totals.len() > DEVICES_MAX {
        return Err(BadMessage::Devices(rank.totals.len()));
    }
    Ok(RankReport {
        tape_id: id(&rank.tape_id)?,
        clock: match rank.clock() {
            v1::Clock::Steps => Clock::Steps,
            v1::Clock::Turns => Clock::Turns,
        },
        step: number(rank.step)?,
        step_wall_ns: rank.step_wall_ns,
        oldest_step: number(rank.oldest_step)?,
        totals: rank.totals.iter().map(totals).collect::<Result<_, _>>()?,
        steps: rank.steps.into_iter().map(step_of_device).collect::<Result<_, _>>()?,
        rss_bytes: rank.rss_bytes.map(|bytes| bytes.min(NUMBER_MAX)),
        lost: rank.lost.min(NUMBER_MAX),
        steps_missed: rank.steps_missed.min(NUMBER_MAX),
        host: rank.host.map(host::rank_host),
        outside: host::outside(&rank.outside)?,
        censuses: rank.censuses.into_iter().map(census::changes).collect::<Result<_, _>>()?,
    })
}

fn totals(totals: &v1::DeviceTotals) -> Result<Totals, BadMessage> {
    Ok(Totals {
        device: device(totals.device)?,
        allocated: number(totals.allocated)?,
        reserved: number(totals.reserved)?,
        peak_allocated: number(totals.peak_allocated)?,
        blocks: number(totals.blocks)?,
        ooms: number(totals.ooms)?,
        malloc_failures: number(totals.malloc_failures)?,
        device_bytes: number(totals.device_bytes)?,
        process_bytes: totals.process_bytes.map(number).transpose()?,
        deferred: totals.deferred_bytes.map(number).transpose()?,
    })
}

fn step_of_device(raw: v1::StepRecord) -> Result<(u8, StepRecord), BadMessage> {
    let (index, record) = step_record(raw);
    if record.first_step > record.last_step {
        let (first, last) = (record.first_step, record.last_step);
        return Err(BadMessage::Reversed { first, last });
    }
    // A time has no bound.
    StepRecord { end_wall_ns: 0, ..record }.to_numbers().into_iter().try_for_each(in_bounds)?;
    Ok((device(index)?, record))
}

fn agent_capture(taken: &v1::AgentCapture) -> Result<AgentCapture, BadMessage> {
    let answer = taken.answer.as_ref().ok_or(BadMessage::NoAnswer)?;
    let answer = capture_answer(answer)?;
    // Another name could be that of a capture of the coordinator's own.
    if !is_agent_capture(&answer.capture) {
        return Err(BadMessage::CaptureName(answer.capture));
    }
    let reason = match taken.reason() {
        v1::AgentCaptureReason::OutOfMemory => AgentCaptureReason::OutOfMemory,
        v1::AgentCaptureReason::Death | v1::AgentCaptureReason::Unspecified => {
            AgentCaptureReason::Death
        }
    };
    Ok(AgentCapture { answer, reason, seen_wall_ns: taken.seen_wall_ns })
}

fn capture_answer(answer: &v1::CaptureAnswer) -> Result<Part, BadMessage> {
    let outcome = match answer.outcome() {
        v1::RankOutcome::Aligned => Outcome::Aligned,
        v1::RankOutcome::Late => Outcome::Late,
        v1::RankOutcome::Behind => Outcome::Behind,
        v1::RankOutcome::Dead => Outcome::Dead,
        v1::RankOutcome::NoTape | v1::RankOutcome::Unspecified => Outcome::NoTape,
        // Only the coordinator says so.
        v1::RankOutcome::Unreachable => return Err(BadMessage::Unreachable),
    };
    Ok(Part {
        capture: id(&answer.capture_id)?,
        tape_id: id(&answer.tape_id)?,
        outcome,
        step: number(answer.step)?,
        wall_ns: answer.wall_ns,
        wall_error_ns: answer.wall_error_ns.min(NUMBER_MAX),
        dead: answer.dead,
        before_step: number(answer.before_step)?,
        bytes: answer.snapshot_bytes,
        hash: answer.snapshot_hash.as_slice().try_into().ok(),
        detail: short(&answer.detail),
        ..Part::default()
    })
}

/// The first answer on every stream.
pub(crate) fn first_answer(report_interval: Duration, store: &str) -> Outgoing {
    message(v1::coordinator_message::Body::Welcome(v1::Welcome {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_string(),
        report_interval_ms: millis(report_interval),
        store: store.to_string(),
    }))
}

/// Asks for the snapshots of ranks.
pub(crate) fn capture_request(request: SnapshotRequest) -> Outgoing {
    let deadline = Duration::from_nanos(request.deadline_ns);
    message(v1::coordinator_message::Body::CaptureRequest(v1::CaptureRequest {
        capture_id: request.capture,
        tape_ids: request.tape_ids,
        step: request.step,
        before_step: request.before_step,
        deadline_ms: millis(deadline).max(1),
        sample_workers: request.sample_workers.unwrap_or_default(),
    }))
}

/// Acknowledges the reports up to this one.
pub(crate) fn report_ack(number: u64) -> Outgoing {
    message(v1::coordinator_message::Body::ReportAck(v1::ReportAck { number }))
}

/// The coordinator leaves.
pub(crate) fn goodbye(reconnect_after: Duration) -> Outgoing {
    message(v1::coordinator_message::Body::Goodbye(v1::Goodbye {
        reconnect_after_ms: millis(reconnect_after),
    }))
}

/// Asks for a remedy.
pub(crate) fn remedy_request(request: v1::RemedyRequest) -> Outgoing {
    message(v1::coordinator_message::Body::RemedyRequest(request))
}

fn message(body: v1::coordinator_message::Body) -> Outgoing {
    v1::CoordinatorMessage { body: Some(body) }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// A text on one line, which can forge no line of a log.
fn short(text: &str) -> String {
    cut(text, NAME_BYTES_MAX).replace(char::is_control, " ")
}

fn named(text: &str, what: &'static str, bytes_max: usize) -> Result<String, BadMessage> {
    if text.trim().is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
        return Err(BadMessage::Name { what, bytes_max });
    }
    Ok(text.to_string())
}

/// The id of a tape or a capture, unchanged; it is only ever compared.
pub(crate) fn id(text: &str) -> Result<String, BadMessage> {
    named(text, "an id", ID_BYTES_MAX)
}

fn number(number: u64) -> Result<u64, BadMessage> {
    in_bounds(number).map(|()| number)
}

fn in_bounds(number: u64) -> Result<(), BadMessage> {
    if number > NUMBER_MAX { Err(BadMessage::Number(number)) } else { Ok(()) }
}

fn device(index: u32) -> Result<u8, BadMessage> {
    match u8::try_from(index) {
        Ok(index) if usize::from(index) < DEVICES_MAX => Ok(index),
        _ => Err(BadMessage::Device(index)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use v1::agent_message::Body;

    fn check(body: Body, expected: Result<(), &str>) {
        let result = incoming(v1::AgentMessage { body: Some(body) });
        match (result, expected) {
            (Ok(_), Ok(())) => {}
            (Err(why), Err(part)) => {
                let why = why.to_string();
                assert!(why.contains(part), "{why:?} has no {part:?}");
            }
            (result, _) => panic!("{result:?} is not {expected:?}"),
        }
    }

    /// Checks that the report is accepted without the rank.
    fn check_left_out(body: Body, part: &str) {
        match incoming(v1::AgentMessage { body: Some(body) }) {
            Ok(Some(Incoming::Report(report))) => {
                assert!(report.ranks.is_empty());
                assert!(report.bad_rank.contains(part), "{:?} has no {part:?}", report.bad_rank);
            }
            result => panic!("{result:?} is no report"),
        }
    }

    #[test]
    fn a_bad_rank_takes_nothing_from_the_others_of_its_node() {
        let rank = |tape: &str, step| v1::RankReport {
            tape_id: tape.to_string(),
            step,
            ..v1::RankReport::default()
        };
        let ranks = vec![rank("a", 1), rank("b", u64::MAX), rank("", 1), rank("c", 2)];
        let body = Body::Report(v1::Report { ranks, ..v1::Report::default() });
        let message = incoming(v1::AgentMessage { body: Some(body) }).unwrap();
        let Some(Incoming::Report(report)) = message else { panic!("no report") };
        let taken: Vec<&str> = report.ranks.iter().map(|rank| rank.tape_id.as_str()).collect();
        assert_eq!((taken, report.bad_ranks), (vec!["a", "c"], 2));
        assert!(report.bad_rank.contains("beyond any real number"));
    }

    proptest! {
        /// The report is accepted for any numbers that an agent reads from a tape.
        #[test]
        fn any_words_of_a_tape_make_a_report_that_is_taken(words in any::<[u64; 12]>()) {
            let device = words[0] as u32 % 32;
            let totals = v1::DeviceTotals {
                device,
                allocated: words[1],
                reserved: words[2],
                peak_allocated: words[3],
                process_bytes: Some(words[4]),
                ..v1::DeviceTotals::default()
            };
            let step = v1::StepRecord {
                device,
                first_step: words[5],
                last_step: words[6],
                floor_allocated: words[7],
                end_wall_ns: words[8] as i64,
                ..v1::StepRecord::default()
            };
            let outside = v1::OutsideUse {
                origin: words[9] as u32,
                device,
                bytes: words[10],
                ..v1::OutsideUse::default()
            };
            let bad = v1::RankReport {
                tape_id: "bad".to_string(),
                step: words[11],
                totals: vec![totals],
                steps: vec![step],
                outside: vec![outside],
                ..v1::RankReport::default()
            };
            let good = v1::RankReport { tape_id: "good".to_string(), ..v1::RankReport::default() };
            let body = Body::Report(v1::Report { ranks: vec![bad, good], ..Default::default() });
            let taken = incoming(v1::AgentMessage { body: Some(body) });
            let is_good = match &taken {
                Ok(Some(Incoming::Report(of))) => of.ranks.iter().any(|of| of.tape_id == "good"),
                _ => false,
            };
            prop_assert!(is_good, "{taken:?}");
        }
    }

    #[test]
    fn what_breaks_a_bound_is_refused() {
        let up = v1::RankUp {
            tape_id: "t".to_string(),
            job: "job".to_string(),
            rank: 65_535,
            owner: Some(v1::Owner::default()),
            ..v1::RankUp::default()
        };
        check(Body::RankUp(up.clone()), Ok(()));
        check(Body::RankUp(v1::RankUp { owner: None, ..up.clone() }), Err("no owner"));
        check(
            Body::RankUp(v1::RankUp { rank: RANKS_PER_JOB_MAX, ..up.clone() }),
            Err("rank 131072"),
        );
        check(Body::RankUp(v1::RankUp { job: " ".to_string(), ..up.clone() }), Err("a job's name"));
        check(Body::RankUp(v1::RankUp { job: "a\nb".to_string(), ..up.clone() }), Err("printable"));
        check(Body::RankUp(v1::RankUp { tape_id: "x".repeat(200), ..up.clone() }), Err("an id"));
        let owned = |owner| Body::RankUp(v1::RankUp { owner: Some(owner), ..up.clone() });
        let owner = |namespace: &str, slurm_job: &str| {
            let (namespace, slurm_job) = (namespace.to_string(), slurm_job.to_string());
            v1::Owner { uid: 7, namespace, slurm_job, ..v1::Owner::default() }
        };
        check(owned(owner("team-a", "4711")), Ok(()));
        check(owned(owner("a@1", "")), Err("a namespace"));
        check(owned(owner("", "--all")), Err("a Slurm job"));
        check(Body::Hello(v1::Hello::default()), Err("twice"));
        let rank = v1::RankReport { tape_id: "t".to_string(), ..v1::RankReport::default() };
        let with = |rank: v1::RankReport| {
            Body::Report(v1::Report { ranks: vec![rank], ..v1::Report::default() })
        };
        let step = v1::StepRecord { first_step: 5, last_step: 6, ..v1::StepRecord::default() };
        let steps = |steps| v1::RankReport { steps, ..rank.clone() };
        check(with(steps(vec![step])), Ok(()));
        let twice = v1::Report { ranks: vec![rank.clone(); 2], ..v1::Report::default() };
        check(Body::Report(twice), Err("a tape twice"));
        check(with(steps(vec![step; STEPS_PER_REPORT_MAX + 1])), Err("too long"));
        let reversed = v1::StepRecord { first_step: 7, ..step };
        check_left_out(with(steps(vec![reversed])), "reversed");
        let huge = v1::StepRecord { floor_allocated: u64::MAX, ..step };
        check_left_out(with(steps(vec![huge])), "beyond any real number");
        check_left_out(
            with(steps(vec![v1::StepRecord { device: DEVICES_MAX as u32, ..step }])),
            "device 16",
        );
        let outside = |use_: v1::OutsideUse, count| v1::RankReport {
            outside: vec![use_; count],
            ..rank.clone()
        };
        let nccl = v1::OutsideUse { origin: 7, device: 1, bytes: 5, count: 0 };
        check(with(outside(nccl, 128)), Ok(()));
        check_left_out(with(outside(nccl, 300)), "300 origins");
        check_left_out(with(outside(v1::OutsideUse { device: 99, ..nccl }, 1)), "device 99");
        let much = v1::OutsideUse { bytes: u64::MAX, ..nccl };
        check_left_out(with(outside(much, 1)), "beyond any real number");
        let unreachable = v1::CaptureAnswer {
            capture_id: "cap-1".to_string(),
            tape_id: "t".to_string(),
            outcome: v1::RankOutcome::Unreachable.into(),
            ..v1::CaptureAnswer::default()
        };
        check(Body::CaptureAnswer(unreachable), Err("unreachable"));
    }
}
