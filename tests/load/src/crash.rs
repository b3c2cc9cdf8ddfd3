//! What goes wrong with a coordinator and its disk: kills, a full disk, a folder that is removed, a
//! clock that jumps, and a backup that is restored onto a newer store.
//!
//! Some agents report one step after the other, each when the one before is acknowledged, and a
//! capture is taken now and then. Meanwhile `/readyz` is asked all the time. After each fault,
//! every record that was acknowledged is read back, and every capture and incident that the API
//! has shown; what `/readyz` said is compared with the acknowledgements.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use memtape_proto::v1::{self, agent_message::Body as Said, coordinator_message::Body as Heard};
use serde_json::{Value, json};
use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::agent::{Uploads, answer, attach, channel, message, wall_ns};
use crate::coordinator::{Binary, Coordinator, Target};
use crate::job::{Node, mix, nodes};
use crate::readback::{Found, records};
use crate::upload::Template;

/// Time in which a write that was under way may still be acknowledged.
const UNDER_WAY: Duration = Duration::from_millis(200);

/// Time between two questions to `/readyz`, whose answer may be a second old.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Longest wait for an answer of `/readyz`.
const READY_WAIT_MAX: Duration = Duration::from_secs(1);

/// Longest wait between two acknowledgements while a coordinator can write.
const ACK_WAIT_MAX: Duration = Duration::from_secs(3);

/// A fault, and the time after it, in which a coordinator becomes ready again: it remembers for a
/// minute that it could not write.
const FAULT: Duration = Duration::from_secs(8);
const RECOVERY_MAX: Duration = Duration::from_secs(75);

/// Captures of the job from which on the oldest may be forgotten: the coordinator keeps 64, of
/// which some may be open.
const FORGETS_FROM: usize = 60;

/// Most times that agents send the rest to a store that was restored.
const SENT_AGAIN_ROUNDS_MAX: u32 = 5;

/// Size of a disk that becomes full.
const DISK_MIB: u32 = 96;

/// What is to go wrong.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Crash {
    #[arg(long, default_value_t = 32)]
    pub(crate) ranks: u32,
    #[arg(long, default_value_t = 100)]
    pub(crate) kills: u32,
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// A library that sets the coordinator's clock, as libfaketime does.
    #[arg(long)]
    pub(crate) clock: Option<PathBuf>,
}

/// What was acknowledged, and what `/readyz` said.
#[derive(Debug, Default)]
struct Seen {
    acks: Vec<Instant>,
    answers: Vec<(Instant, bool)>,
}

type Shared = Arc<Mutex<Seen>>;

/// A store, its nodes, and what they know to be kept.
struct Rig {
    binary: Binary,
    folder: PathBuf,
    nodes: Vec<(Node, u64)>,
    shown: BTreeSet<String>,
    seen: Shared,
}

/// Makes all of it go wrong, and tells what was lost.
pub(crate) async fn crash(binary: &Binary, crash: &Crash) -> anyhow::Result<Value> {
    let clock_round = async {
        match &crash.clock {
            Some(library) => clock(binary, crash, library).await,
            None => Ok(json!("left out: no --clock")),
        }
    };
    // A round that fails is reported beside the others.
    let reported = |found: anyhow::Result<Value>| {
        found.unwrap_or_else(|why| json!({ "failed": format!("{why:#}") }))
    };
    Ok(json!({
        "seed": crash.seed,
        "kills": reported(kills(binary, crash).await),
        "disk_full": reported(disk_full(binary, crash).await),
        "folder_removed": reported(folder_removed(binary, crash).await),
        "clock": reported(clock_round.await),
        "restored": reported(restored(binary, crash).await),
    }))
}

