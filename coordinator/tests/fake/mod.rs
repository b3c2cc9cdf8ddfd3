//! A coordinator in this process and an agent that is only words: it speaks the real protocol over
//! the real network, about ranks that do not exist.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use memtape_coordinator::Config;
use memtape_core::limits::CHUNK_BYTES_MAX;
use memtape_proto::v1::agent_message::Body as FromAgent;
use memtape_proto::v1::coordinator_client::CoordinatorClient;
use memtape_proto::v1::coordinator_message::Body as FromCoordinator;
use memtape_proto::{PROTOCOL, v1};
use memtape_store::{Error as StoreError, Kind as StoreErrorKind};
use prost::Message as _;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

/// Nothing in these tests takes longer, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const MIB: u64 = 1 << 20;

/// A coordinator that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<anyhow::Result<()>>,
}

/// Settings for tests: any free port, and reports as often as can be.
pub(crate) fn config(data_dir: &Path) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        data_dir: data_dir.to_path_buf(),
        report_interval: Duration::from_millis(50),
        capture_interval: Duration::ZERO,
        ..Config::default()
    }
}

/// Starts a coordinator, again while its store is in use: a process that another test starts at
/// this moment may have inherited the lock of a store that was closed, until it runs its program.
pub(crate) async fn start(config: Config) -> Running {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match start_once(config.clone()).await {
            Ok(running) => return running,
            Err(error) => {
                let store_error = error.downcast_ref::<StoreError>();
                let is_in_use =
                    store_error.is_some_and(|error| error.kind == StoreErrorKind::Locked);
                assert!(is_in_use && Instant::now() < deadline, "it did not start: {error:#}");
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A coordinator in a folder of its own, and the agent of `node-a`.
pub(crate) async fn attached() -> (TempDir, Running, Agent) {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let agent = Agent::attach(&running, "node-a").await;
    (dir, running, agent)
}

/// The same, with the ranks of a job announced.
pub(crate) async fn training(job: &Job) -> (TempDir, Running, Agent) {
    let (dir, running, agent) = attached().await;
    agent.announce(job).await;
    (dir, running, agent)
}

async fn start_once(config: Config) -> anyhow::Result<Running> {
    let (stop, stopped) = oneshot::channel();
    let (bound, address) = oneshot::channel();
    let shutdown = async {
        let _ = stopped.await;
    };
    let on_bound = move |address| bound.send(address).unwrap();
    let task = tokio::spawn(memtape_coordinator::run(config, shutdown, on_bound));
    match timeout(PATIENCE, address).await.unwrap() {
        Ok(address) => Ok(Running { address, stop: Some(stop), task }),
        Err(_) => Err(task.await.unwrap().unwrap_err()),
    }
}

impl Running {
    /// Stops it in order.
    pub(crate) async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        timeout(PATIENCE, &mut self.task).await.unwrap().unwrap().unwrap();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let answer = reqwest::get(self.url(path)).await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or(Value::Null))
    }

    pub(crate) async fn post(&self, path: &str, body: &'static str) -> (u16, Value) {
        let request = reqwest::Client::new().post(self.url(path)).body(body);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or(Value::Null))
    }

    /// A stream of changes, of a client that has seen the event with this id.
    pub(crate) async fn changes(&self, last: Option<&str>) -> Events {
        let asked = reqwest::Client::new().get(self.url("/api/v1/changes"));
        let asked = last.into_iter().fold(asked, |asked, id| asked.header("last-event-id", id));
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events { answer, text: String::new() }
    }

    /// Asks until the answer is as wished.
    pub(crate) async fn wait(&self, path: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let (_, answer) = self.get(path).await;
            if is_there(&answer) {
                return answer;
            }
            assert!(begin.elapsed() < PATIENCE, "{path} is still {answer:#}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that the newest incident, its rank and the metrics of the rank have one rate.
    pub(crate) async fn check_rate(&self) {
        let (_, answer) = self.get("/api/v1/incidents").await;
        let incident = &answer["incidents"][0];
        let (job, rank) = (incident["job"].as_str().unwrap(), &incident["rank"]);
        let (_, ranks) = self.get(&format!("/api/v1/jobs/{job}/ranks")).await;
        let shown = &ranks["ranks"][rank.as_u64().unwrap() as usize];
        let rate = shown["growth_bytes_per_step"].as_u64().unwrap();
        assert!(rate > 0 && incident["bytes_per_step"] == rate, "{shown:#} {incident:#}");
        let text = reqwest::get(self.url("/metrics")).await.unwrap().text().await.unwrap();
        let labels = format!(r#"job="{job}",attempt="0",rank="{rank}",node="node-a""#);
        let line = format!("memtape_rank_growth_bytes_per_step{{{labels}}} {rate}.0");
        assert!(text.contains(&line), "no {line} in {text}");
    }
}

/// Server-sent events, as they come.
pub(crate) struct Events {
    answer: reqwest::Response,
    text: String,
}

impl Events {
    /// The id and the data of the next event.
    pub(crate) async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|value| value.trim().to_string())
                };
                let found = field("id:").zip(field("data:"));
                self.text = rest.to_string();
                if let Some((id, data)) = found {
                    return (id, serde_json::from_str(&data).unwrap());
                }
                continue;
            }
            let chunk = self.answer.chunk().await.unwrap().expect("the stream goes on");
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

/// The training that the agent talks about.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) attempt: u32,
    pub(crate) ranks: u32,
    /// This rank keeps 2 MiB of each step from [`LEAK_BEGINS`] on.
    pub(crate) leaking: Option<u32>,
    /// Told apart by this: every run has tapes of its own.
    pub(crate) run: u32,
    /// Size of each device.
    pub(crate) device_mib: u64,
    /// Snapshots have the events of their step, and a request of the leaking rank that failed after
    /// it.
    pub(crate) has_events: bool,
}

