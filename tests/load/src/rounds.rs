//! Rounds: three coordinators on one bucket, under load, and a fault in each round.
//!
//! The bucket is in this process. Simulated agents report to whichever coordinator owns the
//! cluster (`load.rs`); a real agent has a new job with a leak in each round (`leaking.rs`), which
//! the policy restarts by a command; in each round a rank dies. At a random time a fault begins
//! (`fault.rs`). When a coordinator acknowledges again the fault ends, coordinators that have ended
//! are started again, and everything that was acknowledged or shown is compared (`check.rs`). All
//! that is random comes from one seed. Times of the machine are not: a seed repeats the faults.
//! A takeover takes longer the longer the history of its cluster is: a fresh cluster begins after
//! some rounds, and after one that failed. Any number of such processes may run at the same time.

mod check;
mod fault;
mod leaking;
mod load;
mod member;
mod relay;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use fastrand::Rng;
use memtape_bucket::{Conditions, Server};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::coordinator::{Binary, Coordinator, Target};
use crate::rounds::check::{Acknowledged, Checked, Shown};
use crate::rounds::fault::{Bucket, Faulty, Kind};
use crate::rounds::leaking::Leaking;
use crate::rounds::load::Load;
use crate::rounds::member::Member;
use crate::rounds::relay::Relays;

/// Access keys of the coordinators.
const KEYS: [&str; 3] = ["one", "two", "three"];

/// The policy: a leak is restarted once, at once.
const POLICY: &str = r#"
[[rule]]
jobs = ["leaking-*"]
mode = "act"
remedies = ["restart"]
always = true

[budgets]
job = { restarts = 3, within = "24h" }
owner = { restarts = 1000, within = "1h" }
cluster = { restarts = 1000, within = "1h" }
"#;

/// Time until a coordinator acknowledges, whatever happens.
const ACK_TIME_MAX: Duration = Duration::from_secs(120);

/// Time until one coordinator answers, and all others wait.
const ONE_OWNER_TIME_MAX: Duration = Duration::from_secs(150);

/// Time for one answer, so that a stopped coordinator holds nothing up, and for those of a check.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
const CHECK_TIME_MAX: Duration = Duration::from_secs(60);

/// Times that a check is tried: what is under way may not be there yet.
const CHECKS_MAX: u32 = 6;
const CHECK_WAIT: Duration = Duration::from_secs(5);

/// Requests that were under way when the bucket went away are answered within this time.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// Rounds that a real job takes to end, at most.
const LEAKING_ROUNDS: u32 = 3;

/// What to do.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Rounds {
    /// Kinds of faults; all unless some are named.
    #[arg(long = "kind", value_enum)]
    kinds: Vec<Kind>,
    /// Rounds of each kind.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// The seed; another one each time unless it is given.
    #[arg(long)]
    seed: Option<u64>,
    /// Rounds of one cluster; then a fresh one begins, without a history.
    #[arg(long, default_value_t = 10)]
    cluster_rounds: u32,
    /// Time that the bucket takes for each request, in milliseconds.
    #[arg(long, default_value_t = 20)]
    bucket_ms: u64,
    /// Ends after this time, whatever is under way; the rounds that ended are reported.
    #[arg(long, value_parser = crate::seconds)]
    seconds: Option<Duration>,
    /// File that a line of JSON is added to for each round.
    #[arg(long)]
    lines: Option<PathBuf>,
    /// Folder for tapes of real ranks.
    #[arg(long, default_value = "/dev/shm")]
    tapes: PathBuf,
    /// The bucket ignores conditions from the first round on: rounds must fail.
    #[arg(long)]
    ignore_conditions: bool,
    /// No real agent and no real ranks.
    #[arg(long)]
    simulated: bool,
}

/// What one round found.
#[derive(Debug)]
struct Round {
    kind: Kind,
    /// From the fault to the first acknowledgement by another coordinator, or from the end of the
    /// fault to the next acknowledgement where the owner stays. None where there was no such one.
    took: Option<Duration>,
    /// Objects of rows that the bucket had when the fault began.
    wal_objects: usize,
    checked: Checked,
}

