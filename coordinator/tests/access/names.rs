//! Names of jobs that look like something else, or that two owners use.

use super::*;

#[tokio::test]
async fn a_job_called_as_another_path_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(config(folder.path())).await;
    let mut agent = Agent::attach(&running, "n1").await;
    train(&mut agent, &Job { name: "..", ..JOB }, 1000).await;
    let (_, jobs) = running.get("/api/v1/jobs").await;
    assert_eq!(jobs["jobs"][0]["job"], "..@1000", "{jobs}");
    assert_eq!(running.get("/api/v1/jobs/..@1000/ranks").await.0, 200);
    assert_eq!(running.post("/api/v1/jobs/..@1000/captures", "").await.0, 202);
    running.stop().await;
}

/// Two users have a job of one name, and the caller sees both: an error names their ids.
#[tokio::test]
async fn a_name_of_two_owners_is_reached_by_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(config(folder.path())).await;
    let mut agent = Agent::attach(&running, "n1").await;
    train(&mut agent, &JOB, 1000).await;
    let (ranks, other) = (format!("/api/v1/jobs/{}/ranks", JOB.name), Job { run: 2, ..JOB });
    assert_eq!(running.get(&ranks).await.1["job"], format!("{}@1000", JOB.name));
    train(&mut agent, &other, 666).await;
    let (status, answer) = running.get(&ranks).await;
    assert_eq!(status, 409, "{answer}");
    let (first, second) = (format!("{}@1000", JOB.name), format!("{}@666", JOB.name));
    let why = answer["error"].as_str().unwrap();
    assert!(why.contains(&first) && why.contains(&second), "{why}");
    for job in [&first, &second] {
        let (_, answer) = running.get(&format!("/api/v1/jobs/{job}/ranks")).await;
        assert_eq!(answer["job"], **job);
    }
    // The one that runs is meant.
    for rank in 0..other.ranks {
        let end = v1::RankEnd::Exited.into();
        let down = v1::RankDown { tape_id: other.tape(rank), end, ..v1::RankDown::default() };
        agent.say(FromAgent::RankDown(down)).await;
    }
    let is_first = |answer: &Value| answer["job"] == first;
    running.wait(&ranks, is_first).await;
    running.stop().await;
}
