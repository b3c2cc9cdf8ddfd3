//! What a coordinator's process does: it waits for the shard, takes it, writes batches,
//! acknowledges those that are durable, and acts after a proof that it still owns the shard.
//!
//! Waiting, taking, renewing, proving and giving up are the product's own code, as is the shard.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use memtape_coordinator::testing::{SimulatedMember, SimulatedProof};
use memtape_disk::tree::Change;
use memtape_store::bucket::Bucket;
use memtape_store::cluster::shard::{Position, Shard, ShardError, ShardId};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::coordinators::bucket::SimulatedBucket;
use crate::coordinators::client::Client;
use crate::coordinators::clock::Clock;
use crate::coordinators::history::{BATCH, BatchId, History, NEWEST, Rows};
use crate::coordinators::script::Script;
use crate::coordinators::{Broken, trace};

/// Time after which the store's disk gives a sync up.
const SYNC_TIME: Duration = Duration::from_secs(10);

/// Mean times between two syncs, and two actions.
const SYNC_EVERY: Duration = Duration::from_millis(300);
const ACT_EVERY: Duration = Duration::from_millis(1_500);

/// Time for the last owner, and between its two readings.
const LAST_TAKE_TIME: Duration = Duration::from_secs(100);
const LAST_WAIT: Duration = Duration::from_secs(30);

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    /// The machine that it runs on.
    pub(crate) machine: usize,
    /// Differs from that of every other process.
    pub(crate) name: String,
    pub(crate) clock: Clock,
    pub(crate) history: Arc<History>,
    pub(crate) broken: Option<Broken>,
    is_traced: bool,
    rng: Mutex<Rng>,
    order: watch::Sender<Option<Order>>,
    phase: Mutex<Phase>,
}

/// An order to a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Order {
    /// End.
    Leave,
    /// Give the shard up, and wait for it again.
    GiveUp,
}

/// What a process does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    Waits,
    Owns,
    GivesUp,
    HasEnded,
}

/// How an ownership ended.
enum End {
    Ordered(Order),
    Lost,
}

impl Process {
    pub(crate) fn new(
        (machine, name): (usize, String),
        clock: Clock,
        history: Arc<History>,
        (broken, is_traced): (Option<Broken>, bool),
        rng: Rng,
    ) -> Self {
        let (rng, order, phase) = (Mutex::new(rng), watch::Sender::new(None), Phase::Waits);
        let phase = Mutex::new(phase);
        Self { machine, name, clock, history, broken, is_traced, rng, order, phase }
    }

    pub(crate) fn order(&self, order: Order) {
        self.order.send_replace(Some(order));
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase_mut()
    }

    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Around this time: from half of it to half more.
    async fn pause(&self, time: Duration) {
        let part = self.draw(Rng::f64) + 0.5;
        sleep(time.mul_f64(part)).await;
    }

    /// Waits for an order.
    async fn ordered(&self) -> Order {
        let mut orders = self.order.subscribe();
        // The sender is this process's own.
        while orders.borrow_and_update().is_none() && orders.changed().await.is_ok() {}
        self.order.send_replace(None).unwrap_or(Order::Leave)
    }

    fn enter(&self, phase: Phase) {
        *self.phase_mut() = phase;
        if phase == Phase::HasEnded {
            self.clock.shorten(0);
        }
    }

    fn trace(&self, what: fmt::Arguments<'_>) {
        self.trace_at(self.clock.now_ns(), what);
    }

    pub(crate) fn trace_at(&self, at_ns: u64, what: fmt::Arguments<'_>) {
        if self.is_traced {
            trace(at_ns, format_args!("process {} {what}", self.name));
        }
    }