pub(crate) const LEAK_BEGINS: u64 = 100;
pub(crate) const LEAK_LINE: u32 = 36;
const LEAK_BYTES: u64 = 32 * MIB;

impl Job {
    /// The first attempt at a job that does not leak, on devices of 8 GiB.
    pub(crate) const fn new(name: &'static str, ranks: u32) -> Self {
        let (leaking, has_events) = (None, false);
        Self { name, attempt: 0, ranks, leaking, run: 1, device_mib: 8192, has_events }
    }

    pub(crate) fn tape(&self, rank: u32) -> String {
        format!("tape-{}-{}-{rank}", self.name, self.run)
    }

    fn leaked_blocks(&self, rank: u32, step: u64) -> u64 {
        if self.leaking == Some(rank) { step.saturating_sub(LEAK_BEGINS) } else { 0 }
    }

    fn floor(&self, rank: u32, step: u64) -> u64 {
        512 * MIB + self.leaked_blocks(rank, step) * LEAK_BYTES
    }

    pub(crate) fn rank_up(&self, rank: u32) -> v1::RankUp {
        v1::RankUp {
            tape_id: self.tape(rank),
            job: self.name.to_string(),
            attempt: self.attempt,
            rank,
            world_size: self.ranks,
            local_rank: rank,
            pid: 1000 + rank,
            start_wall_ns: 1_700_000_000_000_000_000 + i64::from(self.run) * 1_000_000_000,
            command: "python train.py".to_string(),
            device_uuids: vec![format!("GPU-{rank}")],
            owner: Some(v1::Owner::default()),
            ..v1::RankUp::default()
        }
    }

    fn step_record(&self, rank: u32, step: u64) -> v1::StepRecord {
        let floor = self.floor(rank, step);
        v1::StepRecord {
            device: 0,
            first_step: step,
            last_step: step,
            end_wall_ns: wall_ns(),
            floor_allocated: floor,
            peak_allocated: floor + 300 * MIB,
            end_allocated: floor,
            floor_reserved: 4096 * MIB,
            peak_reserved: 4096 * MIB,
            end_reserved: 4096 * MIB,
            blocks: 20 + self.leaked_blocks(rank, step),
            ..v1::StepRecord::default()
        }
    }

    pub(crate) fn rank_report(&self, rank: u32, steps: &RangeInclusive<u64>) -> v1::RankReport {
        let (step, floor) = (*steps.end(), self.floor(rank, *steps.end()));
        let totals = v1::DeviceTotals {
            allocated: floor,
            reserved: 4096 * MIB,
            peak_allocated: floor + 300 * MIB,
            blocks: 20 + self.leaked_blocks(rank, step),
            device_bytes: self.device_mib * MIB,
            process_bytes: Some(4300 * MIB),
            ..v1::DeviceTotals::default()
        };
        v1::RankReport {
            tape_id: self.tape(rank),
            step,
            step_wall_ns: wall_ns(),
            oldest_step: 1,
            totals: vec![totals],
            steps: steps.clone().map(|step| self.step_record(rank, step)).collect(),
            rss_bytes: Some(900 * MIB),
            ..v1::RankReport::default()
        }
    }