/// Kills the coordinator at random times.
async fn kills(binary: &Binary, crash: &Crash) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let mut rig = Rig::new(binary, folder.path(), crash);
    let (mut found, mut starts) = (Found::default(), Vec::new());
    for round in 0..crash.kills {
        let coordinator = rig.start()?;
        starts.push(coordinator.started_in.as_secs_f64());
        let time = Duration::from_millis(20 + mix(crash.seed ^ u64::from(round)) % 900);
        rig.run(coordinator, time, pending()).await?;
        found = rig.read_back().await?;
        ensure!(found.lost == 0, "lost in round {round}: {found:?}");
    }
    let mut figures = rig.figures(found, None);
    figures["rounds"] = json!(crash.kills);
    figures["started_in_s_max"] = json!(starts.into_iter().fold(0.0, f64::max));
    Ok(figures)
}

/// Fills the disk, and makes room again.
async fn disk_full(binary: &Binary, crash: &Crash) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let size = format!("size={DISK_MIB}m");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path());
    if !mount.status().is_ok_and(|status| status.success()) {
        return Ok(json!("left out: no tmpfs can be mounted"));
    }
    let _mounted = Mounted(folder.path().to_path_buf());
    let data = folder.path().join("data");
    let mut rig = Rig::new(binary, &data, crash);
    let filler = folder.path().join("filler");
    let mut fault = None;
    let coordinator = rig.start()?;
    let seen = rig.seen.clone();
    let failing = async {
        sleep(ACK_WAIT_MAX).await;
        // An error is what is wanted.
        let _ = std::fs::write(&filler, vec![1; (DISK_MIB as usize) << 20]);
        let begin = Instant::now();
        sleep(FAULT).await;
        std::fs::remove_file(&filler)?;
        let end = Instant::now();
        fault = Some((begin, end));
        until_ready(&seen, end).await
    };
    rig.run(coordinator, FAULT + RECOVERY_MAX, failing).await?;
    let found = rig.read_back().await?;
    Ok(rig.figures(found, fault))
}

/// Removes the folder of the coordinator that runs.
async fn folder_removed(binary: &Binary, crash: &Crash) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut rig = Rig::new(binary, &data, crash);
    let coordinator = rig.start()?;
    let mut fault = None;
    let failing = async {
        sleep(ACK_WAIT_MAX).await;
        let begin = Instant::now();
        let _ = std::fs::remove_dir_all(&data);
        sleep(FAULT).await;
        fault = Some((begin, Instant::now()));
        Ok(())
    };
    rig.run(coordinator, 2 * FAULT, failing).await?;
    // All of it is lost, as far as any program can know.
    Ok(rig.figures(Found::default(), fault))
}

/// Sets the coordinator's clock by 100 days, forward and back.
async fn clock(binary: &Binary, crash: &Crash, library: &Path) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let (script, clock) = (folder.path().join("memtape"), folder.path().join("clock"));
    let set = |offset: &str| std::fs::write(&clock, offset);
    set("+0")?;
    let program = format!(
        "#!/bin/sh\nexec env FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 \
         FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD={} {} \"$@\"\n",
        clock.display(),
        std::fs::canonicalize(library)?.display(),
        std::fs::canonicalize(&binary.path)?.display(),
    );
    std::fs::write(&script, program)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700))?;
    let faked = Binary { path: script, ..binary.clone() };
    let mut rig = Rig::new(&faked, &folder.path().join("data"), crash);
    let begin = Instant::now();
    let coordinator = rig.start()?;
    let jumps = async {
        for offset in ["+0", "+100d", "-100d", "+0", "+100d"] {
            set(offset)?;
            sleep(ACK_WAIT_MAX).await;
        }
        Ok(())
    };
    rig.run(coordinator, FAULT + RECOVERY_MAX, jumps).await?;
    let fault = Some((begin, Instant::now()));
    // The next one starts 200 days earlier.
    set("-100d")?;
    let found = rig.read_back().await?;
    Ok(rig.figures(found, fault))
}