    fn phase_mut(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lives until another coordinator has the shard, or an order ends it.
pub(crate) async fn live(process: Arc<Process>, objects: SimulatedBucket, script: Arc<Script>) {
    let mut lives = 0;
    while own_once(&process, &objects, &script, lives).await {
        lives += 1;
    }
    process.enter(Phase::HasEnded);
}

/// Owns the shard once; true if the process goes on.
async fn own_once(
    process: &Arc<Process>,
    objects: &SimulatedBucket,
    script: &Script,
    lives: u32,
) -> bool {
    process.enter(Phase::Waits);
    let client = Client::new(objects.clone(), process.clone());
    let bucket = Bucket::simulated(Arc::new(client.clone()), process.draw(|rng| rng.u64(..)));
    let own = SimulatedMember::new(bucket, format!("{}-{lives}", process.name)).own();
    let owned = tokio::select! {
        biased;
        () = async { while process.ordered().await != Order::Leave {} } => return false,
        owned = own => owned,
    };
    let mut owned = match owned {
        Ok(owned) => owned,
        Err(why) => {
            process.history.breaks(&format!("the shard cannot be owned: {why}"));
            return false;
        }
    };
    process.enter(Phase::Owns);
    let (shard, taken_ns) = (owned.shard(), process.clock.now_ns());
    process.trace(format_args!("takes the shard as {:?}", shard.epoch()));
    let end = tokio::select! {
        biased;
        order = process.ordered() => End::Ordered(order),
        () = owned.lost() => End::Lost,
        () = work(process, &shard, script, taken_ns) => return false,
    };
    if process.broken == Some(Broken::GateLeftOpen) {
        // What is left of the shard is not cut off.
        std::mem::forget(shard);
    } else {
        drop(shard);
    }
    let End::Ordered(order) = end else {
        process.trace(format_args!("lost the shard"));
        return false;
    };
    process.enter(Phase::GivesUp);
    // An error is that of a bucket that is away, or of a shard that was taken.
    let closed = owned.close().await;
    process.trace(format_args!("gave the shard up: {closed:?}"));
    client.end();
    order == Order::GiveUp
}

/// Writes, acknowledges and acts, until the ownership ends.
async fn work(process: &Process, shard: &Arc<Shard>, script: &Script, taken_ns: u64) {
    let rows = Rows::read(shard).await.ok();
    process.history.took(shard.epoch(), taken_ns, rows);
    let waiting = Mutex::default();
    tokio::join!(
        write(process, shard, script, &waiting),
        sync(process, shard),
        acknowledge(process, shard, &waiting),
        act(process, shard),
    );
}

/// Batches that are not acknowledged yet.
type Waiting = Mutex<VecDeque<(BatchId, Position)>>;

async fn write(process: &Process, shard: &Shard, script: &Script, waiting: &Waiting) {
    for number in 0.. {
        process.pause(Duration::from_nanos(script.batch_ns)).await;
        let batch: BatchId = (shard.epoch().0, number);
        let head = [batch.0.to_be_bytes(), number.to_be_bytes()].concat();
        let bytes = vec![process.draw(|rng| rng.u8(..)); script.row_bytes];
        let of_batch = ([&[BATCH], &head[..]].concat(), [&head[..], &bytes].concat());
        let rows = [of_batch, (NEWEST.to_vec(), head)];
        process.history.writes(batch, process.clock.now_ns());
        let changes = rows.map(|(key, value)| Change { key, value: Some(value) });
        let Ok(position) = shard.write(changes).await else { return pending().await };
        process.history.wrote(batch, position);
        if process.broken == Some(Broken::AckBeforeDurable) {
            process.history.acknowledged(batch, process.clock.now_ns());
        }
        if let Ok(mut waiting) = waiting.lock() {
            waiting.push_back((batch, position));
        }
    }
}

async fn sync(process: &Process, shard: &Shard) {
    loop {
        process.pause(SYNC_EVERY).await;
        // The store tells its writers that it failed, and goes on.
        let _ = timeout(SYNC_TIME, shard.settle()).await;
    }
}

async fn acknowledge(process: &Process, shard: &Shard, waiting: &Waiting) {
    let mut watch = shard.durable();
    let mut durable = watch.now();
    loop {
        if let Ok(mut waiting) = waiting.lock() {
            while let Some((batch, _)) = waiting.pop_front_if(|(_, at)| *at <= durable.upto) {
                process.history.acknowledged(batch, process.clock.now_ns());
            }
        }
        if durable.end.is_some() {
            return pending().await;
        }
        durable = watch.changed().await;
    }
}

async fn act(process: &Process, shard: &Arc<Shard>) {
    let proof = SimulatedProof::new(shard.clone());
    loop {
        process.pause(ACT_EVERY).await;
        let proof_ns = match process.broken {
            Some(Broken::ActWithoutProof) => Some(process.clock.now_ns()),
            _ => timeout(SYNC_TIME, proof.prove())
                .await
                .ok()
                .flatten()
                .map(|ns| process.clock.at_wall(ns)),
        };
        if let Some(proof_ns) = proof_ns {
            process.history.acted(shard.epoch(), proof_ns, process.clock.now_ns());
        }
    }
}

/// Takes the shard after all others; reads it at once, and again after a while.
pub(crate) async fn end(process: Arc<Process>, objects: SimulatedBucket) -> Option<(Rows, Rows)> {
    let read = read_twice(Client::new(objects, process.clone())).await;
    process.trace(format_args!("read the shard twice: {:?}", read.as_ref().map(|_| ())));
    process.enter(Phase::HasEnded);
    read.ok()
}

async fn read_twice(client: Client) -> Result<(Rows, Rows), ShardError> {
    let bucket = Bucket::simulated(Arc::new(client), 0);
    let shard = Shard::take(&bucket, ShardId(0), None, LAST_TAKE_TIME).await?;
    let rows = Rows::read(&shard).await?;
    sleep(LAST_WAIT).await;
    Ok((rows, Rows::read(&shard).await?))
}
