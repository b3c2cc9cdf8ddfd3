//! Who sees lines of the files of a job, and that the audit has it.

use super::*;

#[tokio::test]
async fn operators_see_sources_and_each_read_is_audited() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    train(&mut agent, &JOB, 1000).await;
    let [admin, alice, olga] = ["admin", "alice", "olga"].map(|name| cluster.user(name));
    let path = "/jobs/alices-job/source?file=/gone/train.py&line=7";
    assert_eq!(alice.get(path).await.0, 403, "a viewer");
    let (status, shown) = olga.get(path).await;
    assert_eq!((status, &shown["lines"], &shown["line"]), (200, &json!([]), &json!(7)), "{shown}");
    assert!(shown["not_shown"].as_str().unwrap().contains("cannot be read"), "{shown}");
    let (_, audit) = admin.get("/audit").await;
    let entries = audit["entries"].as_array().unwrap().iter();
    let reads: Vec<_> = entries.filter(|entry| entry["action"] == "read source").collect();
    assert_eq!(reads.len(), 1, "{audit:#}");
    assert_eq!(reads[0]["subject"], "alices-job: /gone/train.py:7");
    assert_eq!(reads[0]["who"], "spiffe://memtape/user/olga");
    cluster.running.stop().await;
}