/// Makes a backup, goes on, and restores it onto the newer store, which is refused, and into a
/// folder of its own, to which agents send the rest.
async fn restored(binary: &Binary, crash: &Crash) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir()?;
    let (data, file) = (folder.path().join("data"), folder.path().join("a.backup"));
    let mut rig = Rig::new(binary, &data, crash);
    let coordinator = rig.start()?;
    let memtape = |arguments: &[&str], path: &Path| {
        let mut command = Command::new(&binary.path);
        // Restoring asks no coordinator, and refuses the address of one.
        if arguments.contains(&"backup") {
            command.args(["--coordinator", &coordinator.url]);
        }
        command.args(arguments).arg(&file);
        let done = command.args(Some(path).filter(|path| !path.as_os_str().is_empty())).output()?;
        anyhow::Ok(done.status.success())
    };
    let (mut backed_up, mut refused) = (false, false);
    let backing_up = async {
        sleep(ACK_WAIT_MAX).await;
        backed_up = tokio::task::block_in_place(|| memtape(&["store", "backup"], Path::new("")))?;
        sleep(ACK_WAIT_MAX).await;
        Ok(())
    };
    rig.run(coordinator.clone(), RECOVERY_MAX, backing_up).await?;
    ensure!(backed_up, "no backup was made");
    refused |= !memtape(&["store", "restore"], &data)?;
    let found = rig.read_back().await?;
    let into = folder.path().join("restored");
    ensure!(memtape(&["store", "restore"], &into)?, "the backup cannot be restored");
    drop(coordinator);
    rig.folder = into;
    let kept = rig.read_back().await?;
    let before: BTreeMap<u32, u64> = rig.nodes.iter().map(|(of, step)| (of.index, *step)).collect();
    // As agents do that find another store; one that uploads takes longer.
    rig.nodes.iter_mut().for_each(|(_, step)| *step = 0);
    let is_behind = |(of, step): &(Node, u64)| before.get(&of.index) > Some(step);
    for _ in 0..SENT_AGAIN_ROUNDS_MAX {
        let coordinator = rig.start()?;
        rig.run(coordinator, FAULT, pending()).await?;
        if !rig.nodes.iter().any(is_behind) {
            break;
        }
    }
    for (of, step) in &mut rig.nodes {
        *step = before.get(&of.index).copied().unwrap_or(0).max(*step);
    }
    let again = rig.read_back().await?;
    let mut figures = rig.figures(again, None);
    figures["newer_store_refused"] = json!(refused);
    figures["lost_of_newer_store"] = json!(found.lost);
    figures["whole_in_backup"] = json!(kept.whole);
    Ok(figures)
}

/// A file system that is unmounted.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

impl Rig {
    fn new(binary: &Binary, folder: &Path, crash: &Crash) -> Self {
        let nodes = nodes(crash.ranks, 1, 1).into_iter().map(|node| (node, 0)).collect();
        let (binary, folder) = (binary.clone(), folder.to_path_buf());
        Self { binary, folder, nodes, shown: BTreeSet::new(), seen: Shared::default() }
    }

    fn start(&self) -> anyhow::Result<Arc<Coordinator>> {
        Ok(Arc::new(self.binary.start(&self.folder)?))
    }

    /// Lets agents report while this goes on, for this time at most, and kills the coordinator.
    async fn run(
        &mut self,
        coordinator: Arc<Coordinator>,
        time: Duration,
        going_wrong: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let (mut agents, mut helpers) = (JoinSet::new(), JoinSet::new());
        let is_killed = Arc::new(AtomicBool::new(false));
        for (node, step) in self.nodes.drain(..) {
            let (target, seen) = (Target::of(&coordinator), self.seen.clone());
            agents.spawn(report(target, node, step, (seen, is_killed.clone())));
        }
        helpers.spawn(ask(coordinator.clone(), self.seen.clone()));
        let all_shown = Arc::new(Mutex::new(BTreeSet::new()));
        helpers.spawn(show(coordinator.clone(), all_shown.clone()));
        let ended = timeout(time, going_wrong).await.unwrap_or(Ok(()));
        helpers.shutdown().await;
        is_killed.store(true, Relaxed);
        coordinator.kill();
        while let Some(agent) = agents.join_next().await {
            self.nodes.push(agent?);
        }
        self.shown.append(&mut all_shown.lock().unwrap_or_else(PoisonError::into_inner));
        ended
    }

