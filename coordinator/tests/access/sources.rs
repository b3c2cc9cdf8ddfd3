//! The roles that see source lines, the files that are read, and the entries of the audit.

use std::os::unix::fs::MetadataExt as _;

use super::*;

#[tokio::test]
async fn operators_see_sources_and_each_file_is_audited() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    train(&mut agent, &JOB, 1000).await;
    let [admin, alice, olga] = ["admin", "alice", "olga"].map(|name| cluster.user(name));
    let sources = cluster.folder.path().join("sources");
    let path = format!("/jobs/alices-job/source?file={}/gone/train.py&line=7", sources.display());
    for (user, why) in [(&alice, "operators"), (&olga, "can read no such file")] {
        let (status, shown) = user.get(&path).await;
        let seen = (status, &shown["lines"], &shown["line"]);
        assert_eq!(seen, (200, &json!([]), &json!(7)), "{shown}");
        assert!(shown["not_shown"].as_str().unwrap().contains(why), "{shown}");
    }
    let long = format!("/jobs/alices-job/source?file=/{}.py&line=7", "a".repeat(1024));
    assert_eq!(olga.get(&long).await.0, 400);
    let (_, audit) = admin.get("/audit").await;
    let entries = audit["entries"].as_array().unwrap().iter();
    let reads: Vec<_> = entries.filter(|entry| entry["action"] == "read source").collect();
    assert_eq!(reads.len(), 1, "{audit:#}");
    assert!(reads[0]["subject"].as_str().unwrap().ends_with("/gone/train.py:7"), "{audit:#}");
    assert_eq!(reads[0]["who"], "spiffe://memtape/user/olga");
    cluster.running.stop().await;
}

/// Also where everyone is an operator.
#[tokio::test]
async fn a_source_is_shown_of_the_owner_of_the_job_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.py");
    std::fs::write(&file, "first()\nsecond()\n").unwrap();
    let owner = file.metadata().unwrap().uid();
    let source_dirs = vec![folder.path().to_path_buf()];
    let running = start(Config { source_dirs, ..config(&folder.path().join("data")) }).await;
    let mut agent = Agent::attach(&running, "n1").await;
    train(&mut agent, &JOB, owner).await;
    train(&mut agent, &OTHER, owner + 1).await;
    let shown = async |job: &str| {
        let path = format!("/api/v1/jobs/{job}/source?file={}&line=2", file.display());
        running.get(&path).await.1
    };
    let of_owner = shown(JOB.name).await;
    assert_eq!(of_owner["lines"], json!(["first()", "second()"]), "{of_owner}");
    assert_eq!((&of_owner["not_shown"], &of_owner["is_newer"]), (&json!(null), &json!(true)));
    let of_other = shown(OTHER.name).await;
    assert_eq!(of_other["lines"], json!([]), "{of_other}");
    running.stop().await;
}