/// Everything that runs.
struct Rig {
    folder: tempfile::TempDir,
    rng: Rng,
    /// Rounds so far.
    rounds: u32,
    bucket: Bucket,
    relays: Relays,
    members: Vec<Member>,
    load: Load,
    leaking: Option<Leaking>,
    shown: Shown,
    /// Jobs of real ranks.
    jobs: Vec<String>,
    /// Captures that the API answered an id for.
    captures: u64,
}

/// Makes all rounds, and tells what they found.
pub(crate) async fn rounds(binary: &Binary, wish: &Rounds) -> anyhow::Result<Value> {
    let seed = wish.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut kinds = match wish.kinds.as_slice() {
        [] => <Kind as clap::ValueEnum>::value_variants().to_vec(),
        some => some.to_vec(),
    };
    // Where the time ends before the rounds do, each kind is as likely to have been.
    let from = seed as usize % kinds.len();
    kinds.rotate_left(from);
    let mut all = Vec::new();
    let making = make(binary, wish, seed, &kinds, &mut all);
    let made = match wish.seconds {
        Some(time) => timeout(time, making).await.unwrap_or(Ok(())),
        None => making.await,
    };
    let unfinished = made.err().map(|why| format!("{why:#}"));
    let mut figures =
        json!({ "seed": seed, "bucket_ms": wish.bucket_ms, "unfinished": unfinished });
    for kind in kinds {
        let of_kind: Vec<&Round> = all.iter().filter(|round| round.kind == kind).collect();
        figures[kind.name()] = summary(&of_kind);
    }
    Ok(figures)
}

/// Makes rounds of all kinds, and notes each when it ends.
async fn make(
    binary: &Binary,
    wish: &Rounds,
    seed: u64,
    kinds: &[Kind],
    all: &mut Vec<Round>,
) -> anyhow::Result<()> {
    let mut rng = Rng::with_seed(seed);
    let mut lines = match &wish.lines {
        Some(path) => Some(File::options().create(true).append(true).open(path)?),
        None => None,
    };
    let mut cluster: Option<Rig> = None;
    for kind in (0..wish.rounds).flat_map(|_| kinds) {
        let mut rig = match cluster.take().filter(|rig| rig.rounds < wish.cluster_rounds) {
            Some(rig) => rig,
            None => Rig::start(binary, wish, rng.fork()).await?,
        };
        let number = rig.rounds;
        rig.rounds += 1;
        let round = rig.round(number, *kind).await.unwrap_or_else(|why| {
            let wrong = vec![format!("the round could not be made: {why:#}")];
            let checked = Checked { wrong, ..Checked::default() };
            Round { kind: *kind, took: None, wal_objects: 0, checked }
        });
        let line = line(seed, wish.bucket_ms, number, &round);
        eprint!("{line}");
        if let Some(file) = &mut lines {
            file.write_all(line.as_bytes())?;
        }
        if round.checked.wrong.is_empty() {
            cluster = Some(rig);
        } else {
            eprintln!("logs of seed {seed} are in {}", rig.folder.path().display());
            rig.folder.disable_cleanup(true);
        }
        all.push(round);
    }
    Ok(())
}

/// A round as a line of JSON.
fn line(seed: u64, bucket_ms: u64, number: u32, round: &Round) -> String {
    let Round { kind, took, wal_objects, checked } = round;
    let line = json!({
        "kind": kind.name(),
        "seed": seed,
        "bucket_ms": bucket_ms,
        "round_of_cluster": number,
        "took_s": took.map(|took| rounded(took.as_secs_f64())),
        "wal_objects": wal_objects,
        "records": checked.records,
        "incidents": checked.incidents,
        "captures": checked.captures,
        "audit_entries": checked.audit_entries,
        "deaths": checked.deaths,
        "actions": checked.actions,
        "lost": checked.lost,
        "doubled": checked.doubled,
        "wrong": checked.wrong,
    });
    format!("{line}\n")
}