    /// Starts a coordinator, and reads everything. What it shows now is to be there the next time.
    async fn read_back(&mut self) -> anyhow::Result<Found> {
        let coordinator = self.start()?;
        let mut found = records(&coordinator, &self.nodes).await?;
        let there = listed(&coordinator).await?;
        // Ids sort by their time, and those of captures come first.
        let captures = there.iter().filter(|of| of.starts_with("\"cap-")).count();
        let oldest = there.first().filter(|_| captures >= FORGETS_FROM);
        let is_lost = |of: &&String| oldest.is_none_or(|oldest| *of > oldest);
        let lost = self.shown.difference(&there).filter(is_lost).count() as u64;
        found += Found { whole: self.shown.len() as u64 - lost, lost, doubled: 0 };
        self.shown = there;
        Ok(found)
    }

    /// What `/readyz` said, beside the acknowledgements; within the fault, if it was one.
    fn figures(&self, found: Found, fault: Option<(Instant, Instant)>) -> Value {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let acks = |from: Instant, to: Instant| {
            seen.acks[seen.acks.partition_point(|at| *at < from)..]
                .iter()
                .take_while(|at| **at < to)
                .count()
        };
        let (mut ready, mut unready) = (Duration::ZERO, Duration::ZERO);
        for pair in seen.answers.windows(2) {
            let [(at, is_ready), (next, _)] = pair else { continue };
            let is_acked = acks(at.checked_sub(ACK_WAIT_MAX).unwrap_or(*at), *next) > 0;
            match (is_ready, is_acked) {
                (true, false) => ready += *next - *at,
                (false, true) if acks(*at, *next) > 0 => unready += *next - *at,
                _ => {}
            }
        }
        let after = |from: Instant, expected: bool| {
            let mut answers = seen.answers.iter().filter(|(at, _)| *at >= from);
            answers.find(|(_, ready)| *ready == expected).map(|(at, _)| (*at - from).as_secs_f64())
        };
        json!({
            "acknowledged_reports": seen.acks.len(),
            "whole": found.whole,
            "lost": found.lost,
            "shown": self.shown.len(),
            "readyz_answers": seen.answers.len(),
            "false_ready_s": ready.as_secs_f64(),
            "false_not_ready_s": unready.as_secs_f64(),
            "not_ready_after_s": fault.map(|(begin, _)| after(begin, false)),
            "ready_after_s": fault.map(|(_, end)| after(end, true)),
            "acked_in_fault": fault.map(|(begin, end)| acks(begin + UNDER_WAY, end)),
        })
    }
}

/// Waits until the coordinator is ready and has acknowledged something since.
async fn until_ready(seen: &Shared, since: Instant) -> anyhow::Result<()> {
    loop {
        sleep(ASK_EVERY).await;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ready = seen.answers.last().is_some_and(|(at, ready)| *ready && *at > since);
        if is_ready && seen.acks.last().is_some_and(|at| *at > since) {
            return Ok(());
        }
    }
}

/// Asks `/readyz` all the time.
async fn ask(coordinator: Arc<Coordinator>, seen: Shared) {
    loop {
        let is_ready = timeout(READY_WAIT_MAX, coordinator.is_ready()).await.unwrap_or(false);
        seen.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .answers
            .push((Instant::now(), is_ready));
        sleep(ASK_EVERY).await;
    }
}

/// Asks for captures, and remembers what the API showed twice: the first time it may not be
/// durable.
async fn show(coordinator: Arc<Coordinator>, shown: Arc<Mutex<BTreeSet<String>>>) {
    let mut before = BTreeSet::new();
    loop {
        // Refused where the last one is not long ago.
        let _ = coordinator.capture("load-0@1000").await;
        if let Ok(all) = listed(&coordinator).await {
            let mut kept: BTreeSet<String> = all.intersection(&before).cloned().collect();
            shown.lock().unwrap_or_else(PoisonError::into_inner).append(&mut kept);
            before = all;
        }
        sleep(5 * ASK_EVERY).await;
    }
}