    /// The state of a rank at the end of a step, as the wire has it.
    pub(crate) fn snapshot(&self, rank: u32, step: u64, before_step: u64) -> Vec<u8> {
        let frame = |file: &str, line: u32, function: &str| v1::Frame {
            file: file.to_string(),
            line,
            function: function.to_string(),
        };
        let leaked = self.leaked_blocks(rank, step);
        // In steps that had finished by then.
        let births = (step - leaked)..step;
        let mut blocks = v1::Blocks::default();
        let weights = (0..20).map(|_| (25 * MIB, 1, 0));
        let leak = births.map(|birth| (LEAK_BYTES, 2, birth));
        for (size, stack, birth) in weights.chain(leak) {
            blocks.address_deltas.push(32 * MIB);
            blocks.sizes.push(size);
            blocks.stacks.push(stack);
            blocks.birth_steps.push(birth);
            blocks.birth_mono_ns.push(birth * 1_000_000);
        }
        let leaked_before = self.leaked_blocks(rank, before_step);
        let before = vec![
            v1::StackUse { stack: 1, bytes: 500 * MIB, blocks: 20 },
            v1::StackUse { stack: 2, bytes: leaked_before * LEAK_BYTES, blocks: leaked_before },
        ];
        let device = v1::DeviceState {
            uuid: format!("GPU-{rank}"),
            allocated: self.floor(rank, step),
            reserved: 4096 * MIB,
            device_bytes: self.device_mib * MIB,
            blocks: Some(blocks),
            before: if before_step > 0 { before } else { Vec::new() },
            trace: if self.has_events { self.events(rank, step) } else { Vec::new() },
            complete: true,
            ..v1::DeviceState::default()
        };
        let snapshot = v1::RankSnapshot {
            rank: Some(self.rank_up(rank)),
            step,
            wall_ns: step as i64,
            devices: vec![device],
            frames: vec![
                v1::Frame::default(),
                frame("/app/model.py", 12, "Model.__init__"),
                frame("/app/train.py", LEAK_LINE, "train_step"),
                frame("/app/train.py", 80, "main"),
            ],
            stacks: vec![
                v1::StackFrames::default(),
                v1::StackFrames { frames: vec![1, 3] },
                v1::StackFrames { frames: vec![2, 3] },
            ],
            before_step,
            failed_request: self.has_events.then(|| self.failed_request(rank, step)).flatten(),
            ..v1::RankSnapshot::default()
        };
        zstd::bulk::compress(&snapshot.encode_to_vec(), 3).unwrap()
    }

    /// The events of a step: a tensor of 300 MiB comes and goes, of 364 MiB on the leaking rank.
    fn events(&self, rank: u32, step: u64) -> Vec<v1::TraceEvent> {
        let more = if self.leaking == Some(rank) { 64 * MIB } else { 0 };
        let event = |kind: v1::TraceKind| v1::TraceEvent {
            kind: kind.into(),
            address: 1 << 44,
            size: 300 * MIB + more,
            stack: 2,
            step: step - 1,
            ..v1::TraceEvent::default()
        };
        [v1::TraceKind::Alloc, v1::TraceKind::Free].map(event).to_vec()
    }

    /// The request of the leaking rank that failed after a step, with the largest stack alone.
    fn failed_request(&self, rank: u32, step: u64) -> Option<v1::FailedRequest> {
        let weights = v1::StackUse { stack: 1, bytes: 500 * MIB, blocks: 20 };
        (self.leaking == Some(rank)).then(|| v1::FailedRequest {
            step,
            bytes: 300 * MIB,
            stack: 2,
            allocated: self.floor(rank, step) + 100 * MIB,
            reserved: 4096 * MIB,
            uses: vec![weights],
            ..v1::FailedRequest::default()
        })
    }
}

pub(crate) fn wall_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

/// The agent of one node.
pub(crate) struct Agent {
    pub(crate) outgoing: mpsc::Sender<v1::AgentMessage>,
    pub(crate) incoming: tonic::Streaming<v1::CoordinatorMessage>,
    pub(crate) client: CoordinatorClient<Channel>,
    reports: u64,
    pub(crate) acked: u64,
    /// Requests that came while something else was awaited.
    pub(crate) requests: Vec<v1::CaptureRequest>,
    /// Likewise, for remedies.
    pub(crate) remedies: Vec<v1::RemedyRequest>,
    /// What its reports say of the node's GPUs.
    pub(crate) gpus: Vec<v1::Gpu>,
}