/// The figures of the rounds of one kind.
fn summary(rounds: &[&Round]) -> Value {
    let took = rounds.iter().filter_map(|round| round.took);
    let mut times: Vec<f64> = took.map(|took| took.as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    let share = |share: f64| {
        let last = times.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        times.get(at).copied().map(rounded)
    };
    let failed = rounds.iter().filter(|round| !round.checked.wrong.is_empty());
    let most = |count: fn(&Checked) -> usize| rounds.iter().map(|of| count(&of.checked)).max();
    json!({
        "rounds": rounds.len(),
        "failed": failed.count(),
        "records": rounds.iter().map(|of| of.checked.records).max(),
        "incidents": most(|checked| checked.incidents),
        "captures": most(|checked| checked.captures),
        "audit_entries": most(|checked| checked.audit_entries),
        "deaths": most(|checked| checked.deaths),
        "actions": most(|checked| checked.actions),
        "lost": rounds.iter().map(|of| of.checked.lost).sum::<u64>(),
        "doubled": rounds.iter().map(|of| of.checked.doubled).sum::<u64>(),
        "took_p50_s": share(0.5),
        "took_p99_s": share(0.99),
        "took_max_s": share(1.0),
        "wrong": rounds.iter().flat_map(|round| round.checked.wrong.clone()).collect::<Vec<_>>(),
    })
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

impl Rig {
    async fn start(binary: &Binary, wish: &Rounds, rng: Rng) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let bucket = Bucket {
            server: Server::start().await,
            latency: Duration::from_millis(wish.bucket_ms),
        };
        bucket.set(&[]);
        let policy = folder.path().join("policy.toml");
        std::fs::write(&policy, POLICY)?;
        let ask =
            format!("echo $MEMTAPE_ACTION $MEMTAPE_JOB >> {}", asked(folder.path()).display());
        let arguments = [
            "--cluster",
            "s3://bucket/cluster",
            "--policy",
            &policy.display().to_string(),
            "--restart-command",
            &ask,
        ]
        .map(String::from);
        let (mut members, mut relays, mut targets) = (Vec::new(), Relays::new(), Vec::new());
        for key in KEYS {
            let address = free_address()?;
            let settings = (arguments.to_vec(), bucket.server.settings(key));
            let mut member =
                Member::new(&binary.path, key, address.clone(), settings, folder.path());
            member.start()?;
            let url = format!("http://{}", relays.add(address).await?);
            targets.push(Target { url, trust: None, has_others: true, shard: None });
            members.push(member);
        }
        let coordinators: Vec<String> = members.iter().map(Member::url).collect();
        let (path, folders) = (&binary.path, (folder.path(), wish.tapes.as_path()));
        let starting = || Leaking::start(path, &coordinators.join(","), folders);
        let leaking = (!wish.simulated).then(starting).transpose()?;
        let mut rig = Self {
            folder,
            rng,
            rounds: 0,
            bucket,
            relays,
            members,
            load: Load::start(&targets),
            leaking,
            shown: Shown::default(),
            jobs: Vec::new(),
            captures: 0,
        };
        rig.load.acked(ACK_TIME_MAX, |_| true).await.context("no coordinator acknowledges")?;
        if wish.ignore_conditions {
            // Every coordinator has proved the bucket.
            sleep(ACK_TIME_MAX / 20).await;
            rig.bucket.server.set_conditions(Conditions::Ignored);
        }
        Ok(rig)
    }

    /// One round. An error is one that no round can follow.
    async fn round(&mut self, number: u32, kind: Kind) -> anyhow::Result<Round> {
        let (owner, api) = self.one_owner().await?;
        let key = self.members.get(owner).context("no such coordinator")?.key;
        let fault = Faulty::new(kind, key, &mut self.rng);
        eprintln!("{key} owns: {}", fault.sentence());
        let job = format!("leaking-{number}");
        if let Some(leaking) = &mut self.leaking {
            leaking.start_job(&job)?;
            self.jobs.push(job);
        }
        sleep(fault.before / 2).await;
        let node = &self.load.nodes[number as usize % self.load.nodes.len()];
        self.captures += u64::from(api.capture(&node.job_id()).await.is_ok());
        self.load.let_die(number);
        sleep(fault.before / 2).await;

        self.load.steps();
        self.load.acks.clear();
        let is_of_rows = |key: &&String| key.contains("/wal/");
        let wal_objects = self.bucket.server.keys().iter().filter(is_of_rows).count();
        let began = Instant::now();
        fault.begin(&mut self.members[owner], &self.bucket, &self.relays)?;
        let by_another = match kind.is_of_owner() {
            true => {
                let acked = self.load.acked(ACK_TIME_MAX, |acked| acked.by != owner).await;
                Some(acked.map(|acked| acked.at - began))
            }
            false => None,
        };
        fault.end(&self.members[owner], &self.bucket, &self.relays).await?;
        let ended = Instant::now();
        let next = self.load.acked(ACK_TIME_MAX, |acked| acked.at > ended).await;
        let next = next.context("nothing is acknowledged after the fault")?;
        let mut wrong = Vec::new();
        let took = match by_another {
            None => Some(next.at - ended),
            Some(Some(took)) => Some(took),
            Some(None) => {
                wrong.push("no other coordinator has taken over".to_string());
                None
            }
        };
        let is_away = |at: Instant| at > began + UNDER_WAY && at < ended;
        let acked_away = self.load.acks.iter().filter(|acked| is_away(acked.at)).count();
        if fault.is_bucket_away() && acked_away > 0 {
            wrong.push(format!("{acked_away} acknowledgements while the bucket was away"));
        }
        let mut checked = self.check(number).await?;
        wrong.append(&mut checked.wrong);
        checked.wrong = wrong;
        Ok(Round { kind, took, wal_objects, checked })
    }

    /// Compares everything, again while it may still be under way.
    async fn check(&mut self, number: u32) -> anyhow::Result<Checked> {
        let mut checked = Checked::default();
        for _ in 0..CHECKS_MAX {
            let (owner, _) = self.one_owner().await?;
            let owner = Arc::new(Coordinator::at(&self.members[owner].url(), CHECK_TIME_MAX)?);
            let ended = (number as usize).saturating_sub(LEAKING_ROUNDS as usize);
            let ended_jobs = self.jobs.get(..ended).unwrap_or_default();
            let (steps, dead_jobs) = (self.load.steps(), self.load.dead_jobs().clone());
            let (dead_jobs, captures) = (&dead_jobs, self.captures);
            let acknowledged = Acknowledged { steps: &steps, dead_jobs, ended_jobs, captures };
            let asked = asked(self.folder.path());
            checked = match self.shown.check(&owner, acknowledged, &asked).await {
                Ok(checked) if checked.wrong.is_empty() => return Ok(checked),
                Ok(checked) => checked,
                Err(why) => {
                    let wrong = vec![format!("the store cannot be read: {why:#}")];
                    Checked { wrong, ..Checked::default() }
                }
            };
            sleep(CHECK_WAIT).await;
        }
        Ok(checked)
    }

    /// Waits until one coordinator answers and all others wait, and starts those that have ended.
    async fn one_owner(&mut self) -> anyhow::Result<(usize, Coordinator)> {
        let begin = Instant::now();
        let mut answering = BTreeMap::new();
        while begin.elapsed() < ONE_OWNER_TIME_MAX {
            answering.clear();
            for (number, member) in self.members.iter_mut().enumerate() {
                member.start()?;
                let api = Coordinator::at(&member.url(), ANSWER_TIME_MAX)?;
                if api.get::<Value>("/jobs").await.is_ok() {
                    answering.insert(number, api);
                }
            }
            if answering.len() == 1
                && let Some(owner) = answering.pop_first()
            {
                return Ok(owner);
            }
            sleep(ANSWER_TIME_MAX / 10).await;
        }
        bail!("{} coordinators answer", answering.len())
    }
}

/// The file with a line for each request to the target.
fn asked(folder: &std::path::Path) -> PathBuf {
    folder.join("asked")
}

/// A port that stays free while no process listens on it: where the system has all of 127.0.0.0/8,
/// on an address of this process's own, so that no connection of another one takes the port.
fn free_address() -> std::io::Result<String> {
    let run = std::process::id();
    let own = Ipv4Addr::new(127, 1 + (run >> 8 & 127) as u8, run as u8, 1);
    let listener =
        TcpListener::bind((own, 0)).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    Ok(listener.local_addr()?.to_string())
}
