//! Tables that an owner writes into the bucket of its cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use memtape_bucket::{Fault, Rule, Server};
use memtape_core::placement::JobsShard;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use parquet::record::Field;
use reqwest::Method;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::bucket::Bucket;
use crate::cluster::checking::check_in;
use crate::cluster::hint::{Hint, Placement as _};
use crate::cluster::identity::join;
use crate::cluster::shard::{Shard, ShardId};
use crate::encoding::Changes;
use crate::error::Result;
use crate::handle::Store;
use crate::records::AttemptRecord;
use crate::tables::TableRows;
use crate::tables::publishing::{age, publish};
use crate::tests::fixtures::{answer, close, incident, incidents, steps, write};
use crate::tests::tables::rows;

const PATIENCE: Duration = Duration::from_secs(60);

const SHARD: JobsShard = JobsShard { shard: 1, shards: 2 };

struct Cluster {
    server: Server,
    runtime: Runtime,
}

impl Cluster {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start());
        Self { server, runtime }
    }

    fn bucket(&self, client: &str) -> Bucket {
        Bucket::with_few_retries("s3://bucket/some/cluster", self.server.settings(client)).unwrap()
    }

    /// Takes the shard from its owner, and opens its store.
    fn store(&self, client: &str) -> Store {
        let (bucket, shard) = (self.bucket(client), ShardId(SHARD.shard));
        let taking = Shard::take(&bucket, shard, None, PATIENCE);
        let shard = Arc::new(self.runtime.block_on(taking).unwrap());
        Store::open_shard(shard, self.runtime.handle().clone()).unwrap().0
    }

    fn publish(&self, client: &str, store: &Store) -> Result<TableRows> {
        self.runtime.block_on(publish(&self.bucket(client), SHARD, store))
    }

    /// Begins to publish, as the client `tables`.
    fn begin(&self, store: &Store) -> JoinHandle<Result<TableRows>> {
        let (bucket, store) = (self.bucket("tables"), store.clone());
        self.runtime.spawn(async move { publish(&bucket, SHARD, &store).await })
    }

    /// Rows of a table in the bucket.
    fn table(&self, table: &str) -> Vec<BTreeMap<String, Field>> {
        let path = format!("some/cluster/tables/{table}/shard=1/{table}.parquet");
        let bucket = self.bucket("reader");
        let read = async { bucket.objects.get(&Path::from(path)).await?.bytes().await };
        rows(self.runtime.block_on(read).unwrap())
    }

    /// Keys of all tables.
    fn keys(&self) -> Vec<String> {
        let keys = self.server.keys().into_iter();
        keys.filter(|key| key.contains("/tables/")).collect()
    }
}

/// Parts of these tables take so long.
fn slow(path: &'static str, time: Duration) -> Rule {
    Rule { method: Some(Method::PUT), path, ..Rule::of("tables", Fault::Slow(time)) }
}

fn attempt(store: &Store, serial: u32) {
    write(store, |changes| {
        changes.put(&AttemptRecord { serial, ..AttemptRecord::default() });
    });
}

#[test]
fn tables_in_the_bucket_are_replaced_and_disturb_nothing_else() {
    let cluster = Cluster::new();
    let bucket = cluster.bucket("a");
    cluster.runtime.block_on(join(&bucket, "a", Some(2))).unwrap();
    let age = || cluster.runtime.block_on(age(&bucket, SHARD)).unwrap();
    assert_eq!(age(), None);
    let store = cluster.store("a");
    attempt(&store, 1);
    incidents(&store, 0..3);
    assert_eq!(cluster.publish("a", &store).unwrap().incidents, 3);
    assert!(age().unwrap() < PATIENCE);
    let keys = cluster.keys();
    assert_eq!(keys.len(), 6, "{keys:?}");
    assert_eq!(cluster.table("attempts")[0]["attempt_serial"], Field::ULong(3));

    incidents(&store, 3..5);
    assert_eq!(cluster.publish("a", &store).unwrap().incidents, 5);
    assert_eq!((cluster.table("incidents").len(), cluster.keys()), (5, keys));

    // The prefix is still that of a cluster, and its check reads no table.
    cluster.runtime.block_on(join(&bucket, "b", None)).unwrap();
    let hint = Hint::new(&bucket, ShardId(SHARD.shard));
    let owner = memtape_core::placement::Owner::default();
    cluster.runtime.block_on(hint.put(None, &owner)).unwrap().unwrap();
    close(store);
    let checked = check_in(&bucket, cluster.runtime.handle()).unwrap();
    assert!(checked.findings.is_empty(), "{:?}", checked.findings);
}

#[test]
fn an_owner_that_was_replaced_replaces_no_table() {
    let cluster = Cluster::new();
    let first = cluster.store("a");
    incidents(&first, 0..1);
    // All is read, and the last part is on its way when the shard is taken.
    cluster.server.add_rule(slow("tables/actions", Duration::from_secs(5)));
    let publishing = cluster.begin(&first);
    let second = cluster.store("b");
    incidents(&second, 1..3);
    cluster.publish("b", &second).unwrap();
    assert!(cluster.runtime.block_on(publishing).unwrap().is_err());
    assert!(cluster.publish("a", &first).is_err());
    assert_eq!(cluster.table("incidents").len(), 3);
}

/// The earlier ones stay, and no part of an upload does.
#[test]
fn tables_that_cannot_be_written_are_an_error() {
    let cluster = Cluster::new();
    let store = cluster.store("a");
    incidents(&store, 0..1);
    cluster.publish("b", &store).unwrap();
    incidents(&store, 1..3);
    // All uploads are begun, and the parts of one are refused.
    let begun = cluster.server.uploads_begun();
    let method = Some(Method::PUT);
    let rule = Rule { method, path: "tables/actions", ..Rule::of("b", Fault::Unavailable) };
    cluster.server.add_rule(rule);
    let line = cluster.publish("b", &store).unwrap_err().to_string();
    assert!(line.contains("s3://bucket/some/cluster"), "{line}");
    let tables = cluster.keys().len() as u64;
    assert_eq!(cluster.server.uploads_begun() - begun, tables);
    assert_eq!((cluster.server.uploads_open(), cluster.table("incidents").len()), (0, 1));
}

#[test]
fn writes_are_acknowledged_while_tables_are_written() {
    let cluster = Cluster::new();
    let store = cluster.store("a");
    incidents(&store, 0..3);
    steps(&store, 0..10_000);
    cluster.server.add_rule(slow("tables/", PATIENCE));
    let publishing = cluster.begin(&store);
    let begun = Instant::now();
    for number in 0..5 {
        let (sender, receiver) = channel();
        let changes = Changes::of(&incident(&format!("inc-{number}"), "kept"));
        store.write(changes, Box::new(move |result| sender.send(result).unwrap()));
        answer(&receiver).unwrap();
    }
    steps(&store, 10_000..10_100);
    assert!(begun.elapsed() < PATIENCE && !publishing.is_finished());
    publishing.abort();
    // Its thread ends, too.
    close(store);
}