/// Ids of closed captures with their whole ranks, and of incidents.
async fn listed(coordinator: &Coordinator) -> anyhow::Result<BTreeSet<String>> {
    let mut all = captures(coordinator).await?;
    all.append(&mut incidents(coordinator).await?);
    Ok(all)
}

/// Ids of closed captures with their whole ranks.
pub(crate) async fn captures(coordinator: &Coordinator) -> anyhow::Result<BTreeSet<String>> {
    let listed: Value = coordinator.get("/captures").await?;
    let captures = listed["captures"].as_array().context("no captures")?.iter();
    let closed = captures.filter(|of| !of["closed_wall_ns"].is_null());
    Ok(closed.map(|of| format!("{} {}", of["id"], of["aligned"])).collect())
}

/// Ids of incidents.
pub(crate) async fn incidents(coordinator: &Coordinator) -> anyhow::Result<BTreeSet<String>> {
    let listed: Value = coordinator.get("/incidents").await?;
    let incidents = listed["incidents"].as_array().context("no incidents")?.iter();
    Ok(incidents.map(|of| of["id"].to_string()).collect())
}

/// Reports steps until the coordinator is killed, also where it ends the stream before; the last
/// one that was acknowledged. At first a rank that no other life had has run out of memory.
async fn report(
    target: Target,
    node: Node,
    mut acked: u64,
    (seen, is_killed): (Shared, Arc<AtomicBool>),
) -> (Node, u64) {
    while !is_killed.load(Relaxed) {
        let _ = reporting(&target, &node, &mut acked, &seen).await;
        sleep(ASK_EVERY).await;
    }
    (node, acked)
}

async fn reporting(
    target: &Target,
    node: &Node,
    acked: &mut u64,
    seen: &Shared,
) -> anyhow::Result<()> {
    let channel = channel(&node.name(), target).await?;
    let (outgoing, mut stream) = attach(&channel, &node.name(), None).await?;
    let (sent, _all_sent) = mpsc::unbounded_channel();
    let template = Arc::new(Template::new(4 << 10));
    let uploads = Uploads { template, all_ready: Arc::new(Barrier::new(1)), sent };
    let dies = Node { index: node.index + (1 << 20), job: format!("dies-{acked}"), ..node.clone() };
    for (of, ranks) in [(node, node.ranks.clone()), (&dies, node.ranks.start..node.ranks.start + 1)]
    {
        for rank in ranks {
            let up = v1::RankUp { owner: Some(of.owner()), ..of.rank_up(rank, wall_ns()) };
            outgoing.send(message(Said::RankUp(up))).await?;
        }
    }
    let (tape_id, end) = (dies.tape_id(dies.ranks.start), v1::RankEnd::OomKilled.into());
    let down = v1::RankDown { tape_id, end, wall_ns: wall_ns(), ..v1::RankDown::default() };
    outgoing.send(message(Said::RankDown(down))).await?;
    for number in 1.. {
        let step = *acked + 1;
        let rank = |rank| node.rank_report(rank, step..=step, wall_ns());
        let ranks = node.ranks.clone().map(rank).collect();
        let report = v1::Report { number, wall_ns: wall_ns(), ranks, ..v1::Report::default() };
        outgoing.send(message(Said::Report(report))).await?;
        loop {
            match stream.message().await?.context("the stream ended")?.body {
                Some(Heard::ReportAck(ack)) if ack.number >= number => break,
                Some(Heard::CaptureRequest(request)) => {
                    // Of the rank that died there is nothing to send.
                    let _ = answer(request, node, (&channel, &outgoing), Some(&uploads)).await;
                }
                _ => {}
            }
        }
        *acked = step;
        seen.lock().unwrap_or_else(PoisonError::into_inner).acks.push(Instant::now());
    }
    Ok(())
}