impl Agent {
    pub(crate) async fn attach(running: &Running, node: &str) -> Self {
        Self::try_attach(running, node, "boot-1").await.unwrap()
    }

    pub(crate) async fn try_attach(
        running: &Running,
        node: &str,
        boot_id: &str,
    ) -> Result<Self, tonic::Status> {
        let channel = Channel::from_shared(running.url("")).unwrap().connect().await.unwrap();
        Self::attach_on(channel, node, boot_id).await
    }

    pub(crate) async fn attach_on(
        channel: Channel,
        node: &str,
        boot_id: &str,
    ) -> Result<Self, tonic::Status> {
        let mut client = CoordinatorClient::new(channel);
        let (outgoing, messages) = mpsc::channel(64);
        let hello = v1::Hello {
            protocol: PROTOCOL,
            node: node.to_string(),
            boot_id: boot_id.to_string(),
            version: "0.1.0".to_string(),
            shard: None,
        };
        outgoing.send(message(FromAgent::Hello(hello))).await.unwrap();
        let mut incoming = client.attach(ReceiverStream::new(messages)).await?.into_inner();
        let first = timeout(PATIENCE, incoming.message()).await.unwrap()?;
        let welcome = first.and_then(|first| first.body);
        assert!(matches!(&welcome, Some(FromCoordinator::Welcome(w)) if w.protocol == PROTOCOL));
        Ok(Self {
            outgoing,
            incoming,
            client,
            reports: 0,
            acked: 0,
            requests: Vec::new(),
            remedies: Vec::new(),
            gpus: Vec::new(),
        })
    }

    pub(crate) async fn say(&self, body: FromAgent) {
        self.outgoing.send(message(body)).await.unwrap();
    }

    pub(crate) async fn announce(&self, job: &Job) {
        self.announce_ranks(job, 0..job.ranks).await;
    }

    pub(crate) async fn announce_ranks(&self, job: &Job, ranks: std::ops::Range<u32>) {
        for rank in ranks {
            self.say(FromAgent::RankUp(job.rank_up(rank))).await;
        }
    }

    /// Reports the steps of all ranks, and waits until they are acknowledged.
    pub(crate) async fn train(&mut self, job: &Job, steps: RangeInclusive<u64>) {
        self.train_ranks(job, 0..job.ranks, steps).await;
    }

    pub(crate) async fn train_ranks(
        &mut self,
        job: &Job,
        ranks: std::ops::Range<u32>,
        steps: RangeInclusive<u64>,
    ) {
        let last = *steps.end();
        let mut first = *steps.start();
        while first <= last {
            let some = first..=(first + 7).min(last);
            first += 8;
            let ranks = ranks.clone().map(|rank| job.rank_report(rank, &some)).collect();
            self.report(ranks).await;
        }
        self.settle().await;
    }

    pub(crate) async fn report(&mut self, ranks: Vec<v1::RankReport>) {
        self.reports += 1;
        let number = self.reports;
        let host = v1::Host {
            memory_total_bytes: Some(64 << 30),
            memory_available_bytes: Some(48 << 30),
            nvml_missing: "no driver".to_string(),
            ..v1::Host::default()
        };
        let host = Some(host);
        let (gpus, wall_ns) = (self.gpus.clone(), wall_ns());
        let report = v1::Report { number, wall_ns, ranks, gpus, host, ..Default::default() };
        self.say(FromAgent::Report(report)).await;
    }

    /// Waits until all reports are acknowledged.
    pub(crate) async fn settle(&mut self) {
        while self.acked < self.reports {
            self.receive().await;
        }
    }

    async fn receive(&mut self) {
        let message = timeout(PATIENCE, self.incoming.message()).await.expect("an answer in time");
        match message.unwrap().expect("the stream goes on").body {
            Some(FromCoordinator::ReportAck(ack)) => {
                assert!(ack.number > self.acked);
                self.acked = ack.number;
            }
            Some(FromCoordinator::CaptureRequest(request)) => self.requests.push(request),
            Some(FromCoordinator::RemedyRequest(request)) => self.remedies.push(request),
            other => panic!("unexpected {other:?}"),
        }
    }

    /// The next request for a capture.
    pub(crate) async fn asked(&mut self) -> v1::CaptureRequest {
        while self.requests.is_empty() {
            self.receive().await;
        }
        self.requests.remove(0)
    }

    /// The next request for a remedy.
    pub(crate) async fn remedy_asked(&mut self) -> v1::RemedyRequest {
        while self.remedies.is_empty() {
            self.receive().await;
        }
        self.remedies.remove(0)
    }

    /// Answers a request for a remedy, for some of a job's ranks.
    pub(crate) async fn answer_remedy(
        &self,
        job: &Job,
        ranks: std::ops::Range<u32>,
        request: &v1::RemedyRequest,
        outcome: v1::RemedyOutcome,
    ) {
        for rank in ranks {
            let answer = v1::RemedyAnswer {
                call_id: request.call_id.clone(),
                tape_id: job.tape(rank),
                outcome: outcome.into(),
                step: request.step,
                ..v1::RemedyAnswer::default()
            };
            self.say(FromAgent::RemedyAnswer(answer)).await;
        }
    }

    /// Waits until the coordinator ends the stream; true when it said goodbye.
    pub(crate) async fn ended(&mut self) -> bool {
        let mut goodbye = false;
        loop {
            match timeout(PATIENCE, self.incoming.message()).await.expect("an end in time") {
                Ok(Some(message)) => {
                    goodbye |= matches!(message.body, Some(FromCoordinator::Goodbye(_)));
                }
                Ok(None) | Err(_) => return goodbye,
            }
        }
    }

    /// Answers all requests that have come.
    pub(crate) async fn serve_all(&mut self, job: &Job) {
        while let Some(request) = self.requests.pop() {
            self.serve(job, &request).await;
        }
    }

    /// Answers a request for all its tapes, and sends the snapshots; answers the snapshots by rank.
    pub(crate) async fn serve(
        &mut self,
        job: &Job,
        request: &v1::CaptureRequest,
    ) -> BTreeMap<u32, Vec<u8>> {
        let mut snapshots = BTreeMap::new();
        for rank in (0..job.ranks).filter(|rank| request.tape_ids.contains(&job.tape(*rank))) {
            let snapshot = job.snapshot(rank, request.step, request.before_step);
            self.say(FromAgent::CaptureAnswer(answer(job, rank, request, &snapshot))).await;
            let receipt =
                self.upload(&request.capture_id, &job.tape(rank), &snapshot).await.unwrap();
            assert_eq!(receipt, blake3::hash(&snapshot).as_bytes());
            snapshots.insert(rank, snapshot);
        }
        snapshots
    }

    pub(crate) async fn upload(
        &mut self,
        capture: &str,
        tape_id: &str,
        snapshot: &[u8],
    ) -> Result<Vec<u8>, tonic::Status> {
        let chunks: Vec<v1::UploadChunk> = snapshot
            .chunks(CHUNK_BYTES_MAX)
            .enumerate()
            .map(|(index, data)| v1::UploadChunk {
                capture_id: capture.to_string(),
                tape_id: tape_id.to_string(),
                offset: (index * CHUNK_BYTES_MAX) as u64,
                data: data.to_vec().into(),
            })
            .collect();
        let receipt = self.client.upload(tokio_stream::iter(chunks)).await?;
        Ok(receipt.into_inner().snapshot_hash)
    }
}

/// What an agent says about a tape before its snapshot comes.
pub(crate) fn answer(
    job: &Job,
    rank: u32,
    request: &v1::CaptureRequest,
    snapshot: &[u8],
) -> v1::CaptureAnswer {
    v1::CaptureAnswer {
        capture_id: request.capture_id.clone(),
        tape_id: job.tape(rank),
        outcome: v1::RankOutcome::Aligned.into(),
        step: request.step,
        wall_ns: wall_ns(),
        wall_error_ns: 1000,
        before_step: request.before_step,
        snapshot_bytes: snapshot.len() as u64,
        snapshot_hash: blake3::hash(snapshot).as_bytes().to_vec(),
        ..v1::CaptureAnswer::default()
    }
}

pub(crate) fn message(body: FromAgent) -> v1::AgentMessage {
    v1::AgentMessage { body: Some(body) }
}

/// Copies a data folder as a SIGKILL would leave it now.
pub(crate) fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_store(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
